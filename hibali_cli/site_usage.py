"""What was asked of sites, shown beside their limits."""

from __future__ import annotations

from typing import Any

from hibali_cli.options import Common
from hibali_cli.output import Cell


def show_usage(common: Common, name: str | None) -> int | None:
    """Of one site or of all."""
    from runs.rate_limits import site_usage

    settings = common.settings()
    sites = (
        [settings.site(name)]
        if name is not None
        else [settings.sites[each] for each in sorted(settings.sites)]
    )
    records = [site_usage(site) for site in sites]
    if common.json:
        for record in records:
            common.output.record("site-usage", record)
        common.output.record("end", {"count": len(records), "exit": 0})
        return None
    for record in records:
        common.output.pairs(_pairs(record))
    return None


def _pairs(record: dict[str, Any]) -> dict[str, Cell]:
    limits = record["limits"]
    pairs: dict[str, Cell] = {
        "site": record["name"],
        "jobs in the queue": f"{record['queued_jobs']} of {limits['queued_jobs']}",
    }
    for what, key in (
        ("logins", "logins"),
        ("logins refused", "logins_refused"),
        ("scheduler commands", "scheduler_commands"),
        ("bytes", "bytes"),
    ):
        pairs[what] = f"{record['hour'][key]} in the last hour, {record['day'][key]} in the last day"
    commands = ", ".join(f"{name} {times}" for name, times in record["day"]["commands"].items())
    pairs["commands in the last day"] = commands or None
    pairs["questions"] = f"at most every {limits['poll_seconds']:g} s, once they have grown apart"
    for each in record["refusals"]:
        until = f", left alone until {each['paused_until']}" if each["paused_until"] else ""
        pairs[each["by"]] = f"refused {each['times']} times in a row ({each['because']}){until}"
    return pairs
