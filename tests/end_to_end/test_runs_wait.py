"""Test waiting for a run on a terminal: its progress is shown, and Ctrl-C prints what happens to the run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.run_tools import Bench, doing
from tests.support.terminal import Terminal

RESUME = "Run the same command again to resume"


@pytest.fixture
def go(hibali: Any) -> Path:
    """Return the file for which the tool waits."""
    path: Path = hibali.home.folder / "go"
    return path


@pytest.fixture
def bench(hibali: Any, go: Path) -> Bench:
    made = Bench(hibali, doing(f"until [ -e {go} ]; do sleep 0.1; done; cp [IN] [OUT]"))
    made.add_local_site()
    return made


def at_terminal(bench: Bench, *words: str, columns: int = 100) -> Terminal:
    return Terminal(bench.hibali.command(*words), bench.hibali.env, cwd=bench.folder, columns=columns)


def test_waiting_shows_the_run_and_it_continues_after_ctrl_c(bench: Bench, go: Path) -> None:
    line = bench.line(bench.answers(), "--wait")
    terminal = at_terminal(bench, *line)
    seen = terminal.until(lambda screen: re.search(r"RUNNING at here for [0-9]+ s", screen) is not None)
    [run_id] = bench.run_ids()
    assert run_id in seen
    terminal.until(lambda screen: re.search(r"RUNNING at here for [2-9] s", screen) is not None)
    terminal.press(b"\x03")
    assert terminal.end(15) == 130
    screen = terminal.screen()
    assert "RUNNING" not in screen
    assert "The run continues at here" in screen
    assert f"hibali runs wait {run_id}" in screen
    assert RESUME not in screen

    terminal = at_terminal(bench, "runs", "wait", run_id, columns=40)
    seen = terminal.until(lambda screen: "RUNNING at here for" in screen)
    assert max(map(len, seen.splitlines())) < 40
    go.touch()
    assert terminal.end(30) == 0
    assert terminal.screen() == f"{run_id} SUCCEEDED"


@pytest.mark.heavy
def test_without_a_terminal_no_progress_is_drawn_and_max_time_prints_the_same(bench: Bench) -> None:
    # longer than submitting takes on a busy machine
    line = bench.line(bench.answers(), "--wait", "--max-time", "10s", "--json")
    ended = bench.hibali(*line, exit=5)
    [run_id] = bench.run_ids()
    assert b"\x1b" not in ended.err
    assert f"hibali runs wait {run_id}" in ended.last["hint"]
    assert RESUME not in ended.last["hint"]


def test_watching_does_not_mention_resuming(bench: Bench) -> None:
    run_id = bench.hibali(*bench.line(bench.answers()), exit=0).out.decode().strip()
    terminal = at_terminal(bench, "runs", "watch", run_id)
    terminal.until(lambda screen: "RUNNING" in screen)
    terminal.press(b"\x03")
    assert terminal.end(15) == 130
    assert RESUME not in terminal.screen()
    assert "The run continues at here" in terminal.screen()


def test_unique_prefixes_of_ids_are_accepted(bench: Bench, go: Path) -> None:
    go.touch()
    first = bench.run(bench.answers(), "--wait", "--collect", "back", exit=0).lines[-1]["id"]
    second = bench.run(bench.answers(say="else"), "--wait", exit=0).lines[-1]["id"]
    shared = next(first[:n] for n in range(len(first), 0, -1) if second.startswith(first[:n]))
    unique = first[: len(shared) + 1]
    hibali = bench.hibali
    assert hibali("runs", "show", unique, "--json", exit=0).last["id"] == first
    assert hibali("runs", "logs", first[-8:], exit=0).out == b""
    assert hibali("runs", "show", "latest:count-letters", "--json", exit=0).last["id"] == second
    hibali("runs", "collect", unique, "again", exit=0)
    hibali("run", bench.reference, "answers.json", "--site", "here", "--after", unique, "--wait", exit=0)
    for words in (("runs", "show"), ("runs", "wait"), ("runs", "cancel")):
        refused = hibali(*words, shared, "--json", exit=2).last
        assert refused["code"] == "ambiguous-id"
        assert first in refused["message"]
        assert second in refused["message"]
    for unknown in ("zz", first[-4:], first[5:12], first[:3], "\udcff", "latest:\udcff"):
        assert hibali("runs", "cancel", unknown, "--json", exit=3).last["code"] == "no-such-run"
    for name in ("latest:x", "latest", "20260109-111111-77777777"):
        refused = hibali(*bench.line(bench.answers()), f"--name={name}", "--json", exit=2).last
        assert refused["about"] == f"--name {name}"
    listed = hibali("runs", "list", "--state", "succeeded,failed", "--json", exit=0)
    assert listed.last["count"] == 3
    assert hibali("runs", "list", "--state", "RUNNING", "--json", exit=0).last["count"] == 0
    assert hibali("runs", "list", "--state", "lost", "--state", "succeeded", "--json").last["count"] == 3
    assert b"RUNING" in hibali("runs", "list", "--state", "RUNING", exit=2).err
