"""What a collection shows of a folder, as entries in the canonical order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

from hibali.errors import HibaliError, IncompleteError
from hibali.text import printable
from transfers.entry import Entry, Kind
from transfers.store import ListingIncompleteError, Problem, is_own_name, is_partial_name

MOST_NAMES = 100_000  # Globus lists no folder with more
_PAGE = 10_000

Page = Callable[[bytes, int, int], dict[str, Any]]
_TOO_MANY = "folder-too-large"  # also what Globus's own answer is translated to
_NAMED = frozenset({"denied", "not-found", _TOO_MANY})
_Stack = list[Iterator[Entry]]
_Troubles = list[tuple[bytes, Problem]]


def list_below(ask: Page, about: str, *, shallow: bool = False) -> Iterator[Entry]:
    """All entries below the root; `ask` gives a page of a folder, from an offset, of at most so many names.

    Raises `ListingIncompleteError` at its end for folders that could not be listed whole, and what asking raises for the root.
    """
    problems: _Troubles = []
    stack: _Stack = [iter(_children(ask, b""))]
    while stack:
        entry = next(stack[-1], None)
        if entry is None:
            stack.pop()
            continue
        if not (entry.kind is Kind.FOLDER and entry.path.rpartition(b"/")[2] == b".hibali"):
            yield entry
        if entry.kind is Kind.FOLDER and not shallow:
            try:
                stack.append(iter(_children(ask, entry.path)))
            except HibaliError as problem:
                if problem.code not in _NAMED:
                    raise
                problems.append((entry.path, Problem(problem.code, problem.message)))
    if problems:
        raise ListingIncompleteError(about, problems)


def _children(ask: Page, folder: bytes) -> list[Entry]:
    found: list[Entry] = []
    offset = 0
    while True:
        page = ask(folder, offset, _PAGE)
        found += [entry for document in page["DATA"] if (entry := _child(folder, document)) is not None]
        offset += len(page["DATA"])
        total = int(page.get("total") or offset)
        if total > MOST_NAMES:
            raise IncompleteError(
                _TOO_MANY,
                f"Globus lists no folder with more than {MOST_NAMES} names",
                about=printable(folder),
            )
        if offset >= total or not page["DATA"]:
            return sorted(found, key=lambda entry: entry.order)


def _child(folder: bytes, document: dict[str, Any]) -> Entry | None:
    name = str(document["name"]).encode("utf-8", "surrogateescape")
    path = folder + b"/" + name if folder else name
    return None if is_own_name(path) and not is_partial_name(path) else entry_of(path, document)


def entry_of(path: bytes, document: dict[str, Any]) -> Entry:
    """One name as Globus describes it; times are whole seconds, and what its links lead to is not followed."""
    when = _time_of(str(document.get("last_modified") or ""))
    link = document.get("link_target")
    if link is not None:
        return Entry(path, Kind.LINK, link=str(link).encode("utf-8", "surrogateescape"))
    kind = {"dir": Kind.FOLDER, "file": Kind.FILE}.get(str(document["type"]), Kind.SPECIAL)
    size = int(document.get("size") or 0) if kind is Kind.FILE else 0
    return Entry(path, kind, size, when)


def _time_of(text: str) -> int:
    """Nanoseconds since 1970 for `2026-11-23 01:00:00+00:00`; 0 for what is none."""
    try:
        when = datetime.fromisoformat(text)
        aware = when if when.tzinfo else when.replace(tzinfo=UTC)
        return int(aware.timestamp()) * 1_000_000_000
    except (ValueError, OverflowError):  # the first and last day of the calendar in another time zone
        return 0
