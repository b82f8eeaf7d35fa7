"""Test sweeps that have ended: compared task by task, and described as a crate."""

from __future__ import annotations

from typing import Any

import pytest

from tests.end_to_end.run_tools import Bench, doing
from tests.support.crates import required_issues

SPEAKING = "echo [SAY] >[OUT]; exit [CODE]"


@pytest.fixture
def bench(hibali: Any) -> Bench:
    made = Bench(hibali, doing(SPEAKING))
    made.add_local_site()
    return made


def swept(bench: Bench, *parameters: str, exit: int = 0) -> str:  # noqa: A002
    """Return the id of a sweep that has ended."""
    options = [word for each in parameters for word in ("--param", each)]
    lines = bench.run(bench.answers(), *options, "--wait", exit=exit).lines
    return next(str(line["id"]) for line in lines if line["kind"] == "run")


def test_sweeps_are_compared_task_by_task(bench: Bench) -> None:
    hibali = bench.hibali
    a, b = swept(bench, "say=a,b"), swept(bench, "say=b,a,c")
    *outputs, last = hibali("runs", "compare", a, b, "--json", exit=6).lines
    assert [(line["path"], line["fate"], line["task_a"], line["task_b"]) for line in outputs] == [
        ("out.txt", "equal", 1, 2),
        ("out.txt", "equal", 2, 1),
        ("out.txt", "extra", None, 3),
    ]
    assert (last["equal"], last["extra"], last["exit"]) == (2, 1, 6)
    assert last["facts"] == [{"what": "task 3", "a": None, "b": {"say": "c"}}]
    assert hibali("runs", "compare", a, a, "--json", exit=0).last["equal"] == 2
    answer = hibali("runs", "compare", a, b, exit=6)
    assert answer.out.decode().splitlines()[-3:] == [
        "equal      1/out.txt (B: 2/out.txt)",
        "equal      2/out.txt (B: 1/out.txt)",
        "only in B  3/out.txt",
    ]


@pytest.mark.heavy
def test_a_single_run_is_compared_with_the_task_with_the_same_answers(bench: Bench) -> None:
    hibali = bench.hibali
    sweep = swept(bench, "say=a,b")
    [line] = [
        each for each in bench.run(bench.answers(say="b"), "--wait", exit=0).lines if each["kind"] == "run"
    ]
    *outputs, last = hibali("runs", "compare", line["id"], sweep, "--json", exit=6).lines
    assert [(each["fate"], each["task_a"], each["task_b"]) for each in outputs] == [
        ("equal", 0, 2),
        ("extra", None, 1),
    ]
    assert last["facts"] == [{"what": "task 1", "a": None, "b": {"say": "a"}}]


@pytest.mark.heavy
def test_a_command_decides_whether_outputs_of_each_task_are_similar(hibali: Any) -> None:
    bench = Bench(hibali, doing("echo [SAY] >[OUT]; date +%s%N >>[OUT]"))
    bench.add_local_site()
    a, b = swept(bench, "say=a,b"), swept(bench, "say=a,b")
    hibali("runs", "collect", a, "back", exit=0)
    found = hibali("runs", "compare", a, b, "--by", "cmp -n 2", "--dir", "kept", "--json", exit=0)
    assert (found.last["within"], found.last["exit"]) == (2, 0)
    kept = sorted(
        str(path.relative_to(bench.folder / "kept")) for path in (bench.folder / "kept").rglob("out.txt")
    )
    assert kept == [f"{b}/1/out.txt", f"{b}/2/out.txt"]  # the others were already collected


@pytest.mark.heavy
def test_failed_tasks_have_no_equal_outputs(bench: Bench) -> None:
    hibali = bench.hibali
    failed = swept(bench, "code=0,3", exit=7)
    (bench.folder / "work-here" / "runs" / failed / "tasks" / "2" / "work" / "out.txt").unlink()
    *lines, last = hibali("runs", "compare", failed, failed, "--json", exit=6).lines
    problems = [line for line in lines if line["kind"] == "failed"]
    assert [line["path"] for line in problems] == ["2/out.txt", "2/out.txt"]
    assert last["equal"] == 1


@pytest.mark.heavy
def test_roc_validator_accepts_crates_of_sweeps(bench: Bench) -> None:
    hibali = bench.hibali
    (bench.folder / "a b%.txt").write_text("strange\n")
    (bench.folder / "table.csv").write_text('in,say\ninput.txt,"x, y"\n./a b%.txt,ü\n')
    bench.answers()
    good = bench.run("answers.json", "--each", "table.csv", "--wait", exit=0).last["id"]
    failed = swept(bench, "code=0,3", exit=7)
    single = bench.run("answers.json", "--wait", exit=0).last["id"]
    for name, runs in {
        "one.zip": (good,),
        "failed.zip": (failed,),
        "all.zip": (good, failed, single),
    }.items():
        hibali("runs", "export", *runs, "--ro-crate", name, exit=0)
        assert required_issues(bench.folder / name) == [], name
