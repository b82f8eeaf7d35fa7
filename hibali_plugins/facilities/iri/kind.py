"""Declare, open and check sites that are reached through the IRI Facility API.

config.toml is read with this module, so it imports neither the store nor the client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hibali.config.kinds import SiteOption
from hibali.config.model import Site
from hibali.events import Listener, ignore
from hibali_plugins.facilities.iri.settings import IriSettings
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
    from hibali_plugins.facilities.iri.files import IriFiles
    from transfers.stores.server.store import ServerStore

__all__ = ["KIND", "check", "log_in", "log_out", "open_files", "open_over", "open_store"]

KIND = service_machine(
    IriSettings,
    "iri",
    lambda site: f"{site.own.url} {site.own.system or ''}".strip(),
    SiteOption(
        "iri",
        "iri.url",
        "URL",
        "A facility with the IRI Facility API: its URL, https://.../api/v1.",
        chooses=True,
    ),
    system_option("iri"),
    example=(
        "hibali sites add perlmutter --iri https://api.example.org/api/v1 --system compute --credentials-command 'pass nersc/token'",
        "A facility with the IRI Facility API.",
    ),
)


def open_files(site: Site, on_event: Listener = ignore) -> IriFiles:
    """Return the files of a site; the caller closes them."""
    from hibali.http.rest import REQUESTS  # start-up: as above
    from hibali.request_limits import request_limit  # start-up: config.toml is read with this module
    from hibali_plugins.facilities.iri.client import IriClient  # start-up: as above
    from hibali_plugins.facilities.iri.files import IriFiles  # start-up: as above

    return IriFiles(IriClient(site.own, site.name, request_limit(site, requests=REQUESTS), on_event))


def open_store(location: Location, *, on_event: Listener = ignore) -> ServerStore:
    """Return the store of a folder."""
    from hibali_plugins.facilities.machine import open_machine_store  # start-up: as above

    return open_machine_store(open_files(location.site, on_event), location, on_event)


def check(site: Site, facts: dict[str, str | int | bool], *, on_event: Listener = ignore) -> None:
    """Query the resources and the home folder, and fill `facts`. Raise connection errors."""
    files = open_files(site, on_event)
    try:
        facts["url"] = site.own.url
        facts.update(files.resources())
        user = files.user()
        if user:
            facts["user"] = user
        for name, path in files.places().items():
            facts[f"filesystem {name}"] = path
        home = files.home()
        facts["home"] = home.decode("utf-8", "replace")
        files.children(home)
        add_writable(files, home, facts)
    finally:
        files.close()
