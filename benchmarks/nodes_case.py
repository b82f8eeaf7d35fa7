"""Compare a transfer by one compute node with one by four, and with rclone and precomputed lists on the same four.

`python -m benchmarks.nodes_case` runs it: a real Slurm whose nodes have their own capped links, and a real object store.
Most bytes are in one file, which only a transfer that cuts files can share. One node moves a quarter of the files and of
the bytes, because all would take four times as long: its bytes a second are compared. A peer that needs twice hibali's
time is stopped.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.node_network import GATEWAY, node_network
from benchmarks.peers import REPOSITORY, find_peer, prepare_peers
from benchmarks.testbed import HIBALI
from tests.services.object_store import ObjectStore, start_object_store
from tests.services.processes import program, start
from tests.services.session import end_session
from tests.services.slurm import Slurm, start_slurm

NODES = 4
_SMALL = 2048
_PATIENCE = 2.0  # how many times hibali's seconds a peer may take


@dataclass(frozen=True)
class Amount:
    """Small files, and the bytes of the large one."""

    small: int
    large: int

    @property
    def files(self) -> int:
        """All files."""
        return self.small + 1

    @property
    def bytes(self) -> int:
        """The bytes of all files."""
        return self.small * _SMALL + self.large


@dataclass(frozen=True)
class Cluster:
    """Slurm with capped nodes, a store that they reach, and two folders of files: `all` and a `quarter` of them."""

    folder: Path
    slurm: Slurm
    environment: dict[str, str]
    amounts: dict[str, Amount]


@contextlib.contextmanager
def cluster(amount: Amount, megabits: float) -> Iterator[Cluster]:
    """Start everything; the data is in memory, so that only the links limit it."""
    session = Path(tempfile.mkdtemp(prefix="hibali-nodes-", dir="/dev/shm"))
    session.chmod(0o711)
    try:
        with node_network(session, NODES, megabits) as nodes:
            slurm = start_slurm(session, session / "slurm", nodes=nodes, address=GATEWAY)
            store = start_object_store(session, session / "object-store")
            port = store.endpoint.rpartition(":")[2]
            forward = [program("socat", "socat"), f"TCP-LISTEN:{port},bind={GATEWAY},fork,reuseaddr"]
            start(session, [*forward, f"TCP:127.0.0.1:{port}"], session / "socat.log")
            yield _prepare(session, slurm, store, port, amount)
    finally:
        end_session(session)
        shutil.rmtree(session, ignore_errors=True)


def _prepare(session: Path, slurm: Slurm, store: ObjectStore, port: str, amount: Amount) -> Cluster:
    amounts = {"all": amount, "quarter": Amount(amount.small // 4, amount.large // 4)}
    for name, part in amounts.items():
        _write_files(session / name, part)
    words = json.dumps(list(slurm.command))
    config = session / "config.toml"
    config.write_text(
        f'version = 1\n[sites.cluster]\nkind = "ssh"\nwork = "{session}/work"\n[sites.cluster.ssh]\nhost = "{slurm.host}"\n'
        f'command = {words}\n[sites.cluster.scheduler]\nname = "slurm"\ndirectives = ["--mem=400", "--exclusive"]\n'
        f'[sites.cluster.limits]\npoll = "2s"\n'
        f'[sites.bucket]\nkind = "s3"\n[sites.bucket.s3]\nendpoint = "http://localhost:{port}"\nbucket = "data"\n'
    )
    config.chmod(0o600)
    client = store.client()
    client.create_bucket(Bucket="data")
    (session / "state").mkdir()
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(session),
        "HIBALI_CONFIG": str(config),
        "HIBALI_STATE": str(session / "state"),
        **store.env,
    }
    environment["HIBALI_ENDPOINT"] = f"http://localhost:{port}"
    return Cluster(session, slurm, environment, amounts)


def _write_files(data: Path, amount: Amount) -> None:
    for number in range(amount.small):
        path = data / f"{number % 200:03d}" / f"{number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(_SMALL))
    with (data / "large").open("wb") as stream:
        for _ in range(amount.large // (1 << 20)):
            stream.write(os.urandom(1 << 20))


def hibali(found: Cluster, source: str, target: str, nodes: int, amount: Amount) -> dict[str, Any]:
    """Run one transfer; return the seconds of the whole command."""
    began = time.monotonic()
    words = [*HIBALI, "sync", source, target, "--nodes", str(nodes), "--on", "cluster", "--json", "-q"]
    done = subprocess.run(
        words, env=found.environment, capture_output=True, text=True, cwd=REPOSITORY, check=False
    )
    seconds = time.monotonic() - began
    receipt = json.loads(done.stdout.splitlines()[-1]) if done.stdout else {}
    if done.returncode or receipt["files_moved"] != amount.files:
        raise RuntimeError(f"{done.stderr}\n{done.stdout[-2000:]}")
    return {
        "who": f"hibali, {counted_nodes(nodes)}",
        "from": source,
        "seconds": seconds,
        "MB/s": amount.bytes / 1e6 / seconds,
        "sent again": receipt["bytes_moved"] / amount.bytes - 1,
        "verified": receipt["proof_moved"],
    }


def counted_nodes(nodes: int) -> str:
    """Return the number of nodes as text."""
    return "1 node" if nodes == 1 else f"{nodes} nodes"


def rclone(found: Cluster, prefix: str, options: Sequence[str], title: str, most: float) -> dict[str, Any]:
    """Run rclone as four tasks of a job array, and stop it after `most` seconds.

    `options` may have the number of the task as `$SLURM_ARRAY_TASK_ID`.
    """
    script = found.folder / "rclone.sh"
    remote = f":s3,provider=Other,env_auth=true,endpoint='{found.environment['HIBALI_ENDPOINT']}',force_path_style=true"
    command = f'{find_peer("rclone")} copy {found.folder}/all "{remote}:data/{prefix}" --transfers 16 --checkers 4 --s3-no-check-bucket'
    script.write_text(f"#!/bin/sh\n{command} {' '.join(options)}\n")
    words = [
        "sbatch",
        "--parsable",
        f"--array=0-{NODES - 1}",
        "--mem=400",
        "--exclusive",
        "-o",
        "/dev/null",
        str(script),
    ]
    environment = {**found.environment, **found.slurm.env}
    began = time.monotonic()
    job = _output(words, environment, found.folder).strip()
    while _output(["squeue", "-h", "-j", job], environment, found.folder):
        if time.monotonic() - began > most:
            _output(["scancel", job], environment, found.folder)
            most, title = float("inf"), f"{title}, stopped"
        time.sleep(1)
    return {"who": title, "seconds": time.monotonic() - began, "verified": "MD5 or ETag of each part"}


def _output(words: Sequence[str], environment: dict[str, str], folder: Path) -> str:
    return subprocess.run(
        words, env=environment, check=True, capture_output=True, text=True, cwd=folder
    ).stdout


def write_lists(found: Cluster) -> None:
    """Divide the names into four lists of about equal bytes, as tools do that split by file."""
    paths = [path for path in (found.folder / "all").rglob("*") if path.is_file()]
    lists: list[tuple[int, list[str]]] = [(0, []) for _ in range(NODES)]
    for path in sorted(paths, key=lambda one: -one.stat().st_size):
        lists.sort(key=lambda one: one[0])
        size, names = lists[0]
        names.append(str(path.relative_to(found.folder / "all")))
        lists[0] = (size + path.stat().st_size + _SMALL, names)
    for number, (_, names) in enumerate(lists):
        (found.folder / f"list-{number}").write_text("\n".join(names) + "\n")


def main() -> None:
    """Run the case and print one line of JSON a contender."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--files", type=int, default=200_000)
    options.add_argument("--size", type=int, default=600, help="of the large file, in MiB")
    options.add_argument("--mbit", type=float, default=10, help="of each node's link, Mbit/s")
    options.add_argument("--no-peers", action="store_true")
    chosen = options.parse_args()
    if not chosen.no_peers:
        prepare_peers()
    amount = Amount(chosen.files, chosen.size << 20)
    with cluster(amount, chosen.mbit) as found:
        print(json.dumps({"files": amount.files, "bytes": amount.bytes, "mbit": chosen.mbit}), flush=True)
        first = _show(hibali(found, _folder(found, "all"), "bucket:all", NODES, amount))
        quarter = found.amounts["quarter"]
        one = _show(hibali(found, _folder(found, "quarter"), "bucket:quarter", 1, quarter))
        _show({"who": "4 nodes to 1 node, to the store", "ratio": first["MB/s"] / one["MB/s"]})
        if not chosen.no_peers:
            _run_peers(found, _PATIENCE * first["seconds"])
        back = _show(hibali(found, "bucket:all", _folder(found, "back"), NODES, amount))
        one = _show(hibali(found, "bucket:quarter", _folder(found, "back-quarter"), 1, quarter))
        _show({"who": "4 nodes to 1 node, from the store", "ratio": back["MB/s"] / one["MB/s"]})


def _folder(found: Cluster, name: str) -> str:
    return f"cluster:{found.folder}/{name}"


def _show(result: dict[str, Any]) -> dict[str, Any]:
    print(json.dumps({**result, "load": os.getloadavg()[0]}), flush=True)
    return result


def _run_peers(found: Cluster, most: float) -> None:
    options = ["--hash-filter", f"$SLURM_ARRAY_TASK_ID/{NODES}"]
    _show(rclone(found, "hash", options, "rclone --hash-filter, 4 nodes", most))
    write_lists(found)
    options = ["--files-from-raw", f"{found.folder}/list-$SLURM_ARRAY_TASK_ID", "--no-traverse"]
    _show(rclone(found, "lists", options, "rclone with lists of equal bytes, 4 nodes", most))


if __name__ == "__main__":
    main()
