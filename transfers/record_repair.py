"""Find files at a target without a recorded digest, and record those that match by sha256."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from hibali.events import Event, Recorded
from hibali.ledger import ledger_folder
from hibali.locations import Location
from hibali.text import path_from_fields
from transfers.entry import Entry, Kind, Proof
from transfers.plan import Action, Decision, Verb
from transfers.recorded_digests import Expected, relation
from transfers.rules import Rules
from transfers.stores.base import Facts

_END_BYTES = 64 * 1024
_MOST_JOURNALS = 500
_CLOCKS_NS = 3600 * 1_000_000_000  # so far the site's clock may be off ours
_READS_ONLY = frozenset({"verify", "rm"})
_HASHES = frozenset({"local", "ssh"})  # kinds of stores whose files are hashed where they are


@dataclass(frozen=True, slots=True)
class CutOff:
    """The oldest operation whose journal ends without a receipt, and since when files may have no record."""

    id: str
    since_ns: int


class MissingRecords:
    """What is on record of a target, and what is not. `cut_off` is why something is missing, where that is known."""

    def __init__(
        self,
        known: Mapping[bytes, Expected],
        cut_off: CutOff | None,
        on_event: Callable[[Event], None],
        *,
        proof: Proof = Proof.DIGEST,
    ) -> None:
        """`proof` is how good a comparison is: digests may come from the record of an earlier call."""
        self._known = known
        self._proof = proof
        self._cut_off = cut_off
        self._on_event = on_event
        self._facts: tuple[Facts, Facts] | None = None
        self.repaired = 0
        self.left = 0

    def between(self, source: Facts, target: Facts) -> None:
        """The two sides that are compared."""
        self._facts = source, target
        self.repaired = self.left = 0

    def doubting(self, decisions: Iterable[Decision], rules: Rules) -> Iterator[Decision]:
        """The same, but files that the cut-off operation may have written are compared by digest instead of kept by size and time."""
        for decision in decisions:
            if isinstance(decision, Action) and self._is_doubtful(decision, rules):
                yield replace(decision, verb=Verb.COMPARE)
            else:
                yield decision

    def _is_doubtful(self, action: Action, rules: Rules) -> bool:
        if self._cut_off is None or action.verb is not Verb.KEEP or action.entry.kind is not Kind.FILE:
            return False
        target = action.target
        if target is None or target.path in self._known or target.digest:
            return False
        assert self._facts is not None
        away = (action.entry.offline or target.offline) and not rules.recall
        if not target.ctime_ns or away or not {each.kind for each in self._facts} <= _HASHES:
            self.left += 1
            return False
        return target.ctime_ns >= self._cut_off.since_ns - _CLOCKS_NS

    def proven(self, action: Action, digest: str) -> None:
        """Both ends have this content."""
        target = action.target
        assert target is not None
        known = self._known.get(target.path)
        if known is None or known.digest != digest:
            self.repaired += 1
            self._on_event(_recorded(target, digest, self._proof))

    def message(self) -> str:
        """What a person should know; "" for nothing."""
        why = f", because the record of {self._cut_off.id} was cut off" if self._cut_off is not None else ""
        parts = []
        if self.repaired:
            parts.append(
                f"Files that had no digest on record{why}: {self.repaired}."
                " They were compared by sha256 at both ends and are recorded now."
            )
        if self.left and self._cut_off is not None:
            parts.append(f"Files without a digest on record{why}: {self.left}. To record them: --checksum.")
        return " ".join(parts)


def _recorded(target: Entry, digest: str, proof: Proof) -> Recorded:
    return Recorded(target.path, target.size, digest, proof, target.mtime_ns, target.mode, target.etag)


def find_cut_off(location: Location, where: bytes, without: str) -> CutOff | None:
    """The oldest operation since the last complete one that wrote at this place and whose record was cut off.

    `without` is the operation that asks.
    """
    found: CutOff | None = None
    journals = sorted(ledger_folder("operations").glob("*.jsonl"), reverse=True)
    for path in journals[:_MOST_JOURNALS]:
        if path.stem == without:
            continue
        head, tail = _head_and_tail(path)
        if not head or head[0].get("operation") in _READS_ONLY or not _is_at(head, location, where):
            continue
        receipt = next((line for line in tail if line.get("kind") == "receipt"), None)
        unwritten = any(line.get("code") == "ledger-unwritable" for line in tail)
        if receipt is not None and not unwritten:
            if receipt.get("exit") == 0:
                break
            continue
        began = _moment(head[0].get("at"))
        if began is not None:
            found = CutOff(path.stem, began)
    return found


def _is_at(head: list[dict[str, Any]], location: Location, where: bytes) -> bool:
    place = next((line for line in head if line.get("kind") == "place"), None)
    if place is None or (place.get("site"), place.get("bucket")) != (location.site.name, location.bucket):
        return False
    return relation(path_from_fields(place, "place"), where) is not None


def _head_and_tail(path: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The records at the beginning and at the end of a journal, without those that are cut."""
    try:
        with path.open("rb") as stream:
            size = stream.seek(0, 2)
            stream.seek(0)
            head = stream.read(_END_BYTES)
            stream.seek(max(0, size - _END_BYTES))
            tail = stream.read(_END_BYTES)
    except OSError:
        return [], []
    return _records(head), _records(tail)


def _records(content: bytes) -> list[dict[str, Any]]:
    found = []
    for line in content.splitlines():
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict):
            found.append(record)
    return found


def _moment(text: object) -> int | None:
    try:
        return int(datetime.fromisoformat(str(text)).timestamp()) * 1_000_000_000
    except ValueError:
        return None
