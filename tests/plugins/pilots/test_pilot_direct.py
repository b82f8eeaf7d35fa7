"""Test pilots without a scheduler: the tasks of a sweep share one job, each has its own result, and a new job continues after a failure."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.run_tools import Bench
from tests.support.pilots import journal, pilot_pids, processes_in
from tests.support.sweeps import descriptor_in, ran
from tests.support.waiting import wait_for


@pytest.fixture
def bench(hibali: Any) -> Bench:
    made = Bench(hibali, descriptor_in(hibali.home.folder))
    made.add_local_site()
    return made


def folder_of(bench: Bench, run: dict[str, Any]) -> Path:
    return bench.folder / "work-here" / "runs" / str(run["id"])


def test_tasks_that_share_a_job_have_their_own_results_and_logs(bench: Bench) -> None:
    bench.answers(more=["input.txt"])
    (bench.folder / "table.csv").write_text("say,code\na,0\nb,3\nc,0\n")
    line = bench.line("answers.json", "--each", "table.csv", "--pilot", "--cores", "2", "--wait")
    ended = bench.hibali(*line, "--collect", "back", "--json", exit=7)
    run = ended.lines[-2]
    assert (run["counts"], run["pilot"]) == ({"SUCCEEDED": 2, "FAILED": 1}, {"allocations": 1, "most": 5})
    assert [(task["number"], task["exit_code"]) for task in run["tasks"]] == [(1, 0), (2, 3), (3, 0)]
    assert len({task["job"] for task in run["tasks"]}) == 1
    assert ran(bench) == ["a", "b", "c"]
    assert (bench.folder / "back" / "say=c,code=0" / "out.txt").read_text() == "hello\nhello\nc\n"
    folder = folder_of(bench, run)
    assert [(folder / "tasks" / number / "stdout").read_text() for number in "123"] == ["said\n"] * 3
    first, *_, last = journal(folder)
    assert (first["kind"], first["left"], last["because"], last["left"]) == ("pilot", 3, "done", 0)
    assert not (folder / "chunks" / "1" / "hq").exists()  # the key is gone


@pytest.mark.heavy
def test_failed_tasks_of_a_pilot_are_run_again_by_a_pilot(bench: Bench) -> None:
    bench.answers()
    (bench.folder / "table.csv").write_text("say,code\na,0\nb,3\n")
    line = bench.line("answers.json", "--each", "table.csv", "--pilot", "--allocations", "3", "--wait")
    run = bench.hibali(*line, "--json", exit=7).lines[-2]
    (bench.folder / "mended").touch()
    again = bench.hibali("runs", "rerun", run["id"], "--failed", "--wait", "--json", exit=0).last
    assert [(task["number"], task["state"]) for task in again["tasks"]] == [(2, "SUCCEEDED")]
    assert again["pilot"] == {"allocations": 1, "most": 3}
    assert ran(bench) == ["a", "b", "b"]


@pytest.mark.heavy
def test_a_killed_pilot_is_continued_and_no_ended_task_runs_twice(bench: Bench) -> None:
    """Kill a pilot with one ended, two running and one waiting task; the tool's folder shows which task ran again."""
    bench.answers(more=["input.txt"])
    # the second attempt would see files of the first one in the work folder, or a modified copy of an input
    (bench.folder / "table.csv").write_text("say,sleep\na,0\nb,300\nc,300\nd,0\n")
    run = bench.run("answers.json", "--each", "table.csv", "--pilot", "--cores", "2", exit=0).last
    folder = folder_of(bench, run)
    tasks = folder / "tasks"
    wait_for(lambda: ran(bench) == ["a", "b", "c"])
    (tasks / "2" / "work" / "left.txt").write_text("by the first attempt")
    (tasks / "2" / "inputs" / "0" / "input.txt").chmod(0o600)
    (tasks / "2" / "inputs" / "0" / "input.txt").write_text("spoilt by the first attempt")
    for number in "23":  # the second attempt does not sleep
        command = tasks / number / "command"
        command.write_text(command.read_text().replace("sleep 300", "sleep 0"))
    [pid] = pilot_pids(folder)
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not pilot_pids(folder))
    shown = bench.hibali("runs", "show", run["id"], "--json", exit=0).last
    assert shown["pilot"]["allocations"] == 2
    ended = bench.hibali("runs", "wait", run["id"], "--json", exit=0).last
    assert ended["counts"] == {"SUCCEEDED": 4}
    assert ran(bench) == ["a", "b", "b", "c", "c", "d"]
    assert (tasks / "2" / "work" / "out.txt").read_text() == "hello\nhello\nb\n"
    assert not (tasks / "2" / "work" / "left.txt").exists()
    assert (tasks / "2" / "earlier-1" / "stdout").read_text() == "said\n"
    assert not (tasks / "1" / "earlier-1").exists()
    assert (folder / "chunks" / "2" / "tasks").read_text() == "2\n3\n4\n"
    assert [path.name for path in sorted((folder / "chunks").iterdir())] == ["1", "2"]


