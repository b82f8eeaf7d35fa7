"""Test runs whose Slurm answers as real clusters did: wrappers around the real commands give the answers that were seen there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.run_tools import Bench
from tests.services.processes import SYSTEM_PATH
from tests.support.waiting import wait_for

Lie = Callable[..., Bench]


@pytest.fixture
def lie(hibali: Any, slurm: Any, tmp_path: Path) -> Iterator[Lie]:
    """Return a function that adds the cluster as a site of this machine, with scripts in place of some of its commands.

    In a script `$REAL` is the real command.
    """

    def lying(work: str = "work", **scripts: str) -> Bench:
        programs = tmp_path / "programs"
        programs.mkdir()
        for name, script in scripts.items():
            wrapper = programs / name
            real = shutil.which(name, path=SYSTEM_PATH)
            wrapper.write_text(f"#!/bin/sh\nREAL={real}\n{script}\n")
            wrapper.chmod(0o755)
        hibali.env |= {**slurm.env, "PATH": f"{programs}:{os.environ['PATH']}"}
        bench = Bench(hibali)
        bench.add_site(
            "here",
            f'kind = "local"\nwork = \'{bench.folder}/{work}\'\n[sites.here.scheduler]\nname = "slurm"\n'
            'directives = ["--mem=50"]\n[sites.here.limits]\npoll = "1s"',
        )
        return bench

    yield lying
    environment = {**os.environ, **slurm.env}
    for path in (hibali.home.state / "runs").glob("*.jsonl"):
        subprocess.run(["scancel", f"--name={path.stem}"], env=environment, check=False)


def folder_of(bench: Bench) -> Path:
    [run_id] = bench.run_ids()
    return bench.folder / "work" / "runs" / run_id


KILLED = 'case "$*" in *--jobs=*) id=${*#*--jobs=}; id=${id%% *}; echo "$id:FAILED:JobLaunchFailure" ;; *) exec $REAL "$@" ;; esac'


@pytest.mark.parametrize("accounting", [True, False])
def test_a_job_killed_for_its_memory_failed_with_the_memory_as_its_reason(lie: Lie, accounting: bool) -> None:
    """Slurm 22.05 with OverMemoryKill: the script is killed, too, and leaves no exit record."""
    sacct = (
        'id=${*#*--jobs=}; id=${id%% *}; echo "$id|FAILED|0:9|00:00.002||50M"; echo "$id.batch|CANCELLED by 0|0:9||317120K|"'
        if accounting
        else "echo 'Slurm accounting storage is disabled' >&2; exit 1"
    )
    bench = lie(squeue=KILLED, sacct=sacct)
    run_id = bench.run(bench.answers(sleep=20), exit=0).last["id"]
    if not accounting:
        wait_for((folder_of(bench) / "scheduler.log").exists)
        line = "slurmstepd-vm: error: StepId=1.batch exceeded memory limit (324730880 > 52428800), being killed\n"
        (folder_of(bench) / "scheduler.log").write_text(line)
    run, error = bench.hibali("runs", "wait", run_id, "--json", exit=7).lines[-2:]
    assert run["state"] == "FAILED"
    reason = "ended by the scheduler: FAILED, out of memory: used 325 MB, requested 52.4 MB"
    assert run["tasks"][0]["reason"] == reason
    assert run["tasks"][0]["memory_bytes"] == 317120 * 1024 if accounting else 324730880
    assert reason in error["message"]


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        (("--directive=--bogus=1",), ("unrecognized option", "--directive")),
        (("--partition=nowhere",), ("invalid partition specified: nowhere; sbatch: error", "--partition")),
        (("--param", "say=a,b", "--directive=--begin=x"), ("Invalid --begin specification", "--directive")),
    ],
)
def test_a_rejected_job_ends_its_run_at_once_and_the_corrected_command_starts_one(
    lie: Lie, tmp_path: Path, typed: tuple[str, ...], words: tuple[str, str]
) -> None:
    """sbatch ends with 255 for errors in its options: this was searched for minutes and submitted again."""
    bench = lie(sbatch='echo called >>"${0%/*}/calls"; exec $REAL "$@"')
    refused = bench.run(bench.answers(), *typed, exit=2).last
    assert refused["code"] == "submission-rejected"
    assert words[0] in refused["message"]
    assert words[1] in refused["hint"]
    assert (tmp_path / "programs" / "calls").read_text() == "called\n"
    [run] = [each for each in bench.hibali("runs", "list", "--json", exit=0).lines if each["kind"] == "run"]
    assert (run["state"], words[0] in run["tasks"][0]["reason"]) == ("CANCELLED", True)
    ended = bench.run("answers.json", "--wait", exit=0).last
    assert ended["id"] != run["id"]


SILENT = "echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2; exit 1"


@pytest.mark.heavy
def test_ends_are_reported_while_squeue_fails_and_a_short_pause_is_waited_for(lie: Lie) -> None:
    """The exit record at the site says how a run ended, but it was read only after an answer of the scheduler."""
    bench = lie(squeue=SILENT)
    ended = bench.run(bench.answers(sleep=1), "--wait", "--collect", "back", exit=0).last
    assert ended["state"] == "SUCCEEDED"
    assert (bench.folder / "back" / "out.txt").exists()
    until = time.time() + 3
    folder = bench.hibali.home.state / "sites" / "here"
    refused = {"schema": 1, "times": 5, "because": "connect failure", "until": until}
    (folder / "refusals.json").write_text(json.dumps(refused))
    run = bench.run(bench.answers(code=3), "--param", "say=a,b", "--wait", exit=7).lines[-2]
    assert [task["exit_code"] for task in run["tasks"]] == [3, 3]
    assert time.time() >= until
    left = bench.run(bench.answers(say="left"), exit=0).last
    wait_for((bench.folder / "work" / "runs" / left["id"] / "exit.json").exists)
    bench.hibali("runs", "collect", left["id"], "left", exit=0)


@pytest.mark.heavy
def test_waiting_says_once_why_a_job_cannot_start(lie: Lie) -> None:
    bench = lie()
    run_id = bench.run(bench.answers(), "--cores", "100", exit=0).last["id"]
    waited = bench.hibali("runs", "wait", run_id, "--max-time", "5s", exit=5)
    assert waited.err.count(b"PartitionConfig") == 1
    assert f"hibali runs cancel {run_id}".encode() in waited.err
    bench.hibali("runs", "cancel", run_id, exit=0)


def test_too_many_jobs_in_the_queue_name_the_setting(lie: Lie) -> None:
    """With AccountingStorageEnforce=limits and MaxSubmitJobs."""
    policy = "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"
    said = f"sbatch: error: AssocMaxSubmitJobLimit\\nsbatch: error: Batch job submission failed: {policy}\\n"
    bench = lie(sbatch=f'printf "%b" "{said}" >&2; exit 1')
    refused = bench.run(bench.answers(), exit=5).last
    assert refused["code"] == "scheduler-busy"
    assert "queued_jobs" in refused["hint"]


@pytest.mark.parametrize("work", ["100%jobs", "a\\b"])
def test_a_work_folder_may_have_characters_of_slurm_s_patterns(lie: Lie, work: str) -> None:
    """Slurm wrote the log of each job into another folder, and started none."""
    bench = lie(work)
    ended = bench.run(bench.answers(), "--wait", exit=0).last
    [log] = (bench.folder / work / "runs" / ended["id"]).glob("scheduler.log")
    assert log.exists()
    bench.run("answers.json", "--param", "say=a,b", "--wait", exit=0)


ENDED = 'case "$*" in *--jobs=*) id=${*#*--jobs=}; id=${id%% *}; echo "$id:STATE:None" ;; *) exec $REAL "$@" ;; esac'


@pytest.mark.heavy  # after the grace period for late exit records; tests/unit/runs/test_status.py tests the states
@pytest.mark.parametrize("state", ["PREEMPTED", "NODE_FAIL"])
def test_a_preempted_job_is_reported_in_the_words_of_slurm(lie: Lie, state: str) -> None:
    bench = lie(squeue=ENDED.replace("STATE", state), sacct="exit 1")
    lost = bench.run(bench.answers(sleep=90), "--wait", exit=5).last
    assert lost["code"] == "run-lost"
    assert lost["message"].endswith(f"the scheduler ended the job: {state}")


def test_a_failing_line_of_the_prologue_ends_the_job_before_its_tool(lie: Lie) -> None:
    bench = lie()
    config = bench.hibali.home.config
    config.write_text(
        config.read_text().replace("directives =", 'prologue = ["module_ load FSL"]\ndirectives =')
    )
    run = bench.run(bench.answers(), "--wait", exit=7).lines[-2]
    assert run["state"] == "FAILED"
    assert "exit code 127: module_ load FSL" in run["tasks"][0]["reason"]
    assert not (folder_of(bench) / "work" / "out.txt").exists()
