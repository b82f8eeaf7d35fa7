"""Test that a damaged, missing or odd file of the state is named, and that no run is submitted a second time because of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hibali.plugins import if_offered
from tests.end_to_end.run_tools import Bench


@pytest.fixture
def bench(hibali: Any) -> Bench:
    made = Bench(hibali)
    made.add_local_site()
    return made


def overwrite(start: int, content: bytes) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        whole = path.read_bytes()
        path.write_bytes(whole[:start] + content + whole[start + len(content) :])

    return damage


def cut(size: int) -> Callable[[Path], None]:
    return lambda path: os.truncate(path, size)


def replace_by_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


def replace_by_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGES: dict[str, Callable[[Path], None]] = {
    "one byte": overwrite(0, b"X"),
    "a byte within": overwrite(40, b"\xff"),
    "NULs at the start": overwrite(0, b"\0" * 512),
    "NULs": lambda path: path.write_bytes(b"\0" * path.stat().st_size),
    "cut short": cut(100),
    "empty": cut(0),
    "another text": lambda path: path.write_text("{}\n"),
    "a list": lambda path: path.write_text("[]\n"),
    "deep brackets": lambda path: path.write_text("[" * 100_000),
    "a FIFO": replace_by_fifo,
    "a folder": replace_by_folder,
}
FAST = ("one byte",)


def kinds() -> list[Any]:
    """Return all kinds of damage; most of them are for the heavy tests."""
    return [pytest.param(each, id=each, marks=() if each in FAST else pytest.mark.heavy) for each in DAMAGES]


def starts(bench: Bench) -> int:
    return len(list((bench.folder / "work-here" / "runs").iterdir()))


@pytest.mark.parametrize("damage", kinds())
def test_a_damaged_record_is_named_and_the_command_does_not_run_twice(bench: Bench, damage: str) -> None:
    hibali, line = bench.hibali, bench.line(bench.answers())
    run_id = hibali(*line, exit=0).out.decode().strip()
    path = hibali.home.state / "runs" / f"{run_id}.jsonl"
    DAMAGES[damage](path)
    refused = hibali(*line, "--wait", "--json", exit=8).last
    assert (refused["code"], refused["about"]) == ("unreadable-run", str(path))
    assert f"hibali runs adopt {run_id}" in refused["hint"]
    for words in filter(None, (["runs", "list"], if_offered("status", "status").split(), ["runs", "clean"])):
        answer = hibali(*words, "--json", exit=6)
        assert (answer.last["code"], answer.last["about"]) == ("unreadable-state", str(path)), words
        assert str(path).encode() in hibali(*words, exit=6).err
    assert hibali(*line, "--name", "other", "--json", exit=8).last["code"] == "unreadable-run"
    hibali("runs", "adopt", run_id, exit=0)
    assert hibali(*line, "--wait", "--json", exit=0).last["id"] == run_id
    assert starts(bench) == 1
    assert hibali("runs", "list", "--json", exit=0).last["count"] == 1
    assert (path.parent / f"{path.name}.damaged").exists()


def test_a_deleted_record_is_found_by_the_folder_at_the_site(bench: Bench, tmp_path: Path) -> None:
    hibali, line = bench.hibali, bench.line(bench.answers())
    run_id = hibali(*line, exit=0).out.decode().strip()
    path = hibali.home.state / "runs" / f"{run_id}.jsonl"
    path.unlink()
    refused = hibali(*line, "--wait", "--json", exit=8).last
    assert (refused["code"], starts(bench)) == ("unrecorded-run", 1)
    assert refused["about"] == f"here:{bench.folder}/work-here/runs/{run_id}"
    other = hibali(*line, "--name", "other", "--wait", "--json", exit=0).last["id"]
    assert other != run_id
    hibali("runs", "adopt", run_id, exit=0)
    assert hibali(*line, "--wait", "--json", exit=0).last["id"] == run_id
    path.unlink()
    again = hibali(*line, "--new", "--wait", "--json", exit=0).last["id"]
    assert again not in {run_id, other}
    state = tmp_path / "another-state"
    state.mkdir(mode=0o700)
    elsewhere = {"HIBALI_STATE": str(state)}  # the run is not that of this ledger
    hibali("pipelines", "add", "tool.json", env=elsewhere, exit=0)
    hibali("pipelines", "trust", bench.reference, env=elsewhere, exit=0)
    assert hibali(*line, "--wait", "--json", env=elsewhere, exit=0).last["id"] not in {run_id, again}


def test_a_damaged_line_is_named_and_the_others_count(bench: Bench) -> None:
    hibali = bench.hibali
    run_id = bench.run(bench.answers(), "--wait", exit=0).last["id"]
    path = hibali.home.state / "runs" / f"{run_id}.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + b"\0" * 10 + b"\n" + b"".join(lines[1:]) + b'{"kind":"se')
    shown = hibali("runs", "show", run_id, exit=0)
    assert b"SUCCEEDED" in shown.out
    assert f"{path}: line 2 is damaged".encode() in shown.err
    assert b"line %d" % (len(lines) + 2) not in shown.err, "a crash may cut the last line short"


@pytest.mark.skipif(not if_offered("history", "history"), reason="the folder history is not here")
@pytest.mark.parametrize("damage", kinds())
def test_a_damaged_operation_is_named(hibali: Any, damage: str) -> None:
    (hibali.home.folder / "s").mkdir()
    (hibali.home.folder / "s" / "a").write_text("1")
    hibali("sites", "add", "lo", "--local", str(hibali.home.folder), exit=0)
    for target in ("lo:t", "lo:u"):
        hibali("push", "s", target, exit=0)
    first, _ = sorted((hibali.home.state / "operations").glob("*.jsonl"), key=os.path.getmtime)
    (hibali.home.state / "history" / "operations.sqlite").unlink(missing_ok=True)
    DAMAGES[damage](first)
    answer = hibali("history", "--json", exit=6)
    assert [each["kind"] for each in answer.lines] == ["operation", "error"]
    assert (answer.last["code"], answer.last["about"]) == ("unreadable-state", str(first))
    pushed = hibali("push", "s", "lo:v", exit=0)
    assert (hibali.home.folder / "v" / "a").read_text() == "1", pushed.err


@pytest.mark.parametrize(
    "odd", [replace_by_fifo, pytest.param(replace_by_folder, marks=pytest.mark.heavy)], ids=["FIFO", "folder"]
)
def test_no_command_waits_for_a_state_file_that_is_no_file(bench: Bench, odd: Callable[[Path], None]) -> None:
    hibali, state = bench.hibali, bench.hibali.home.state
    hibali("sites", "check", "here")
    bench.run(bench.answers(), "--wait", exit=0)
    files = [path for path in sorted(state.rglob("*")) if path.is_file() and path.suffix != ".sqlite"]
    assert len(files) > 5
    for path in files:
        odd(path)
    commands = (
        ["runs", "list"],
        ["history"],
        *filter(None, [if_offered("status", "status").split()]),
        ["pipelines", "list"],
        ["sites", "check", "here"],
        ["push", "tool.json", "here:copy"],
        bench.line(bench.answers(say="new")),
    )
    for words in commands:
        answer = hibali(*words, timeout=20)
        assert answer.exit != 1, (words, answer.err)
        assert b"Traceback" not in answer.err, words
