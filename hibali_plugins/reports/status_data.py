"""Gather the data of the status report from the ledger, config.toml and schedules.toml."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from hibali.amounts import format_size
from hibali.config.model import Purge, Site
from hibali.config.settings import load_sites
from hibali.errors import HibaliError
from hibali.ledger import read_records
from hibali.locations import parse_location
from hibali.text import counted, path_from_fields
from hibali.unreadable import collect_unreadable
from hibali_plugins.reports.status import (
    DAYS,
    Expiry,
    Overview,
    ScheduleInfo,
    by_day,
    evaluate,
    failed_commands,
)
from hibali_plugins.schedules.environment import Credential
from hibali_plugins.schedules.maintenance import all_credentials, longest_silence
from hibali_plugins.schedules.records import read_triggers
from hibali_plugins.schedules.schedule import Schedule, Schedules, load_schedules
from runs.rate_limits import site_usage
from runs.run_index import count_runs_by_state
from transfers.history.index import (
    count_operations,
    read_operations_at,
    read_operations_since,
    read_unverified,
)
from transfers.history.operations import Operation, OperationRoot, journal_of

AHEAD_SECONDS = 14 * 86400.0
_DAY = 86400.0


@dataclass(frozen=True, slots=True)
class _File:
    target: str
    size: int
    at: float  # the modification time, by which the site deletes


def find_purged(
    sites: Iterable[Site], operations: Iterable[Operation], known: Mapping[str, Site], now: float
) -> list[Expiry]:
    """Return the first expected purge of each target, sorted by time.

    Past purge times are omitted, because it is only known that the data may be purged.
    """
    found: list[Expiry] = []
    at_site = list(operations)
    for site in sites:
        if site.purge is not None:
            found += _of_site(
                site, site.purge, [each for each in at_site if _is_below(each, site, known)], now
            )
    return sorted(found, key=lambda each: each.when)


def _is_below(operation: Operation, site: Site, known: Mapping[str, Site]) -> bool:
    """Return whether the operation wrote below the root in which the site deletes."""
    assert site.purge is not None
    if operation.place is None or operation.place.site != site.name or operation.operation == "verify":
        return False
    try:
        typed = parse_location(operation.target, known, b"/", literal=True)
    except HibaliError:
        return False
    root = site.roots.get(site.purge.root, "").rstrip("/")
    return typed is not None and bool(root) and (typed.path == root or typed.path.startswith(f"{root}/"))


def _of_site(site: Site, purge: Purge, operations: Iterable[Operation], now: float) -> Iterator[Expiry]:
    existing: dict[bytes, _File] = {}
    for operation in operations:
        _fold(existing, operation, purge)
    targets: dict[str, list[_File]] = {}
    for each in existing.values():
        if now <= each.at + purge.days * _DAY <= now + AHEAD_SECONDS:
            targets.setdefault(each.target, []).append(each)
    for target, files in targets.items():
        first = min(each.at for each in files) + purge.days * _DAY
        yield Expiry(
            f"{site.name} deletes {counted(len(files), 'file')} ({format_size(sum(each.size for each in files))})",
            target,
            f"{datetime.fromtimestamp(first, UTC):%Y-%m-%dT%H:%M:%SZ}",
            f"hibali pull {target} FOLDER",
        )


def _fold(existing: dict[bytes, _File], operation: Operation, purge: Purge) -> None:
    assert operation.place is not None
    root = operation.place.path.rstrip(b"/")
    for record in read_records(journal_of(operation.id)):
        kind = record.get("kind")
        if kind not in {"moved", "deleted"}:
            continue
        key = root + b"/" + path_from_fields(record)
        existing.pop(key, None)
        if kind == "moved" and record.get("entry") == "file":
            modified = int(record.get("mtime_ns") or 0) / 1e9
            at = modified if purge.by == "mtime" and modified else operation.moment
            existing[key] = _File(operation.target, int(record.get("size") or 0), at)


def schedule_infos(schedules: Schedules) -> list[ScheduleInfo]:
    """Return the plans of all schedules."""
    now = datetime.now(UTC)
    return [_schedule_info(each, now) for each in schedules.schedules.values()]


def _schedule_info(schedule: Schedule, now: datetime) -> ScheduleInfo:
    return ScheduleInfo(
        schedule.name,
        shlex.join(["hibali", *schedule.command]),
        schedule.cron.text,
        paused=schedule.paused,
        silence=longest_silence(schedule, now).total_seconds(),
        since=schedule.since.timestamp(),
    )


def expiring(credentials: Iterable[Credential], within: timedelta) -> list[Expiry]:
    """Return the credentials that expire within this time, sorted by time, without duplicates."""
    last = datetime.now(UTC) + within
    found = {
        (each.site, each.description): Expiry(
            f"{each.description} expires",
            each.site,
            f"{each.expires.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}",
            each.renew,
        )
        for each in credentials
        if each.expires is not None and each.expires <= last
    }
    return sorted(found.values(), key=lambda each: each.when)


_SOON_DAYS = 14
_LEAST_DAYS = 8  # commands that failed within a week are listed, and sites have the usage of the last day


def read_overview(config: str | None, days: int = DAYS) -> Overview:
    """Read the present report. `config` is the config.toml given; raises the errors of reading it."""
    with collect_unreadable() as unreadable:
        return replace(_read_overview(config, days), unreadable=unreadable)


def _read_overview(config: str | None, days: int) -> Overview:
    now = time.time()
    settings, schedules = load_sites(config), load_schedules(config)
    infos = schedule_infos(schedules)
    soon = timedelta(days=max(_SOON_DAYS, schedules.notices.expires_within_days))
    credentials = [each for some in all_credentials(config, schedules).values() for each in some]
    since = now - max(days, _LEAST_DAYS) * _DAY
    operations = [each for each in read_operations_since(since) if not each.was_mistyped]
    lines = [evaluate(info, read_triggers(info.name), now) for info in infos]
    sites = [settings.sites[name] for name in sorted(settings.sites)]
    return Overview(
        now=now,
        lines=sorted(lines, key=lambda line: (line.trouble is None, line.schedule.name)),
        days=by_day(operations, now, days),
        failed_commands=failed_commands(operations, now),
        unproven=read_unverified(),
        expiries=[*expiring(credentials, soon), *_purged(sites, settings.sites, now)],
        usage=[site_usage(site, transferred_in(operations)) for site in sites],
        runs={str(state): count for state, count in count_runs_by_state().items()},
        operations=count_operations(),
    )


def _purged(sites: Iterable[Site], known: Mapping[str, Site], now: float) -> list[Expiry]:
    purging = [site for site in sites if site.purge is not None]
    operations = (
        read_operations_at([OperationRoot(site.name, None, b"") for site in purging]) if purging else []
    )
    written = [each for each in operations if not each.was_mistyped]
    return find_purged(purging, written, known, now)


def transferred_in(operations: Sequence[Operation]) -> Callable[[str, datetime], int]:
    """Return a function that counts the bytes to or from a site since a time, from these operations."""

    def transferred(site: str, since: datetime) -> int:
        start = since.timestamp()
        return sum(
            each.number("bytes_sent") for each in operations if each.touched >= start and site in each.sites
        )

    return transferred
