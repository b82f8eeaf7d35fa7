"""Test --nodes: shards of a transfer as tasks of a real Slurm, between its filesystem and a real object store."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.run_tools import Bench, doing
from tests.support.backends import add_site, make_backend
from tests.support.slurm_requeue import LostNode, requeue_job
from tests.support.waiting import wait_for

MIB = 1 << 20
LARGE = 100 * MIB + 12345
pytestmark = pytest.mark.timeout(300)


class Site:
    """A cluster with a folder of data, and a bucket."""

    def __init__(self, hibali: Any, slurm: Any, place: Any) -> None:
        self.hibali = hibali
        self.place = place
        self.bench = Bench(hibali, doing("true"))
        self.work = self.bench.add_slurm_site(slurm)
        self.data = self.bench.folder / "data"
        add_site(hibali.home.config, "bucket", place)
        hibali.env.update(place.env)

    def make(self, files: dict[str, bytes]) -> None:
        for name, content in files.items():
            path = self.data / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)

    def configure(self, before: str, lines: str) -> None:
        """Put lines into the cluster's table, before a setting."""
        config = self.hibali.home.config
        config.write_text(config.read_text().replace(before, lines + before, 1))

    def sync(self, source: str, target: str, *words: str, exit: int = 0) -> dict[str, Any]:  # noqa: A002
        return self.hibali("sync", source, target, *words, "--json", exit=exit).last

    def left(self) -> list[str]:
        folders = [*self.work.glob("transfers/*"), *self.work.glob("runs/*")]
        return [str(path) for path in folders]


@pytest.fixture
def site(hibali: Any, slurm: Any, tmp_path: Path, request: pytest.FixtureRequest) -> Site:
    return Site(hibali, slurm, make_backend("s3", tmp_path, request.getfixturevalue))


def tree() -> dict[str, bytes]:
    small = {f"d{number % 7}/{number}": b"%d" % number * number for number in range(600)}
    return {**small, "large": os.urandom(LARGE), "empty": b"", "odd \xe9\n'name": b"odd"}


def receipt_of(last: dict[str, Any]) -> dict[str, Any]:
    kept = (
        "files_moved",
        "bytes_moved",
        "files_kept",
        "files_deleted",
        "files_failed",
        "proof_moved",
        "exit",
    )
    return {name: last[name] for name in kept}


