"""Test that tables fit the width of a terminal, and are complete elsewhere."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import sys
import termios
from typing import TextIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hibali_cli.display import cut, fold_columns
from hibali_cli.output import Output

PATH = "/data/" + "x" * 3000 + "/end.nii"
HEADINGS = ["run", "state", "files", "empty", "folder", "site"]
ROWS = [
    ("20260102-030405-0a1b2c3d", "SUCCEEDED", 12, None, PATH, "juwels"),
    ("20260102-030405-0a1b2c3e", "FAILED", 1_234_567, "-", "/data/short", "a-site-with-quite-a-long-name"),
]


class Screen:
    """A pseudo-terminal as stdout."""

    def __init__(self, columns: int) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        self.stream: TextIO = os.fdopen(theirs, "w")

    def read(self) -> list[str]:
        self.stream.flush()
        came = b""
        while select.select([self._ours], [], [], 0.2)[0]:
            came += os.read(self._ours, 65536)
        return came.decode().replace("\r", "").splitlines()

    def close(self) -> None:
        self.stream.close()
        os.close(self._ours)


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> list[str]:
    screen = Screen(request.param)
    monkeypatch.setattr(sys, "stdout", screen.stream)
    monkeypatch.setattr(sys, "__stdout__", screen.stream)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.delenv("COLUMNS", raising=False)
    Output().table(HEADINGS, ROWS)
    lines = screen.read()
    screen.close()
    return lines


@pytest.mark.parametrize("shown", [60, 80, 120], indirect=True)
def test_a_record_that_is_too_wide_is_folded(shown: list[str], request: pytest.FixtureRequest) -> None:
    columns = request.node.callspec.params["shown"]
    assert max(map(len, shown)) <= columns
    assert shown[0].split()[:3] == ["RUN", "STATE", "FILES"]
    assert shown[len(shown) // 3].startswith("20260102-030405-0a1b2c3d  SUCCEEDED")
    text = "\n".join(shown)
    assert "1234567" in text
    assert "a-site-with-quite-a-long-name" in text
    assert "  /data/xx" in text
    assert "/end.nii" in text
    assert "empty" not in text.lower()


def test_without_a_terminal_cells_are_never_shortened(
    capfd: pytest.CaptureFixture[str],
) -> None:
    Output().table(HEADINGS, ROWS)
    _, first, second = capfd.readouterr().out.splitlines()
    assert PATH in first
    assert len(second) < 120
    assert second.split() == [str(cell) for cell in ROWS[1]]


@given(st.lists(st.integers(1, 200), min_size=1, max_size=9), st.integers(20, 300))
def test_columns_are_folded_completely_and_only_when_needed(widths: list[int], available: int) -> None:
    lines = fold_columns(widths, available)
    assert sorted(column for line in lines for column in line) == list(range(len(widths)))
    assert lines[0][0] == 0
    for number, line in enumerate(lines):
        assert line == sorted(line)
        fits = sum(widths[column] for column in line) + 2 * (len(line) - 1) <= available - 2 * bool(number)
        assert fits or len(line) == 1
    if sum(widths) + 2 * (len(widths) - 1) <= available:
        assert len(lines) == 1


def test_shortened_text_keeps_both_ends() -> None:
    assert cut("/data/" + "x" * 50 + "/end.nii", 20) == "/data/xx...x/end.nii"


@pytest.mark.parametrize("odd", [b"plain", b"a\\b", b"\x1b[31m", b"\xff", b"new\nline", "é".encode(), b""])
def test_many_lines_are_the_lines(odd: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    texts = [b"x%d" % number for number in range(600)]
    texts[7] = odd
    for text in texts:
        Output().line(text)
    expected = capsys.readouterr().out
    Output().lines(texts)
    assert capsys.readouterr().out == expected
