"""Files that stand somewhere with less than a proof by content, by site: folded from the journals."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hibali.ledger import read_records
from hibali.text import path_from_fields
from transfers.history.journals import journal_of
from transfers.history.operation import Operation, Place

_PROVEN = frozenset({"digest", "recorded", None})


@dataclass(slots=True)
class Unproven:
    """Of one target: how many files stand there unproven, their bytes, and the weakest words for it."""

    site: str
    target: str
    proof: str
    files: int = 0
    bytes: int = 0


def find_unproven(operations: Sequence[Operation]) -> list[Unproven]:
    """What moved without proof and was neither moved again with one, deleted, nor verified since; the largest first.

    Only journals of operations that moved something without proof are read, and later ones at the same places.
    """
    weak: dict[tuple[str, str | None, bytes], tuple[str, str, int]] = {}
    places: list[Place] = []
    for operation in operations:
        place = operation.place
        if place is None or (operation.operation == "rm" and not weak):
            continue
        if operation.operation == "verify":
            if operation.exit == 0 and (operation.receipt or {}).get("proof_tree") in {"digest", "recorded"}:
                weak = {key: each for key, each in weak.items() if not place.holds(Place(*key))}
            continue
        if operation.proof_moved not in _PROVEN:
            places.append(place)
        elif not any(place.way_to(each) is not None for each in places):
            continue
        _fold(weak, operation, place)
    return _by_target(weak.values(), weak)


def _fold(
    weak: dict[tuple[str, str | None, bytes], tuple[str, str, int]], operation: Operation, place: Place
) -> None:
    root = place.path.rstrip(b"/")
    for record in read_records(journal_of(operation.id)):
        kind = record.get("kind")
        if kind not in {"moved", "recorded", "deleted"}:
            continue
        path = path_from_fields(record)
        key = (place.site, place.bucket, root + b"/" + path if root else path)
        weak.pop(key, None)
        if kind == "moved" and record.get("entry") == "file" and record.get("proof") not in _PROVEN:
            weak[key] = (operation.target, str(record["proof"]), int(record.get("size") or 0))


def _by_target(
    found: Iterable[tuple[str, str, int]], keys: Iterable[tuple[str, str | None, bytes]]
) -> list[Unproven]:
    together: dict[tuple[str, str, str], Unproven] = {}
    for (target, proof, size), (site, _, _) in zip(found, keys, strict=True):
        each = together.setdefault((site, target, proof), Unproven(site, target, proof))
        each.files += 1
        each.bytes += size
    return sorted(together.values(), key=lambda each: -each.bytes)
