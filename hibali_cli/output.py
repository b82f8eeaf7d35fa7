"""Write results to stdout and messages to stderr; escape names, write JSON in ASCII."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TextIO

from hibali.errors import IncompleteError
from hibali.text import printable

Cell = str | bytes | int | float | None
_WIDEST = 100  # columns; a longer cell stands out of its column where nothing is cut
_before: list[
    Callable[[], None]
] = []  # what is drawn on the terminal, and gives way to whatever is written there
PIPE_CLOSED = "pipe-closed"  # the code of the one error nobody is told of: whoever read has left


class Output:
    """One command's way to speak.

    With `json`, results are `record`s; without it, `line`s, `table`s and `pairs`. Every method that writes
    results raises `IncompleteError` when stdout is closed or full: what was not shown was not done.
    """

    def __init__(self, *, json: bool = False, quiet: bool = False, verbose: bool = False) -> None:
        self.json = json
        self.quiet = quiet
        self.verbose = verbose

    def record(self, kind: str, fields: Mapping[str, Any], *, flush: bool = False) -> None:
        """One JSON line on stdout, with its `schema` and `kind` (docs/json.md)."""
        self.text(json_line({"schema": 1, "kind": kind, **fields}) + "\n")
        if flush:
            flush_results()

    def line(self, text: str | bytes) -> None:
        """One line of a result for people, escaped (S17)."""
        self.text(printable(text) + "\n")

    def text(self, block: str) -> None:
        """A block of a result exactly as it is: text of our own making only."""
        stream = sys.stdout
        if stream is None:
            raise _closed()
        if _before:
            _make_way(stream)
        try:
            stream.write(block)
        except OSError as problem:
            raise _closed(problem) from None

    def raw(self, content: bytes | bytearray | memoryview) -> None:
        """Bytes of somebody else's exactly as they are; to a terminal only where just they were asked for (S17)."""
        flush_results()
        try:
            sys.stdout.buffer.write(content)
        except OSError as problem:
            raise _closed(problem) from None

    def table(self, headings: Sequence[str], rows: Iterable[Sequence[Cell]]) -> None:
        """Rows in aligned columns under headings; numbers to the right; cells escaped.

        On a terminal the table fits its width: long cells are shortened, and columns for which there is no room left out, which is
        said. Elsewhere every cell is whole, and one that is very long does not widen its column.
        """
        shown = [[_cell(value) for value in row] for row in rows]
        numeric = [_is_numeric(column) for column in zip(*shown, strict=True)] or [False] * len(headings)
        lines = [[heading.upper() for heading in headings], *shown]
        natural = [[_width(value) for value in column] for column in zip(*lines, strict=True)]
        if is_terminal(sys.stdout):
            from hibali_cli.display import cut, fitting_widths

            room = shutil.get_terminal_size().columns
            widths = fitting_widths(
                [max(column) for column in natural], [column[0] for column in natural], numeric, room
            )
            lines = [
                [cut(value, width) for value, width in zip(line, widths, strict=False)] for line in lines
            ]
        else:
            widths = [
                max((width for width in column if width <= _WIDEST), default=_WIDEST) for column in natural
            ]
        for number, line in enumerate(lines):
            text = "  ".join(
                _aligned(value, width, right=right)
                for value, width, right in zip(line, widths, numeric, strict=False)
            ).rstrip()
            self.text((_bold(text, sys.stdout) if number == 0 else text) + "\n")
        if shown and len(widths) < len(headings):
            left_out = ", ".join(headings[len(widths) :])
            self.say(f"Left out for lack of room: {left_out}. A wider terminal, a pipe or --json shows all.")

    def pairs(self, values: Mapping[str, Cell]) -> None:
        """Names and values, one to a line, values aligned; cells escaped."""
        width = max((_width(name) for name in values), default=0)
        for name, value in values.items():
            self.text(f"{_aligned(name, width)}  {_cell(value)}".rstrip() + "\n")

    def say(self, text: str) -> None:
        """A line for people on stderr, not with `--quiet`; escaped."""
        if not self.quiet:
            write_aside(printable(text))

    def detail(self, text: str) -> None:
        """A line for people who asked for more with `--verbose`; escaped."""
        if self.verbose and not self.quiet:
            write_aside(printable(text))

    def warn(self, text: str) -> None:
        """A line on stderr that `--quiet` does not hide; escaped."""
        write_aside(printable(text))


