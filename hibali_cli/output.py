"""Write results to stdout and messages to stderr; escape names, write JSON in ASCII."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple, TextIO

from hibali.errors import HibaliError, IncompleteError
from hibali.text import printable


class Short(NamedTuple):
    """A cell that is `short` on a terminal, and `whole` elsewhere."""

    whole: str
    short: str


Cell = str | bytes | int | float | Short | None
_EMPTY = frozenset({"", "-"})
_WIDEST = 100  # columns; longer cells exceed their column where nothing is cut
_MOST_LINES = 512  # checked for what must be escaped, and written, together
_before: list[
    Callable[[], None]
] = []  # clears what is drawn on the terminal before anything is written there
_logs: list[Callable[[str], None]] = []  # at most one, of --log-file
_separator: list[str] = []  # what comes before the next record in a JSON array; empty without --json-array
PIPE_CLOSED = "pipe-closed"  # the code of the only error without a message: the reader has closed the pipe


class Output:
    """The output of one command.

    With `json`, results are `record`s; without it, `line`s, `table`s and `pairs`. Every method that writes
    results raises `IncompleteError` when stdout is closed or full: results that were not written count as not done.
    """

    def __init__(self, *, json: bool = False, quiet: bool = False, verbose: bool = False) -> None:
        self.json = json
        self.quiet = quiet
        self.verbose = verbose

    def record(self, kind: str, fields: Mapping[str, Any], *, flush: bool = False) -> None:
        """Write one JSON line to stdout, or element of --json-array, with its `schema` and `kind` (docs/json.md)."""
        self.text(record_text({"schema": 1, "kind": kind, **fields}))
        if flush:
            flush_results()

    def line(self, text: str | bytes) -> None:
        """Write one line of a result for users, escaped (S17)."""
        self.text(printable(text) + "\n")

    def lines(self, texts: Iterable[bytes]) -> None:
        """Write many lines of a result for users, escaped (S17)."""
        coming = iter(texts)
        while some := list(islice(coming, _MOST_LINES)):
            together = b"".join(some)
            if together.isascii() and printable(together) == together.decode("ascii"):
                self.text(b"\n".join(some).decode("ascii") + "\n")
            else:
                for each in some:
                    self.line(each)

    def text(self, block: str) -> None:
        """Write a block of a result unchanged: only for text of hibali itself."""
        stream = sys.stdout
        if stream is None:
            raise _closed()
        if _before:
            _clear_drawn(stream)
        try:
            stream.write(block)
        except OSError as problem:
            raise _closed(problem) from None

    def raw(self, content: bytes | bytearray | memoryview) -> None:
        """Write foreign bytes unchanged; to a terminal only if the user requested exactly these (S17)."""
        flush_results()
        try:
            sys.stdout.buffer.write(content)
        except OSError as problem:
            raise _closed(problem) from None

    def table(self, headings: Sequence[str], rows: Iterable[Sequence[Cell]]) -> None:
        """Write rows in aligned columns under headings; numbers right-aligned; cells escaped.

        On a terminal a table that is too wide loses its empty columns, and then shows each record on several lines. Only a
        cell that is wider than the terminal is shortened. Elsewhere a record is one line, and every cell is complete; a
        very long one does not widen its column.
        """
        on_terminal = is_terminal(sys.stdout)
        lines = [[_title(heading) for heading in headings]]
        lines += [[_cell(value, short=on_terminal) for value in row] for row in rows]
        if on_terminal:
            lines = _cut_to_terminal(lines)
        columns = list(zip(*lines, strict=True))
        numeric = [_is_numeric(column[1:]) for column in columns]
        placed = _fold(columns) if on_terminal else [("", _widths_in_pipe(columns))]
        for number, line in enumerate(lines):
            for indent, widths in placed:
                cells = (_aligned(line[at], width, right=numeric[at]) for at, width in widths.items())
                text = f"{indent}{'  '.join(cells)}".rstrip()
                self.text((_bold(text, sys.stdout) if number == 0 else text) + "\n")

    def pairs(self, values: Mapping[str, Cell]) -> None:
        """Write names and values, one pair per line, values aligned; cells escaped."""
        width = max((_width(name) for name in values), default=0)
        for name, value in values.items():
            self.text(f"{_aligned(name, width)}  {_cell(value)}".rstrip() + "\n")

    def info(self, text: str) -> None:
        """Write a line for users to stderr, not with `--quiet`; escaped."""
        self._message(text, shown=not self.quiet)

    def detail(self, text: str) -> None:
        """Write a line to stderr with `--verbose`; escaped."""
        self._message(text, shown=self.verbose and not self.quiet)

    def warn(self, text: str) -> None:
        """Write a line to stderr also with `--quiet`; escaped."""
        self._message(text, shown=True)

    def _message(self, text: str, *, shown: bool) -> None:
        """Write a line to the log, and to stderr if it is `shown`."""
        line = printable(text)
        log_message(line)
        if shown:
            write_message(line)


def begin_array() -> None:
    """Write the records of this process as elements of one JSON array, unless they are already."""
    _separator[:] = _separator or ["["]


def end_array() -> None:
    """End the array of `begin_array`, once. Raises `IncompleteError` where stdout cannot be written."""
    if _separator:
        empty = _separator.pop() == "["
        Output().text("[]\n" if empty else "]\n")


def record_text(record: Mapping[str, Any]) -> str:
    """Return a record as it is written next: one line, or an element of the array."""
    if not _separator:
        return json_line(record) + "\n"
    before, _separator[0] = _separator[0], ",\n"
    return before + json_line(record)


def json_line(record: Mapping[str, Any]) -> str:
    """Return the record as one JSON line; text that is not UTF-8 is escaped, because JSON cannot hold it."""
    from hibali.documents import line_of_json  # start-up: only where it is written

    line = line_of_json(dict(record))
    return line_of_json(_valid_text(dict(record))) if "\\ud" in line else line


def log_to(write: Callable[[str], None]) -> None:
    """Pass all messages to `write`, too, also those that are not shown, until `end_log`."""
    _logs[:] = [write]


def is_logged() -> bool:
    """Return whether there is a log of messages."""
    return bool(_logs)


def log_message(text: str) -> None:
    """Write an escaped text to the log, if there is one."""
    for write in _logs:
        write(text)


def end_log(code: int) -> None:
    """Write the exit code to the log, if there is one, as its last line."""
    log_message(f"ended    exit {code}")
    _logs.clear()


def write_message(text: str, *, end: str = "\n") -> None:
    """Write one escaped line to stderr; a closed stderr is ignored."""
    with contextlib.suppress(OSError, AttributeError, ValueError):
        _clear_drawn(sys.stderr)
        sys.stderr.write(text + end)
        sys.stderr.flush()


def write_message_raw(content: bytes) -> None:
    """Write foreign bytes unchanged to stderr; only where it is not a terminal (S17)."""
    with contextlib.suppress(OSError, AttributeError, ValueError):
        sys.stderr.flush()
        sys.stderr.buffer.write(content)
        sys.stderr.buffer.flush()


@contextlib.contextmanager
def after(clear: Callable[[], None]) -> Iterator[None]:
    """While inside, call `clear` before anything is written to a terminal on which something is drawn."""
    _before.append(clear)
    try:
        yield
    finally:
        _before.remove(clear)


def _clear_drawn(stream: TextIO) -> None:
    if _before and is_terminal(stream):
        for clear in _before:
            clear()


def flush_results() -> None:
    """Flush all results; raises `IncompleteError` where stdout cannot be written."""
    if sys.stdout is None:
        raise _closed()
    try:
        sys.stdout.flush()
    except OSError as problem:
        raise _closed(problem) from None


@contextlib.contextmanager
def until_pipe_closes() -> Iterator[None]:
    """End the block without an error when the reader of stdout stops early: it has all that it wanted."""
    try:
        yield
        flush_results()
    except HibaliError as problem:
        if problem.code != PIPE_CLOSED:
            raise
        discard_results()


def discard_results() -> None:
    """Discard buffered results, so that the interpreter does not flush to a broken stdout at its end."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        descriptor = os.open(os.devnull, os.O_WRONLY)
        os.dup2(descriptor, sys.stdout.fileno())
        os.close(descriptor)


