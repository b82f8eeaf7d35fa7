"""Open and check sites that only Globus reaches."""

from __future__ import annotations

from hibali.config.model import Site
from hibali.events import Listener, ignore
from hibali.locations import Location
from transfers.stores.globus import login
from transfers.stores.globus.requests import inspect_collection
from transfers.stores.globus.store import GlobusStore


def open_store(location: Location, *, on_event: Listener = ignore) -> GlobusStore:
    """Open a folder of a collection. Raise `UsageError`, or `AccessError` without a login."""
    return GlobusStore(location.site, location.path, on_event=on_event)


log_in, log_out = login.log_in, login.log_out


def check(site: Site, facts: dict[str, str | int | bool], *, on_event: Listener = ignore) -> None:
    """Query the collection and fill `facts`. Raise connection errors."""
    del on_event
    inspect_collection(site, facts)
