"""Decide whether Globus moves the files of a request, and between which collections."""

from __future__ import annotations

from dataclasses import dataclass

from hibali.config.model import Site
from hibali.errors import UsageError
from hibali.events import Event, Noted
from hibali_plugins.globus.paths import CollectionPair
from transfers.engine.collections import collection_path
from transfers.engine.endpoints import Endpoints
from transfers.engine.request import Request
from transfers.engine.routes import stream
from transfers.engine.routes.base import Route
from transfers.history.journal import Recorder

_KINDS = frozenset({"ssh", "local", "globus"})


@dataclass(frozen=True, slots=True)
class RouteRequest:
    """Options that decide the mover: `via` (`auto`, `globus` or another), and options that Globus lacks."""

    via: str = "auto"
    unsupported: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CollectionRoot:
    """An endpoint: its site, and the path of its root there (`Store.root_path`)."""

    site: Site
    root_path: bytes


def find_collections(
    wanted: RouteRequest, source: CollectionRoot, target: CollectionRoot
) -> CollectionPair | None:
    """Return both collections, or None to use another mover; pure.

    Raises `UsageError` if Globus was requested, or is the only possible mover, and cannot be used.
    """
    if wanted.via not in {"auto", "globus"}:
        return None
    is_required = wanted.via == "globus" or target.site.kind == "globus"
    reason, subject = _missing_collection(source, target)
    if reason is None and wanted.unsupported:
        reason, subject = f"Globus does not support {wanted.unsupported[0]}", wanted.unsupported[0]
    paths = [collection_path(place.site, place.root_path) for place in (source, target)]
    if reason is None and paths[0] is not None and paths[1] is not None:
        assert source.site.globus is not None
        assert target.site.globus is not None
        return CollectionPair(
            source.site.globus.collection,
            paths[0],
            target.site.globus.collection,
            paths[1],
            max(source.site.globus.deadline_seconds, target.site.globus.deadline_seconds),
            min(filter(None, (place.site.limits.globus_tasks for place in (source, target))), default=0),
        )
    if not is_required:
        return None
    raise UsageError(
        "not-by-globus",
        reason or "Globus cannot be used here",
        subject=subject,
        hint="Leave that out, give both sites a `globus` table (docs/globus.md), or name a site that ssh reaches.",
    )


def _missing_collection(source: CollectionRoot, target: CollectionRoot) -> tuple[str | None, str]:
    for place in (source, target):
        name = place.site.name
        if place.site.kind not in _KINDS or place.site.globus is None:
            return "this site has no Globus collection", name
        if collection_path(place.site, place.root_path) is None:
            return "the path is outside of the site's collection", name
    return None, ""


def _unsupported_options(request: Request) -> list[str]:
    """Return the request's options that Globus does not support."""
    options = {
        "--direct": request.direct,
        "--xattrs": request.rules.xattrs,
        "--rename": bool(request.rules.rename),
        f"--{request.lowest_setting}": bool(request.lowest_rate),
    }
    flags = [option.flag for option in request.options]
    return [*flags, *(name for name, is_set in options.items() if is_set)]


def open_route(endpoints: Endpoints, recorder: Recorder) -> Route | None:
    """Log in to Globus if both ends have a collection and no option excludes it; a dry run only checks.

    Raises `UsageError` as `find_collections`.
    """
    request, source, target = endpoints.request, endpoints.origin.store, endpoints.target
    plain = source.facts.globus and target.facts.globus and endpoints.origin.renames is None
    reasons = () if plain else ("a dataset, a place with packs or a choice of files",)
    wanted = RouteRequest(request.via, (*_unsupported_options(request), *reasons))
    roots = [
        CollectionRoot(site, store.root_path)
        for site, store in zip(endpoints.sites, (source, target), strict=True)
    ]
    pair = find_collections(wanted, *roots)
    if pair is None or not recorder.journaled:
        return None

    def on_event(event: Event) -> None:
        """Record notes; the route yields all other events that are to be recorded."""
        if isinstance(event, Noted):
            recorder.record(event)
        else:
            recorder.on_event(event)

    from hibali_plugins.globus.route import open_globus  # start-up: the SDK of Globus is large

    fallback = stream.open_route(endpoints, recorder)
    return open_globus(request, pair, source, fallback, on_event, endpoints.stack)
