"""Decide whether Globus can move files between two endpoints."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hibali.config.model import Site
from hibali.config.settings import Settings
from hibali.errors import UsageError
from hibali.events import Listener
from hibali.locations import Location
from transfers.entry import Entry
from transfers.movers.base import Mover
from transfers.recorded_digests import DigestBook
from transfers.request import Request
from transfers.stores.base import Store
from transfers.stores.globus.paths import CollectionPair, path_in_collection

if TYPE_CHECKING:
    from transfers.movers.globus import GlobusMover


_KINDS = frozenset({"ssh", "local", "globus"})


@dataclass(frozen=True, slots=True)
class RouteRequest:
    """What a call asks for that decides its way: `via` is `auto`, `globus` or another word, `against` what Globus cannot do."""

    via: str = "auto"
    against: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CollectionRoot:
    """One end: its site, and where its root is there, as its store knows it."""

    site: Site
    where: bytes


def find_ends(wanted: RouteRequest, source: CollectionRoot, target: CollectionRoot) -> CollectionPair | None:
    """Both collections, or None where it goes another way; pure.

    Raises `UsageError` where Globus was asked for by name, or is the only way, and cannot do it.
    """
    if wanted.via not in {"auto", "globus"}:
        return None
    insists = wanted.via == "globus" or target.site.kind == "globus"
    reason, subject = _why_not(source, target)
    if reason is None and wanted.against:
        reason, subject = f"Globus cannot do what {wanted.against[0]} asks for", wanted.against[0]
    paths = _path(source), _path(target)
    if reason is None and paths[0] is not None and paths[1] is not None:
        assert source.site.globus is not None
        assert target.site.globus is not None
        return CollectionPair(
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
        subject=subject,
        hint="Leave that out, give both ends a globus table (docs/globus.md), or name a site that ssh reaches.",
    )


def _why_not(source: CollectionRoot, target: CollectionRoot) -> tuple[str | None, str]:
    for place in (source, target):
        name = place.site.name
        if place.site.kind not in _KINDS or place.site.globus is None:
            return "this end has no Globus collection", name
        if _path(place) is None:
            return "this lies outside of what the site's collection shows", name
    return None, ""


def _path(place: CollectionRoot) -> str | None:
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
        if (
            site.kind == "local"
            and site.globus is not None
            and _path(CollectionRoot(site, location.raw)) is not None
        ):
            return replace(location, site=replace(location.site, globus=replace(site.globus, of=site.name)))
    return location


def globus_between(
    request: Request, source: Store, target: Store, more: tuple[str, ...] = ()
) -> CollectionPair | None:
    """Both ends as Globus knows them; None where it goes another way. `more` is further reasons against it.

    Raises `UsageError` where Globus is asked for by name, or the only way, and cannot do it.
    """
    wanted = RouteRequest(request.via, (*_against(request), *more))
    ends = (
        CollectionRoot(request.source.site, source.where),
        CollectionRoot(request.target.site, target.where),
    )
    return find_ends(wanted, *ends)


def _against(request: Request) -> list[str]:
    """What is asked for that Globus cannot do."""
    asked = {
        "--pack": bool(request.pack_bytes),
        "--direct": request.direct,
        "--xattrs": request.rules.xattrs,
        f"--{request.lowest_setting}": bool(request.lowest_rate),
    }
    return [word for word, given in asked.items() if given]


def open_globus(
    request: Request,
    ends: CollectionPair,
    source: Store,
    otherwise: Mover,
    on_event: Listener,
    stack: ExitStack,
) -> GlobusMover:
    """Log in with what is stored; everything is closed with `stack`. Raises `AccessError` with the line to type."""
    from transfers.movers.globus import GlobusMover
    from transfers.stores.globus.clients import open_access
    from transfers.stores.globus.requests import Globus
    from transfers.stores.globus.tasks import Tasks

    ends_of = sorted((request.target, request.source), key=lambda location: location.typed_local)
    sites = [_named(location.site) for location in ends_of]
    access = stack.enter_context(open_access(sites))
    globus = Globus(access.transfer(), sites[0], others=sites[1:], on_event=on_event)
    tasks = Tasks(globus, ends, request.operation, request.task_timeouts, on_event)
    return GlobusMover(tasks, ends, otherwise, _recorded(request.source, source, stack))


def _named(site: Site) -> Site:
    """By the name under which config.toml has its collection: what a line to type needs."""
    named = site.globus.of if site.globus is not None else ""
    return replace(site, name=named) if named else site


class _Recorded:
    """What is on record of the source's files."""

    def __init__(self, book: DigestBook) -> None:
        self._book = book

    def __call__(self, entry: Entry) -> str | None:
        return self._book.find([entry])


def _recorded(location: Location, store: Store, stack: ExitStack) -> _Recorded:
    where = store.where.decode("utf-8", "surrogateescape")
    book = DigestBook("digests", [location.site.name, location.bucket, where], keep=True)
    stack.callback(book.close)
    return _Recorded(book)
