"""Telling what interrupted transfers left at a site, and what was ended of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hibali.config.model import Site
from hibali.config.settings import require_built
from hibali.errors import Exit
from hibali.text import path_fields
from hibali_cli.options import Common
from hibali_cli.progress import listening

if TYPE_CHECKING:
    from transfers.check import Leftover


def clean_and_tell(
    common: Common, site: Site, *, older_than: float, everybody: bool, dry: bool
) -> int | None:
    """End uploads and show each; exit 6 where one that was to end could not be."""
    from transfers.check import Fate, clean_site

    require_built(site)
    found: list[Leftover] = []
    with listening(common, f"clean {site.name}") as tell:
        for left in clean_site(site, older_than=older_than, everybody=everybody, dry=dry, tell=tell):
            found.append(left)
            if common.json:
                common.output.record("upload", _fields(left), flush=True)
    failed = any(left.fate is Fate.FAILED for left in found)
    code = Exit.INCOMPLETE if failed else Exit.DONE
    if common.json:
        common.output.record("end", {"count": len(found), "exit": int(code)})
        return int(code)
    if found:
        rows = [(left.bucket, left.key, left.begun, left.because or str(left.fate)) for left in found]
        common.output.table(["bucket", "key", "begun", "now"], rows)
    ended = sum(left.fate in {Fate.ENDED, Fate.PLANNED} for left in found)
    verb = "would be ended" if dry else "were ended"
    common.output.say(f"{site.name}: {ended} of {len(found)} uncompleted uploads {verb}.")
    return int(code)


def _fields(left: Leftover) -> dict[str, Any]:
    return {
        "bucket": left.bucket,
        **path_fields(left.key, "key"),
        "begun": left.begun,
        "age": left.age,
        "ours": left.ours,
        "fate": str(left.fate),
        "because": left.because,
    }
