"""Declare, open and check sites that are the draft of a dataset in OpenNeuro.

config.toml is read with this module, so it imports neither the store nor the client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hibali.config.kinds import SiteOption, StoreKind, credentials_option
from hibali.config.model import Site
from hibali.events import Listener, ignore
from hibali_plugins.openneuro.settings import OpenNeuroSettings

if TYPE_CHECKING:
    from hibali.locations import Location
    from hibali_plugins.openneuro.store import DraftStore

KIND = StoreKind(
    settings=OpenNeuroSettings,
    has_keys=True,
    limits_requests=True,
    address=lambda site: f"{site.own.url}/datasets/{site.own.dataset}",
    secret_variables=lambda site: tuple(site.own.bearer.secret_variables),
    options=(
        SiteOption(
            "openneuro",
            "openneuro.dataset",
            "DATASET",
            "The draft of a dataset in OpenNeuro, to push to.",
            chooses=True,
        ),
        credentials_option("openneuro.token_command"),
    ),
    example=(
        "hibali sites add mine --openneuro ds004321",
        "The draft of your dataset in OpenNeuro, to push to.",
    ),
)


def open_store(location: Location, *, on_event: Listener = ignore) -> DraftStore:
    """Open a path in the draft."""
    from hibali_plugins.openneuro.store import DraftStore  # start-up: config.toml is read with this module

    return DraftStore(location.site, location.raw, on_event)


def check(site: Site, facts: dict[str, str | int | bool], *, on_event: Listener = ignore) -> None:
    """Fetch the draft and fill `facts`. Raise connection errors."""
    from hibali_plugins.openneuro.store import DraftStore  # start-up: as above

    store = DraftStore(site, b"", on_event)
    try:
        facts |= {"url": site.own.url, "dataset": site.own.dataset, "writable": True}
        facts["files"] = len(store.draft.files)
    finally:
        store.close()
