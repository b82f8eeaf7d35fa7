"""Opening what a location or a site names."""

from __future__ import annotations

from typing import cast

from hibali.errors import UsageError
from hibali.events import Listener, ignore
from hibali.locations import Location
from hibali.plugins import load
from hibali.sites import Site
from transfers.agent_far import AgentFar
from transfers.far import Far
from transfers.store import Store


def open_store(location: Location, *, tell: Listener = ignore) -> Store:
    """The store at a location, connected; close it. Raises the errors of reaching a site."""
    return cast("Store", load("transfers.stores", location.site.kind).open_store(location, tell=tell))


def open_far(site: Site, *, tell: Listener = ignore) -> Far:
    """The machine at a site; close it. Raises `UsageError` where there is none (an object store)."""
    if site.kind not in {"ssh", "local"}:
        raise UsageError(
            "no-machine",
            f"a site of kind {site.kind} has no machine to run anything",
            about=site.name,
            hint="Name an ssh or local site.",
        )
    connection, _ = load("transfers.stores", site.kind).connect(site, tell=tell)
    return AgentFar(connection)
