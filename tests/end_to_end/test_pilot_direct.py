"""Sweeps whose tasks share one job, where there is no scheduler: each with its own end, and going on after whatever ends the job."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.run_tools import Bench
from tests.support.pilots import journal, pilot_pids
from tests.support.sweeps import descriptor_in, ran
from tests.support.waiting import wait_for


@pytest.fixture
def bench(hibali: Any) -> Bench:
    made = Bench(hibali, descriptor_in(hibali.home.folder))
    made.add_local_site()
    return made


def folder_of(bench: Bench, run: dict[str, Any]) -> Path:
    return bench.folder / "work-here" / "runs" / str(run["id"])


def test_tasks_that_share_a_job_have_their_own_ends_and_logs(bench: Bench) -> None:
    bench.answers(more=["input.txt"])
    (bench.folder / "table.csv").write_text("say,code\na,0\nb,3\nc,0\n")
    line = bench.line("answers.json", "--each", "table.csv", "--pilot", "--cores", "2", "--wait")
    ended = bench.hibali(*line, "--collect", "back", "--json", exit=7)
    run = ended.lines[-2]
    assert (run["counts"], run["pilot"]) == ({"SUCCEEDED": 2, "FAILED": 1}, {"allocations": 1, "most": 5})
    assert [(task["number"], task["exit_code"]) for task in run["tasks"]] == [(1, 0), (2, 3), (3, 0)]
    assert len({task["job"] for task in run["tasks"]}) == 1
    assert ran(bench) == ["a", "b", "c"]
    assert (bench.folder / "back" / "3" / "out.txt").read_text() == "hello\nhello\nc\n"
    assert bench.hibali("runs", "logs", run["id"], "--task", "2", exit=0).out == b"said\n"
    folder = folder_of(bench, run)
    first, *_, last = journal(folder)
    assert (first["kind"], first["left"], last["because"], last["left"]) == ("pilot", 3, "done", 0)
    assert not (folder / "chunks" / "1" / "hq").exists()  # the key to it is gone

    (bench.folder / "mended").touch()
    again = bench.hibali("runs", "rerun", run["id"], "--failed", "--wait", "--json", exit=0).last
    assert [(task["number"], task["state"]) for task in again["tasks"]] == [(2, "SUCCEEDED")]
    assert again["pilot"] == {"allocations": 1, "most": 5}
