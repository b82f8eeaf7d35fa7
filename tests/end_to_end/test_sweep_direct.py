"""Test small sweeps without a scheduler: from a table to results, and failed tasks again."""

from __future__ import annotations

import csv
from typing import Any

import pytest

from tests.end_to_end.run_tools import Bench, doing
from tests.support.sweeps import descriptor_in, ran


@pytest.fixture
def bench(hibali: Any) -> Bench:
    made = Bench(hibali, descriptor_in(hibali.home.folder))
    made.add_local_site()
    return made


def test_a_sweep_runs_from_its_table_to_results_and_repeats_failed_tasks(bench: Bench) -> None:
    bench.answers(more=["input.txt"])
    (bench.folder / "table.csv").write_text("say,code\na,0\nb,3\n")
    line = bench.line("answers.json", "--each", "table.csv", "--param", "sleep=0,0.1", "--wait")
    ended = bench.hibali(*line, "--collect", "back", "--table", "all.csv", "--json", exit=7)
    run, error = ended.lines[-2:]
    assert error["code"] == "tasks-failed"
    assert (run["state"], run["counts"]) == ("FAILED", {"SUCCEEDED": 2, "FAILED": 2})
    assert [(task["number"], task["values"], task["exit_code"]) for task in run["tasks"]] == [
        (1, {"say": "a", "code": 0, "sleep": 0}, 0),
        (2, {"say": "a", "code": 0, "sleep": 0.1}, 0),
        (3, {"say": "b", "code": 3, "sleep": 0}, 3),
        (4, {"say": "b", "code": 3, "sleep": 0.1}, 3),
    ]
    assert ran(bench) == ["a", "a", "b", "b"]
    assert (bench.folder / "back" / "2" / "out.txt").read_text() == "hello\nhello\na\n"
    with (bench.folder / "all.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [(row["task"], row["say"], row["exit_code"], bool(row["out_file.sha256"])) for row in rows] == [
        ("1", "a", "0", True),
        ("2", "a", "0", True),
        ("3", "b", "3", False),
        ("4", "b", "3", False),
    ]
    assert bench.hibali("runs", "logs", run["id"], "--task", "3", exit=0).out == b"said\n"
    assert b"FAILED" in bench.hibali("runs", "show", run["id"], exit=0).out
    assert b"4/4, 2 unsuccessful" in bench.hibali("runs", "list", exit=0).out

    (bench.folder / "mended").touch()
    words = ("runs", "rerun", run["id"], "--failed", "--wait", "--collect", "back", "--json")
    again = bench.hibali(*words, exit=0).last
    assert [(task["number"], task["state"]) for task in again["tasks"]] == [
        (3, "SUCCEEDED"),
        (4, "SUCCEEDED"),
    ]
    assert again["rerun_of"] == run["id"]
    assert sorted(path.name for path in (bench.folder / "back").iterdir() if path.name.isdigit()) == list(
        "1234"
    )
    assert ran(bench) == ["a", "a", "b", "b", "b", "b"]
    assert bench.hibali("runs", "rerun", again["id"], "--failed", "--json", exit=0).last["id"] == again["id"]


def test_tasks_without_a_required_output_failed_and_can_be_run_again(hibali: Any) -> None:
    mended = hibali.home.folder / "mended"
    made = Bench(hibali, doing(f"[ [SAY] = b ] && [ ! -e {mended} ] || cp [IN] [OUT]; exit [CODE]"))
    made.add_local_site()
    made.answers()
    line = made.line("answers.json", "--param", "say=a,b", "--wait")
    ended = hibali(*line, "--json", exit=9)
    run, error = ended.lines[-2:]
    assert error["code"] == "outputs-missing"
    assert [(each["state"], each["exit_code"], each["missing_outputs"]) for each in run["tasks"]] == [
        ("SUCCEEDED", 0, []),
        ("FAILED", 0, ["out_file"]),
    ]
    assert hibali("runs", "collect", run["id"], "some", "--json", exit=9).last["exit"] == 9
    mended.touch()
    again = hibali("runs", "rerun", run["id"], "--failed", "--wait", "--json", exit=0).last
    assert [(each["number"], each["state"]) for each in again["tasks"]] == [(2, "SUCCEEDED")]


def test_problems_of_any_task_are_reported_before_anything_starts(bench: Bench) -> None:
    bench.answers()
    (bench.folder / "table.csv").write_text("in,code\ninput.txt,1\nnone.txt,x\n")
    refused = bench.run("answers.json", "--each", "table.csv", exit=2).last
    assert refused["code"] == "invalid-sweep"
    assert refused["message"].startswith("line 3, task 2, code: must be a whole number")
    (bench.folder / "table.csv").write_text("in\nnone.txt\nneither.txt\n")
    missing = bench.run("answers.json", "--each", "table.csv", exit=3).last
    assert "none.txt" in missing["message"]
    assert "neither.txt" in missing["message"]
    assert bench.run_ids() == []
    shown = bench.run("answers.json", "--param", "say=a,b,c", "--dry-run", exit=0).last
    assert shown["files"]["chunks/1/tasks"] == "1\n2\n3\n"
    assert set(shown["files"]) == {
        "chunks/1/job.sh",
        "chunks/1/tasks",
        "tasks/1/start",
        "tasks/1/command",
        "tasks/1/outputs.sh",
    }
    bench.run("answers.json", "--param", "say=a", "--wait", "--table", "all.xlsx", exit=2)
    assert bench.run_ids() == []


@pytest.mark.heavy
def test_a_sweep_without_a_scheduler_can_be_cancelled(bench: Bench) -> None:
    bench.answers(sleep=60)
    run = bench.run("answers.json", "--param", "say=a,b,c", exit=0).last
    bench.hibali("runs", "cancel", run["id"], exit=0)
    ended = bench.hibali("runs", "wait", run["id"], "--json", exit=7)
    assert ended.lines[-2]["counts"] == {"CANCELLED": 3}
