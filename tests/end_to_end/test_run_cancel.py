"""Test cancelling runs at every moment: runs reported as cancelled were cancelled, and successful runs stay successful."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runs.model import State, Submission
from tests.end_to_end.run_tools import Bench, doing
from tests.support.runs import change_run, make_run


def wait_until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def note(bench: Bench, run_id: str, kind: str, **fields: Any) -> None:
    """Write a record that an earlier call had written when it was killed."""
    path = bench.hibali.home.state / "runs" / f"{run_id}.jsonl"
    with path.open("a") as stream:
        stream.write(json.dumps({"schema": 1, "kind": kind, "at": "2026-01-02T03:04:05Z", **fields}) + "\n")


def state_of(bench: Bench, run_id: str) -> str:
    return str(bench.hibali("runs", "show", run_id, "--json", exit=0).last["state"])


@pytest.mark.heavy
def test_a_cancelled_tool_that_outlives_its_child_has_not_succeeded(hibali: Any) -> None:
    bench = Bench(hibali, doing("sleep 60; true"))
    bench.add_local_site()
    run_id = bench.run(bench.answers(), exit=0).last["id"]
    wait_until((bench.folder / "work-here" / "runs" / run_id / "stderr").exists)
    assert hibali("runs", "cancel", run_id, "--json", exit=0).last["state"] == "CANCELLED"
    assert hibali("runs", "wait", run_id, "--json", exit=7).last["code"] == "run-cancelled"
    hibali("runs", "cancel", run_id, exit=0)
    assert state_of(bench, run_id) == "CANCELLED"


def test_the_same_command_starts_a_new_run_after_a_cancelled_one(hibali: Any) -> None:
    bench = Bench(hibali)
    bench.add_local_site()
    line = bench.line(bench.answers(sleep=60))
    first = hibali(*line, exit=0).out.decode().strip()
    assert hibali("runs", "cancel", first, "--json", exit=0).last["state"] == "CANCELLED"
    second = hibali(*line, exit=0).out.decode().strip()
    assert second != first
    hibali("runs", "cancel", second, exit=0)


def test_a_cancellation_that_the_scheduler_accepted_withdraws_the_run() -> None:
    begun = Submission(job="7", begun=True, cancelled=True)
    accepted = replace(begun, cancel_accepted=True)
    cases = {
        (begun, State.RUNNING): False,  # the scheduler may not know of it
        (accepted, State.RUNNING): True,
        (accepted, State.CANCELLED): True,
        (accepted, State.SUCCEEDED): False,  # it ended before
        (Submission(job="7"), State.CANCELLED): False,  # not by hibali
    }
    for (submission, state), withdrawn in cases.items():
        run = change_run(make_run(), submission=submission, state=state)
        assert run.is_withdrawn is withdrawn, (submission, state)


def test_cancelling_an_ended_run_changes_nothing(hibali: Any) -> None:
    bench = Bench(hibali)
    work = bench.add_local_site()
    ids = {}
    for code in (0, 3):
        ids[code] = bench.run(bench.answers(code=code), exit=0).last["id"]
        wait_until((work / "runs" / ids[code] / "exit.json").exists)
    assert hibali("runs", "cancel", ids[0], "--json", exit=0).last["state"] == "SUCCEEDED"
    both = hibali("runs", "cancel", "20000101-000000-00000000", ids[0], "--json", exit=3)
    assert [line["kind"] for line in both.lines] == ["run", "error"]
    assert hibali("runs", "cancel", ids[3], "--json", exit=0).last["state"] == "FAILED"


@pytest.mark.heavy
def test_a_killed_cancel_command_is_completed_by_the_same_command(hibali: Any) -> None:
    go = hibali.home.folder / "go"
    bench = Bench(hibali, doing(f"until [ -e {go} ]; do sleep 0.1; done; cp [IN] [OUT]"))
    work = bench.add_local_site()
    killed = bench.run(bench.answers(), exit=0).last["id"]
    note(bench, killed, "cancel")
    (work / "runs" / killed / "cancel").touch()
    note(bench, killed, "cancel", marked=True)
    left = bench.run(bench.answers(), "--name", "left", exit=0).last["id"]
    note(bench, left, "cancel")
    (work / "runs" / left / "cancel").touch()
    note(bench, left, "cancel", marked=True)
    assert state_of(bench, killed) == "RUNNING"
    assert hibali("runs", "cancel", killed, "--json", exit=0).last["state"] == "CANCELLED"
    go.touch()  # the scheduler was not told to cancel this run, so it ends by itself
    assert hibali("runs", "wait", left, "--json", exit=0).last["state"] == "SUCCEEDED"


@pytest.mark.heavy
def test_a_run_that_was_never_submitted_is_cancelled_without_contacting_its_site(hibali: Any) -> None:
    bench = Bench(hibali)
    work = bench.add_local_site()
    work.mkdir(mode=0o700)
    work.chmod(0o777)
    bench.run(bench.answers(), exit=8)  # it is in the ledger, but its site is not usable
    [run_id] = bench.run_ids()
    assert state_of(bench, run_id) == "PREPARED"
    assert hibali("runs", "cancel", run_id, "--json", exit=0).last["state"] == "CANCELLED"
    work.chmod(0o700)
    ended = bench.run(bench.answers(), "--wait", exit=0).last  # its end was shown, so this is a new one
    assert ended["id"] != run_id
    assert not (work / "runs" / run_id / "submit").exists()


@pytest.mark.heavy
def test_a_lost_submission_does_nothing_after_its_run_was_cancelled(hibali: Any) -> None:
    """Check that a job that starts late, after a submission with a marker and no answer, finds the marker and does nothing."""
    bench = Bench(hibali)
    work = bench.add_local_site()
    work.mkdir(mode=0o700)
    work.chmod(0o777)
    bench.run(bench.answers(), exit=8)
    work.chmod(0o700)
    [run_id] = bench.run_ids()
    folder = work / "runs" / run_id
    (folder / "submit").mkdir(parents=True)
    note(bench, run_id, "staged", folder=str(folder))
    note(bench, run_id, "submitting")
    error = hibali("runs", "wait", run_id, "--json", "--max-time", "2s", exit=5).last
    assert error["code"] == "max-time"  # its state may still become known
    assert hibali("runs", "cancel", run_id, "--json", exit=0).last["state"] == "CANCELLED"
    assert (folder / "started").is_dir()
    assert bench.run(bench.answers(), "--wait", exit=0).last["id"] != run_id
    assert not (folder / "exit.json").exists()


@pytest.fixture
def slow_bench(hibali: Any, slurm: Any, tmp_path: Path) -> Bench:
    """Return a site on this machine whose sbatch reports its call, and continues when it is allowed to."""
    programs = tmp_path / "programs"
    programs.mkdir()
    wrapper = programs / "sbatch"
    wrapper.write_text(
        f"#!/bin/sh\ntouch {tmp_path}/called\nuntil [ -e {tmp_path}/let ]; do sleep 0.05; done\n"
        f'exec {shutil.which("sbatch")} "$@"\n'
    )
    wrapper.chmod(0o755)
    hibali.env |= {**slurm.env, "PATH": f"{programs}:{os.environ['PATH']}"}
    made = Bench(hibali)
    made.add_site(
        "here",
        f'kind = "local"\nwork = "{made.folder}/work"\n[sites.here.scheduler]\nname = "slurm"\n'
        'directives = ["--mem=50"]\n[sites.here.limits]\npoll = "1s"',
    )
    return made


@pytest.mark.heavy
def test_a_run_cancelled_during_its_submission_is_cancelled_after_it(
    slow_bench: Bench, slurm: Any, tmp_path: Path
) -> None:
    hibali = slow_bench.hibali
    launching = hibali.start(*slow_bench.line(slow_bench.answers(sleep=60)))
    wait_until((tmp_path / "called").exists)
    [run_id] = slow_bench.run_ids()
    cancelling = hibali.start("runs", "cancel", run_id)
    wait_until(lambda: any(each["kind"] == "cancel" for each in slow_bench.records(run_id)))
    (tmp_path / "let").touch()
    assert launching.wait(60) == 0
    assert cancelling.wait(60) == 0
    assert hibali("runs", "wait", run_id, "--json", exit=7).last["code"] == "run-cancelled"
    wait_until(lambda: slurm.jobs_ended(run_id) == 1)
