"""Test small sweeps without a scheduler: from a table to results, and failed tasks again."""

from __future__ import annotations

import csv
import json
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
    assert (bench.folder / "back" / "say=a,code=0,sleep=0.1" / "out.txt").read_text() == "hello\nhello\na\n"
    with (bench.folder / "all.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [(row["task"], row["say"], row["exit_code"], bool(row["out_file.sha256"])) for row in rows] == [
        ("1", "a", "0", True),
        ("2", "a", "0", True),
        ("3", "b", "3", False),
        ("4", "b", "3", False),
    ]
    [receipt] = [each for each in ended.lines if each["kind"] == "receipt"]
    assert (receipt["files"], receipt["files_moved"], receipt["files_kept"]) == (2, 2, 0)
    logs = ("runs", "logs", run["id"], "--task", "3")
    assert bench.hibali(*logs, "--stdout", exit=0).out == b"said\n"
    both = bench.hibali(*logs, exit=0).out
    assert both.startswith(b"==> stdout <==\nsaid\n==> stderr <==\n")
    assert bench.hibali(*logs, "--json", exit=0).lines[0]["stream"] == "stdout"
    assert bench.hibali("runs", "logs", run["id"], "--task", "1", exit=0).out == b"said\n"
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
    assert sorted(path.parent.name for path in (bench.folder / "back").rglob("out.txt")) == [
        f"say={say},code={code},sleep={sleep}" for say, code in (("a", 0), ("b", 3)) for sleep in (0, 0.1)
    ]
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


@pytest.mark.heavy
def test_tasks_of_other_values_have_other_folders_and_no_result_is_replaced(bench: Bench) -> None:
    """Two sweeps, a single run and a repetition collect into one folder, whatever their numbers."""
    results = bench.folder / "back"
    both = ("--wait", "--collect", "back", "--table", "all.jsonl")
    bench.answers()
    (bench.folder / "mended").touch()
    for say in ("a,b", "c"):
        bench.run("answers.json", "--param", f"say={say}", *both, exit=0)
    texts = {each.parent.name: each.read_text() for each in results.rglob("out.txt")}
    assert texts == {f"say={say}": f"hello\n{say}\n" for say in "abc"}
    rows = [json.loads(line) for line in (bench.folder / "all.jsonl").read_text().splitlines()]
    assert [(row["folder"], row["task"]) for row in rows] == [("say=a", 1), ("say=b", 2), ("say=c", 1)]

    (bench.folder / "input.txt").write_text("changed\n")
    before = {*bench.run_ids()}
    refused = bench.run("answers.json", "--param", "say=a,d", *both, exit=8)
    assert refused.last["code"] == "other-result"
    assert "say=a/out.txt" in refused.last["message"]
    new = {"say=d": "changed\nd\n"}  # collected where the task ends well before the other one
    assert {each.parent.name: each.read_text() for each in results.rglob("out.txt")} in (texts, texts | new)
    [again] = {*bench.run_ids()} - before
    bench.hibali("runs", "collect", again, "back", "--json", exit=8)
    bench.hibali("runs", "collect", again, "elsewhere", exit=0)
    assert {each.parent.name: each.read_text() for each in results.rglob("out.txt")} in (texts, texts | new)


def test_a_single_run_does_not_replace_the_result_of_another_one(bench: Bench) -> None:
    first = bench.run(bench.answers(say="a", code=3), "--wait", "--collect", "one", exit=7).last
    assert first["kind"] == "error"
    [failed] = bench.run_ids()
    bench.hibali("runs", "collect", failed, "one", exit=7)  # what the failed attempt left
    (bench.folder / "mended").touch()
    bench.run(bench.answers(say="b", code=3), "--wait", "--collect", "one", exit=8)
    bench.run(bench.answers(say="a", code=3), "--wait", "--collect", "one", exit=0)
    (bench.folder / "one" / "out.txt").write_text("edited\n")
    bench.run(bench.answers(say="a", code=3), "--new", "--wait", "--collect", "one", exit=8)
    assert (bench.folder / "one" / "out.txt").read_text() == "edited\n"
