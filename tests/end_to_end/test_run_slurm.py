"""Test runs on a real Slurm by ssh: each job is submitted once, even after crashes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.run_tools import Bench, doing
from tests.support.slurm_requeue import requeue_job, start_job_now


@pytest.fixture
def bench(hibali: Any, slurm: Any) -> Bench:
    made = Bench(hibali)
    made.add_slurm_site(slurm)
    return made


def wait_until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def jobs_of(slurm: Any, run_id: str) -> int:
    """Return the jobs of a run in Slurm's own log, once they are written."""
    wait_until(lambda: slurm.jobs_ended(run_id) > 0)
    return int(slurm.jobs_ended(run_id))


def test_a_run_goes_through_the_queue_to_verified_outputs(bench: Bench, slurm: Any) -> None:
    there = bench.folder / "there.txt"
    there.write_text("in place\n")
    answers = bench.answers(more=[f"cluster:{there}"])
    run = bench.run(answers, exit=0).last
    assert run["state"] == "SUBMITTED"
    ended = bench.hibali("runs", "wait", run["id"], "--json", exit=0).last
    assert ended["state"] == "SUCCEEDED"
    # the job's own marker may appear before Slurm has noticed the end
    assert ended["tasks"][0]["native"] in {"RUNNING", "COMPLETING", "COMPLETED"}
    receipt = bench.hibali("runs", "collect", run["id"], "back", "--json", exit=0).last
    assert (receipt["files_moved"], receipt["proof_moved"]) == (1, "digest")
    assert (bench.folder / "back" / "out.txt").read_text() == "hello\nin place\n"
    assert jobs_of(slurm, run["id"]) == 1


@pytest.mark.heavy
@pytest.mark.parametrize("ended", ["waited for", "cancelled"])
def test_a_heterogeneous_job_is_followed_by_its_first_component(
    hibali: Any, slurm_with_two_nodes: Any, ended: str
) -> None:
    """Two groups of resources in one job, as on Cluster and Booster of a modular machine (sbatch(1), `hetjob`)."""
    bench, slurm = Bench(hibali), slurm_with_two_nodes
    bench.add_slurm_site(slurm)
    groups = ("--directive=hetjob", "--directive=--partition=share", "--directive=--mem=50")
    answers = bench.answers(sleep=0 if ended == "waited for" else 120)
    run = bench.run(answers, *groups, exit=0).last
    if ended == "cancelled":
        bench.hibali("runs", "cancel", run["id"], exit=0)
    bench.hibali("runs", "wait", run["id"], exit=7 if ended == "cancelled" else 0)
    shown = bench.hibali("runs", "show", run["id"], "--json").last
    assert shown["state"] == ("CANCELLED" if ended == "cancelled" else "SUCCEEDED")
    words = ["squeue", "--noheader", "--states=all", f"--name={run['id']}", "--format=%i"]
    listed = subprocess.run(words, env={**os.environ, **slurm.env}, capture_output=True, check=True)
    assert [line.rpartition(b"+")[2] for line in listed.stdout.split()] == [b"0", b"1"]


def test_a_failing_tool_is_exit_7(bench: Bench) -> None:
    failed = bench.run(bench.answers(code=4), "--wait", exit=7)
    assert failed.lines[-2]["tasks"][0]["exit_code"] == 4