@pytest.mark.heavy
def test_a_terminated_job_leaves_its_tasks_to_the_next_job(bench: Bench) -> None:
    bench.answers(sleep=300)
    run = bench.run("answers.json", "--param", "say=a,b", "--pilot", "--allocations", "2", exit=0).last
    folder = folder_of(bench, run)
    wait_for(lambda: len(ran(bench)) > 0)
    os.kill(pilot_pids(folder)[0], signal.SIGTERM)
    wait_for(lambda: journal(folder)[-1]["kind"] == "stopped")
    assert journal(folder)[-1]["because"] == "SIGTERM"
    bench.hibali("runs", "show", run["id"], exit=0)
    wait_for(lambda: len(pilot_pids(folder)) > 0)
    wait_for(lambda: any("begun" in each for each in journal(folder, 2)))
    os.kill(pilot_pids(folder)[0], signal.SIGTERM)
    ended = bench.hibali("runs", "wait", run["id"], "--json", exit=7)
    record = ended.lines[-2]
    assert record["counts"] == {"FAILED": 2}
    assert record["pilot"] == {"allocations": 2, "most": 2}
    assert all("allocation 2 ended before the task" in task["reason"] for task in record["tasks"])
    bench.hibali("runs", "wait", run["id"], exit=7)  # no further job follows
    assert [path.name for path in sorted((folder / "chunks").iterdir())] == ["1", "2"]


@pytest.mark.heavy
def test_a_cancelled_pilot_ends_with_its_tasks_and_is_not_continued(bench: Bench) -> None:
    bench.answers(sleep=300)
    run = bench.run("answers.json", "--param", "say=a,b,c,d", "--pilot", "--cores", "2", exit=0).last
    folder = folder_of(bench, run)
    wait_for(lambda: len(ran(bench)) == 2)
    bench.hibali("runs", "cancel", run["id"], exit=0)
    ended = bench.hibali("runs", "wait", run["id"], "--json", exit=7)
    assert ended.lines[-2]["counts"] == {"CANCELLED": 4}
    assert ended.lines[-2]["pilot"]["allocations"] == 1
    wait_for(lambda: not pilot_pids(folder))
    assert len(ran(bench)) == 2


@pytest.mark.heavy
def test_a_task_whose_script_is_killed_has_failed_and_the_others_go_on(bench: Bench) -> None:
    bench.answers()
    (bench.folder / "table.csv").write_text("say,sleep\na,300\nb,0\n")
    run = bench.run("answers.json", "--each", "table.csv", "--pilot", "--cores", "1", exit=0).last
    folder = folder_of(bench, run)
    wait_for(lambda: ran(bench) == ["a"])
    [shell] = processes_in(folder / "tasks" / "1")
    os.killpg(shell, signal.SIGKILL)
    ended = bench.hibali("runs", "wait", run["id"], "--json", exit=7).lines[-2]
    assert ended["counts"] == {"SUCCEEDED": 1, "FAILED": 1}
    assert "killed" in ended["tasks"][0]["reason"]
    assert ran(bench) == ["a", "b"]


