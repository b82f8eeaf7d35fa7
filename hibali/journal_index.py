"""Index the journals of a folder of the ledger, so that a query opens only those that it needs.

The index is a cache: it may be deleted at any time, and is built again if it is missing, damaged or of another version. It is
one SQLite file that is written once, renamed into place and then only read, as `immutable`: SQLite takes no locks, which
NFS may lack, and no reader ever sees half of it. Each row says for which state of its journal it is valid, so that the last of several
writers wins without harm.
"""

from __future__ import annotations

import binascii
import contextlib
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from hibali.errors import RefusedError
from hibali.files import sync_folder
from hibali.ledger import journal_names
from hibali.system_errors import reason_of
from hibali.unreadable import UnreadableStateError, note_unreadable, unreadable

if TYPE_CHECKING:
    import sqlite3
    from types import ModuleType

_SUFFIX = ".jsonl"
_MOST_CHANGED = 50  # journals that are read again by each query before the index is written again
_SHARE_CHANGED = 400  # and one more for so many rows, because writing takes longer
_ABANDONED_SECONDS = 3600.0
_CHECKSUM = slice(68, 72)  # the application id in the head of SQLite's file format, which SQLite ignores
_PIECE = 1 << 20
_OWN_COLUMNS = ("name", "settled", "size", "mtime_ns")

_Result = TypeVar("_Result")
Value = str | int | float | bytes | None


@dataclass(frozen=True, slots=True)
class IndexRow:
    """The values of a journal for each column; if it is `settled`, they never change again, though the journal may grow."""

    values: tuple[Value, ...]
    settled: bool


