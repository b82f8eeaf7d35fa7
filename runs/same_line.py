"""The same line typed again with other wishes for its job: taken up while nothing is submitted, and told afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hibali.events import Listener, Noted
from runs.book import Book
from runs.resources import show_value
from runs.run import Run

Fields = list[dict[str, Any]]  # Asked.to_fields()


def take_wishes(book: Book, run: Run, now: Fields, tell: Listener) -> None:
    """What a job asks for is no part of a run's key, so that a run is continued whatever is asked for now."""
    before = recorded_wishes(book, run.id)
    if before is None or _values(before) == _values(now):
        return
    if run.job or run.state.ended:
        tell(
            Noted(
                f"run {run.id} was submitted with {_shown(before)}, and goes on so; --new starts one with {_shown(now)}"
            )
        )
    else:
        book.note(run.id, "resources", {"resources": now})


def recorded_wishes(book: Book, run_id: str) -> Fields | None:
    """What the job of a run was to ask for when that was said last; None for a run that an older version began."""
    for record in reversed(book.records(run_id)):
        found = record.get("resources")
        if isinstance(found, list):
            return found
    return None


def _values(wishes: Sequence[dict[str, Any]]) -> list[tuple[Any, Any]]:
    """Who said so makes no other job."""
    return [(each.get("name"), each.get("value")) for each in wishes]


def _shown(wishes: Sequence[dict[str, Any]]) -> str:
    words = [f"{name} {show_value(str(name), value)}" for name, value in _values(wishes)]
    return ", ".join(words) or "what the site gives"