def prepare_streams() -> None:
    """Open closed standard descriptors, so that no data file gets their numbers, and escape characters that cannot be encoded."""
    for wanted in range(3):
        try:
            os.fstat(wanted)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free descriptor, which is this one
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")


def coloured(stream: TextIO | None) -> bool:
    """Return whether colours may be used: a capable terminal, without NO_COLOR."""
    return not os.environ.get("NO_COLOR") and can_be_drawn_on(stream)


def can_be_drawn_on(stream: TextIO | None) -> bool:
    """Return whether lines can be redrawn: a terminal that can move its cursor."""
    return is_terminal(stream) and os.environ.get("TERM", "dumb") != "dumb"


def is_terminal(stream: TextIO | None) -> bool:
    """Return whether the stream is a terminal."""
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
    from hibali.system_errors import reason_of  # start-up: only where it is written

    gone = isinstance(problem, BrokenPipeError)
    reason = reason_of(problem) if problem is not None and problem.errno else "it is closed"
    return IncompleteError(
        PIPE_CLOSED if gone else "stdout-unwritable",
        f"results could not be written to stdout: {reason}",
        hint="Run the same command again with its output to a file or a terminal.",
    )


def _bold(text: str, stream: TextIO | None) -> str:
    return f"\x1b[1m{text}\x1b[0m" if coloured(stream) else text


