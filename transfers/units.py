"""Units and payloads as the agent's messages carry them."""

from __future__ import annotations

import re
from base64 import b64encode
from typing import Any

from hibali.system_errors import words_of
from transfers.agent import frames
from transfers.connection import Connection
from transfers.entry import Kind, Proof
from transfers.store import Item, Payload, Problem, Unit

_DIGEST = re.compile(r"[0-9a-f]{64}")
KIND_LETTERS = {Kind.FILE: "f", Kind.FOLDER: "d", Kind.LINK: "l", Kind.SPECIAL: "s"}

_NAME_LETTER = "h"  # a further name of a file that has landed


def unit_header(unit: Unit, number: int) -> dict[str, Any]:
    """What both ends are told of a unit before its bytes: the plan, by numbers and paths."""
    return {
        "unit": number,
        "segment": unit.segment,
        "offset": unit.offset,
        "length": unit.length,
        "items": [item_header(item) for item in unit.items],
    }


def item_header(item: Item) -> dict[str, Any]:
    """One item of the plan, as an agent is told of it."""
    entry = item.entry
    replaced = item.replaces
    return {
        "number": item.number,
        "path": frames.text_of(entry.path),
        "kind": _NAME_LETTER if entry.same_as else KIND_LETTERS[entry.kind],
        "same_as": frames.text_of(entry.same_as),
        "size": entry.size,
        "mtime_ns": entry.mtime_ns,
        "mode": entry.mode,
        "link": frames.text_of(entry.link),
        "tag": entry.etag or "",
        "clear": item.clear,
        "expect": _expected(item) if item.exact else None,
        "sparse": entry.sparse,
        "permissions": item.permissions,
        "attributes": attributes_text(item.attributes),
        "old_mode": replaced.mode if replaced and replaced.kind is Kind.FILE and replaced.mode >= 0 else None,
    }


def attributes_text(packed: bytes | None) -> str | None:
    """Attributes as a message carries them: no byte takes more than it must, whatever they hold."""
    return None if packed is None else b64encode(packed).decode("ascii")


def _expected(item: Item) -> list[Any]:
    """What has to stand there still, as the agent compares it; empty for nothing."""
    found = item.replaces
    if found is None:
        return []
    return [KIND_LETTERS[found.kind], found.size, found.mtime_ns, found.ctime_ns, found.inode]


def problem_from(found: Any) -> Problem:
    """The agent's [code, message, again]."""
    try:
        code, message, again = found
        return Problem(str(code), words_of(str(code), str(message)), again=bool(again))
    except (TypeError, ValueError):
        return Problem("failed", "the agent gave no reason")


def payload_of(unit: Unit, frame: frames.Frame, connection: Connection) -> Payload:
    """A source agent's DATA as a payload, believed only where it adds up; raises `IncompleteError`."""
    with connection.understanding():
        return _payload(unit, frame, connection)


def _payload(unit: Unit, frame: frames.Frame, connection: Connection) -> Payload:
    told = told_of(unit, frame.header, connection)
    if sum(told.sizes) != len(frame.body):
        raise connection.broken("sent data that does not add up")
    told.data = frame.body
    return told


def told_of(unit: Unit, header: dict[str, Any], connection: Connection, *, digested: bool = True) -> Payload:
    """The same without the bytes, wherever those are; the digest of a large file may be told apart (not `digested`)."""
    sizes, digests, found = (header.get(key) for key in ("sizes", "digests", "problems"))
    count = len(unit.items)
    if not (isinstance(sizes, list) and isinstance(digests, list) and isinstance(found, dict)):
        raise connection.broken("sent data without its sizes")
    if len(sizes) != count or len(digests) != count:
        raise connection.broken("sent data that does not add up")
    problems = {int(position): problem_from(p) for position, p in found.items()}
    if not all(0 <= position < count for position in problems):
        raise connection.broken("told a problem of nothing that was asked")
    for position, item in enumerate(unit.items):
        expected = unit.length if unit.segment else item.entry.size
        if not item.carries or position in problems:
            expected = 0
        if sizes[position] != expected:
            raise connection.broken("sent more or less of a file than was asked")
        needs_digest = digested and item.carries and position not in problems and unit.last
        if needs_digest and not (isinstance(digests[position], str) and _DIGEST.fullmatch(digests[position])):
            raise connection.broken("sent a file without its digest")
    return Payload(unit, b"", sizes, digests, [Proof.DIGEST] * count, problems)


def data_header(payload: Payload, number: int) -> dict[str, Any]:
    """What goes to a target with the bytes: numbers and digests, never a path."""
    return {
        "unit": number,
        "sizes": payload.sizes,
        "digests": payload.digests,
        "problems": {str(position): [p.code, p.message, p.again] for position, p in payload.problems.items()},
    }
