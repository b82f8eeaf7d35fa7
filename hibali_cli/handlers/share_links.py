"""Make links to files."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC

from hibali.errors import Exit
from hibali.locations import read_location
from hibali_cli.options import Common
from hibali_cli.progress import listening
from transfers.sharing.links import make_link

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
