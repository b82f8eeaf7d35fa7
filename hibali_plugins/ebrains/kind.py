"""Declare, open and check sites of the EBRAINS data proxy.

config.toml is read with this module, so it does not import the store.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hibali.config.kinds import SiteOption, StoreKind, credentials_option
from hibali.config.model import Site
from hibali.events import Listener, ignore
from hibali_plugins.ebrains.settings import EbrainsSettings

if TYPE_CHECKING:
    from hibali.locations import Location
    from hibali_plugins.ebrains.store import EbrainsStore
    from transfers.stores.login_protocol import LoginResult, Prompts


KIND = StoreKind(
    settings=EbrainsSettings,
    has_keys=True,
    address=lambda site: f"{site.own.url}/v1/{site.own.resource}",
    secret_variables=lambda site: tuple(site.own.bearer.secret_variables),
    options=(
        SiteOption(
            "ebrains", "ebrains.bucket", "BUCKET", "A bucket of the EBRAINS data proxy.", chooses=True
        ),
        SiteOption(
            "ebrains-dataset", "ebrains.dataset", "UUID", "A dataset of EBRAINS; read-only.", chooses=True
        ),
        credentials_option("ebrains.token_command"),
    ),
    example=(
        "hibali sites add bigbrain --ebrains p22717-hbp-d000070_BigBrain-selected_1um_scans_pub",
        "A public bucket of EBRAINS, without a login.",
    ),
)


def open_store(location: Location, *, on_event: Listener = ignore) -> EbrainsStore:
    """Return the store of a bucket or dataset; a bucket is probed once, at a check or the first write."""
    from hibali_plugins.ebrains.requests import DataProxy  # start-up: config.toml is read with this module
    from hibali_plugins.ebrains.store import EbrainsStore  # start-up: as above

    site = location.site
    return EbrainsStore(
        DataProxy(site.own, site.name, on_event),
        site.name,
        location.raw,
        slash=location.slash,
        exact=location.exact_key,
        on_event=on_event,
        lease=site.limits.lease_seconds,
    )


def log_in(site: Site, prompts: Prompts) -> LoginResult:
    """See transfers.stores.login_protocol."""
    from transfers.stores.bearer import login  # start-up: config.toml is read with this module

    return login.log_in(site.own.login, site.name, prompts)


def log_out(site: Site) -> LoginResult:
    """See transfers.stores.login_protocol."""
    from transfers.stores.bearer import login  # start-up: config.toml is read with this module

    return login.log_out(site.own.login, site.name)


def check(site: Site, facts: dict[str, str | int | bool], *, on_event: Listener = ignore) -> None:
    """Query the bucket or dataset and fill `facts`. Raise connection errors, and `consent-pending`.

    With a login, this writes small objects into a bucket and removes them.
    """
    from hibali_plugins.ebrains.requests import DataProxy  # start-up: config.toml is read with this module
    from hibali_plugins.ebrains.store import EbrainsStore  # start-up: as above

    settings: EbrainsSettings = site.own
    proxy = DataProxy(settings, site.name, on_event)
    store = EbrainsStore(proxy, site.name, b"", on_event=on_event)
    try:
        facts["url"] = settings.url
        facts["bucket" if settings.bucket is not None else "dataset"] = settings.resource.partition("/")[2]
        facts["access"] = "with a token" if settings.has_login else "without a login"
        store.add_facts(facts)
    finally:
        store.close()
