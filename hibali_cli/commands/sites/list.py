"""`hibali sites list`."""

from __future__ import annotations

from hibali_cli.command import command as as_command
from hibali_cli.options import Common
from hibali_cli.site_record import how_reached, site_record


@as_command("list", examples=[("hibali sites list", "See every site and how it is reached.")])
def command(common: Common) -> int | None:
    """List the sites of config.toml."""
    settings = common.settings()
    sites = [settings.sites[name] for name in sorted(settings.sites)]
    if common.json:
        for site in sites:
            common.output.record("site", site_record(site))
        common.output.record("end", {"count": len(sites), "exit": 0})
        return None
    rows = [
        (site.name, site.kind, how_reached(site), site.scheduler.name if site.scheduler else None)
        for site in sites
    ]
    common.output.table(["name", "type", "at", "scheduler"], rows)
    if not sites:
        common.output.say(f"No sites yet in {settings.path}: hibali sites add NAME --ssh HOST")
    return None
