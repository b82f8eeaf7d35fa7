"""Declare, open and check sites that are reached through UNICORE.

config.toml is read with this module, so it imports neither the store nor the client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hibali.config.kinds import SiteOption
from hibali.config.model import Site
from hibali.events import Listener, ignore
from hibali_plugins.facilities.sites import add_writable, log_in, log_out, open_over, service_machine
from hibali_plugins.facilities.unicore.settings import UnicoreSettings

if TYPE_CHECKING:
    from hibali.locations import Location
    from hibali_plugins.facilities.unicore.files import UnicoreFiles
    from transfers.stores.server.store import ServerStore

__all__ = ["KIND", "check", "log_in", "log_out", "open_files", "open_over", "open_store"]

KIND = service_machine(
    UnicoreSettings,
    "unicore",
    lambda site: str(site.own.url),
    SiteOption(
        "unicore",
        "unicore.url",
        "URL",
        "A UNICORE/X: the URL of its core services, https://.../rest/core.",
        chooses=True,
    ),
    example=(
        "hibali sites add jusuf --unicore https://unicore.example.org/SITE/rest/core --credentials-command 'pass unicore/token'",
        "A supercomputer behind UNICORE, with a token that a command prints.",
    ),
)


def open_files(site: Site, on_event: Listener = ignore) -> UnicoreFiles:
    """Return the files of a site; the caller closes them."""
    from hibali.http.rest import REQUESTS  # start-up: as above
    from hibali.request_limits import request_limit  # start-up: config.toml is read with this module
    from hibali_plugins.facilities.unicore.client import UnicoreClient  # start-up: as above
    from hibali_plugins.facilities.unicore.files import UnicoreFiles  # start-up: as above

    client = UnicoreClient(site.own, site.name, request_limit(site, requests=REQUESTS), on_event)
    return UnicoreFiles(client, site.own.url)


def open_store(location: Location, *, on_event: Listener = ignore) -> ServerStore:
    """Return the store of a folder."""
    from hibali_plugins.facilities.machine import open_machine_store  # start-up: as above

    return open_machine_store(open_files(location.site, on_event), location, on_event)


def check(site: Site, facts: dict[str, str | int | bool], *, on_event: Listener = ignore) -> None:
    """Query the account and the storages, and fill `facts`. Raise connection errors."""
    files = open_files(site, on_event)
    try:
        facts["url"] = site.own.url
        facts["user"] = files.user()
        for name, folder in files.storages().items():
            facts[f"storage {name}"] = folder.decode("utf-8", "replace") or "/"
        home = files.expand(site.work.partition("/")[0] if site.work.startswith("~") else "~")
        files.children(home)
        add_writable(files, home, facts)
    finally:
        files.close()
