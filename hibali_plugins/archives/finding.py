"""Find the archive and the version that a DOI means, so that a site names exactly one version."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

from hibali.config.edit import check_site_table
from hibali.config.kinds import SiteDescription
from hibali.errors import NotFoundError
from hibali.http.addresses import is_public
from hibali.request_limits import RequestLimit
from hibali_plugins.archives import dandi, dataverse, figshare, openneuro, osf, zenodo
from hibali_plugins.archives.client import ArchiveClient
from hibali_plugins.archives.files import Listing, text_in, value_in
from hibali_plugins.archives.settings import ArchiveSettings, Place, Service, place_of

_ARCHIVES = {
    "zenodo": zenodo.list_files,
    "figshare": figshare.list_files,
    "dataverse": dataverse.list_files,
    "dandi": dandi.list_files,
    "osf": osf.list_files,
    "openneuro": openneuro.list_files,
}
RESOLVER = "https://doi.org"


def list_files(client: ArchiveClient, place: Place) -> Listing:
    """Return the files of a dataset."""
    return _ARCHIVES[place.service](client, place)


def fill_site(name: str, table: Mapping[str, Any], resolver: str = RESOLVER) -> SiteDescription:
    """See StoreKind.fill: the archive, if the DOI does not name it, and the version."""
    given = dict(table.get("doi") or {})
    # the DOI is checked before anything is asked, with the address that doi.org may name
    own: ArchiveSettings = check_site_table(name, {**table, "doi": {"url": resolver, **given}}).own
    filled: list[tuple[str, str, str]] = []
    if place_of(own.name, own.service) is None and "url" not in given:
        given["service"], given["url"] = _resolve(own.name, name, resolver)
        filled += [(f"doi.{key}", given[key], resolver) for key in ("service", "url")]
        own = check_site_table(name, {**table, "doi": given}).own
    elif "url" not in given:
        own = replace(own, url="")
    place = own.place
    client = ArchiveClient(place.url, name)
    try:
        listing = list_files(client, place)
    finally:
        client.close()
    notes = []
    exact = place_of(listing.doi, place.service)
    # an archive can have DOIs that others gave
    if (
        exact is not None
        and exact.service == place.service
        and exact != place_of(own.name, place.service)
        and not own.version
    ):
        given["name"] = listing.doi
        filled.append(("doi.name", listing.doi, place.url))
        notes.append(f"{own.name} stands for all versions; the site has the newest one of today.")
    elif not place.version and listing.version and place.service in {"dataverse", "figshare", "dandi"}:
        given["version"] = listing.version
        filled.append(("doi.version", listing.version, place.url))
    if place.service == "osf":
        notes.append("A project of OSF has no versions: its files can change.")
    return SiteDescription({**table, "doi": given}, {}, tuple(filled), tuple(notes))


def resolve(own: ArchiveSettings, subject: str) -> ArchiveSettings:
    """Return the settings with the address of the archive, which doi.org knows if the DOI does not name it."""
    if place_of(own.name) is not None:
        return own
    service, url = _resolve(own.name, subject, RESOLVER)
    return replace(own, service=service, url=url)


def _resolve(doi: str, subject: str, resolver: str) -> tuple[Service, str]:
    """Return the archive with a DOI and its address, by the page to which doi.org leads. Raise `NotFoundError`."""
    client = ArchiveClient(resolver, subject, RequestLimit(subject, 0, 0))
    try:
        answer = client.record(f"/api/handles/{quote(doi, safe='/')}", type="URL")
    finally:
        client.close()
    values = value_in(answer, "values")
    pages = [text_in(value, "data", "value") for value in values] if isinstance(values, list) else []
    for page in pages:
        with contextlib.suppress(ValueError):
            parts = urlsplit(page)
            is_plain = parts.scheme == "https" and parts.hostname and "@" not in parts.netloc
            if is_plain and "persistentId" in parse_qs(parts.query) and is_public(parts.hostname or ""):
                return "dataverse", f"https://{parts.netloc}"
            portal = place_of(doi, "figshare")
            if (
                portal is not None
                and is_plain
                and re.search(rf"/articles/.*/{portal.identifier}(/|$)", parts.path)
            ):
                return "figshare", portal.url
    raise NotFoundError(
        "unknown-archive",
        "the DOI leads to no archive that hibali knows: Zenodo, Figshare, Dataverse, DANDI, OSF or OpenNeuro",
        subject=subject,
        hint=f"If it is in a Dataverse, name that: hibali sites add NAME --doi {shlex.quote(doi)} "
        "--set doi.url=https://dataverse.example.org",
    )