def json_line(record: Mapping[str, Any]) -> str:
    """The record as one line; text in it that is not UTF-8 is escaped, because JSON cannot hold it."""
    from hibali.documents import line_of_json

    line = line_of_json(dict(record))
    return line_of_json(_valid_text(dict(record))) if "\\ud" in line else line


def write_aside(text: str, *, end: str = "\n") -> None:
    """One line on stderr, already safe to show; a closed stderr is nobody's loss."""
    with contextlib.suppress(OSError, AttributeError, ValueError):
        _make_way(sys.stderr)
        sys.stderr.write(text + end)
        sys.stderr.flush()


def write_aside_raw(content: bytes) -> None:
    """Bytes of somebody else's on stderr, exactly as they are; for one that is no terminal (S17)."""
    with contextlib.suppress(OSError, AttributeError, ValueError):
        sys.stderr.flush()
        sys.stderr.buffer.write(content)
        sys.stderr.buffer.flush()


@contextlib.contextmanager
def after(clear: Callable[[], None]) -> Iterator[None]:
    """While inside, `clear` is called before anything is written to a terminal, because something is drawn there."""
    _before.append(clear)
    try:
        yield
    finally:
        _before.remove(clear)


def _make_way(stream: TextIO) -> None:
    if _before and is_terminal(stream):
        for clear in _before:
            clear()


def flush_results() -> None:
    """Bring all results out; raises `IncompleteError` where stdout does not take them."""
    if sys.stdout is None:
        raise _closed()
    try:
        sys.stdout.flush()
    except OSError as problem:
        raise _closed(problem) from None


def discard_results() -> None:
    """Let nothing be flushed to a broken stdout at the interpreter's end."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        descriptor = os.open(os.devnull, os.O_WRONLY)
        os.dup2(descriptor, sys.stdout.fileno())
        os.close(descriptor)


def prepare_streams() -> None:
    """Occupy closed standard descriptors, so that no data file becomes one, and never fail on a letter."""
    for wanted in range(3):
        try:
            os.fstat(wanted)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is this one
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def coloured(stream: TextIO | None) -> bool:
    """Whether colour may be written there: a terminal that knows it, and nobody said NO_COLOR."""
    return not os.environ.get("NO_COLOR") and can_be_drawn_on(stream)


def can_be_drawn_on(stream: TextIO | None) -> bool:
    """Whether lines there can be written over: a terminal that can move its cursor."""
    return is_terminal(stream) and os.environ.get("TERM", "dumb") != "dumb"


def is_terminal(stream: TextIO | None) -> bool:
    """Whether somebody may be looking at it."""
    try:
        return stream is not None and stream.isatty()
    except ValueError:
        return False


def _valid_text(value: Any) -> Any:
    if isinstance(value, dict):
        return {_valid_text(key): _valid_text(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_valid_text(inner) for inner in value]
    if isinstance(value, str) and any("\ud800" <= letter <= "\udfff" for letter in value):
        return printable(value)
    return value


def _closed(problem: OSError | None = None) -> IncompleteError:
    from hibali.system_errors import reason_of

    gone = isinstance(problem, BrokenPipeError)
    reason = reason_of(problem) if problem is not None and problem.errno else "it is closed"
    return IncompleteError(
        PIPE_CLOSED if gone else "stdout-unwritable",
        f"results could not be written to stdout: {reason}",
        hint="Run the same line again with its output going to a file or a terminal.",
    )


def _bold(text: str, stream: TextIO | None) -> str:
    return f"\x1b[1m{text}\x1b[0m" if coloured(stream) else text


def _cell(value: Cell) -> str:
    if value is None:
        return "-"
    return printable(value) if isinstance(value, str | bytes) else str(value)


def _is_numeric(column: Sequence[str]) -> bool:
    return any(value != "-" for value in column) and all(
        value == "-" or (value.isascii() and value.isdigit()) for value in column
    )


def _width(text: str) -> int:
    """Columns on a terminal: wide letters take two, combining marks none."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(letter) else 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        for letter in text
    )


def _aligned(text: str, width: int, *, right: bool = False) -> str:
    gap = " " * (width - _width(text))
    return gap + text if right else text + gap
