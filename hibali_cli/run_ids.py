"""Find runs by the beginnings of their ids, as users type them."""

from __future__ import annotations

from collections.abc import Iterable

from hibali.errors import NotFoundError
from runs.store import Book


def find_ids(typed: Iterable[str], *, only: bool) -> tuple[str, ...]:
    """Return the ids; what is none stays as it was typed, for whoever knows what else it may be or how to refuse it.

    Raises `UsageError` for a beginning that several runs have, where the parameter takes `only` runs.
    """
    book = Book()
    found = []
    for each in typed:
        try:
            found.append(book.find_id(each) if only or _looks_like_one(each) else each)
        except NotFoundError:
            found.append(each)
    return tuple(dict.fromkeys(found))


def _looks_like_one(typed: str) -> bool:
    """Whether something that may be a site or a file, too, can only be a run: its id begins with a date."""
    return len(typed) > _DATE and typed[:_DATE].isdigit() and typed[_DATE] == "-"


_DATE = 8
