"""Open the store or the remote host of a location."""

from __future__ import annotations

from typing import cast

from hibali.config.kinds import kind_of
from hibali.config.model import Site
from hibali.errors import UsageError
from hibali.events import Listener, ignore
from hibali.locations import Location
from hibali.plugins import load
from transfers.remote.agent_host import AgentHost
from transfers.remote.host import RemoteHost
from transfers.stores.base import Store
from transfers.stores.sftp.client import Client


def open_store(location: Location, *, tell: Listener = ignore) -> Store:
    """The store at a location, connected; close it. Raises the errors of reaching a site."""
    module = load("transfers.stores", location.site.kind)

    def opened() -> Store:
        return cast("Store", module.open_store(location, tell=tell))

    if location.site.ssh is None:
        return opened()
    from transfers.remote.transport import open_either
    from transfers.stores.sftp.kind import store_over

    def over_sftp(client: Client, logins: int) -> Store:
        return cast("Store", store_over(client, logins, location))

    return open_either(location.site, bulk=True, with_agent=opened, with_sftp=over_sftp, tell=tell)


def open_host(site: Site, *, tell: Listener = ignore) -> RemoteHost:
    """The machine at a site; close it. Raises `UsageError` where there is none (an object store)."""
    if not kind_of(site).has_machine:
        raise UsageError(
            "no-machine",
            f"a site of kind {site.kind} has no machine to run anything",
            about=site.name,
            hint="Name an ssh or local site.",
        )
    module = load("transfers.stores", site.kind)

    def with_agent() -> RemoteHost:
        return AgentHost(module.connect(site, tell=tell)[0])

    if site.ssh is None:
        return with_agent()
    from transfers.remote.transport import open_either, sftp_host

    return open_either(
        site,
        bulk=False,
        with_agent=with_agent,
        with_sftp=lambda client, _: sftp_host(site, client),
        tell=tell,
    )
