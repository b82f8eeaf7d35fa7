"""Declare, open and check sites that are a draft of Zenodo.

config.toml is read with this module, so it imports neither the store nor the client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hibali.config.kinds import SiteOption, StoreKind, credentials_option
from hibali.config.model import Site
from hibali.events import Listener, ignore
from hibali_plugins.archives.drafts.settings import DraftSettings

if TYPE_CHECKING:
    from hibali.locations import Location
    from hibali_plugins.archives.drafts.files import DraftFiles
    from transfers.stores.server.store import ServerStore

KIND = StoreKind(
    settings=DraftSettings,
    has_keys=True,
    limits_requests=True,
    address=lambda site: f"{site.own.url}/deposit/{site.own.draft}",
    secret_variables=lambda site: site.own.bearer.secret_variables,
    options=(
        SiteOption(
            "zenodo",
            "zenodo.draft",
            "NUMBER",
            "A draft of yours in Zenodo; it has no folders.",
            chooses=True,
        ),
        credentials_option("zenodo.token_command"),
    ),
    example=(
        "hibali sites add atlas-draft --zenodo 1234567 --set zenodo.token_variable=ZENODO_TOKEN",
        "A draft in Zenodo, into which files are pushed.",
    ),
)


def open_store(location: Location, *, on_event: Listener = ignore) -> ServerStore:
    """Open the draft, or a file in it."""
    from transfers.stores.server.store import ServerStore  # start-up: config.toml is read with this module

    site, files = location.site, _open(location.site, on_event)
    return ServerStore(files, site.name, location.raw, slash=location.slash, on_event=on_event)


def _open(site: Site, on_event: Listener) -> DraftFiles:
    from hibali.request_limits import request_limit  # start-up: config.toml is read with this module
    from hibali_plugins.archives.client import ArchiveClient  # start-up: as above
    from hibali_plugins.archives.drafts.files import DraftFiles  # start-up: as above
    from transfers.stores.bearer.tokens import Tokens  # start-up: as above

    login = Tokens(site.own.bearer, site.name).authorization()
    client = ArchiveClient(site.own.url, site.name, request_limit(site), on_event, login)
    return DraftFiles(client, site.own.draft, site.name)


def check(site: Site, facts: dict[str, str | int | bool], *, on_event: Listener = ignore) -> None:
    """List the draft and fill `facts`. Raise connection errors."""
    files = _open(site, on_event)
    try:
        listed = [found for _, found in files.children(b"")]
        facts |= {"draft": site.own.draft, "url": site.own.url, "writable": True}
        facts["files"], facts["bytes"] = len(listed), sum(found.size for found in listed)
    finally:
        files.close()
