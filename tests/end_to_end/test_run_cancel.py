"""Test cancelling runs at every moment: runs reported as cancelled were cancelled, and successful runs stay successful."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.run_tools import Bench, doing


def wait_until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def note(bench: Bench, run_id: str, kind: str, **fields: Any) -> None:
    """What an earlier call had noted when it was killed."""
    path = bench.hibali.home.state / "runs" / f"{run_id}.jsonl"
    with path.open("a") as stream:
        stream.write(json.dumps({"schema": 1, "kind": kind, "at": "2026-01-02T03:04:05Z", **fields}) + "\n")


def state_of(bench: Bench, run_id: str) -> str:
    return str(bench.hibali("runs", "show", run_id, "--json", exit=0).last["state"])


@pytest.mark.heavy
def test_a_tool_that_goes_on_without_its_child_has_not_succeeded(hibali: Any) -> None:
    bench = Bench(hibali, doing("sleep 60; true"))
    bench.add_local_site()
    run_id = bench.run(bench.answers(), exit=0).last["id"]
    wait_until((bench.folder / "work-here" / "runs" / run_id / "stderr").exists)
    assert hibali("runs", "cancel", run_id, "--json", exit=0).last["state"] == "CANCELLED"
    assert hibali("runs", "wait", run_id, "--json", exit=7).last["code"] == "run-cancelled"
    hibali("runs", "cancel", run_id, exit=0)
    assert state_of(bench, run_id) == "CANCELLED"


def test_a_wish_that_came_after_the_end_changes_nothing(hibali: Any) -> None:
    bench = Bench(hibali)
    work = bench.add_local_site()
    ids = {}
    for code in (0, 3):
        ids[code] = bench.run(bench.answers(code=code), exit=0).last["id"]
        wait_until((work / "runs" / ids[code] / "exit.json").exists)
    assert hibali("runs", "cancel", ids[0], "--json", exit=0).last["state"] == "SUCCEEDED"
    assert hibali("runs", "cancel", ids[3], "--json", exit=0).last["state"] == "FAILED"


@pytest.mark.heavy
def test_a_wish_whose_teller_was_killed_is_told_by_the_same_line(hibali: Any) -> None:
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
    go.touch()  # nobody told the scheduler of the other wish: it ends by itself
    assert hibali("runs", "wait", left, "--json", exit=0).last["state"] == "SUCCEEDED"


@pytest.mark.heavy
def test_a_run_that_was_never_submitted_is_cancelled_without_asking_its_site(hibali: Any) -> None:
    bench = Bench(hibali)
    work = bench.add_local_site()
    work.mkdir(mode=0o700)
    work.chmod(0o777)
    bench.run(bench.answers(), exit=8)  # it is in the ledger, and its site is not usable
    [run_id] = bench.run_ids()
    assert state_of(bench, run_id) == "PREPARED"
    assert hibali("runs", "cancel", run_id, "--json", exit=0).last["state"] == "CANCELLED"
    work.chmod(0o700)
    assert bench.run(bench.answers(), exit=7).last["code"] == "run-cancelled"
    assert not (work / "runs" / run_id / "submit").exists()
    ended = bench.run(bench.answers(), "--wait", exit=0).last  # its end was told: a new one
    assert ended["id"] != run_id


@pytest.mark.heavy
def test_a_submission_that_was_begun_and_never_seen_again_does_nothing_after_it_was_cancelled(
    hibali: Any,
) -> None:
    """The marker was made and no answer is there: a job may still turn up, and finds its turn taken."""
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
    told = hibali("runs", "wait", run_id, "--json", "--max-time", "2s", exit=5).last
    assert told["code"] == "max-time"  # it may become clear
    assert hibali("runs", "cancel", run_id, "--json", exit=0).last["state"] == "CANCELLED"
    assert (folder / "started").is_dir()
    assert bench.run(bench.answers(), exit=7).last["code"] == "run-cancelled"


@pytest.fixture
def slow_bench(hibali: Any, slurm: Any, tmp_path: Path) -> Bench:
    """A site on this machine whose sbatch says that it was called, and goes on when it is let."""
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
def test_a_run_that_is_being_submitted_is_cancelled_once_it_is(
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
