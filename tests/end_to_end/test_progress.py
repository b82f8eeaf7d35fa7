"""Test the progress display: readable on a terminal, removed afterwards, and absent elsewhere."""

from __future__ import annotations

import random
import re
import time
from typing import Any

import pytest

from tests.schemas import check_lines
from tests.support.faulty_proxy import StoppingProxy
from tests.support.terminal import Terminal
from tests.support.transfers import Transfers, counts
from tests.support.trees import many_files

LARGE = random.Random(9).randbytes(1_000_001) * 24  # noqa: S311 - no secret
HOSTILE = b"sub/e\x1b[31mvil\n\xe2\x80\xae[bold]large\xff"
TREE = {**many_files(40, 100), HOSTILE: LARGE}
COLOUR = re.compile(rb"\x1b\[[0-9;]*m")
LIMIT = ("--bwlimit", "8M")  # three seconds in all

SAFE = re.compile(
    r"Safe: (at least [0-9,]+ of [0-9,]+ files complete and verified at the target|no file is complete yet)"
)


def watched(there: Transfers, *words: str, env: dict[str, str] | None = None, **named: Any) -> Terminal:
    command = there.hibali.command("push", there.source, "there:data", *words)
    return Terminal(command, {**there.hibali.env, **(env or {})}, cwd=there.hibali.home.folder, **named)


def test_a_transfer_shows_progress_and_leaves_one_line(local_there: Transfers) -> None:
    local_there.make(TREE)
    began = time.monotonic()
    terminal = watched(local_there, *LIMIT)
    seen = terminal.until(lambda screen: "large" in screen and " %" in screen)
    lines = seen.splitlines()
    assert re.fullmatch(r"push /.*there:data", lines[0])
    assert re.search(r"[0-9.]+ MB of 24\.0 MB", seen)
    assert re.search(r"e\\x1b\[31mvil\\n\\u202e\[bold\]large\\xff +[0-9]+ %", seen)
    assert terminal.end() == 0
    [last] = terminal.screen().splitlines()
    assert last.startswith("41 files (")
    assert b"\x1b[31mvil" not in terminal.written
    assert terminal.written.count(b"push /") < 6 * (time.monotonic() - began)  # drawn four times a second
    assert_cursor_is_visible(terminal)


def assert_cursor_is_visible(terminal: Terminal) -> None:
    assert terminal.written.rfind(b"\x1b[?25h") >= terminal.written.rfind(b"\x1b[?25l")


@pytest.mark.parametrize(("columns", "rows"), [(34, 24), (12, 4)])
def test_lines_fit_a_narrow_terminal(local_there: Transfers, columns: int, rows: int) -> None:
    local_there.make(TREE)
    terminal = watched(local_there, *LIMIT, columns=columns, rows=rows, env={"NO_COLOR": "1"})
    seen = terminal.until(lambda screen: " %" in screen)
    assert max(map(len, seen.splitlines())) < columns, seen
    assert terminal.end() == 0
    assert "push" not in terminal.screen()
    assert not re.search(rb"\x1b\[[0-9;]*(3[0-7]|9[0-7])m", terminal.written)


@pytest.mark.parametrize(
    ("words", "env"), [(["--quiet"], {}), (["--no-progress"], {}), ([], {"TERM": "dumb"})]
)
def test_no_progress_is_drawn_when_it_is_not_wanted(
    local_there: Transfers, words: list[str], env: dict[str, str]
) -> None:
    local_there.make(TREE)
    terminal = watched(local_there, *words, env=env)
    assert terminal.end() == 0
    assert b"\x1b[" not in terminal.written
    assert len(terminal.screen().splitlines()) == (0 if words == ["--quiet"] else 1)


def test_results_are_written_to_stdout(local_there: Transfers) -> None:
    local_there.make(TREE)
    results = local_there.folder / "results"
    with results.open("wb") as stdout:
        assert watched(local_there, "--json", "-n", stdout=stdout).end() == 0
        assert watched(local_there, "--json", "-v", stdout=stdout).end() == 0
    kinds = [record["kind"] for record in check_lines(results.read_bytes())]
    assert kinds.count("action") >= len(TREE)
    assert kinds.count("moved") >= len(TREE)
    assert kinds[-1] == "receipt"


def test_a_plan_on_a_terminal_is_not_drawn_over(local_there: Transfers) -> None:
    local_there.make(many_files(12, 10, folders=1))
    terminal = watched(local_there, "-n")
    assert terminal.end() == 0
    names = [line for line in terminal.screen().splitlines() if line.startswith("copy")]
    assert len(names) == 13


def test_ctrl_c_ends_at_once_and_reports_what_is_safe(transfers_to: Any) -> None:
    there = transfers_to("ssh")
    there.make(TREE)
    terminal = watched(there, "--bwlimit", "250K")  # the large file would take more than a minute
    terminal.until(lambda screen: "large" in screen)
    terminal.press(b"\x03")
    assert terminal.end(60) == 130  # two seconds on an idle machine
    assert HOSTILE not in there.committed_files()
    screen = terminal.screen()
    assert SAFE.search(screen)
    assert "hibali: interrupted [interrupted]\n  Run the same command again to resume." in screen
    assert "push /" not in screen
    assert_cursor_is_visible(terminal)
    # the remote agent may not have finished its current files
    assert set(there.committed_files()) <= set(TREE)
    assert counts(there.push())["files_failed"] == 0
    assert there.there() == TREE


def test_ctrl_c_does_not_wait_for_a_connection_that_has_stopped(transfers_to: Any) -> None:
    there = transfers_to("ssh")
    proxy = StoppingProxy(there.place.server.port)
    config = there.hibali.home.config
    through = f', "-o", "Port={proxy.port}", "-o", "HostKeyAlias={there.place.server.host}"]\n'
    config.write_text(
        re.sub(r"(command = \[.*)\]\n", lambda found: found.group(1) + through, config.read_text())
    )
    there.make(TREE)
    terminal = watched(there)
    terminal.until(lambda screen: "large" in screen)
    assert proxy.full.wait(60)
    terminal.press(b"\x03")
    assert terminal.end(60) == 130  # megabytes are in transfer, and would never arrive
    assert SAFE.search(terminal.screen())
    proxy.close()
