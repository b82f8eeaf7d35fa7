"""Declare, open and check sites that are reached through FirecREST.

config.toml is read with this module, so it imports neither the store nor the client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hibali.config.kinds import SiteOption, StoreKind
from hibali.config.model import Site
from hibali.events import Listener
from hibali_plugins.facilities.firecrest.settings import FirecrestSettings
from hibali_plugins.facilities.sites import Facility, describe_home, system_option

if TYPE_CHECKING:
    from hibali.request_limits import RequestLimit
    from hibali_plugins.facilities.firecrest.files import FirecrestFiles


def _connect(site: Site, limit: RequestLimit, on_event: Listener) -> FirecrestFiles:
    from hibali_plugins.facilities.firecrest.client import (
        FirecrestClient,  # start-up: config.toml is read with this module
    )
    from hibali_plugins.facilities.firecrest.files import FirecrestFiles  # start-up: as above

    return FirecrestFiles(FirecrestClient(site.own, site.name, limit, on_event))


def _describe(files: FirecrestFiles, site: Site, facts: dict[str, str | int | bool]) -> bytes:
    facts["system"] = site.own.system
    facts["user"] = files.user()
    facts["scheduler"] = files.client.scheduler()
    facts["large files by"] = files.client.transfer_method()
    return describe_home(files, files.places(), facts)


FACILITY = Facility(
    StoreKind(
        settings=FirecrestSettings,
        service="firecrest",
        address=lambda site: f"{site.own.url} {site.own.system}",
        options=(
            SiteOption(
                "firecrest", "firecrest.url", "URL", "A FirecREST v2, by URL; with --system.", chooses=True
            ),
            system_option("firecrest"),
        ),
        example=(
            "hibali sites add daint --firecrest https://api.example.org/v2 --system daint --credentials-command 'pass cscs/token'",
            "A supercomputer behind FirecREST.",
        ),
    ),
    _connect,
    _describe,
)
