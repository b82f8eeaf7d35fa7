"""Read the table [sites.NAME.doi]: the DOI of a dataset, and which archive has it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal, NamedTuple, Self

from hibali.config.schema import Note, choice, line, setting, table, text
from hibali.errors import UsageError
from transfers.stores.bearer.settings import read_url

Service = Literal["zenodo", "figshare", "dataverse", "dandi", "osf", "openneuro"]
_DOI = re.compile(r"10\.[0-9]{4,9}/[!-~]+")
_BEFORE = re.compile(r"doi:\s*|https?://(dx\.)?doi\.org/", re.IGNORECASE)


class Place(NamedTuple):
    """Where a dataset is: the kind of archive, the address of its API, its identifier there, and the version; "" if not named."""

    service: Service
    url: str
    identifier: str
    version: str = ""


_FIGSHARE = "https://api.figshare.com"
# DOIs that name the archive and the dataset themselves
_KNOWN: tuple[tuple[str, Service, str], ...] = (
    (r"10\.5281/zenodo\.(?P<id>[0-9]{1,12})", "zenodo", "https://zenodo.org"),
    (r"10\.5072/zenodo\.(?P<id>[0-9]{1,12})", "zenodo", "https://sandbox.zenodo.org"),
    (
        r"10\.[0-9]+/m9\.figshare\.(?P<id>[0-9]{1,12})(\.v(?P<version>[0-9]{1,6}))?",
        "figshare",
        _FIGSHARE,
    ),
    (r"10\.48324/dandi\.(?P<id>[0-9]{6})(/(?P<version>[0-9.]+))?", "dandi", "https://api.dandiarchive.org"),
    (r"10\.17605/osf\.io/(?P<id>[a-z0-9]{5,16})", "osf", "https://api.osf.io"),
    (
        r"10\.18112/openneuro\.(?P<id>ds[0-9]{6})(\.v(?P<version>[0-9a-z.-]{1,64}))?",
        "openneuro",
        "https://openneuro.org",
    ),
)


# Universities have portals of Figshare with prefixes of their own: 10.48420/32055810.v1
_PORTAL = r"10\.[0-9]{4,9}/(?P<id>[0-9]{1,12})(\.v(?P<version>[0-9]{1,6}))?"


def place_of(doi: str, service: Service | None = None) -> Place | None:
    """Return where the dataset is, as far as its DOI, and a service that is known otherwise, say so."""
    more = ((_PORTAL, "figshare", _FIGSHARE),) if service == "figshare" else ()
    for pattern, kind, url in (*_KNOWN, *more):
        if found := re.fullmatch(pattern, doi, re.IGNORECASE):
            groups = found.groupdict()
            return Place(kind, url, groups["id"].lower(), groups.get("version") or "")
    return None


_VERSION = r"[0-9][0-9.]*"


def split_location(path: str) -> tuple[ArchiveSettings, str]:
    """Return the dataset of DOI[/PATH], or with another DOI DOI@VERSION[/PATH], and PATH. Raise `UsageError`."""
    patterns = (*(pattern for pattern, _, _ in _KNOWN), r"10\.[0-9]{4,9}/[0-9]{1,12}\.v[0-9]{1,6}")
    for pattern in patterns:
        if found := re.match(rf"(?:{pattern})(?=/|$)", path, re.IGNORECASE):
            return ArchiveSettings(name=found[0]), path[found.end() :].lstrip("/")
    doi, _, more = path.partition("@")
    version, _, inside = more.partition("/")
    if not _DOI.fullmatch(doi) or (more and not re.fullmatch(_VERSION, version)):
        raise UsageError(
            "bad-location",
            "this is not the DOI of a dataset, such as doi:10.5281/zenodo.1234567",
            subject=f"doi:{path}",
            hint="In a Dataverse, a path comes after the version: doi:10.70122/FK2/ABC@1.0/PATH",
        )
    return ArchiveSettings(name=doi, version=version), inside


def read_doi(value: Any, note: Note) -> str:
    """Read a DOI, also one with `doi:` or as an address of doi.org."""
    doi = _BEFORE.sub("", line(value, note).strip(), count=1)
    if not _DOI.fullmatch(doi):
        raise ValueError(f"{doi!r} is not a DOI, such as 10.5281/zenodo.1234567")
    return doi


@table
class ArchiveSettings:
    """The dataset of a site; it is only read."""

    name: str = setting(read_doi, doc="the DOI of the dataset")
    service: Service | None = setting(
        choice(Service), default=None, doc="the kind of archive, where the DOI does not tell"
    )
    url: str = setting(read_url, default="", doc="the address of the archive, where the DOI does not tell")
    version: str = setting(
        text(_VERSION, "a version"),
        default="",
        doc="the version, where the DOI stands for all of them",
    )

    @property
    def place(self) -> Place:
        """Where the dataset is."""
        known = place_of(self.name, self.service) or Place("dataverse", "", f"doi:{self.name}")
        return Place(
            self.service or known.service,
            self.url or known.url,
            known.identifier,
            self.version or known.version,
        )

    def finish(self, present_keys: Mapping[str, Any], note: Note) -> Self:
        """Require the archive of a DOI that does not name it."""
        if not self.name:  # it was invalid
            return self
        known = place_of(self.name, self.service)
        if known is None and "url" not in present_keys:
            note(
                "needs the address of the archive, as in https://dataverse.example.org; "
                "`hibali sites add --doi` asks doi.org for it",
                "url",
            )
        if self.service is not None and self.service != "dataverse" and known is None:
            note(f"this is no DOI of {self.service}", "service")
        return replace(self, url=self.url.rstrip("/"))