class JournalIndex:
    """The index of one folder of journals.

    Args:
        journals: the folder; its files `NAME.jsonl` are indexed.
        path: the file of the index, in a private folder.
        version: differs whenever `columns` or the meaning of their values changed.
        columns: their names; those in `indexed` can be searched without reading all rows.
        read: returns the row of a journal; None for a file that is not a journal. Raises OSError or
            `UnreadableStateError` for an unreadable one, which each query reports (hibali.unreadable).
    """

    def __init__(
        self,
        journals: Path,
        path: Path,
        *,
        version: int,
        columns: Sequence[str],
        indexed: Sequence[str],
        read: Callable[[Path], IndexRow | None],
    ) -> None:
        self._journals = journals
        self._path = path
        self._version = version
        self._columns = (*_OWN_COLUMNS, *columns)
        self._indexed = indexed
        self._read = read

    def select(
        self, query: str, parameters: Sequence[Value], convert: Callable[[tuple[Any, ...]], _Result]
    ) -> list[_Result]:
        """Return the converted rows of one query; see `answer`."""
        return self.answer(lambda entries: [convert(row) for row in entries.execute(query, parameters)])

    def answer(self, ask: Callable[[sqlite3.Connection], _Result]) -> _Result:
        """Return the answer to queries of the table `entries`, which has a row for each journal as if it was read now.

        Its columns are `name`, without the suffix, and those of the index. `ask` is called again if the index is damaged.
        """
        database_error = _load_sqlite().DatabaseError
        # the second time, because another host may have replaced the index while it was read
        for _ in range(2):
            with contextlib.suppress(database_error, ValueError, KeyError, TypeError):
                return self._answer(ask, stored=True)
        return self._answer(ask, stored=False)

    def _answer(self, ask: Callable[[sqlite3.Connection], _Result], *, stored: bool) -> _Result:
        with contextlib.closing(self._open(stored=stored)) as connection:
            return ask(connection)

    def discard(self) -> None:
        """Delete the index, before journals change in another way than by growing."""
        self._path.unlink(missing_ok=True)

    def _open(self, *, stored: bool) -> sqlite3.Connection:
        """Return a connection in which `entries` is complete; without `stored`, all journals are read."""
        connection = _connect()
        try:
            rows = self._attach(connection) if stored else 0
            connection.execute(f"CREATE TEMP TABLE recent ({', '.join(self._columns)})")
            connection.execute("CREATE TEMP TABLE outdated (name PRIMARY KEY)")
            changed = self._add_changes(connection, known=bool(rows))
            connection.execute(self._entries(with_stored=bool(rows), with_recent=bool(changed)))
            if changed > _MOST_CHANGED + rows // _SHARE_CHANGED:
                self._write(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _entries(self, *, with_stored: bool, with_recent: bool) -> str:
        """Return the definition of `entries`; the simplest one, because SQLite checks a condition for each row."""
        columns = ", ".join(self._columns)
        parts = []
        if with_stored:
            still = " WHERE name NOT IN (SELECT name FROM outdated)" if with_recent else ""
            parts.append(f"SELECT {columns} FROM stored.entries{still}")
        if with_recent or not with_stored:
            parts.append(f"SELECT {columns} FROM recent")
        return f"CREATE TEMP VIEW entries AS {' UNION ALL '.join(parts)}"

    def _attach(self, connection: sqlite3.Connection) -> int:
        """Attach the stored index as `stored`, and return its number of rows; 0 without a usable one."""
        if not self._path.is_file() or not _is_whole(self._path):
            return 0
        connection.execute("ATTACH ? AS stored", [f"{self._path.as_uri()}?mode=ro&immutable=1"])
        [version] = connection.execute("PRAGMA stored.user_version").fetchone()
        if version != self._version:
            return 0
        [rows] = connection.execute("SELECT count(*) FROM stored.entries").fetchone()
        return int(rows)

    def _add_changes(self, connection: sqlite3.Connection, *, known: bool) -> int:
        """Read the journals that the stored index does not know as they are now, and return their number."""
        names = set(journal_names(self._journals))
        settled: set[str] = set()
        unsettled: dict[str, tuple[int, int]] = {}
        if known:
            # one value is read much faster than a row for each of many thousands
            query = "SELECT group_concat(name, '/') FROM stored.entries WHERE settled = 1"
            [text] = connection.execute(query).fetchone()
            settled.update(text.split("/") if text else ())
            rows = connection.execute("SELECT name, size, mtime_ns FROM stored.entries WHERE settled = 0")
            unsettled.update((name, (size, mtime_ns)) for name, size, mtime_ns in rows)
        changed = [
            (name, state) for name, state in self._states(names - settled) if unsettled.get(name) != state
        ]
        outdated = [name for name, _ in changed] + list((settled | unsettled.keys()) - names)
        connection.executemany("INSERT OR IGNORE INTO outdated VALUES (?)", ([name] for name in outdated))
        places = ", ".join("?" * len(self._columns))
        connection.executemany(f"INSERT INTO recent VALUES ({places})", self._rows(changed))
        return len(outdated)

    def _states(self, names: Iterable[str]) -> Iterator[tuple[str, tuple[int, int]]]:
        for name in filter(str.isascii, names):
            with contextlib.suppress(OSError):
                found = os.lstat(self._journals / f"{name}{_SUFFIX}")
                yield name, (found.st_size, found.st_mtime_ns)

    def _rows(self, changed: Iterable[tuple[str, tuple[int, int]]]) -> Iterator[tuple[Value, ...]]:
        """Read journals; each was looked at before, so that a row is outdated if its journal grows meanwhile."""
        for name, state in changed:
            path = self._journals / f"{name}{_SUFFIX}"
            try:
                row = self._read(path)
            except FileNotFoundError:
                continue
            except OSError as problem:
                note_unreadable(unreadable(path, f"it cannot be read: {reason_of(problem)}"))
                continue
            except UnreadableStateError as problem:
                note_unreadable(problem)
                continue
            if row is not None:
                yield name, row.settled, *state, *map(_storable, row.values)

    def _write(self, connection: sqlite3.Connection) -> None:
        """Replace the stored index atomically; a failure, such as a full disk, is ignored."""
        self._remove_abandoned()
        partial = self._path.with_name(f".{self._path.name}.{secrets.token_hex(8)}")
        with contextlib.suppress(OSError, _load_sqlite().DatabaseError):
            try:
                partial.touch(mode=0o600, exist_ok=False)
                self._fill(connection, partial)
                descriptor = os.open(partial, os.O_RDWR | os.O_CLOEXEC)
                try:
                    os.pwrite(descriptor, _checksums(partial)[1], _CHECKSUM.start)
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
                partial.replace(self._path)
                sync_folder(self._path.parent)
            finally:
                partial.unlink(missing_ok=True)

    def _fill(self, connection: sqlite3.Connection, partial: Path) -> None:
        connection.execute("ATTACH ? AS fresh", [f"{partial.as_uri()}?nolock=1"])
        connection.execute("PRAGMA fresh.journal_mode = OFF")
        connection.execute("PRAGMA fresh.synchronous = OFF")
        connection.execute("BEGIN")
        connection.execute(f"CREATE TABLE fresh.entries ({', '.join(self._columns)})")
        connection.execute("INSERT INTO fresh.entries SELECT * FROM temp.entries ORDER BY name")
        connection.execute("CREATE INDEX fresh.states ON entries (settled, name)")
        for number, each in enumerate(self._indexed):
            connection.execute(f"CREATE INDEX fresh.indexed_{number} ON entries ({each})")
        connection.execute(f"PRAGMA fresh.user_version = {self._version}")
        connection.execute("COMMIT")
        connection.execute("DETACH fresh")

    def _remove_abandoned(self) -> None:
        """Remove what killed processes left."""
        with contextlib.suppress(OSError):
            for path in self._path.parent.glob(f".{self._path.name}.*"):
                if time.time() - path.lstat().st_mtime > _ABANDONED_SECONDS:
                    path.unlink(missing_ok=True)


def _is_whole(path: Path) -> bool:
    """Return whether an index is as it was written: SQLite does not notice all damage, and answers what the rest says."""
    try:
        stored, content = _checksums(path)
    except OSError:  # another process just discarded it
        return False
    return stored == content


def _checksums(path: Path) -> tuple[bytes, bytes]:
    """Return the CRC-32 that an index says, and that of its content."""
    with path.open("rb") as stream:
        head = stream.read(_PIECE)
        digest = binascii.crc32(head[_CHECKSUM.stop :], binascii.crc32(head[: _CHECKSUM.start]))
        while piece := stream.read(_PIECE):
            digest = binascii.crc32(piece, digest)
    return head[_CHECKSUM], digest.to_bytes(4, "big")


def _storable(value: Value) -> Value:
    """Return a value that SQLite takes: a damaged journal may have lone surrogates."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


def _connect() -> sqlite3.Connection:
    """Return an empty database in memory."""
    connection: sqlite3.Connection = _load_sqlite().connect(":memory:", isolation_level=None, uri=True)
    connection.execute("PRAGMA temp_store = MEMORY")
    return connection


def _load_sqlite() -> ModuleType:
    """Return the module sqlite3; raises `RefusedError` for a Python that was built without it."""
    try:
        import sqlite3  # start-up: only for commands that search the ledger
    except ImportError:
        raise RefusedError(
            "python-without-sqlite",
            "this Python was built without the module sqlite3, with which hibali searches its ledger",
            hint="Install it with a Python that has this module, such as one of: uv python install",
        ) from None
    return sqlite3
