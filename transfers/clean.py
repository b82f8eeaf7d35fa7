"""Ending what interrupted transfers left at a site and nobody goes on with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from hibali.errors import UsageError
from hibali.events import Listener, ignore
from hibali.plugins import load
from hibali.sites import Site


class Fate(StrEnum):
    """What becomes of it; PLANNED where a dry run would end it, FAILED where the server did not let us."""

    ENDED = "ended"
    PLANNED = "planned"
    KEPT = "kept"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Leftover:
    """An upload that was begun and never completed.

    `age` in seconds by the server's clock, None where it does not tell; `ours` whether this machine began it.
    `because` says why it stays, and is empty where it does not.
    """

    bucket: str
    key: bytes
    begun: str
    age: float | None
    ours: bool
    fate: Fate
    because: str = ""


def clean_site(
    site: Site, *, older_than: float, everybody: bool, dry: bool, tell: Listener = ignore
) -> Iterator[Leftover]:
    """Abort uploads older than that many seconds, and tell of each that there is; `dry` only tells.

    Without `everybody` only those that this machine began. Raises `UsageError` for a site where nothing can be left:
    what an interrupted push leaves in a folder is taken away by the next push there.
    """
    module = load("transfers.stores", site.kind)
    if not hasattr(module, "clean"):
        raise UsageError(
            "nothing-to-clean",
            f"a site of kind {site.kind} keeps nothing that has to be cleaned by hand",
            about=site.name,
            hint="What an interrupted push left in a folder, the next push to it takes away.",
        )
    found: Iterator[Leftover] = module.clean(
        site, older_than=older_than, everybody=everybody, dry=dry, tell=tell
    )
    return found
