"""Declare, open and check sites that are reached through the IRI Facility API.

config.toml is read with this module, so it imports neither the store nor the client.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from hibali.config.kinds import Choose, SiteDescription, SiteOption, StoreKind
from hibali.config.model import Site
from hibali.events import Listener
from hibali_plugins.facilities.iri.settings import IriSettings
from hibali_plugins.facilities.sites import Facility, describe_home, system_option

if TYPE_CHECKING:
    from hibali.request_limits import RequestLimit
    from hibali_plugins.facilities.iri.files import IriFiles


def _connect(site: Site, limit: RequestLimit, on_event: Listener) -> IriFiles:
    from hibali_plugins.facilities.iri.client import (
        IriClient,  # start-up: config.toml is read with this module
    )
    from hibali_plugins.facilities.iri.files import IriFiles  # start-up: as above

    return IriFiles(IriClient(site.own, site.name, limit, on_event))


def _describe(files: IriFiles, site: Site, facts: dict[str, str | int | bool]) -> bytes:
    del site
    facts.update(files.resources())
    user = files.user()  # before the storage, where a good token may be rejected
    if user:
        facts["user"] = user
    return describe_home(files, files.places(), facts)


def _fill(name: str, table: Mapping[str, Any], choose: Choose) -> SiteDescription:
    from hibali_plugins.facilities.iri.filling import fill_site  # start-up: as above

    return fill_site(name, table, choose, lambda site: FACILITY.open_files(site).client)


FACILITY = Facility(
    StoreKind(
        settings=IriSettings,
        service="iri",
        address=lambda site: f"{site.own.url} {site.own.system or ''}".strip(),
        fill=_fill,
        options=(
            SiteOption(
                "iri",
                "iri.url",
                "URL",
                "A facility with the IRI Facility API: its URL, https://.../api/v2.",
                chooses=True,
            ),
            system_option("iri"),
        ),
        example=(
            "hibali sites add perlmutter --iri https://api.example.org/api/v2 --credentials-command 'pass nersc/token'",
            "A facility with the IRI Facility API, which names its roots.",
        ),
    ),
    _connect,
    _describe,
)
