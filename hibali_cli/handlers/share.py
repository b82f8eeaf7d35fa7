"""Make links to files, and show those that are valid."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC

from hibali.errors import Exit
from hibali.locations import read_location
from hibali_cli.options import Common
from hibali_cli.progress import listening
from transfers.links import make_link, read_links

_TIME = "%Y-%m-%d %H:%M UTC"


def print_links(common: Common, places: Sequence[str], seconds: int) -> int | None:
    """Print a link to each file; the exit code is 11 if one is not proven."""
    settings = common.settings()
    proven = True
    locations = [read_location(each, settings) for each in places]
    for location in locations:
        with listening(common, f"share link {location.text}") as on_event:
            link = make_link(location, seconds, on_event)
        proven = proven and link.proven
        if common.json:
            record = {"place": location.text, "url": link.url, "ends": link.ends.isoformat()}
            common.output.record("link", {**record, "proven": link.proven})
            continue
        common.output.line(link.url)
        common.output.info(f"{location.text}: valid until {link.ends.astimezone(UTC).strftime(_TIME)}")
        if not link.proven:
            common.output.warn(f"{location.text}: not proven: the server did not give the file for this link")
    return None if proven else int(Exit.NOT_VERIFIED)


def list_links(common: Common, *, ended: bool) -> int | None:
    """Show the links that are valid, or all."""
    found = list(read_links(ended=ended))
    if common.json:
        for each in found:
            record = {"place": each.place, "url": None, "ends": each.ends.isoformat()}
            common.output.record("link", {**record, "proven": each.proven})
        common.output.record("end", {"count": len(found), "exit": 0})
        return None
    rows = [
        (each.place, each.ends.astimezone(UTC).strftime(_TIME), "yes" if each.proven else "no")
        for each in found
    ]
    common.output.table(["place", "ends", "proven"], rows)
    return None
