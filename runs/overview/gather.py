"""What the report is made of, from this machine alone: the ledger, config.toml and schedules.toml; no site is asked."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from hibali.settings import load_sites
from runs.overview.health import judge
from runs.overview.model import DAYS, Overview, by_day, by_hand
from runs.overview.plans import expiring, plans_of
from runs.overview.purged import find_purged
from runs.overview.states import count_states
from runs.site_usage import site_usage
from runs.unattended.firings import read_firings
from runs.unattended.schedules_file import load_schedules
from runs.unattended.tend import all_credentials
from transfers.history.index import read_operations
from transfers.history.operation import Operation
from transfers.history.unproven import find_unproven

_SOON_DAYS = 14


def look_over(config: str | None, days: int = DAYS) -> Overview:
    """Everything, as it is on record now. `config` is the config.toml that was named; raises what reading it raises."""
    now = time.time()
    settings, schedules = load_sites(config), load_schedules(config)
    plans = plans_of(schedules)
    soon = timedelta(days=max(_SOON_DAYS, schedules.notices.expires_within_days))
    credentials = [each for some in all_credentials(config, schedules).values() for each in some]
    operations = [each for each in read_operations() if not each.was_mistyped]
    lines = [judge(plan, read_firings(plan.name), now) for plan in plans]
    sites = [settings.sites[name] for name in sorted(settings.sites)]
    return Overview(
        now=now,
        lines=sorted(lines, key=lambda line: (line.trouble is None, line.plan.name)),
        days=by_day(operations, now, days),
        by_hand=by_hand(operations, now),
        unproven=find_unproven(operations),
        fading=[*expiring(credentials, soon), *find_purged(sites, operations, settings.sites, now)],
        usage=[site_usage(site, carried_in(operations)) for site in sites],
        runs=count_states(),
        operations=len(operations),
    )


def carried_in(operations: Sequence[Operation]) -> Callable[[str, datetime], int]:
    """How many bytes went to or from a site since some time, by what is read already."""

    def carried(site: str, since: datetime) -> int:
        start = since.timestamp()
        return sum(
            each.number("bytes_sent") for each in operations if each.touched >= start and site in each.sites
        )

    return carried
