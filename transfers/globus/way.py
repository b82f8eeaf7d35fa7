"""Whether Globus carries from one place to another, and what that takes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hibali.errors import UsageError
from hibali.locations import Location
from hibali.settings import Settings
from hibali.sites import Site
from transfers.globus.bodies import Ends
from transfers.globus.paths import path_in_collection

_KINDS = frozenset({"ssh", "local", "globus"})


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a call asks for that decides its way: `via` is `auto`, `globus` or another word, `against` what Globus cannot do."""

    via: str = "auto"
    against: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Place:
    """One end: its site, and where its root is there, as its store knows it."""

    site: Site
    where: bytes


def find_ends(wanted: Wanted, source: Place, target: Place) -> Ends | None:
    """Both collections, or None where it goes another way; pure.

    Raises `UsageError` where Globus was asked for by name, or is the only way, and cannot do it.
    """
    if wanted.via not in {"auto", "globus"}:
        return None
    insists = wanted.via == "globus" or target.site.kind == "globus"
    reason, about = _why_not(source, target)
    if reason is None and wanted.against:
        reason, about = f"Globus cannot do what {wanted.against[0]} asks for", wanted.against[0]
    paths = _path(source), _path(target)
    if reason is None and paths[0] is not None and paths[1] is not None:
        assert source.site.globus is not None
        assert target.site.globus is not None
        return Ends(
            source.site.globus.collection,
            paths[0],
            target.site.globus.collection,
            paths[1],
            max(source.site.globus.deadline_seconds, target.site.globus.deadline_seconds),
        )
    if not insists:
        return None
    raise UsageError(
        "not-by-globus",
        reason or "Globus cannot carry this",
        about=about,
        hint="Leave that out, give both ends a globus table (docs/globus.md), or name a site that ssh reaches.",
    )


def _why_not(source: Place, target: Place) -> tuple[str | None, str]:
    for place in (source, target):
        name = place.site.name
        if place.site.kind not in _KINDS or place.site.globus is None:
            return "this end has no Globus collection", name
        if _path(place) is None:
            return "this lies outside of what the site's collection shows", name
    return None, ""


def _path(place: Place) -> str | None:
    if place.site.globus is None:
        return None
    try:
        return path_in_collection(place.site, place.where.decode("utf-8"))
    except UnicodeDecodeError:
        return None


def with_local_collection(location: Location, settings: Settings) -> Location:
    """A local path with the collection of this machine, where a local site with a globus table shows it."""
    if not location.typed_local:
        return location
    for site in settings.sites.values():
        if site.kind == "local" and site.globus is not None and _path(Place(site, location.raw)) is not None:
            return replace(location, site=replace(location.site, globus=replace(site.globus, of=site.name)))
    return location
