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

from hibali_cli.display import cut, fitting_widths
from hibali_cli.output import Output

PATH = "/data/" + "x" * 3000 + "/end.nii"
HEADINGS = ["run", "state", "files", "folder", "site"]
ROWS = [
    ("20260102-030405-0a1b2c3d", "SUCCEEDED", 12, PATH, "juwels"),
    ("20260102-030405-0a1b2c3e", "FAILED", 1_234_567, "/data/short", "a-site-with-quite-a-long-name"),
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
def test_no_line_is_wider_than_the_terminal(shown: list[str], request: pytest.FixtureRequest) -> None:
    columns = request.node.callspec.params["shown"]
    assert len(shown) == 3
    assert max(map(len, shown)) <= columns
    assert shown[1].startswith("20260102-030405-0a1b2c3d  SUCCEEDED")
    assert "1234567" in shown[2]
    if columns > 60:
        assert "/data/" in shown[1]
        assert "..." in shown[1]


def test_omitted_columns_are_listed(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    screen = Screen(60)
    with monkeypatch.context() as patched:
        for name in ("stdout", "__stdout__"):
            patched.setattr(sys, name, screen.stream)
        patched.delenv("COLUMNS", raising=False)
        Output().table(HEADINGS, ROWS)
    assert "SITE" not in screen.read()[0]
    assert "Columns not shown: site." in capfd.readouterr().err
    screen.close()


def test_without_a_terminal_cells_are_never_shortened(
    capfd: pytest.CaptureFixture[str],
) -> None:
    Output().table(HEADINGS, ROWS)
    _, first, second = capfd.readouterr().out.splitlines()
    assert PATH in first
    assert len(second) < 120
    assert second.split() == [str(cell) for cell in ROWS[1]]


@given(
    st.lists(st.tuples(st.integers(0, 4000), st.integers(1, 20), st.booleans()), min_size=1, max_size=9),
    st.integers(20, 300),
)
def test_widths_fit_and_cells_are_shortened_only_when_needed(
    columns: list[tuple[int, int, bool]], available: int
) -> None:
    natural = [max(width, heading) for width, heading, _ in columns]
    widths = fitting_widths(natural, [each[1] for each in columns], [each[2] for each in columns], available)
    assert 1 <= len(widths) <= len(columns)
    assert sum(widths) + 2 * (len(widths) - 1) <= available
    assert all(width <= most for width, most in zip(widths, natural, strict=False))
    if sum(natural) + 2 * (len(natural) - 1) <= available:
        assert widths == natural


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
