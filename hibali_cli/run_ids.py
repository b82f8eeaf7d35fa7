"""Complete the beginnings of run ids that users type."""

from __future__ import annotations

from collections.abc import Iterable

from hibali.errors import NotFoundError
from runs.store import RunStore

_DATE = 8  # letters of the date at the beginning of an id


def find_ids(typed: Iterable[str], *, only: bool) -> tuple[str, ...]:
    """Return the ids of runs; text that is no id is returned as it was typed, for the caller.

    Raises `UsageError` for a beginning that several runs have, if the parameter takes `only` runs.
    """
    run_store = RunStore()
    found = []
    for each in typed:
        try:
            found.append(run_store.find_id(each) if only or _is_run_id(each) else each)
        except NotFoundError:
            found.append(each)
    return tuple(dict.fromkeys(found))


def _is_run_id(typed: str) -> bool:
    """Return whether text can only be a run id, which starts with a date, and not a site or file."""
    return len(typed) > _DATE and typed[:_DATE].isdigit() and typed[_DATE] == "-"
