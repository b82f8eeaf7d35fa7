"""Record operations on disk: append-only JSON lines and atomic summaries, safe on NFS and Lustre."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from hibali.documents import line_of_json
from hibali.errors import HibaliError, IncompleteError, RefusedError, UsageError
from hibali.files import (
    _write_all,
    open_regular,
    private_folder,
    state_folder,
    sync_folder,
    write_atomic,
)
from hibali.system_errors import reason_of, transient_error
from hibali.unreadable import damaged_line, note_unreadable

_SCHEDULE = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
IDENTIFIER = re.compile(r"[0-9a-f]{8}-[0-9a-f]{6}-[0-9a-f]{8}")
LATEST = (
    "latest"  # the name of the latest run or operation, and with `:PIPELINE` of the latest run of a pipeline
)
_MOST_CANDIDATES = 10
_FEWEST_TYPED = 4  # characters of an id: a slip of the keyboard names no run to cancel
_SYNC_EVERY = 64 * 1024  # bytes of a long journal between two fsyncs; receipts always sync


def now() -> str:
    """Return the current time, UTC, RFC 3339."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def seconds_of(time: object) -> float | None:
    """Return the seconds since the epoch of a time as `now` or a job script writes it; None for anything else."""
    if not isinstance(time, str):
        return None
    try:
        found = datetime.fromisoformat(time)
        return None if found.tzinfo is None else found.timestamp()
    except (ValueError, OverflowError):
        return None


def new_identifier() -> str:
    """Return a new id for an operation or run: sorted by time, random enough not to collide, `[0-9a-f-]` only."""
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(4)}"


def short_identifier(identifier: str) -> str:
    """Return the last part of an id, which is random; other text is unchanged."""
    return identifier.rpartition("-")[2] if IDENTIFIER.fullmatch(identifier) else identifier


def scheduled_by() -> dict[str, str]:
    """Return the schedule and its firing that this process belongs to; empty where a person started it.

    HIBALI_SCHEDULE is `NAME/FIRING`, set by the trigger of a schedule.
    """
    name, _, firing = os.environ.get("HIBALI_SCHEDULE", "").partition("/")
    if not (_SCHEDULE.fullmatch(name) and _SCHEDULE.fullmatch(firing)):
        return {}
    return {"schedule": name, "firing": firing}


def find_identifier(
    folder: Path, typed: str, named: Callable[[str], Collection[str]] | None = None
) -> str | None:
    """Return the id of the journal in `folder` that `typed` means; None where there is none. `named` returns the ids with a name.

    Raises `UsageError` as `choose_identifier` does.
    """
    if IDENTIFIER.fullmatch(typed) and (folder / f"{typed}.jsonl").is_file():
        return typed
    return choose_identifier(journal_names(folder), typed, named(typed) if named else ())


def choose_identifier(known: Iterable[str], typed: str, named: Collection[str] = ()) -> str | None:
    """Return the id with this name, or that or whose last part begins with these 4 or more characters; None where there is none.

    Raises `UsageError` with the candidates if several do.
    """
    found = set(named)
    if len(typed) >= _FEWEST_TYPED:
        begun = {
            each for each in known if each.startswith(typed) or each.rpartition("-")[2].startswith(typed)
        }
        found |= {each for each in begun if IDENTIFIER.fullmatch(each)}
    if len(found) > 1:
        listed = sorted(found)
        more = [f"and {len(found) - _MOST_CANDIDATES} more"] if len(found) > _MOST_CANDIDATES else []
        raise UsageError(
            "ambiguous-id",
            "\n".join(["several ids match:", *listed[-_MOST_CANDIDATES:], *more]),
            subject=typed,
            hint="Type more characters of the id.",
        )
    return next(iter(found), None)


def journal_names(folder: Path) -> list[str]:
    """Return the names of the journals in a folder, without the suffix, in no particular order."""
    names = os.listdir(folder)  # noqa: PTH208  # many thousands
    return [name.removesuffix(".jsonl") for name in names if name.endswith(".jsonl")]


def ledger_folder(*names: str) -> Path:
    """Return a private folder inside the ledger."""
    folder = state_folder()
    for name in names:
        folder = private_folder(folder / name)
    return folder


def not_started(problem: OSError, path: Path) -> HibaliError:
    """Return the error for a ledger that cannot be written before anything started: without a ledger, nothing starts."""
    return transient_error(problem, str(path)) or RefusedError(
        "ledger-unwritable",
        f"the ledger cannot be written: {reason_of(problem)}",
        subject=str(path),
        hint="Nothing was started. Free some space there, or set HIBALI_STATE to another folder.",
    )


