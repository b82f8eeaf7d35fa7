"""Open the store or the remote host of a location."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hibali.config.kinds import kind_of
from hibali.config.model import Site
from hibali.errors import UsageError
from hibali.events import Listener, ignore
from hibali.locations import Location
from hibali.plugins import load
from transfers.model.spool import sort_listing
from transfers.model.store import Store
from transfers.remote.agent_host import AgentHost
from transfers.remote.connection import Connection
from transfers.remote.host import RemoteHost
from transfers.remote.lending import borrow
from transfers.stores.agent_or_sftp import open_either, sftp_host

if TYPE_CHECKING:  # start-up: most sites have an agent
    from transfers.stores.sftp.client import Client


def open_store(location: Location, *, on_event: Listener = ignore) -> Store:
    """Connect to the store at a location; the caller closes it. Raise connection errors."""
    module = load("transfers.stores", location.site.kind)
    if location.through is not None:
        files = open_store(location.through, on_event=on_event)
        try:
            return _sorted(module.open_over(location, files, on_event=on_event))
        except BaseException:
            files.close()
            raise

    def opened() -> Store:
        return _sorted(module.open_store(location, on_event=on_event))

    if location.site.ssh is None:
        return opened()

    def over_sftp(client: Client, logins: int) -> Store:
        from transfers.stores.sftp.opening import store_over  # start-up: most sites have an agent

        return store_over(client, logins, location)

    return open_either(
        location.site,
        bulk=True,
        with_agent=opened,
        with_sftp=over_sftp,
        on_event=on_event,
    )


def open_beside(store: Store, location: Location, *, on_event: Listener = ignore) -> Store:
    """Open another place of the store's site as `open_store` does, over the same connection where that is possible."""
    return store.beside(location) or open_store(location, on_event=on_event)


def _sorted(store: Store) -> Store:
    """Return a store of a package whose listings are sorted, if it does not sort them itself."""
    if not store.facts.ordered:
        unsorted = store.list
        store.list = lambda *, shallow=False: sort_listing(unsorted(shallow=shallow))  # type: ignore[method-assign]
    return store


def open_host(site: Site, *, on_event: Listener = ignore) -> RemoteHost:
    """Connect to the host at a site; the caller closes it. Raise `UsageError` for object stores."""
    if not kind_of(site).has_machine:
        raise UsageError(
            "no-machine",
            f"a site of kind {site.kind} has no machine that can run commands",
            subject=site.name,
            hint="Use an ssh or local site.",
        )
    module = load("transfers.stores", site.kind)

    def with_agent() -> RemoteHost:
        def connect() -> Connection:
            found: Connection = module.connect(site, on_event=on_event)[0]
            return found

        return AgentHost(borrow(site, Connection, bulk=False) or connect(), site, connect)

    if site.ssh is None:
        return with_agent()
    return open_either(
        site,
        bulk=False,
        with_agent=with_agent,
        with_sftp=lambda client, _: sftp_host(site, client),
        on_event=on_event,
    )
