"""Declare, open and check sites of fsspec filesystems.

config.toml is read with this module, so it imports neither fsspec nor the store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hibali.config.kinds import SiteOption, StoreKind, credentials_option
from hibali.config.model import Site
from hibali.errors import NotFoundError
from hibali.events import Listener, ignore
from hibali_plugins.fsspec_sites.settings import FsspecSettings

if TYPE_CHECKING:
    from hibali.locations import Location
    from transfers.stores.server.store import ServerStore

KIND = StoreKind(
    settings=FsspecSettings,
    has_keys=True,
    address=lambda site: str(site.own.url),
    secret_variables=lambda site: tuple(site.own.secret_variables.values()),
    options=(
        SiteOption(
            "fsspec",
            "fsspec.url",
            "URL",
            "A filesystem of fsspec: gs://BUCKET, abfs://CONTAINER, hdfs://HOST/PATH, ... Options: --set fsspec.options.NAME=VALUE.",
            chooses=True,
        ),
        credentials_option("fsspec.credentials_command"),
    ),
    example=(
        "hibali sites add lake --fsspec gs://study --set fsspec.options.project=brain",
        "A bucket of Google Cloud Storage; this needs the package gcsfs.",
    ),
)


def open_store(location: Location, *, on_event: Listener = ignore) -> ServerStore:
    """Return the store of a folder; a filesystem is probed once, at a check or the first write."""
    from hibali_plugins.fsspec_sites.files import open_files  # start-up: config.toml is read with this module
    from transfers.stores.server.store import ServerStore  # start-up: as above

    site = location.site
    return ServerStore(
        open_files(site),
        site.name,
        location.raw,
        slash=location.slash,
        read_back=site.own.read_back,
        on_event=on_event,
        lease=site.limits.lease_seconds,
    )


def check(site: Site, facts: dict[str, str | int | bool], *, on_event: Listener = ignore) -> None:
    """Connect to the filesystem, probe it and fill `facts`. Raise connection errors.

    Writes small files below the site's URL and removes them.
    """
    from hibali_plugins.fsspec_sites.files import open_files  # start-up: config.toml is read with this module
    from transfers.stores.server.probe import add_facts  # start-up: as above
    from transfers.stores.server.store import ServerStore  # start-up: as above

    files = open_files(site)
    store = ServerStore(files, site.name, b"", on_event=on_event)
    try:
        facts["url"] = site.own.url
        facts["implementation"] = files.implementation
        if store.stat() is None and store.facts.folders:
            hint = f"Correct the URL, or create it: hibali mkdir {site.name}:"
            raise NotFoundError("no-such-folder", "it does not exist", subject=site.own.url, hint=hint)
        add_facts(store.probe(refresh=True), facts)
    finally:
        store.close()
