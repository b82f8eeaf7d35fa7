"""The card that lies in a run's folder at its site: what another ledger needs to take the run up."""

from __future__ import annotations

import re
import socket
from typing import Any

from hibali.errors import HibaliError
from hibali.strict_json import MAXIMUM_BYTES, line_of_json, read_json
from hibali.text import printable
from runs.book import Book
from runs.run import Run, fold_records
from transfers.far import Far

_NAME = b"/run.json"
_BULKY = ("invocation", "asked", "inputs")
_BULKY_BYTES = 1 << 20
_KEY = re.compile(r"[0-9a-f]{64}")
_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,9})?Z")
# What the first record of a run holds; anything else in a card is not taken up.
_FIELDS: dict[str, type] = {
    **dict.fromkeys(
        ("id", "key", "at", "pipeline", "pipeline_digest", "name", "scheduler", "container"), str
    ),
    **dict.fromkeys(("hibali", "origin", "ledger"), str),
    **dict.fromkeys(("outputs", "after", "inputs", "resources"), list),
    **dict.fromkeys(("hold", "proxy"), bool),
    **dict.fromkeys(("invocation", "asked"), dict),
    "schema": int,
    "sweep": object,
}
_INPUT = {"id", "name", "location", "identity"}
_FLAGS = ("optional", "is_list", "is_pattern")
_TEXTS = ("pipeline", "pipeline_digest", "name", "scheduler", "container")


def put_card(far: Far, folder: bytes, book: Book, run: Run) -> None:
    """Leave it there, from the run's first record in the ledger; what is bulky stays away from it, and so do the tasks of a sweep."""
    card = {**book.records(run.id)[0], "kind": "run-card", "ledger": socket.gethostname()}
    if run.sweep is not None:
        card["sweep"] = True
    content = line_of_json(card).encode("ascii")
    if len(content) > _BULKY_BYTES:
        content = line_of_json({name: card[name] for name in card if name not in _BULKY}).encode("ascii")
    far.put(folder + _NAME, content + b"\n")


def read_card(far: Far, folder: bytes, run_id: str) -> dict[str, Any] | None:
    """The card as the first record of a ledger, with `ledger` beside; None where there is none that can be this run's."""
    content = far.get(folder + _NAME, maximum=MAXIMUM_BYTES + 1)
    if content is None:
        return None
    try:
        card = read_json(content, "run.json")
        texts = [card[name] for name in _TEXTS] + [each["path"] for each in card["outputs"]]
        known = card["id"] == run_id and _KEY.fullmatch(card["key"]) and _TIME.fullmatch(card["at"])
        if not known or not all(isinstance(text, str) for text in texts):
            return None
        if any(_climbs(each["path"]) for each in card["outputs"]):
            return None
        if not _is_sound(card):
            return None
        record = {
            **{name: card[name] for name in card if name in _FIELDS},
            "kind": "prepared",
            "sweep": bool(card.get("sweep")),
            "ledger": printable(str(card.get("ledger", "")))[:200],
        }
        run = fold_records(run_id, [{**record, "site": "", "sweep": None}])
        line_of_json(run.to_whole_record()).encode("ascii")  # what every command shows of it
    except (HibaliError, LookupError, TypeError, AttributeError, ValueError):
        return None
    return record


def _is_sound(card: dict[str, Any]) -> bool:
    """Whether the fields that are optional are of the kinds that a ledger writes: no command may fail by what stands there."""
    return (
        all(_is(card[name], kind) for name, kind in _FIELDS.items() if name in card)
        and all(isinstance(each, str) for each in card.get("after", ()))
        and all(_is_texts(each) and each.keys() >= _INPUT for each in card.get("inputs", ()))
        and all(
            isinstance(each["id"], str) and all(isinstance(each[name], bool) for name in _FLAGS)
            for each in card["outputs"]
        )
    )


def _is(value: Any, kind: type) -> bool:
    return isinstance(value, kind) or (kind is str and value is None)


def _is_texts(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(each, str) for each in value.values())


def _climbs(path: str) -> bool:
    return path.startswith("/") or ".." in path.split("/") or "\0" in path