def _title(heading: str) -> str:
    """Return a heading in capitals; one that is an id stays as it is typed."""
    return heading if any(letter.isdigit() for letter in heading) else heading.upper()


def _cell(value: Cell, *, short: bool = False) -> str:
    if value is None:
        return "-"
    if isinstance(value, Short):
        value = value.short if short else value.whole
    return printable(value) if isinstance(value, str | bytes) else str(value)


def _widths_in_pipe(columns: Sequence[Sequence[str]]) -> dict[int, int]:
    """Return the width of each column, by its position."""
    found = ([width for width in map(_width, column) if width <= _WIDEST] for column in columns)
    return {at: max(widths, default=_WIDEST) for at, widths in enumerate(found)}


def _cut_to_terminal(lines: Sequence[Sequence[str]]) -> list[list[str]]:
    """Shorten the cells that are wider than this terminal."""
    from hibali_cli.display import INDENT, cut  # start-up: only where it is written

    most = max(1, shutil.get_terminal_size().columns - INDENT)
    return [[cut(value, most) for value in line] for line in lines]


def _fold(columns: Sequence[Sequence[str]]) -> list[tuple[str, dict[int, int]]]:
    """Return the lines of a record on this terminal: their indent, and the width of each column, by its position."""
    from hibali_cli.display import INDENT, fold_columns  # start-up: only where it is written

    available = shutil.get_terminal_size().columns
    widths = {at: max(map(_width, column)) for at, column in enumerate(columns)}
    if len(fold_columns([*widths.values()], available)) > 1:
        widths = {at: width for at, width in widths.items() if not at or _has_content(columns[at])}
    kept = list(widths)
    folded = fold_columns([*widths.values()], available)
    return [
        (" " * INDENT if number else "", {kept[at]: widths[kept[at]] for at in line})
        for number, line in enumerate(folded)
    ]


def _has_content(column: Sequence[str]) -> bool:
    """Return whether a column has a value below its heading, or no lines at all."""
    return len(column) == 1 or not _EMPTY.issuperset(column[1:])


def _is_numeric(column: Sequence[str]) -> bool:
    return any(value != "-" for value in column) and all(
        value == "-" or (value.isascii() and value.isdigit()) for value in column
    )


def _width(text: str) -> int:
    """Return the columns of a text on a terminal: wide characters take two, combining marks none."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(letter) else 2 if unicodedata.east_asian_width(letter) in "WF" else 1
        for letter in text
    )


def _aligned(text: str, width: int, *, right: bool = False) -> str:
    gap = " " * (width - _width(text))
    return gap + text if right else text + gap
