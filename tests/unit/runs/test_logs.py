"""Test reading logs once and showing them as they arrive."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from hibali.events import Event, Noted
from hibali_cli.handlers.run_logs import LogLines
from hibali_cli.options import Common
from runs.logs import _Tail
from transfers.model.entry import Entry, Kind

OUT, ERR = b"/run/stdout", b"/run/stderr"


class Files:
    """A site with a few files that records requests."""

    def __init__(self) -> None:
        self.content: dict[bytes, bytes] = {}
        self.inode = 1
        self.requests: list[tuple[bytes, int, int]] = []

    def stat(self, path: bytes) -> Entry | None:
        if path not in self.content:
            return None
        return Entry(b"", Kind.FILE, size=len(self.content[path]), inode=self.inode)

    def get(self, path: bytes, *, maximum: int, offset: int) -> bytes | None:
        self.requests.append((path, offset, maximum))
        return self.content[path][offset : offset + maximum]


class Seen:
    """A tail over such a site."""

    def __init__(self) -> None:
        self.host = Files()
        self.shown: list[tuple[str, bytes]] = []
        self.events: list[Event] = []
        self.tail = _Tail(
            b"/run",
            ("stdout", "stderr"),
            lambda stream, piece: self.shown.append((stream, piece)),
            self.events.append,
        )

    def poll(self, seconds: float = 0.0) -> list[tuple[str, bytes]]:
        self.shown.clear()
        self.tail.follow(self.host, seconds)  # type: ignore[arg-type]
        return list(self.shown)


def test_only_new_bytes_are_requested() -> None:
    seen = Seen()
    assert seen.poll() == []
    assert not seen.tail.found
    seen.host.content[OUT] = b"first\n"
    assert seen.poll() == [("stdout", b"first\n")]
    seen.host.content |= {OUT: b"first\nsecond\n", ERR: b"!"}
    assert seen.poll() == [("stdout", b"second\n"), ("stderr", b"!")]
    assert seen.poll() == []
    assert seen.host.requests == [(OUT, 0, 6), (OUT, 6, 7), (ERR, 0, 1)]
    assert seen.tail.found


def test_a_truncated_or_replaced_file_is_shown_from_its_beginning() -> None:
    seen = Seen()
    seen.host.content[OUT] = b"a long beginning\n"
    seen.poll()
    seen.host.content[OUT] = b"short\n"
    assert seen.poll() == [("stdout", b"short\n")]
    seen.host.content[OUT], seen.host.inode = b"longer than it was\n", 2
    assert seen.poll() == [("stdout", b"longer than it was\n")]
    assert [event.message.split(";")[0] for event in seen.events if isinstance(event, Noted)] == [
        "stdout was truncated",
        "stdout was replaced",
    ]


def test_the_exit_record_triggers_one_immediate_query() -> None:
    seen = Seen()
    seen.host.content |= {OUT: b"x", b"/run/exit.json": b"{}"}
    seen.poll(3600)  # it returns
    seen.poll(0.3)
    assert seen.shown == []


def test_a_file_that_grows_after_the_end_is_not_followed_for_ever() -> None:
    seen = Seen()
    seen.host.content[OUT] = b"x" * 10

    class Growing(Files):
        def get(self, path: bytes, *, maximum: int, offset: int) -> bytes | None:
            found = super().get(path, maximum=maximum, offset=offset)
            self.content[path] += b"x" * 10
            return found

    host = Growing()
    host.content = seen.host.content
    seen.host = host
    assert len(seen.poll()) == 1


class Screen:
    """A terminal or a pipe that records all output."""

    def __init__(self, *, terminal: bool) -> None:
        self.text = ""
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None:
        pass


def one_terminal(monkeypatch: pytest.MonkeyPatch) -> Screen:
    """Replace both streams of this process; pytest sets its own before each test."""
    made = Screen(terminal=True)
    monkeypatch.setattr(sys, "stdout", made)
    monkeypatch.setattr(sys, "stderr", made)
    return made


def show(*pieces: tuple[Any, bytes], end: bool = True) -> LogLines:
    lines = LogLines(Common(), "run", apart=True)
    for stream, piece in pieces:
        lines.show(stream, piece)
    if end:
        lines.end()
    return lines


def test_control_characters_do_not_reach_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = one_terminal(monkeypatch)
    show(("stdout", b"plain\n\x1b[31mred\x07\r\nlast"))
    assert screen.text == "plain\n\\x1b[31mred\\x07\nlast\n"


def test_characters_and_line_ends_split_between_pieces_are_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = one_terminal(monkeypatch)
    letter = "é€😀".encode()
    show(
        *(("stdout", letter[at : at + 1]) for at in range(len(letter))), ("stdout", b"\r"), ("stdout", b"\n")
    )
    assert screen.text == "é€😀\n"
    screen.text = ""
    show(("stdout", b"10 %\r"), ("stdout", b"20 %\r"), ("stdout", b"done \xc3"))
    assert screen.text == "10 %\n20 %\ndone \\xc3\n"


def test_an_empty_log_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = one_terminal(monkeypatch)
    show(("scheduler.log", b""))
    assert screen.text == ""


def test_an_unfinished_line_is_shown_apart_from_other_streams(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    screen = one_terminal(monkeypatch)
    lines = show(("stdout", b"working"), end=False)
    assert screen.text == "working"
    lines.show("stdout", b" ...")
    lines.show("stderr", b"a warning\n")
    lines.show("stdout", b"done\n")
    assert screen.text == "working ...\na warning\ndone\n"
