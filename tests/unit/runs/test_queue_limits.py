"""Test the limit of queued jobs: checked before submission, also with two processes."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from runs.queue_places import QueuePlaces, count_queued, format_queue_full, free_places
from runs.rate_limits import SharedPolling
from runs.store import RunStore

RUN = "20260102-030405-0a1b2c3d"
FIELDS: dict[str, Any] = {
    "pipeline": "p@1",
    "pipeline_digest": "d",
    "site": "here",
    "name": "",
    "container": "bare",
    "outputs": [],
}


def run_id(number: int) -> str:
    return f"20260102-030405-{number:08x}"


@given(st.integers(0, 10_000), st.dictionaries(st.text(), st.integers(0, 1000), max_size=8))
def test_free_places_are_between_zero_and_the_limit(limit: int, held: dict[str, int]) -> None:
    queued = count_queued(held)
    left = free_places(limit, queued)
    assert 0 <= left <= limit
    assert left == 0 or queued + left == limit


def test_the_reason_of_a_waiting_run_has_the_numbers() -> None:
    assert format_queue_full(100, 100) == "the queue is full: 100 of 100 jobs"


def test_places_are_reserved_once_and_released(hibali_home: Any) -> None:
    del hibali_home
    queued = QueuePlaces("juwels")
    assert queued.reserve(RUN, 3, 5)
    assert queued.reserve(RUN, 3, 5)  # the same command reserves the same places again
    assert not queued.reserve(f"{RUN}.2", 3, 5)
    assert queued.reserve(f"{RUN}.2", 2, 5)
    assert not queued.reserve(run_id(1), 1, 5)
    assert QueuePlaces("juwels").held() == {RUN: 3, f"{RUN}.2": 2}
    assert QueuePlaces("other").held() == {}
    queued.set_places(RUN, 1)
    assert queued.reserve(run_id(1), 2, 5)
    queued.set_places(f"{RUN}.2", 0)
    queued.set_places(f"{RUN}.2", 0)
    assert queued.runs() == sorted([RUN, run_id(1)])
    queued.release(RUN)
    assert queued.held() == {run_id(1): 2}


def test_a_job_larger_than_the_limit_is_submitted_alone(hibali_home: Any) -> None:
    del hibali_home
    queued = QueuePlaces("juwels")
    queued.reserve(RUN, 1, 5)
    assert not queued.reserve(run_id(1), 9, 5)
    queued.release(RUN)
    assert queued.reserve(run_id(1), 9, 5)
    assert not queued.reserve(RUN, 1, 5)


def test_a_submission_is_recorded_before_the_next_process_counts(hibali_home: Any) -> None:
    del hibali_home
    queued = QueuePlaces("juwels")
    noted: list[str] = []
    queued.reserve(RUN, 2, 2, on_reserved=lambda: noted.append("first"))
    queued.reserve(run_id(1), 2, 2, on_reserved=lambda: noted.append("second"))
    assert noted == ["first"]


def test_places_of_dead_processes_are_released(hibali_home: Any) -> None:
    del hibali_home
    queued = QueuePlaces("juwels")
    for holder in (RUN, f"{RUN}.1", run_id(1)):
        queued.reserve(holder, 1, 10)
    queued.release_stale(lambda found: found != RUN)
    assert queued.held() == {run_id(1): 1}


def test_threads_do_not_exceed_the_limit(hibali_home: Any) -> None:
    del hibali_home
    with ThreadPoolExecutor(4) as pool:
        granted = list(
            pool.map(lambda number: QueuePlaces("juwels").reserve(run_id(number), 1, 5), range(12))
        )
    assert granted.count(True) == 5
    assert count_queued(QueuePlaces("juwels").held()) == 5


def test_two_processes_do_not_exceed_the_limit(hibali_home: Any) -> None:
    script = (
        "import sys\nfrom runs.queue_places import QueuePlaces\n"
        "print(sum(QueuePlaces('juwels').reserve('20260102-030405-%08x' % n, 1, 7)"
        " for n in range(int(sys.argv[1]), int(sys.argv[1]) + 6)))"
    )
    running = [
        subprocess.Popen(
            [sys.executable, "-c", script, first], env=hibali_home.env, stdout=subprocess.PIPE, text=True
        )
        for first in ("0", "100")
    ]
    assert sum(int(process.communicate(timeout=60)[0]) for process in running) == 7


def test_processes_share_their_queries(hibali_home: Any) -> None:
    del hibali_home
    run_store = RunStore()
    assert SharedPolling("here", "direct").seconds_ago() > 1e9
    for number, scheduler in ((1, "direct"), (2, "slurm"), (3, "direct"), (4, "direct")):
        run_store.begin(run_id(number), f"{number:064x}", {**FIELDS, "scheduler": scheduler})
        QueuePlaces("here").reserve(run_id(number), 1, 10)
        if number != 4:
            run_store.note(run_id(number), "submitted", {"job": "7"})
    asking = SharedPolling("here", "direct")
    asking.note()
    assert SharedPolling("here", "direct").seconds_ago() < 60
    assert SharedPolling("here", "slurm").seconds_ago() > 1e9
    assert [run.id for run in asking.others(run_store, {run_id(3)})] == [run_id(1)]
    run_store.note(run_id(1), "seen", {"state": "SUCCEEDED", "native": "", "reason": ""})
    assert [run.id for run in asking.others(run_store, set())] == [run_id(3)]