class Journal:
    """An append-only JSON-lines file, kept open by the only process that writes it."""

    def __init__(self, path: Path, *first: Mapping[str, Any]) -> None:
        """Open it for appending, 0600, never through a symlink; raises `RefusedError` where that fails.

        With `first` the journal is new, and appears with these records or not at all: what is empty or
        cut short in its first line was then damaged later.
        """
        self.path = path
        self._lines: list[str] = []  # that are not written yet
        self._torn = False  # the last line may be cut short
        self._unsynced = 0
        try:
            if first:
                write_atomic(
                    path, b"".join(line_of_json(dict(each)).encode("ascii") + b"\n" for each in first)
                )
            self._descriptor = open_regular(path, os.O_RDWR | os.O_APPEND | os.O_CREAT)
            _end_torn_line(self._descriptor)
            sync_folder(path.parent)
        except OSError as problem:
            raise not_started(problem, path) from None

    def append(self, record: dict[str, Any] | str, *, durable: bool = False, more: bool = False) -> None:
        """Append one record, or its line; with `durable` it is on disk when this returns. Raises `IncompleteError`.

        With `more`, the next line follows at once, and both are written together.
        """
        self._lines.append(record if isinstance(record, str) else line_of_json(record))
        if more:
            return
        try:
            self._write_lines()
            if durable or self._unsynced > _SYNC_EVERY:
                os.fsync(self._descriptor)
                self._unsynced = 0
        except OSError as problem:
            raise IncompleteError(
                "ledger-unwritable",
                f"the ledger cannot be written: {reason_of(problem)}",
                subject=str(self.path),
            ) from None

    def _write_lines(self) -> None:
        lines, self._lines = self._lines, []
        content = "".join(f"{line}\n" for line in lines).encode("ascii")
        if self._torn:
            content = b"\n" + content
        self._torn = True
        _write_all(self._descriptor, content)
        self._torn = False
        self._unsynced += len(content)

    def close(self) -> None:
        """Sync and close; safe to call twice."""
        if self._descriptor >= 0:
            with contextlib.suppress(OSError):
                self._write_lines()
                os.fsync(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_records(
    path: Path, *, is_cache: bool = False, skips: Callable[[bytes], bool] | None = None
) -> Iterator[dict[str, Any]]:
    """Read the records of a journal, oldest first, without the lines that `skips` is true for; empty for a missing file.

    A line that a crash cut short is ignored. One that was damaged is reported (hibali.unreadable), unless the file
    `is_cache`: then what it said is found out again. Raises an OSError that names the file.
    """
    try:
        stream = os.fdopen(open_regular(path), "rb")
    except FileNotFoundError:
        return
    with stream, _naming(path):
        yield from records_in(stream, None if is_cache else path, skips)


def read_more_records(path: Path, start: int) -> tuple[list[dict[str, Any]], int]:
    """Read the records after `start` bytes of a journal, and return them with the end of its last complete line."""
    try:
        with _naming(path), os.fdopen(open_regular(path), "rb") as stream:
            stream.seek(start)
            whole, newline, _ = stream.read().rpartition(b"\n")
    except FileNotFoundError:
        return [], 0
    return list(records_in(whole.splitlines(), path)), start + len(whole) + len(newline)


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Add the file name to system errors, which lack it for open files."""
    try:
        yield
    except OSError as problem:
        problem.filename = problem.filename or str(path)
        raise


def records_in(
    lines: Iterable[bytes], path: Path | None = None, skips: Callable[[bytes], bool] | None = None
) -> Iterator[dict[str, Any]]:
    """Parse the lines of a journal; incomplete ones are skipped, and damaged ones of the whole journal `path` are reported."""
    for number, line in enumerate(lines, start=1):
        if skips is not None and skips(line):
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as problem:
            damaged = not _is_torn(line.rstrip(b"\n"), problem)
        else:
            damaged = not isinstance(record, dict)
            if not damaged:
                yield record
        if damaged and path is not None:
            note_unreadable(damaged_line(path, number))


def _is_torn(line: bytes, problem: Exception) -> bool:
    """Return whether a crash may have cut the line short: then nothing has relied on it."""
    if not line.startswith(b"{") or b"\0" in line:
        return not line
    return not line.endswith(b"}") or getattr(problem, "pos", 0) >= len(line)


def _end_torn_line(descriptor: int) -> None:
    """End a line that a crash cut short, so that the next record has its own line."""
    size = os.fstat(descriptor).st_size
    if size and os.pread(descriptor, 1, size - 1) != b"\n":
        _write_all(descriptor, b"\n")
