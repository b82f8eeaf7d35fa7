"""Declare, open and check sites that are a dataset in a public archive.

config.toml is read with this module, so it imports neither the store nor the client.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hibali.config.kinds import Choose, SiteDescription, SiteOption, StoreKind
from hibali.config.model import Site
from hibali.events import Listener, ignore
from hibali_plugins.archives.settings import ArchiveSettings, split_location

if TYPE_CHECKING:
    from hibali.locations import Location
    from hibali_plugins.archives.store import ArchiveStore


def _fill(name: str, table: Mapping[str, Any], choose: Choose) -> SiteDescription:
    from hibali_plugins.archives.finding import fill_site  # start-up: config.toml is read with this module

    del choose
    return fill_site(name, table)


KIND = StoreKind(
    settings=ArchiveSettings,
    has_keys=True,
    limits_requests=True,
    address=lambda site: f"doi:{site.own.name}",
    unconfigured=lambda: ArchiveSettings(name=""),
    fill=_fill,
    options=(
        SiteOption(
            "doi",
            "doi.name",
            "DOI",
            "A dataset in Zenodo, Figshare, Dataverse, DANDI, OSF or OpenNeuro; read-only.",
            chooses=True,
        ),
    ),
    example=(
        "hibali sites add atlas --doi 10.5281/zenodo.1234567",
        "A dataset in a public archive, by its DOI.",
    ),
)


def open_store(location: Location, *, on_event: Listener = ignore) -> ArchiveStore:
    """Open a path in the dataset of a site, or in one that the location itself names."""
    if location.site.own.name:
        return _open(location.site, location.raw, on_event)
    from hibali_plugins.archives.finding import resolve  # start-up: config.toml is read with this module

    own, inside = split_location(location.path)
    own = resolve(own, f"doi:{own.name}")
    root = inside.encode("utf-8", "surrogateescape")
    return _open(replace(location.site, own=own), root, on_event, is_configured=False)


def _open(site: Site, root: bytes, on_event: Listener, *, is_configured: bool = True) -> ArchiveStore:
    from hibali.request_limits import request_limit  # start-up: config.toml is read with this module
    from hibali_plugins.archives.client import ArchiveClient  # start-up: as above
    from hibali_plugins.archives.store import ArchiveStore  # start-up: as above

    place = site.own.place
    subject = site.name if is_configured else f"doi:{site.own.name}"
    client = ArchiveClient(place.url, subject, request_limit(site), on_event)
    return ArchiveStore(client, place, root, is_configured=is_configured)


def check(site: Site, facts: dict[str, str | int | bool], *, on_event: Listener = ignore) -> None:
    """List the dataset and fill `facts`. Raise connection errors."""
    place, store = site.own.place, _open(site, b"", on_event)
    try:
        files = store.listing.files.values()
        facts |= {"doi": site.own.name, "archive": place.service, "url": place.url, "writable": False}
        if store.listing.version:
            facts["version"] = store.listing.version
        facts["files"], facts["bytes"] = len(files), sum(file.size for file in files)
        facts["without a checksum"] = sum(not file.checksum and not file.sha256 for file in files)
    finally:
        store.close()
