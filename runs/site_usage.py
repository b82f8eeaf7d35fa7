"""What this account asked of a site lately, beside what it may: folded from the ledger, asking nobody."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from hibali.login import login_name, login_refusals
from hibali.refusals import Refused
from hibali.sites import Site
from hibali.usage import read_uses
from runs.budget import count_queued
from runs.courtesy import scheduler_refusals
from runs.queued import Queued
from transfers.carried import bytes_carried

# The first words of what schedulers are asked with (runs/schedulers); others are commands too, and listed by name.
SCHEDULER_PROGRAMS = frozenset({
    *("sbatch", "squeue", "sacct", "scancel", "scontrol", "sinfo"),
    *("oarsub", "oarstat", "oardel", "oarresume", "oarnodes"),
    *("qsub", "qstat", "qacct", "qdel", "qrls", "qalter", "qhost", "qconf", "qselect", "tracejob"),
    *("bsub", "bjobs", "bhist", "bacct", "bkill", "bresume", "bstop"),
})  # fmt: skip
_SPANS = {"hour": timedelta(hours=1), "day": timedelta(days=1)}


Carried = Callable[[str, datetime], int]


def site_usage(site: Site, carried: Carried = bytes_carried) -> dict[str, Any]:
    """The fields of the JSON line of kind `site-usage`; `carried` says how many bytes went to or from a site since then."""
    now = datetime.now(UTC)
    held = Queued(site.name).held() if site.kind in {"ssh", "local"} else {}
    limits = site.limits
    return {
        "name": site.name,
        **{span: _used(site, now - length, carried) for span, length in _SPANS.items()},
        "queued_jobs": count_queued(held),
        "limits": {
            "queued_jobs": limits.queued_jobs,
            "poll_seconds": limits.poll_seconds,
            "login_interval_seconds": limits.login_interval_seconds,
            "bandwidth": limits.bandwidth,
        },
        "refusals": [each for each in _refusals(site) if each["times"]],
    }


def _used(site: Site, since: datetime, carried: Carried) -> dict[str, Any]:
    found = read_uses([("sites", site.name), *_logins(site)], since)
    commands: Counter[str] = Counter()
    for what, times in found.items():
        word, _, name = what.partition(" ")
        if word == "command":
            commands[name] += times
    return {
        "logins": found["login"],
        "logins_refused": found["login refused"],
        "scheduler_commands": sum(times for name, times in commands.items() if name in SCHEDULER_PROGRAMS),
        "commands": dict(sorted(commands.items())),
        "bytes": carried(site.name, since),
    }


def _logins(site: Site) -> list[tuple[str, str]]:
    if site.ssh is None:
        return []
    hosts = [site.ssh.host, *([site.ssh.data_host] if site.ssh.data_host else [])]
    return [("logins", login_name(site.ssh, host)) for host in dict.fromkeys(hosts)]


def _refusals(site: Site) -> list[dict[str, Any]]:
    found = []
    if site.ssh is not None:
        found.append(_told(f"logins to {site.ssh.host}", login_refusals(site.ssh, site.ssh.host).read()))
    if site.scheduler is not None:
        found.append(_told(site.scheduler.name, scheduler_refusals(site.name).read()))
    return found


def _told(whose: str, refused: Refused) -> dict[str, Any]:
    until = datetime.fromtimestamp(refused.until, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "by": whose,
        "times": refused.times,
        "because": refused.because,
        "paused_until": until if refused.until else None,
    }
