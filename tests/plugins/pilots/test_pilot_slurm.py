"""Test pilots on a real Slurm: one job runs all tasks, another one follows when it ends early, and no task runs twice."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.run_tools import Bench, doing
from tests.support.pilots import journal
from tests.support.recording_slurm import recording_slurm
from tests.support.slurm_requeue import requeue_job, start_job_now
from tests.support.sweeps import descriptor_in, ran
from tests.support.waiting import wait_for

TASKS = 1000
QUEUE_SECONDS = 500  # seconds: thousands of jobs of other tests may be ahead in the same queue
pytestmark = pytest.mark.timeout(1500)


@pytest.fixture
def bench(hibali: Any, slurm: Any) -> Bench:
    made = Bench(hibali, descriptor_in(hibali.home.folder))
    made.add_slurm_site(slurm)
    return made


def folder_of(bench: Bench, run: dict[str, Any]) -> Path:
    return bench.folder / "work-cluster" / "runs" / str(run["id"])


def job_of(folder: Path, chunk: int = 1) -> str:
    path = folder / "chunks" / str(chunk) / "started" / "job"
    wait_for(path.exists, QUEUE_SECONDS)
    return path.read_text().strip()


def call_slurm(slurm: Any, *words: str) -> bool:
    environment = {**os.environ, **slurm.env}
    return subprocess.run(words, env=environment, check=False, capture_output=True).returncode == 0


def skip_sleep(folder: Path, *numbers: int) -> None:
    """Let the next attempt of these tasks skip the sleep."""
    for number in numbers:
        command = folder / "tasks" / str(number) / "command"
        command.write_text(command.read_text().replace("sleep 300", "sleep 0"))


@pytest.mark.heavy
def test_after_a_job_is_cancelled_by_others_a_new_one_runs_the_remaining_tasks(
    bench: Bench, slurm: Any
) -> None:
    bench.answers()
    (bench.folder / "table.csv").write_text("say,sleep\na,0\nb,300\nc,300\nd,0\n")
    run = bench.run("answers.json", "--each", "table.csv", "--pilot", "--cores", "2", exit=0).last
    folder = folder_of(bench, run)
    wait_for(lambda: ran(bench) == ["a", "b", "c"], QUEUE_SECONDS)
    wait_for(lambda: sum(len(each.get("begun", ())) for each in journal(folder)) == 3)
    shown = bench.hibali("runs", "show", run["id"], "--json", exit=0).last
    assert shown["counts"] == {"RUNNING": 2, "WAITING": 1, "SUCCEEDED": 1}
    skip_sleep(folder, 2, 3)
    first = job_of(folder)
    assert call_slurm(slurm, "scancel", first)
    ended = bench.hibali("runs", "wait", run["id"], "--json", exit=0, timeout=QUEUE_SECONDS).last
    assert ended["counts"] == {"SUCCEEDED": 4}
    assert ended["pilot"] == {"allocations": 2, "most": 5}
    assert [task["job"] == first for task in ended["tasks"]] == [True, False, False, False]
    assert ran(bench) == ["a", "b", "b", "c", "c", "d"]
    wait_for(
        lambda: [slurm.jobs_ended(f"{run['id']}-{number}") for number in (1, 2)] == [1, 1], QUEUE_SECONDS
    )


@pytest.mark.heavy
def test_a_requeued_job_continues_by_itself(bench: Bench, slurm: Any) -> None:
    bench.answers()
    (bench.folder / "table.csv").write_text("say,sleep\na,0\nb,300\n")
    run = bench.run("answers.json", "--each", "table.csv", "--pilot", "--cores", "1", exit=0).last
    folder = folder_of(bench, run)
    wait_for(lambda: ran(bench) == ["a", "b"], QUEUE_SECONDS)
    skip_sleep(folder, 2)
    job = job_of(folder)
    requeue_job(slurm, job)
    wait_for(lambda: start_job_now(slurm, job))
    wait_for((folder / "chunks" / "1" / "again").exists, QUEUE_SECONDS)
    ended = bench.hibali("runs", "wait", run["id"], "--json", exit=0, timeout=QUEUE_SECONDS).last
    assert ended["counts"] == {"SUCCEEDED": 2}
    assert ended["pilot"]["allocations"] == 1
    assert ran(bench) == ["a", "b", "b"]
    assert [each["left"] for each in journal(folder) if each["kind"] == "pilot"] == [2, 1]


@pytest.mark.heavy
def test_a_cancelled_pilot_is_not_continued(bench: Bench, slurm: Any) -> None:
    bench.answers(sleep=300)
    run = bench.run("answers.json", "--param", "say=a,b,c", "--pilot", "--cores", "2", exit=0).last
    wait_for(lambda: len(ran(bench)) == 2, QUEUE_SECONDS)
    bench.hibali("runs", "cancel", run["id"], exit=0)
    ended = bench.hibali("runs", "wait", run["id"], "--json", exit=7).lines[-2]
    assert ended["counts"] == {"CANCELLED": 3}
    assert ended["pilot"]["allocations"] == 1
    wait_for(lambda: slurm.jobs_ended(f"{run['id']}-1") == 1, QUEUE_SECONDS)
    assert len(ran(bench)) == 2


@pytest.mark.heavy
def test_a_kill_during_the_submission_of_the_next_job_submits_it_once(
    hibali: Any, slurm: Any, tmp_path: Path
) -> None:
    real = shutil.which("sbatch")
    programs = tmp_path / "programs"
    programs.mkdir()
    wrapper = programs / "sbatch"
    wrapper.write_text(
        f'#!/bin/sh\n{real} "$@" >{tmp_path}/output\n'
        f'if [ -e {tmp_path}/armed ] && mkdir {tmp_path}/killed; then kill -9 "$PPID"; fi\ncat {tmp_path}/output\n'
    )
    wrapper.chmod(0o755)
    hibali.env |= {**slurm.env, "PATH": f"{programs}:{os.environ['PATH']}"}
    bench = Bench(hibali, descriptor_in(hibali.home.folder))
    bench.add_site(
        "cluster",
        f'kind = "local"\nwork = "{bench.folder}/work-cluster"\n[sites.cluster.scheduler]\nname = "slurm"\n'
        'directives = ["--mem=50"]\n[sites.cluster.limits]\npoll = "1s"\nqueued_jobs = 1',
    )
    bench.answers(sleep=300)
    run = bench.run("answers.json", "--param", "say=a,b", "--pilot", "--cores", "2", exit=0).last
    folder = folder_of(bench, run)
    wait_for(lambda: ran(bench) == ["a", "b"], QUEUE_SECONDS)
    skip_sleep(folder, 1, 2)
    (tmp_path / "armed").touch()
    assert call_slurm(slurm, "scancel", job_of(folder))
    wait_for(lambda: slurm.jobs_ended(f"{run['id']}-1") == 1, QUEUE_SECONDS)
    while not (tmp_path / "killed").exists():
        bench.hibali("runs", "show", run["id"])
    bench.hibali("runs", "wait", run["id"], exit=0, timeout=QUEUE_SECONDS)
    assert ran(bench) == ["a", "a", "b", "b"]
    wait_for(lambda: slurm.jobs_ended(f"{run['id']}-2") == 1, QUEUE_SECONDS)
    assert not (folder / "chunks" / "3").exists()


@pytest.mark.heavy
@pytest.mark.timeout(900)
def test_a_thousand_tasks_in_one_job_have_their_own_results_and_logs(
    hibali: Any, slurm: Any, tmp_path: Path
) -> None:
    with recording_slurm(tmp_path, slurm) as node:
        bench = Bench(hibali, doing("echo [SAY]; echo [SAY] >&2; echo [SAY] >[OUT]; exit [CODE]"))
        bench.add_site("cluster", node.table(bench.folder / "work-cluster", 'poll = "5s"'))
        bench.answers()
        rows = "".join(f"t{number},{number % 5}\n" for number in range(1, TASKS + 1))
        (bench.folder / "table.csv").write_text("say,code\n" + rows)
        line = bench.line(
            "answers.json", "--each", "table.csv", "--pilot", "--cores", "2", "--wait", "--collect", "back"
        )
        run = bench.hibali(*line, "--json", exit=7, timeout=800).lines[-2]
        assert run["counts"] == {"SUCCEEDED": TASKS // 5, "FAILED": TASKS - TASKS // 5}
        assert [task["exit_code"] for task in run["tasks"]] == [number % 5 for number in range(1, TASKS + 1)]
        tasks = folder_of(bench, run) / "tasks"
        for number in range(1, TASKS + 1):
            for stream in ("stdout", "stderr"):
                assert (tasks / str(number) / stream).read_text() == f"t{number}\n"
        assert sum(name == "sbatch" for _, name in node.commands()) == 1
        assert node.logins == 1
        assert len(list(bench.folder.glob("back/*/out.txt"))) == TASKS // 5
