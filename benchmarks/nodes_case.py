"""Compare a transfer by one compute node with one by four, and with rclone and precomputed lists on the same four.

`python -m benchmarks.nodes_case` runs it: a real Slurm whose nodes have their own capped links, and a real object store.
Most bytes are in one file, which only a transfer that cuts files can share.
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
from benchmarks.peers import REPOSITORY, find_peer
from benchmarks.testbed import HIBALI
from tests.services.object_store import ObjectStore, start_object_store
from tests.services.processes import program, start
from tests.services.session import end_session
from tests.services.slurm import Slurm, start_slurm

NODES = 4
_SMALL = 2048


@dataclass(frozen=True)
class Cluster:
    """Slurm with capped nodes, a store that they reach, and a folder of files."""

    folder: Path
    slurm: Slurm
    store: ObjectStore
    environment: dict[str, str]
    files: int
    size: int


@contextlib.contextmanager
def cluster(files: int, size: int, megabits: float) -> Iterator[Cluster]:
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
            yield _prepare(session, slurm, store, port, files, size)
    finally:
        end_session(session)
        shutil.rmtree(session, ignore_errors=True)


def _prepare(session: Path, slurm: Slurm, store: ObjectStore, port: str, files: int, size: int) -> Cluster:
    data = session / "data"
    for number in range(files):
        path = data / f"{number % 200:03d}" / f"{number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(_SMALL))
    with (data / "large").open("wb") as stream:
        for _ in range(size // (1 << 20)):
            stream.write(os.urandom(1 << 20))
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
    return Cluster(session, slurm, store, environment, files + 1, files * _SMALL + size)


def hibali(found: Cluster, source: str, target: str, nodes: int) -> dict[str, Any]:
    """Run one transfer; return its receipt with the seconds of the whole command."""
    began = time.monotonic()
    words = [*HIBALI, "sync", source, target, "--nodes", str(nodes), "--on", "cluster", "--json", "-q"]
    done = subprocess.run(
        words, env=found.environment, capture_output=True, text=True, cwd=REPOSITORY, check=False
    )
    seconds = time.monotonic() - began
    receipt = json.loads(done.stdout.splitlines()[-1]) if done.stdout else {}
    if done.returncode or receipt["files_moved"] != found.files:
        raise RuntimeError(f"{done.stderr}\n{done.stdout[-2000:]}")
    return {"who": f"hibali, {counted_nodes(nodes)}", "seconds": seconds, "verified": receipt["proof_moved"]}


def counted_nodes(nodes: int) -> str:
    """Return the number of nodes as text."""
    return "1 node" if nodes == 1 else f"{nodes} nodes"


def rclone(found: Cluster, prefix: str, options: Sequence[str], title: str) -> dict[str, Any]:
    """Run rclone as four tasks of a job array; `options` may have the number of the task as `$SLURM_ARRAY_TASK_ID`."""
    script = found.folder / "rclone.sh"
    remote = f":s3,provider=Other,env_auth=true,endpoint='{found.environment['HIBALI_ENDPOINT']}',force_path_style=true"
    command = f'{find_peer("rclone")} copy {found.folder}/data "{remote}:data/{prefix}" --transfers 16 --checkers 4 --s3-no-check-bucket'
    script.write_text(f"#!/bin/sh\n{command} {' '.join(options)}\n")
    began = time.monotonic()
    words = [
        "sbatch",
        "--wait",
        f"--array=0-{NODES - 1}",
        "--mem=400",
        "--exclusive",
        "-o",
        "/dev/null",
        str(script),
    ]
    subprocess.run(
        words, env={**found.environment, **found.slurm.env}, check=True, capture_output=True, cwd=found.folder
    )
    return {"who": title, "seconds": time.monotonic() - began, "verified": "MD5 or ETag of each part"}


def write_lists(found: Cluster) -> None:
    """Divide the names into four lists of about equal bytes, as tools do that split by file."""
    paths = [path for path in (found.folder / "data").rglob("*") if path.is_file()]
    lists: list[tuple[int, list[str]]] = [(0, []) for _ in range(NODES)]
    for path in sorted(paths, key=lambda one: -one.stat().st_size):
        lists.sort(key=lambda one: one[0])
        size, names = lists[0]
        names.append(str(path.relative_to(found.folder / "data")))
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
    with cluster(chosen.files, chosen.size << 20, chosen.mbit) as found:
        there = f"cluster:{found.folder}/data"
        found.environment["HIBALI_ENDPOINT"] = _endpoint(found)
        print(json.dumps({"files": found.files, "bytes": found.size, "mbit": chosen.mbit}), flush=True)

        def show(result: dict[str, Any]) -> None:
            result["share of the links"] = found.size * 8 / 1e6 / chosen.mbit / result["seconds"]
            result["load"] = os.getloadavg()[0]
            print(json.dumps(result), flush=True)

        show(hibali(found, there, "bucket:four", NODES))
        if not chosen.no_peers:
            show(
                rclone(
                    found,
                    "hash",
                    ["--hash-filter", f"$SLURM_ARRAY_TASK_ID/{NODES}"],
                    "rclone --hash-filter, 4 nodes",
                )
            )
            write_lists(found)
            lists = f"{found.folder}/list-$SLURM_ARRAY_TASK_ID"
            show(
                rclone(
                    found,
                    "lists",
                    ["--files-from-raw", lists, "--no-traverse"],
                    "lists of equal bytes, 4 nodes",
                )
            )
        show(hibali(found, "bucket:four", f"cluster:{found.folder}/back", NODES))
        show(hibali(found, there, "bucket:one", 1))
        show(hibali(found, "bucket:one", f"cluster:{found.folder}/back-one", 1))


def _endpoint(found: Cluster) -> str:
    return "http://localhost:" + found.store.endpoint.rpartition(":")[2]


if __name__ == "__main__":
    main()
