"""What a tool wrote, passed on: bytes as they are into files and pipes, safe lines on a terminal (S17)."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from hibali.text import path_fields, printable
from hibali_cli.options import Common
from hibali_cli.output import flush_results, is_terminal, write_aside, write_aside_raw

if TYPE_CHECKING:
    from runs.logs import Stream

_LONGEST_LETTER = 4  # bytes of UTF-8


class LogLines:
    """The streams of one run, in the pieces in which they come; with `apart`, its stderr goes to ours."""

    def __init__(self, common: Common, run_id: str, *, apart: bool) -> None:
        self._common = common
        self._run_id = run_id
        self._apart = apart
        self._held: dict[Stream, bytes] = {}  # what cannot be shown before more has come
        self._unfinished: Stream | None = None  # whose line stands on the terminal without its end

    def show(self, stream: Stream, piece: bytes) -> None:
        """Pass on one more piece, at once. Raises `IncompleteError` where stdout takes nothing."""
        aside = self._is_aside(stream)
        if self._common.json:
            fields = {"id": self._run_id, "stream": stream, **path_fields(piece, "text")}
            self._common.output.record("log", fields, flush=True)
        elif is_terminal(sys.stderr if aside else sys.stdout):
            self._show_safely(stream, self._held.pop(stream, b"") + piece)
        elif aside:
            write_aside_raw(piece)
        else:
            self._common.output.raw(piece)
            flush_results()

    def end(self) -> None:
        """Nothing more comes: what is held is shown, and the last line ended."""
        for stream, rest in list(self._held.items()):
            if half := rest.rstrip(b"\r"):
                self._write(stream, printable(half))
        self._held.clear()
        self._end_line()

    def _show_safely(self, stream: Stream, content: bytes) -> None:
        *lines, last = content.splitlines(keepends=True)
        if last.endswith(b"\n"):
            lines, last = [*lines, last], b""
        for line in lines:
            self._write(stream, printable(line.rstrip(b"\r\n")))
            self._end_line()
        whole = _without_half_letter(last.rstrip(b"\r"))  # the other half of an end may be on its way, too
        self._held[stream] = last[len(whole) :]
        if whole:
            self._write(stream, printable(whole))

    def _write(self, stream: Stream, text: str) -> None:
        if self._unfinished is not None and self._unfinished != stream:
            self._end_line()
        self._put(stream, text)
        self._unfinished = stream

    def _end_line(self) -> None:
        if self._unfinished is not None:
            self._put(self._unfinished, "\n")
            self._unfinished = None

    def _put(self, stream: Stream, text: str) -> None:
        if self._is_aside(stream):
            write_aside(text, end="")
        else:
            self._common.output.text(text)
            flush_results()

    def _is_aside(self, stream: Stream) -> bool:
        return self._apart and stream == "stderr"


def _without_half_letter(content: bytes) -> bytes:
    """All but a letter of UTF-8 at the end whose last bytes are still to come."""
    for length in range(1, min(_LONGEST_LETTER, len(content) + 1)):
        first = content[-length]
        if first & 0xC0 == 0x80:
            continue
        wanted = 4 if first >= 0xF0 else 3 if first >= 0xE0 else 2 if first >= 0xC0 else 1
        return content[:-length] if length < wanted else content
    return content
