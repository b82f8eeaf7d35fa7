"""Compare a transfer by one compute node with one by four, and with rclone on the same four.

A real Slurm whose nodes have their own capped links, and a real object store. Most bytes are in one file, which only a transfer that
cuts files can share.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.case import Brief, Case, Contender, PreparedCase, Target, compare, count_objects
from benchmarks.node_network import GATEWAY, node_network
from benchmarks.s3_cases import push
from benchmarks.samples import Amount, Bar
from benchmarks.testbed import HIBALI, Testbed, peer_or_reason
from benchmarks.trees import count_tree
from tests.services.object_store import ObjectStore, start_object_store
from tests.services.processes import program, start
from tests.services.session import end_session
from tests.services.slurm import Slurm, start_slurm

_NODES = 4
_MEGABITS = 40  # of each node's link, in a second
_SMALL = (4000, 2048)
_LARGE = 256 << 20
_FOUR, _ONE = "hibali, 4 nodes", "hibali, 1 node"


@dataclass(frozen=True)
class Cluster:
    """Slurm with capped nodes, a store that they reach, and the files in `folder`/source and in the bucket under the same name."""

    folder: Path
    store: ObjectStore
    endpoint: str
    environment: dict[str, str]
    amount: Amount


@dataclass(frozen=True)
class NodesTarget(Target):
    """The folder or the prefix of a run."""

    cluster: Cluster
    up: bool

    def check(self, name: str) -> None:
        store, folder = self.cluster.store, self.cluster.folder
        compare(
            count_objects(store, "data", name) if self.up else count_tree(folder / name), self.cluster.amount
        )


@contextlib.contextmanager
def _cluster(testbed: Testbed) -> Iterator[Cluster]:
    """Start everything; the data is in memory, so that only the links limit it."""
    session = Path(tempfile.mkdtemp(prefix="hib-nodes-", dir="/dev/shm"))
    session.chmod(0o711)
    try:
        with node_network(session, _NODES, _MEGABITS) as nodes:
            slurm = start_slurm(session, session / "slurm", nodes=nodes, address=GATEWAY)
            store = start_object_store(session, session / "object-store")
            port = store.endpoint.rpartition(":")[2]
            forward = [program("socat", "socat"), f"TCP-LISTEN:{port},bind={GATEWAY},fork,reuseaddr"]
            start(session, [*forward, f"TCP:127.0.0.1:{port}"], session / "socat.log")
            amount = _write_files(session / "source", testbed.scale)
            _add_sites(testbed, session, slurm, store, port)
            own = {**testbed.environment(), **store.env, **slurm.env}
            yield Cluster(session, store, f"http://localhost:{port}", own, amount)
    finally:
        end_session(session)
        shutil.rmtree(session, ignore_errors=True)


def _add_sites(testbed: Testbed, folder: Path, slurm: Slurm, store: ObjectStore, port: str) -> None:
    """Configure the sites, and create the bucket."""
    testbed.add_site(
        "cluster",
        f'kind = "ssh"\nwork = "{folder}/work"\n[sites.cluster.ssh]\nhost = "{slurm.host}"\n'
        f'command = {json.dumps(list(slurm.command))}\n[sites.cluster.scheduler]\nname = "slurm"\n'
        'directives = ["--mem=400", "--exclusive"]\n[sites.cluster.limits]\npoll = "2s"\n',
    )
    testbed.add_site(
        "bucket", f'kind = "s3"\n[sites.bucket.s3]\nendpoint = "http://localhost:{port}"\nbucket = "data"\n'
    )
    with contextlib.closing(store.client()) as client:
        client.create_bucket(Bucket="data")


def _write_files(folder: Path, scale: float) -> Amount:
    count, size = int(_SMALL[0] * scale), _SMALL[1]
    for number in range(count):
        path = folder / f"{number % 200:03d}" / f"{number}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.urandom(size))
    (folder / "large").write_bytes(os.urandom(int(_LARGE * scale)))
    return count_tree(folder)


def _contenders(found: Cluster, *, up: bool) -> list[Contender]:
    folder = f"cluster:{found.folder}"
    target = NodesTarget(found, up)

    def hibali(name: str, nodes: int) -> Contender:
        more = ["--nodes", str(nodes), "--on", "cluster", "--quiet"]

        def argv(run: str) -> list[str]:
            ends = (f"{folder}/source", f"bucket:{run}") if up else ("bucket:source", f"{folder}/{run}")
            return [*HIBALI, "sync", *ends, *more]

        return Contender(name, argv, target, found.environment)

    rclone, missing = peer_or_reason("rclone")

    def array(run: str) -> list[str]:
        """Return a job array with a task for each node."""
        remote = f":s3,provider=Other,env_auth=true,endpoint='{found.endpoint}',force_path_style=true:data"
        ends = (f"{found.folder}/source", f"{remote}/{run}")
        ends = ends if up else (f"{remote}/source", f"{found.folder}/{run}")
        script = found.folder / f"{run}.sh"
        script.write_text(
            f'#!/bin/sh\nexec {rclone} copy "{ends[0]}" "{ends[1]}" --transfers 16 --checkers 4 --s3-no-check-bucket'
            f" --config /dev/null --exclude '.hibali/**' --hash-filter $SLURM_ARRAY_TASK_ID/{_NODES}\n"
        )
        words = ["sbatch", "--wait", f"--array=0-{_NODES - 1}", "--mem=400", "--exclusive", "-o", "/dev/null"]
        return [*words, str(script)]

    peer = Contender("rclone --hash-filter, 4 nodes", array, target, found.environment, missing=missing)
    return [hibali(_FOUR, 4), hibali(_ONE, 1), peer]


def _prepare(*, up: bool) -> Callable[[Testbed], contextlib.AbstractContextManager[PreparedCase]]:
    @contextlib.contextmanager
    def prepare(testbed: Testbed) -> Iterator[PreparedCase]:
        with _cluster(testbed) as found:
            if not up:  # by hibali, which stores the checksums that the downloads verify
                push(found.folder / "source", "bucket:source", found.environment)
            yield PreparedCase(found.amount, _contenders(found, up=up))

    return prepare


_BARS = (
    Bar("at least 3 times as fast as one node", _FOUR, 3.0, at_least=True, than=(_ONE,)),
    Bar(
        "at least 2 times as fast as rclone on the same nodes",
        _FOUR,
        2.0,
        at_least=True,
        than=("rclone --hash-filter, 4 nodes",),
    ),
)

CASES = tuple(
    Case(
        f"nodes-{name}",
        f"{name}: {{count}} files, of which one has most of the bytes, by the nodes of a Slurm cluster with {_MEGABITS} Mbit/s each,"
        " and SeaweedFS; jobs that start and end included",
        _prepare(up=name == "up"),
        _BARS,
        repeats=3,
        brief=Brief(0.5, 1),
    )
    for name in ("up", "down")
)