@pytest.mark.heavy
def test_the_same_command_killed_at_five_points_submits_one_job(
    hibali: Any, slurm: Any, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    bench = Bench(hibali, doing(f"until [ -e {go} ]; do sleep 0.1; done; cp [IN] [OUT]"))
    bench.add_slurm_site(slurm)
    line = bench.line(bench.answers(), "--wait")

    def reached(point: str) -> bool:
        ids = bench.run_ids()
        return bool(ids) and any(
            point in {record["kind"], record.get("state")} for record in bench.records(ids[0])
        )

    for point in ("prepared", "staged", "submitting", "submitted", "RUNNING"):
        process = bench.hibali.start(*line)
        wait_until(lambda point=point: reached(point))
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert len(bench.run_ids()) == 1
    go.touch()
    ended = bench.hibali(*line, "--json", exit=0).last
    [run_id] = bench.run_ids()
    assert (ended["id"], ended["state"]) == (run_id, "SUCCEEDED")
    assert jobs_of(slurm, run_id) == 1

    again = bench.hibali(*line, "--json", exit=0).last["id"]  # its end was reported, so this is a new one
    another = bench.hibali(*line, "--new", "--json", exit=0).last["id"]
    assert len({run_id, again, another}) == 3
    assert [jobs_of(slurm, each) for each in (run_id, again, another)] == [1, 1, 1]


@pytest.fixture
def killing_bench(hibali: Any, slurm: Any, tmp_path: Path) -> Bench:
    """Return a site on this machine whose sbatch submits and then kills its caller, once."""
    real = shutil.which("sbatch")
    programs = tmp_path / "programs"
    programs.mkdir()
    wrapper = programs / "sbatch"
    wrapper.write_text(
        f'#!/bin/sh\n{real} "$@" >{tmp_path}/output\nif mkdir {tmp_path}/killed; then kill -9 "$PPID"; fi\ncat {tmp_path}/output\n'
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


@pytest.mark.heavy  # test_exactly_once.py has a short test of this kind
def test_a_job_whose_submission_reply_was_lost_is_found(killing_bench: Bench, slurm: Any) -> None:
    line = killing_bench.line(killing_bench.answers(), "--wait")
    killing_bench.hibali(*line, exit=5)
    killing_bench.hibali(*line, exit=0)
    [run_id] = killing_bench.run_ids()
    assert jobs_of(slurm, run_id) == 1


def test_a_rejected_submission_reports_the_reason_and_the_corrected_site_starts_the_run(
    bench: Bench, slurm: Any
) -> None:
    config = bench.hibali.home.config
    right = config.read_text()
    config.write_text(right.replace('name = "slurm"', 'name = "slurm"\npartition = "nowhere"'))
    refused = bench.run(bench.answers(), "--wait", exit=2).last
    assert refused["code"] == "submission-rejected"
    assert "nowhere" in refused["message"]
    config.write_text(right)
    run_id = bench.run("answers.json", "--wait", exit=0).last["id"]
    assert len(bench.run_ids()) == 2  # the rejected one ended
    assert jobs_of(slurm, run_id) == 1


def test_a_requeued_job_does_nothing_and_is_never_reported_as_success(bench: Bench, slurm: Any) -> None:
    run_id = bench.run(bench.answers(sleep=60), exit=0).last["id"]
    folder = bench.folder / "work-cluster" / "runs" / run_id
    wait_until((folder / "started" / "job").exists)
    job = (folder / "started" / "job").read_text().strip()
    requeue_job(slurm, job)
    wait_until((folder / "exit.json").exists)
    [task] = bench.hibali("runs", "show", run_id, "--json", exit=0).last["tasks"]
    assert task["state"] == "WAITING"
    assert task["reason"].startswith("the scheduler stopped the tool and requeued the job")
    wait_until(lambda: start_job_now(slurm, job))
    wait_until((folder / "again").exists, 150.0)
    assert bench.hibali("runs", "wait", run_id, "--json", exit=5).last["code"] == "run-lost"


def test_cancelling_ends_the_job(bench: Bench, slurm: Any) -> None:
    run_id = bench.run(bench.answers(sleep=60), exit=0).last["id"]
    bench.hibali("runs", "cancel", run_id, exit=0)
    assert bench.hibali("runs", "wait", run_id, "--json", exit=7).last["code"] == "run-cancelled"
    assert jobs_of(slurm, run_id) == 1


@pytest.mark.heavy
def test_accounting_has_jobs_that_left_the_queue(hibali: Any, slurm_with_accounting: Any) -> None:
    bench = Bench(hibali)
    bench.add_slurm_site(slurm_with_accounting)
    ended = bench.run(bench.answers(), "--wait", exit=0).last
    question = f"sacct -n -P -X --name={ended['id']} -o State,ExitCode"
    # slurmctld reports to slurmdbd with a delay.
    deadline = time.monotonic() + 60
    while not (found := slurm_with_accounting.run(question).stdout.split()) and time.monotonic() < deadline:
        time.sleep(0.5)
    assert found == [b"COMPLETED|0:0"]
