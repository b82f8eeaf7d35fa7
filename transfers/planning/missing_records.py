"""Find which files of a target this machine transferred, and why their records may be missing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hibali.events import Event, Recorded
from hibali.files import open_regular
from hibali.ledger import records_in, seconds_of
from hibali.locations import Location
from hibali.text import counted, path_from_fields
from transfers.history.recorded_digests import Expected, _journals_at, relation
from transfers.model.entry import Entry, Kind, Verification
from transfers.model.facts import Facts
from transfers.model.rules import Rules
from transfers.planning.actions import Action, Decision, Verb

_MOST_JOURNALS = 500
_CLOCKS_NS = 3600 * 1_000_000_000  # the largest difference between the site's clock and ours
_END_BYTES = 64 * 1024
_READS_ONLY = frozenset({"verify", "rm", "drop"})
_HASHES = frozenset({"local", "ssh"})  # kinds of stores whose files are hashed where they are


@dataclass(frozen=True, slots=True)
class CutOff:
    """The oldest operation whose journal has no receipt, and the time from which files may be unrecorded."""

    id: str
    since_ns: int


class MissingRecords:
    """The recorded digests of a target, and a reason (`cut_off`) for missing ones, if known."""

    def __init__(
        self,
        known: Mapping[bytes, Expected],
        cut_off: CutOff | None,
        on_event: Callable[[Event], None],
        *,
        verification: Verification = Verification.DIGEST,
    ) -> None:
        """Keep the records; `verification` is the method of a comparison (digests may be recorded ones)."""
        self._known = known
        self._verification = verification
        self._cut_off = cut_off
        self._on_event = on_event
        self._facts: tuple[Facts, Facts] | None = None
        self.repaired = 0
        self.left = 0

    def between(self, source: Facts, target: Facts) -> None:
        """Set the facts of both sides of the comparison."""
        self._facts = source, target
        self.repaired = self.left = 0

    def doubting(self, decisions: Iterable[Decision], rules: Rules) -> Iterator[Decision]:
        """Yield the decisions; files that the cut-off operation may have written are compared by digest."""
        for decision in decisions:
            if isinstance(decision, Action) and self._is_doubtful(decision, rules):
                yield decision._replace(verb=Verb.COMPARE)
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

    def add_verified(self, action: Action, digest: str) -> None:
        """Record the digest of equal files, if it is not on record."""
        target = action.target
        assert target is not None
        known = self._known.get(target.path)
        if known is None or known.digest != digest:
            self.repaired += 1
            self._on_event(_recorded(target, digest, self._verification))

    def message(self) -> str:
        """Return the message for users; "" if there is none."""
        why = f", because the record of {self._cut_off.id} is incomplete" if self._cut_off is not None else ""
        parts = []
        if self.repaired:
            parts.append(
                f"No digest was recorded for {counted(self.repaired, 'file')}{why};"
                " hibali compared sha256 at both ends and recorded it now."
            )
        if self.left and self._cut_off is not None:
            parts.append(
                f"No digest is recorded for {counted(self.left, 'file')}{why}. To record them, add --checksum."
            )
        return " ".join(parts)


def _recorded(target: Entry, digest: str, verification: Verification) -> Recorded:
    facts = target.mtime_ns, target.mode, target.etag, target.inode
    return Recorded(target.path, target.size, digest, verification, *facts)


def find_cut_off(location: Location, root_path: bytes, without: str) -> CutOff | None:
    """Return the oldest cut-off operation at this root since the last complete one.

    `without` is the id of the current operation, which is skipped.
    """
    found: CutOff | None = None
    journals = _journals_at(location, root_path)
    for path in reversed(journals[-_MOST_JOURNALS:]):
        if path.stem == without:
            continue
        head, tail = _head_and_tail(path)
        if not head or head[0].get("operation") in _READS_ONLY or not _is_at(head, location, root_path):
            continue
        receipt = next((line for line in tail if line.get("kind") == "receipt"), None)
        unwritten = any(line.get("code") == "ledger-unwritable" for line in tail)
        if receipt is not None and not unwritten:
            if receipt.get("exit") == 0:
                break
            continue
        began = seconds_of(head[0].get("at"))
        if began is not None:
            found = CutOff(path.stem, int(began) * 1_000_000_000)
    return found


def _is_at(head: list[dict[str, Any]], location: Location, root_path: bytes) -> bool:
    place = next((line for line in head if line.get("kind") == "place"), None)
    if place is None or (place.get("site"), place.get("bucket")) != (location.site.name, location.bucket):
        return False
    return relation(path_from_fields(place, "place"), root_path) is not None


def _head_and_tail(path: Path) -> list[list[dict[str, Any]]]:
    """Return the records at the start and the end of a journal, without incomplete lines."""
    try:
        with os.fdopen(open_regular(path), "rb") as stream:
            size = stream.seek(0, 2)
            stream.seek(0)
            head = stream.read(_END_BYTES)
            stream.seek(max(0, size - _END_BYTES))
            tail = stream.read(_END_BYTES)
    except OSError:
        return [[], []]
    return [list(records_in(part.splitlines())) for part in (head, tail)]
