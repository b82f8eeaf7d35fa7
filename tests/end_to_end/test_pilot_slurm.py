"""Pilots on a real Slurm: one job for all tasks, another one when it is ended, none twice."""

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
IN_TURN = 500  # seconds: thousands of other tests' jobs may be before ours in the same queue
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
    wait_for(path.exists, IN_TURN)
    return path.read_text().strip()


def say(slurm: Any, *words: str) -> bool:
    environment = {**os.environ, **slurm.env}
    return subprocess.run(words, env=environment, check=False, capture_output=True).returncode == 0


def sleepless(folder: Path, *numbers: int) -> None:
    """The next turn of these tasks does not sleep."""
    for number in numbers:
        command = folder / "tasks" / str(number) / "command"
        command.write_text(command.read_text().replace("sleep 300", "sleep 0"))


@pytest.mark.heavy
def test_a_job_that_others_end_is_followed_by_one_for_what_is_left(bench: Bench, slurm: Any) -> None:
    bench.answers()
    (bench.folder / "table.csv").write_text("say,sleep\na,0\nb,300\nc,300\nd,0\n")
    run = bench.run("answers.json", "--each", "table.csv", "--pilot", "--cores", "2", exit=0).last
    folder = folder_of(bench, run)
    wait_for(lambda: ran(bench) == ["a", "b", "c"], IN_TURN)
    wait_for(lambda: sum(len(each.get("begun", ())) for each in journal(folder)) == 3)
    shown = bench.hibali("runs", "show", run["id"], "--json", exit=0).last
    assert shown["counts"] == {"RUNNING": 2, "WAITING": 1, "SUCCEEDED": 1}
    sleepless(folder, 2, 3)
    first = job_of(folder)
    assert say(slurm, "scancel", first)
    ended = bench.hibali("runs", "wait", run["id"], "--json", exit=0, timeout=IN_TURN).last
    assert ended["counts"] == {"SUCCEEDED": 4}
    assert ended["pilot"] == {"allocations": 2, "most": 5}
    assert [task["job"] == first for task in ended["tasks"]] == [True, False, False, False]
    assert ran(bench) == ["a", "b", "b", "c", "c", "d"]
    wait_for(lambda: [slurm.jobs_ended(f"{run['id']}-{number}") for number in (1, 2)] == [1, 1], IN_TURN)


@pytest.mark.heavy
def test_a_job_that_is_put_back_goes_on_by_itself(bench: Bench, slurm: Any) -> None:
    bench.answers()
    (bench.folder / "table.csv").write_text("say,sleep\na,0\nb,300\n")
    run = bench.run("answers.json", "--each", "table.csv", "--pilot", "--cores", "1", exit=0).last
    folder = folder_of(bench, run)
    wait_for(lambda: ran(bench) == ["a", "b"], IN_TURN)
    sleepless(folder, 2)
    job = job_of(folder)
    requeue_job(slurm, job)
    wait_for(lambda: start_job_now(slurm, job))
    wait_for((folder / "chunks" / "1" / "again").exists, IN_TURN)
    ended = bench.hibali("runs", "wait", run["id"], "--json", exit=0, timeout=IN_TURN).last
    assert ended["counts"] == {"SUCCEEDED": 2}
    assert ended["pilot"]["allocations"] == 1
    assert ran(bench) == ["a", "b", "b"]
    assert [each["left"] for each in journal(folder) if each["kind"] == "pilot"] == [2, 1]


@pytest.mark.heavy
def test_a_cancelled_pilot_is_over(bench: Bench, slurm: Any) -> None:
    bench.answers(sleep=300)
    run = bench.run("answers.json", "--param", "say=a,b,c", "--pilot", "--cores", "2", exit=0).last
    wait_for(lambda: len(ran(bench)) == 2, IN_TURN)
    bench.hibali("runs", "cancel", run["id"], exit=0)
    ended = bench.hibali("runs", "wait", run["id"], "--json", exit=7).lines[-2]
    assert ended["counts"] == {"CANCELLED": 3}
    assert ended["pilot"]["allocations"] == 1
    wait_for(lambda: slurm.jobs_ended(f"{run['id']}-1") == 1, IN_TURN)
    assert len(ran(bench)) == 2


@pytest.mark.heavy
def test_whoever_is_killed_while_the_next_job_is_submitted_submits_it_once(
    hibali: Any, slurm: Any, tmp_path: Path
) -> None:
    real = shutil.which("sbatch")
    programs = tmp_path / "programs"
    programs.mkdir()
    wrapper = programs / "sbatch"
    wrapper.write_text(
        f'#!/bin/sh\n{real} "$@" >{tmp_path}/said\n'
        f'if [ -e {tmp_path}/armed ] && mkdir {tmp_path}/killed; then kill -9 "$PPID"; fi\ncat {tmp_path}/said\n'
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
    wait_for(lambda: ran(bench) == ["a", "b"], IN_TURN)
    sleepless(folder, 1, 2)
    (tmp_path / "armed").touch()
    assert say(slurm, "scancel", job_of(folder))
    wait_for(lambda: slurm.jobs_ended(f"{run['id']}-1") == 1, IN_TURN)
    while not (tmp_path / "killed").exists():
        bench.hibali("runs", "show", run["id"])
    bench.hibali("runs", "wait", run["id"], exit=0, timeout=IN_TURN)
    assert ran(bench) == ["a", "a", "b", "b"]
    wait_for(lambda: slurm.jobs_ended(f"{run['id']}-2") == 1, IN_TURN)
    assert not (folder / "chunks" / "3").exists()


@pytest.mark.heavy
@pytest.mark.timeout(900)
def test_a_thousand_tasks_in_one_job_each_with_its_own_end_and_logs(
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
