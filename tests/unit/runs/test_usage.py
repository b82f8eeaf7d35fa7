"""Test the resource usage of tasks, from accounting and from exit records."""

from __future__ import annotations

from typing import Any

import pytest

from hibali.config.model import local_site
from runs.model import Run
from runs.monitor import note_usage
from runs.records import sweep_fields, sweep_of
from runs.site_session import SiteSession
from runs.store import RunStore
from transfers.remote.host import CommandResult

RUN = "20260102-030405-0a1b2c3d"
FIELDS: dict[str, Any] = {
    "pipeline": "p@1",
    "pipeline_digest": "d",
    "site": "here",
    "name": "",
    "scheduler": "slurm",
    "container": "bare",
    "outputs": [],
}


class Accounting:
    """A machine that runs one command."""

    def __init__(self, answer: bytes, code: int = 0) -> None:
        self._finished = CommandResult(code, answer, b"")
        self.queries = 0

    def run(self, words: tuple[str, ...], *, timeout: float) -> CommandResult:
        assert words[0] == "sacct"
        assert timeout
        self.queries += 1
        return self._finished


def ended_sweep(container: str = "bare") -> Run:
    """Return an ended sweep of three tasks in two arrays; each job measured half a second."""
    run_store = RunStore()
    numbers = (3, 17, 20)
    sweep = sweep_fields({number: {} for number in numbers}, dict.fromkeys(numbers, ()))
    run_store.begin(RUN, "1" * 64, {**FIELDS, "container": container, "sweep": sweep})
    run_store.note(RUN, "staged", {"folder": "/w", "chunks": ["3,17", "20"]})
    for chunk, job in ((1, "12"), (2, "13")):
        run_store.note(RUN, "chunk", {"chunk": chunk, "job": job})
    change = {"state": "SUCCEEDED", "native": "", "reason": "", "tasks": "3,17,20"}
    ends = [[number, 0, "t", "t", "h", 0.5] for number in numbers]
    return run_store.note(RUN, "tasks", {"changes": [change], "ends": ends})


@pytest.mark.usefixtures("hibali_home")
def test_tasks_have_usage_from_accounting_or_else_from_their_job() -> None:
    run_store = RunStore()
    run = ended_sweep()
    host: Any = Accounting(
        b"12_1|COMPLETED|0:0|00:02.500|\n12_1.batch|COMPLETED|0:0|00:02.500|2048K\n"
        b"12_2|COMPLETED|0:0|00:00:00|\n13_1|COMPLETED|0:0|01:00:00|\n13_1.batch|COMPLETED|0:0|01:00:00|1G\n"
    )
    session = SiteSession(local_site(), host, "slurm", run_store)
    note_usage(session, [run])
    found = run_store.load(RUN)
    tasks = sweep_of(found).tasks
    assert {number: (task.cpu_seconds, task.memory_bytes) for number, task in tasks.items()} == {
        3: (2.5, 2 << 20),
        17: (0.5, None),
        20: (3600.0, 1 << 30),
    }
    assert (found.status.cpu_seconds, found.status.memory_bytes) == (3602.5, 1 << 30)
    shown = found.to_record()["tasks"]
    assert [task["cpu_seconds"] for task in shown] == [2.5, 0.5, 3600.0]
    note_usage(session, [found])
    assert host.queries == 1


@pytest.mark.usefixtures("hibali_home")
def test_usage_of_a_daemon_s_container_is_not_counted_by_the_job() -> None:
    run = ended_sweep("podman")
    assert {task.cpu_seconds for task in sweep_of(run).tasks.values()} == {None}


@pytest.mark.usefixtures("hibali_home")
def test_without_accounting_the_usage_of_jobs_is_kept() -> None:
    run = ended_sweep()
    host: Any = Accounting(b"", 1)
    note_usage(SiteSession(local_site(), host, "slurm", RunStore()), [run])
    found = RunStore().load(RUN)
    assert found.results.accounted
    assert {task.cpu_seconds for task in sweep_of(found).tasks.values()} == {0.5}


@pytest.mark.usefixtures("hibali_home")
def test_records_of_older_versions_are_read() -> None:
    run = ended_sweep()
    change = {"state": "SUCCEEDED", "native": "", "reason": "", "tasks": "3"}
    again = RunStore().begin(
        "20260102-030405-00000002",
        "2" * 64,
        {**FIELDS, "sweep": sweep_fields({3: {}}, {3: ()})},
    )
    found = RunStore().note(again.id, "tasks", {"changes": [change], "ends": [[3, 0, "s", "e", "h"]]})
    task = sweep_of(found).tasks[3]
    assert (task.exit_code, task.started, task.cpu_seconds) == (0, "s", None)
    assert run.id != again.id
