"""What sites will delete by themselves within two weeks, of what hibali brought there; folded from the journals."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from hibali.amounts import size_words
from hibali.errors import HibaliError
from hibali.ledger import read_records
from hibali.locations import parse_location
from hibali.sites import Purge, Site
from hibali.text import path_from_fields
from runs.overview.model import Fading
from transfers.history.journals import journal_of
from transfers.history.operation import Operation

AHEAD_SECONDS = 14 * 86400.0
_DAY = 86400.0


@dataclass(frozen=True, slots=True)
class _File:
    target: str
    size: int
    at: float  # the time by which the site judges it


def find_purged(
    sites: Iterable[Site], operations: Iterable[Operation], known: Mapping[str, Site], now: float
) -> list[Fading]:
    """For each target what goes first, the earliest first. What was purged already is not told: it is only known that it may be."""
    found: list[Fading] = []
    at_site = list(operations)
    for site in sites:
        if site.purge is not None:
            found += _of_site(
                site, site.purge, [each for each in at_site if _is_below(each, site, known)], now
            )
    return sorted(found, key=lambda each: each.when)


def _is_below(operation: Operation, site: Site, known: Mapping[str, Site]) -> bool:
    """Whether it wrote below the root in which the site deletes."""
    assert site.purge is not None
    if operation.place is None or operation.place.site != site.name or operation.operation == "verify":
        return False
    try:
        typed = parse_location(operation.target, known, b"/", literal=True)
    except HibaliError:
        return False
    root = site.roots.get(site.purge.root, "").rstrip("/")
    return typed is not None and bool(root) and (typed.path == root or typed.path.startswith(f"{root}/"))


def _of_site(site: Site, purge: Purge, operations: Iterable[Operation], now: float) -> Iterator[Fading]:
    standing: dict[bytes, _File] = {}
    for operation in operations:
        _fold(standing, operation, purge)
    targets: dict[str, list[_File]] = {}
    for each in standing.values():
        if now <= each.at + purge.days * _DAY <= now + AHEAD_SECONDS:
            targets.setdefault(each.target, []).append(each)
    for target, files in targets.items():
        first = min(each.at for each in files) + purge.days * _DAY
        yield Fading(
            f"{site.name} deletes {len(files)} files ({size_words(sum(each.size for each in files))})",
            target,
            f"{datetime.fromtimestamp(first, UTC):%Y-%m-%dT%H:%M:%SZ}",
            f"hibali pull {target} FOLDER",
        )


def _fold(standing: dict[bytes, _File], operation: Operation, purge: Purge) -> None:
    assert operation.place is not None
    root = operation.place.path.rstrip(b"/")
    for record in read_records(journal_of(operation.id)):
        kind = record.get("kind")
        if kind not in {"moved", "deleted"}:
            continue
        key = root + b"/" + path_from_fields(record)
        standing.pop(key, None)
        if kind == "moved" and record.get("entry") == "file":
            modified = int(record.get("mtime_ns") or 0) / 1e9
            at = modified if purge.by == "mtime" and modified else operation.moment
            standing[key] = _File(operation.target, int(record.get("size") or 0), at)