def content_of(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.mark.heavy
def test_from_a_folder_to_a_bucket_and_back(site: Site) -> None:
    site.make(tree())
    there = f"cluster:{site.data}"
    serial = site.sync(there, "bucket:serial")
    sharded = site.sync(there, "bucket:t", "--nodes", "3")
    assert receipt_of(sharded) == receipt_of(serial)
    assert sharded["mover"] == "nodes"
    assert site.sync(there, "bucket:t", "--checksum", "--recorded")["files_moved"] == 0
    assert site.left() == []
    back = site.sync("bucket:t", f"cluster:{site.data}-back", "--nodes", "3", "--on", "cluster")
    assert content_of(Path(f"{site.data}-back")) == content_of(site.data)
    assert (back["files_moved"], back["proof_moved"]) == (serial["files_moved"], "recorded")
    assert not (Path(f"{site.data}-back") / ".hibali").exists()
    keys = [line for line in json.dumps(site.hibali("runs", "list", "--json").lines) if "AWS" in line]
    assert keys == []


@pytest.mark.heavy
def test_from_one_folder_to_another(site: Site) -> None:
    site.make(tree())
    (site.data / "link").symlink_to("large")
    there = f"cluster:{site.data}"
    done = site.sync(there, f"cluster:{site.data}-2", "--nodes", "2", "--delete")
    assert done["proof_moved"] == "digest"
    assert content_of(Path(f"{site.data}-2")) == content_of(site.data)
    assert str(Path(f"{site.data}-2/link").readlink()) == "large"
    (site.data / "d1/1").unlink()
    (site.data / "d1/8").write_bytes(b"new")
    again = site.sync(there, f"cluster:{site.data}-2", "--nodes", "2", "--delete")
    assert (again["files_moved"], again["files_deleted"]) == (1, 1)


def begin(site: Site, source: str, target: str) -> Any:
    """Start a slow transfer, and return its process once its tasks have moved something."""
    process = site.hibali.start("sync", source, target, "--nodes", "3", "--bwlimit", "12M", "--json")

    def moved() -> bool:
        found = list(site.work.glob("transfers/*/journals/*"))
        return sum(path.stat().st_size for path in found) > 1500 and any(
            b'"file"' in path.read_bytes() for path in found
        )

    wait_for(moved, 240)  # the jobs of other tests may be first in the queue
    return process


def workers(site: Site) -> list[int]:
    found = subprocess.run(
        ["pgrep", "-f", f"{site.work}/transfers/.*/program.py"], capture_output=True, text=True, check=False
    )
    return [int(word) for word in found.stdout.split()]


@pytest.mark.heavy
@pytest.mark.parametrize("target", ["folder", "bucket"])
def test_the_same_command_goes_on_after_its_process_was_killed(site: Site, target: str) -> None:
    site.make(tree())
    size = sum(len(content) for content, _ in content_of(site.data).values())
    there = f"cluster:{site.data}"
    where = f"{there}-2" if target == "folder" else "bucket:t"
    process = begin(site, there, where)
    process.kill()
    process.wait()
    if target == "folder":
        refused = site.hibali("sync", there, where, "--json", exit=5)
        assert b"locked" in refused.err, "the jobs still hold the lock"
    last = site.sync(there, where, "--nodes", "3", "--bwlimit", "12M")
    assert (last["files_moved"], last["files_kept"], last["proof_moved"]) == (603, 0, "digest")
    assert last["bytes_sent"] <= 1.05 * size
    assert site.left() == []
    assert site.sync(there, where)["files_moved"] == 0
    if target == "bucket":
        assert site.place.unfinished("") == set()
        assert site.place.read("t", b"large") == (site.data / "large").read_bytes()
    else:
        assert content_of(Path(f"{site.data}-2")) == content_of(site.data)


@pytest.mark.heavy
def test_an_interrupted_call_says_that_the_tasks_continue(site: Site) -> None:
    site.make(tree())
    process = begin(site, f"cluster:{site.data}", f"cluster:{site.data}-2")
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 130
    errors = (site.bench.folder / "0.err").read_text()
    assert "the tasks continue; to end them: hibali runs cancel 2" in errors
    run = re.findall(r"hibali runs cancel (\S+)", errors)[-1]
    site.hibali("runs", "cancel", run, exit=0)
    wait_for(lambda: not workers(site), 60)
    last = site.sync(f"cluster:{site.data}", f"cluster:{site.data}-2", "--nodes", "3")
    assert last["files_moved"] == 603
    assert content_of(Path(f"{site.data}-2")) == content_of(site.data)


@pytest.mark.heavy
def test_a_shard_that_was_killed_is_submitted_again(site: Site) -> None:
    site.make(tree())
    size = sum(len(content) for content, _ in content_of(site.data).values())
    there = f"cluster:{site.data}"
    process = begin(site, there, f"{there}-2")
    os.kill(workers(site)[-1], signal.SIGKILL)
    assert process.wait(timeout=120) == 0
    last = json.loads((site.bench.folder / "0.out").read_bytes().splitlines()[-1])
    assert last["files_moved"] == 603
    assert last["bytes_sent"] <= size + 16 * MIB * 4
    assert content_of(Path(f"{site.data}-2")) == content_of(site.data)
    assert not (Path(f"{site.data}-2") / ".hibali").exists()


def shards_of(slurm: Any, node: str = "") -> list[str]:
    """Return Slurm's numbers of the running tasks, as ARRAY_TASK; only those at `node`, if it is named."""
    words = ["squeue", "-h", "-r", "-t", "R", "-o", "%i", *(["-w", node] if node else [])]
    answer = subprocess.run(
        words, env={**os.environ, **slurm.env}, capture_output=True, text=True, check=True, timeout=30
    )
    return answer.stdout.split()


def check_complete(site: Site, process: Any) -> None:
    """Check that the transfer that was begun ends well and has sent little twice."""
    assert process.wait(timeout=200) == 0
    size = sum(len(content) for content, _ in content_of(site.data).values())
    last = json.loads((site.bench.folder / "0.out").read_bytes().splitlines()[-1])
    assert (last["files_moved"], last["files_failed"], last["proof_moved"]) == (603, 0, "digest")
    assert last["bytes_sent"] <= size + 16 * MIB * 4
    assert content_of(Path(f"{site.data}-2")) == content_of(site.data)
    assert not (Path(f"{site.data}-2") / ".hibali").exists()
    assert site.left() == []


@pytest.mark.heavy
def test_a_shard_that_an_administrator_requeued_goes_on(site: Site, slurm: Any) -> None:
    site.make(tree())
    process = begin(site, f"cluster:{site.data}", f"cluster:{site.data}-2")
    requeue_job(slurm, shards_of(slurm)[0])
    check_complete(site, process)


@pytest.mark.heavy
@pytest.mark.parametrize("works_on", [False, True], ids=["ended", "unreachable"])
def test_shards_of_a_lost_node_go_on_at_another(
    hibali: Any, slurm_with_two_nodes: Any, tmp_path: Path, request: pytest.FixtureRequest, works_on: bool
) -> None:
    slurm = slurm_with_two_nodes
    site = Site(hibali, slurm, make_backend("s3", tmp_path, request.getfixturevalue))
    site.make(tree())
    with LostNode(slurm, "first") as node:
        process = begin(site, f"cluster:{site.data}", f"cluster:{site.data}-2")
        assert shards_of(slurm, "first"), "nothing runs at the node that is lost"
        node.lose([] if works_on else workers(site))
        check_complete(site, process)


def test_a_detached_call_leaves_the_jobs_and_the_same_command_finishes(site: Site) -> None:
    site.make({f"{number}": b"%d" % number for number in range(50)})
    words = ("sync", f"cluster:{site.data}", f"cluster:{site.data}-2", "--nodes", "2", "--json")
    detached = site.hibali(*words, "--detach", exit=5)
    assert b"the same command again" in detached.err
    last = site.hibali(*words, exit=0).last
    assert (last["files_moved"], last["files_kept"]) == (50, 0)
    assert site.left() == []


@pytest.mark.heavy
def test_shards_share_the_limits_of_the_object_store(site: Site) -> None:
    site.make({f"{number}": b"%d" % number for number in range(50)})
    limits = "[sites.bucket.limits]\n"
    config = site.hibali.home.config
    config.write_text(config.read_text().replace(limits, f"{limits}requests = 40\nconnections = 2\n"))
    done = site.hibali("sync", f"cluster:{site.data}", "bucket:t", "--nodes", "3", "--json", exit=0)
    assert b"2 nodes instead of 3: limits.connections of bucket is 2" in done.err
    assert done.last["files_moved"] == 50
    assert site.left() == []


@pytest.mark.heavy
def test_nodes_hash_files_where_they_are(site: Site) -> None:
    site.make(tree())
    there = f"cluster:{site.data}"
    plain = site.hibali("manifest", there, exit=0).out
    assert site.hibali("manifest", there, "--nodes", "2", exit=0).out == plain
    (site.bench.folder / "sums").write_bytes(plain)
    checked = ("verify", there, "--manifest", "sums", "--nodes", "2", "--json")
    assert site.hibali(*checked, exit=0).last["files_kept"] == 603
    (site.data / "d1/1").write_bytes(b"X")
    (site.data / "d2/2").unlink()
    found = site.hibali(*checked, exit=6)
    assert {line["path"]: line["code"] for line in found.lines if line["kind"] == "failed"} == {
        "d1/1": "differs",
        "d2/2": "missing",
    }
    assert site.left() == []


def test_what_nodes_cannot_reach_is_refused(site: Site) -> None:
    site.make({"a": b"a"})
    site.sync(f"cluster:{site.data}", "bucket:a")
    for words in (
        ("push", site.data, "bucket:t", "--nodes", "2", "--on", "cluster"),
        ("sync", "bucket:a", "bucket:b", "--nodes", "2", "--on", "cluster"),
        ("sync", f"cluster:{site.data}", "bucket:b", "--on", "cluster"),
        ("sync", f"cluster:{site.data}", "bucket:b", "--nodes", "2", "--direct"),
        ("sync", f"cluster:{site.data}", "bucket:b", "--nodes", "2", "--rename", "s/a/b/"),
        ("verify", "bucket:a", "--nodes", "2", "--on", "cluster"),
    ):
        assert site.hibali(*words, exit=2).err.startswith(b"hibali: ")


def test_a_folder_that_nodes_do_not_see_is_refused_before_anything_is_submitted(site: Site) -> None:
    site.make({"archive/a": b"a", "a": b"a"})
    site.configure("work = ", f'roots = {{ archive = {{ path = "{site.data}/archive", nodes = false }} }}\n')
    folder, archive = f"cluster:{site.data}", "cluster:@archive"
    for words in (
        ("sync", archive, "bucket:a"),
        ("sync", f"{folder}/a", f"{archive}/b"),
        ("manifest", archive),
    ):
        assert b"do not see the root of this folder" in site.hibali(*words, "--nodes", "1", exit=2).err
    assert site.left() == []


def test_jobs_of_transfers_have_a_partition_of_their_own(site: Site, slurm: Any) -> None:
    site.make({"a": b"a"})
    site.configure("directives = ", 'transfer_partition = "share"\n')
    answer = site.hibali("manifest", f"cluster:{site.data}", "--nodes", "1", exit=0)
    (run,) = re.findall(r"hibali runs show (\S+)", answer.err.decode())
    task = site.hibali("runs", "show", run, "--json", exit=0).last["tasks"][0]
    words = ["scontrol", "show", "job", f"{task['job']}_{task['index']}"]
    shown = subprocess.run(words, env={**os.environ, **slurm.env}, capture_output=True, check=True)
    assert b"Partition=share" in shown.stdout
