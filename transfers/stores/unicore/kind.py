"""Declare, open and check sites that are reached through UNICORE.

config.toml is read with this module, so it imports neither the store nor the client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hibali.config.kinds import SERVICE_MACHINE, StoreKind
from hibali.config.model import Site
from hibali.events import Listener, ignore
from transfers.stores.unicore.settings import UnicoreSettings

if TYPE_CHECKING:
    from hibali.locations import Location
    from transfers.stores.base import Store
    from transfers.stores.filesystem.store import FilesystemStore
    from transfers.stores.login_protocol import LoginResult, Prompts
    from transfers.stores.unicore.files import UnicoreFiles


def _secret_variables(site: Site) -> tuple[str, ...]:
    found: tuple[str, ...] = site.own.bearer.secret_variables
    return found


KIND = StoreKind(
    keys=SERVICE_MACHINE,
    settings=UnicoreSettings,
    service="unicore",
    limits_requests=True,
    address=lambda site: str(site.own.url),
    secret_variables=_secret_variables,
    data_site=lambda site: site.own.data or "",
)


def open_files(site: Site, on_event: Listener = ignore) -> UnicoreFiles:
    """Return the files of a site; the caller closes them."""
    from hibali.request_limits import request_limit  # start-up: config.toml is read with this module
    from transfers.stores.bearer.client import REQUESTS  # start-up: as above
    from transfers.stores.unicore.client import UnicoreClient  # start-up: as above
    from transfers.stores.unicore.files import UnicoreFiles  # start-up: as above

    client = UnicoreClient(site.own, site.name, request_limit(site, requests=REQUESTS), on_event)
    return UnicoreFiles(client, site.own.url)


def open_store(location: Location, *, on_event: Listener = ignore) -> FilesystemStore:
    """Return the store of a folder."""
    from transfers.stores.filesystem.machine import open_machine_store  # start-up: as above

    return open_machine_store(open_files(location.site, on_event), location, on_event)


def open_over(location: Location, files: Store, *, on_event: Listener = ignore) -> Store:
    """Return the store of a folder whose files are moved through another site: its own."""
    del location, on_event
    return files


def check(site: Site, facts: dict[str, str | int | bool], *, on_event: Listener = ignore) -> None:
    """Query the account and the storages, and fill `facts`. Raise connection errors."""
    files = open_files(site, on_event)
    try:
        facts["url"] = site.own.url
        facts["user"] = files.user()
        for name, folder in files.storages().items():
            facts[f"storage {name}"] = folder.decode("utf-8", "replace") or "/"
        files.children(files.expand(site.work.partition("/")[0] if site.work.startswith("~") else "~"))
    finally:
        files.close()


def log_in(site: Site, prompts: Prompts) -> LoginResult:
    """See transfers.stores.login_protocol."""
    from transfers.stores.bearer import login  # start-up: config.toml is read with this module

    return login.log_in(site.own.bearer, site.name, prompts)


def log_out(site: Site) -> LoginResult:
    """See transfers.stores.login_protocol."""
    from transfers.stores.bearer import login  # start-up: config.toml is read with this module

    return login.log_out(site.own.bearer, site.name)
