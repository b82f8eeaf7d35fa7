"""Test transfers by several processes of this machine: one lock, one receipt, and no file lost or left behind after kills."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.agent_signals import wait_for_agent_exit
from tests.support.transfers import Transfers, counts
from tests.support.trees import many_files

FILES = 5200  # enough for two workers
TREE = many_files(FILES, 300) | {b"large/%d" % number: bytes([number]) * (9 << 20) for number in range(4)}


def workers_of(process: int) -> list[int]:
    """Return the process ids of the workers of a command."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == process and b"routes.worker" in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
        except (OSError, IndexError):
            continue
    return found


def wait_for(condition: Callable[[], Any], seconds: float = 60.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    return found


def check_complete(there: Transfers) -> None:
    assert there.there() == TREE
    there.check_no_own_files()
    again = counts(there.push("--workers", "2"))
    assert (again["files_moved"], again["files_kept"]) == (0, len(TREE))


@pytest.fixture(params=["local", *(pytest.param(word, marks=pytest.mark.heavy) for word in ("ssh", "s3"))])
def there(request: pytest.FixtureRequest, transfers_to: Callable[[str], Transfers]) -> Transfers:
    place = transfers_to(request.param)
    place.make(TREE)
    return place


def test_two_workers_move_what_one_process_moves(there: Transfers) -> None:
    receipt = there.push("--workers", "2").last
    assert (receipt["files_moved"], receipt["files_failed"]) == (len(TREE), 0)
    assert (receipt["mover"], receipt["proof_moved"]) == ("stream", "digest")
    check_complete(there)
    assert there.verify().last["exit"] == 0


@pytest.mark.heavy
def test_the_journal_has_what_each_worker_sent_over_time(there: Transfers) -> None:
    receipt = there.push("--workers", "2", "--bwlimit", "8M").last
    journal = there.hibali.home.state / "operations" / f"{receipt['id']}.jsonl"
    [rates] = [json.loads(line) for line in journal.read_text().splitlines() if '"rates"' in line]
    assert set(rates["workers"]) == {"1", "2"}
    assert len(rates["seconds"]) == len(rates["bytes"]) >= 3
    assert receipt["bytes_moved"] * 0.8 < sum(rates["bytes"]) <= receipt["bytes_moved"]


@pytest.mark.heavy
def test_the_limit_of_a_site_is_a_number_of_workers(there: Transfers) -> None:
    there.hibali("config", "set", "sites.there.limits.workers", "2")
    process = there.hibali.start("push", there.source, "there:data", "--json")
    workers = wait_for(lambda: workers_of(process.pid) or process.poll() is not None)
    assert workers is not True, "the command ended without workers"
    assert len(workers) in {1, 2}
    assert process.wait(120) == 0
    check_complete(there)


@pytest.mark.heavy
def test_a_pull_with_workers_has_the_same_files(there: Transfers, tmp_path: Path) -> None:
    there.push()
    receipt = counts(there.pull(tmp_path / "back", "--workers", "2"))
    assert receipt["files_moved"] == len(TREE)
    found = subprocess.run(["diff", "-r", there.source, tmp_path / "back"], check=False, capture_output=True)
    assert (found.returncode, found.stdout) == (0, b"")


@pytest.mark.parametrize("committed", [1, 2000])
def test_the_files_of_a_killed_worker_are_moved_by_another(there: Transfers, committed: int) -> None:
    process = there.hibali.start("push", there.source, "there:data", "--json", "--workers", "2")
    wait_for(lambda: len(there.committed_files()) >= committed or process.poll() is not None)
    for worker in workers_of(process.pid)[:1]:
        os.kill(worker, signal.SIGKILL)
    assert process.wait(120) == 0
    last = json.loads((there.hibali.home.folder / "0.out").read_bytes().splitlines()[-1])
    assert (last["files_moved"], last["files_failed"]) == (len(TREE), 0)
    check_complete(there)


@pytest.mark.heavy
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_all_processes_end_with_the_command_and_the_same_command_resumes(
    there: Transfers, number: int
) -> None:
    process = there.hibali.start("push", there.source, "there:data", "--json", "--workers", "2")
    workers = wait_for(
        lambda: (there.committed_files() and workers_of(process.pid)) or process.poll() is not None
    )
    os.kill(process.pid, number)
    process.wait(10)
    if workers is not True:
        wait_for(lambda: not any(Path(f"/proc/{worker}/cmdline").exists() for worker in workers), 4.0)
    if there.place.word != "s3":
        wait_for_agent_exit(there)
    moved = counts(there.push("--workers", "2"))["files_moved"]
    assert moved <= len(TREE)
    check_complete(there)