@pytest.mark.heavy
def test_values_are_not_interpreted_in_a_pilot(bench: Bench) -> None:
    hostile = ["$(touch pwned)", "a\nb #SBATCH --x", "'; exit 3; '", "--help", "`id`", "é ü", "%{CWD}", "-n"]
    bench.answers()
    rows = "".join(json.dumps({"say": text}) + "\n" for text in hostile)
    (bench.folder / "table.jsonl").write_text(rows)
    run = bench.run("answers.json", "--each", "table.jsonl", "--pilot", "--wait", exit=0).last
    folder = folder_of(bench, run)
    for number, text in enumerate(hostile, start=1):
        if text != "-n":  # that is an option of echo itself
            written = (folder / "tasks" / str(number) / "work" / "out.txt").read_text()
            assert written == f"hello\n{text}\n"
    assert not list(bench.folder.rglob("pwned"))


@pytest.mark.heavy
def test_tools_do_not_get_the_key_of_the_pilot(hibali: Any) -> None:
    bench = Bench(
        hibali,
        {
            **descriptor_in(hibali.home.folder),
            "command-line": "env >[OUT]; : [IN] [MORE] [SAY] [SLEEP] [CODE]",
        },
    )
    bench.add_local_site()
    bench.answers()
    run = bench.run("answers.json", "--param", "say=a", "--pilot", "--wait", exit=0).last
    folder = folder_of(bench, run)
    names = {line.partition("=")[0] for line in (folder / "tasks/1/work/out.txt").read_text().splitlines()}
    assert not [name for name in names if name.startswith("HQ")]
    assert not names & {"HIBALI_JOB", "HIBALI_HOST", "HIBALI_MASK", "HIBALI_TOLD"}
    kept = [path for path in folder.rglob("*") if path.is_file() and b'"access' in path.read_bytes()]
    assert kept == []


def test_a_site_without_a_suitable_python_is_refused_before_anything_is_written(bench: Bench) -> None:
    programs = bench.folder / "programs"
    programs.mkdir()
    for name in ("python3", *(f"python3.{minor}" for minor in range(9, 21))):
        (programs / name).write_text(
            '#!/bin/sh\necho \'["/usr/bin/python3", [3, 6], "linux", "x86_64", ["glibc", "2.17"], false]\'\n'
        )
        (programs / name).chmod(0o755)
    bench.hibali.env["PATH"] = f"{programs}:{os.environ['PATH']}"
    bench.answers()
    refused = bench.run("answers.json", "--param", "say=a,b", "--pilot", exit=8).last
    assert refused["code"] == "no-pilot-there"
    assert "is 3.6" in refused["message"]
    assert "Leave out --pilot" in refused["hint"]
    assert bench.run_ids() == []


@pytest.mark.heavy
def test_the_same_command_keeps_the_options_of_its_first_call(bench: Bench) -> None:
    bench.answers(sleep=1)
    line = ("answers.json", "--param", "say=a,b", "--cores", "2")
    run = bench.run(*line, "--pilot", exit=0).last
    same = bench.run(*line, exit=0)
    assert same.last["id"] == run["id"]
    assert b"was already started" in same.err
    bench.hibali("runs", "wait", run["id"], exit=0)
    assert ran(bench) == ["a", "b"]
    for words in (("--pilot",), ("--allocations", "2")):
        bench.run("answers.json", *words, exit=2)
    for words in (("--nodes", "2"), ("--tasks", "2")):
        bench.run(*line, "--pilot", *words, exit=2)
    shown = bench.run(*line, "--pilot", "--dry-run", exit=0).last
    assert set(shown["files"]) == {
        "chunks/1/job.sh",
        "chunks/1/task.sh",
        "chunks/1/tasks",
        "tasks/1/start",
        "tasks/1/command",
        "tasks/1/outputs.sh",
    }
