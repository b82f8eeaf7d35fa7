"""Declare, open and check sites that are reached through FirecREST.

config.toml is read with this module, so it imports neither the store nor the client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hibali.config.kinds import SiteOption
from hibali.config.model import Site
from hibali.events import Listener, ignore
from hibali_plugins.facilities.firecrest.settings import FirecrestSettings
from hibali_plugins.facilities.sites import (
    add_writable,
    log_in,
    log_out,
    open_over,
    service_machine,
    system_option,
)

if TYPE_CHECKING:
    from hibali.locations import Location
    from hibali_plugins.facilities.firecrest.files import FirecrestFiles
    from transfers.stores.server.store import ServerStore

__all__ = ["KIND", "check", "log_in", "log_out", "open_files", "open_over", "open_store"]

KIND = service_machine(
    FirecrestSettings,
    "firecrest",
    lambda site: f"{site.own.url} {site.own.system}",
    SiteOption("firecrest", "firecrest.url", "URL", "A FirecREST v2, by URL; with --system.", chooses=True),
    system_option("firecrest"),
    example=(
        "hibali sites add daint --firecrest https://api.example.org/v2 --system daint --credentials-command 'pass cscs/token'",
        "A supercomputer behind FirecREST.",
    ),
)


def open_files(site: Site, on_event: Listener = ignore) -> FirecrestFiles:
    """Return the files of a site; the caller closes them."""
    from hibali.http.rest import REQUESTS  # start-up: as above
    from hibali.request_limits import request_limit  # start-up: config.toml is read with this module
    from hibali_plugins.facilities.firecrest.client import FirecrestClient  # start-up: as above
    from hibali_plugins.facilities.firecrest.files import FirecrestFiles  # start-up: as above

    client = FirecrestClient(site.own, site.name, request_limit(site, requests=REQUESTS), on_event)
    return FirecrestFiles(client)


def open_store(location: Location, *, on_event: Listener = ignore) -> ServerStore:
    """Return the store of a folder."""
    from hibali_plugins.facilities.machine import open_machine_store  # start-up: as above

    return open_machine_store(open_files(location.site, on_event), location, on_event)


def check(site: Site, facts: dict[str, str | int | bool], *, on_event: Listener = ignore) -> None:
    """Query the account and the filesystems, and fill `facts`. Raise connection errors."""
    files = open_files(site, on_event)
    try:
        facts["url"] = site.own.url
        facts["system"] = site.own.system
        facts["user"] = files.user()
        for kind, path in files.places().items():
            facts[f"filesystem {kind}"] = path
        home = files.home()
        facts["home"] = home.decode("utf-8", "replace")
        files.children(home)
        add_writable(files, home, facts)
    finally:
        files.close()
