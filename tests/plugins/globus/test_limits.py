"""Test the limits of an account's Globus tasks, with several processes: they wait for each other, and not for ever."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from tests.services.globus import Globus
from tests.support.globus_sites import GlobusSites, globus_sites
from tests.support.trees import many_files, read_tree
from tests.support.waiting import wait_for

pytestmark = pytest.mark.heavy


@pytest.fixture
def sites(hibali: Any, globus: Globus, tmp_path: Path, request: pytest.FixtureRequest) -> GlobusSites:
    """Return a laptop with five folders, and a site that hibali and Globus both reach."""
    made = globus_sites(hibali, globus, tmp_path, request.getfixturevalue)
    made.add_local("far", tmp_path / "far")
    for number in range(5):
        made.make(many_files(3, 100), f"data{number}")
    return made


def _limit(sites: GlobusSites, most: int) -> None:
    sites.hibali("config", "set", "sites.far.limits.globus_tasks", str(most), exit=0)


def _start(sites: GlobusSites, number: int, *words: str) -> Any:
    return sites.hibali.start("push", sites.here / f"data{number}", f"far:data{number}", "--json", *words)


def _notes(sites: GlobusSites) -> str:
    return "".join(file.read_text() for file in sorted(sites.hibali.home.folder.glob("*.err")))


def _assert_all_there(sites: GlobusSites, count: int) -> None:
    for number in range(count):
        assert read_tree(sites.here / f"data{number}") == read_tree(sites.roots["far"] / f"data{number}")
    assert sites.ours() == []


def test_processes_share_the_limit_of_active_tasks(sites: GlobusSites) -> None:
    _limit(sites, 2)
    held = sites.globus.fault("held")
    processes = [_start(sites, number) for number in range(5)]
    wait_for(
        lambda: _notes(sites).count("this account has 2 active transfers, and `globus_tasks` allows 2") == 3
    )
    assert len(sites.transfers()) == 2
    held.clear()
    assert [process.wait(60) for process in processes] == [0] * 5
    _assert_all_there(sites, 5)
    assert len(sites.transfers()) == len(sites.globus.submissions()) == 5


def test_a_wait_ends_with_the_time_limit_of_the_transfer(sites: GlobusSites) -> None:
    """Check that a refused submission leaves nothing that a later call would submit."""
    _limit(sites, 1)
    held = sites.globus.fault("held")
    first = _start(sites, 0)
    wait_for(lambda: len(sites.transfers()) == 1)
    answer = sites.move("push", sites.here / "data1", "far:data1", "--give-up-after", "1s", code=5)
    assert answer.last["code"] == "too-many-tasks"
    assert len(sites.globus.submissions()) == 1
    held.clear()
    assert first.wait(60) == 0
    assert sites.move("push", sites.here / "data1", "far:data1").last["files_moved"] == 3
    assert len(sites.transfers()) == 2
    _assert_all_there(sites, 2)


def test_an_interrupted_wait_is_continued_by_the_same_command(sites: GlobusSites) -> None:
    _limit(sites, 1)
    held = sites.globus.fault("held")
    processes = [_start(sites, 0)]
    wait_for(lambda: len(sites.transfers()) == 1)
    waiting = _start(sites, 1)
    wait_for(lambda: "waiting until a Globus task ends" in _notes(sites))
    waiting.send_signal(signal.SIGINT)
    assert waiting.wait(30) == 130
    processes.append(_start(sites, 1))
    wait_for(lambda: _notes(sites).count("waiting until a Globus task ends") == 2)
    assert len(sites.globus.submissions()) == 1
    held.clear()
    assert [process.wait(60) for process in processes] == [0, 0]
    assert len(sites.transfers()) == 2
    _assert_all_there(sites, 2)


def test_a_submission_whose_answer_was_lost_does_not_wait_for_itself(sites: GlobusSites) -> None:
    _limit(sites, 1)
    lost = sites.globus.fault("lost_answer")
    held = sites.globus.fault("held")
    process = _start(sites, 0)
    wait_for(lambda: len(sites.transfers()) == 1)
    process.send_signal(signal.SIGKILL)
    process.wait()
    lost.clear()
    second = _start(sites, 0)
    task = sites.transfers()[0]["task_id"]
    wait_for(lambda: f"Globus task {task} transfers 3 files" in _notes(sites))
    assert "waiting until a Globus task ends" not in _notes(sites)
    held.clear()
    assert second.wait(60) == 0
    assert len(sites.transfers()) == 1
    _assert_all_there(sites, 1)


def test_a_submission_that_globus_refuses_is_repeated_with_its_id(sites: GlobusSites) -> None:
    """Check Globus's own limit of pending tasks, and that a task which it queues is reported."""
    sites.globus.settings(active_limit=1, pending_limit=2)
    all_held = sites.globus.fault("held")
    processes = [_start(sites, 0)]
    wait_for(lambda: len(sites.transfers()) == 1)
    held = sites.globus.fault("held", task=sites.transfers()[0]["task_id"])
    all_held.clear()
    processes += [_start(sites, 1)]
    wait_for(lambda: "is queued: Globus runs 3 of an account at a time" in _notes(sites))
    processes += [_start(sites, 2)]
    wait_for(lambda: "Globus reports ClientError.Conflict.TooManyPendingJobs" in _notes(sites))
    held.clear()
    assert [process.wait(60) for process in processes] == [0] * 3
    _assert_all_there(sites, 3)
    submissions = sites.globus.submissions()
    refused = {one["submission_id"] for one in submissions if one["code"].endswith("TooManyPendingJobs")}
    assert len(refused) == 1
    assert refused < {one["submission_id"] for one in submissions if one["code"] == "Accepted"}
    assert len(sites.transfers()) == 3
