"""Declare, open and check sites that are CBRAIN portals.

config.toml is read with this module, so it imports neither the store nor the client.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hibali.config.kinds import SiteOption, StoreKind
from hibali.config.model import Site
from hibali.errors import NotFoundError
from hibali.events import Listener, ignore
from hibali_plugins.cbrain.settings import CbrainSettings

if TYPE_CHECKING:
    from hibali.locations import Location
    from hibali_plugins.cbrain.portal import Portal
    from hibali_plugins.cbrain.registering import RegisteringStore
    from hibali_plugins.cbrain.store import PortalStore
    from transfers.model.store import Store
    from transfers.stores.login_protocol import LoginResult, Prompts


def _through(site: Site, path: str) -> str | None:
    """Return where the files of a path are, if its data provider is also a hibali site."""
    name, slash, rest = path.partition("/")
    found: str | None = site.own.providers.get(name[1:]) if name.startswith("@") else None
    if found is None or not slash:
        return found
    return f"{found.rstrip('/')}{'' if found.endswith(':') else '/'}{rest}"


def _with_file_type(site: Site, file_type: str) -> Site:
    """Return the site with a type for new userfiles."""
    return replace(site, own=replace(site.own, type=file_type))


KIND = StoreKind(
    settings=CbrainSettings,
    has_keys=True,
    service="cbrain",
    address=lambda site: str(site.own.url),
    through=_through,
    with_file_type=_with_file_type,
    options=(SiteOption("cbrain", "cbrain.url", "URL", "A CBRAIN portal, by URL.", chooses=True),),
    example=(
        "hibali sites add mcgill --cbrain https://portal.cbrain.mcgill.ca",
        "A CBRAIN portal, whose data providers are mcgill:@NAME.",
    ),
)


def open_store(location: Location, *, on_event: Listener = ignore) -> PortalStore:
    """Return the store of a path whose files go through the portal."""
    from hibali_plugins.cbrain.store import PortalStore  # start-up: config.toml is read with this module

    return PortalStore(_portal(location.site, on_event), location.raw)


def open_over(location: Location, files: Store, *, on_event: Listener = ignore) -> RegisteringStore:
    """Return the store of a path whose files are in the store of another site. Raise `NotFoundError`."""
    from hibali_plugins.cbrain.registering import RegisteringStore  # start-up: as above

    return RegisteringStore(_portal(location.site, on_event), files, location.raw)


def check(site: Site, facts: dict[str, str | int | bool], *, on_event: Listener = ignore) -> None:
    """Log in to the portal, and fill `facts` with its data providers. Raise connection errors.

    The providers in the settings must exist, and be browsable and reachable by the portal.
    """
    portal = _portal(site, on_event)
    try:
        facts["url"] = site.own.url
        facts["access"] = f"user {portal.user_id()}"
        facts["project"] = portal.group_id()
        providers = portal.providers()
        facts["data providers"] = " ".join(sorted(providers)) or "none"
        facts["writable"] = any(each.online and not each.read_only for each in providers.values())
        for name, location in site.own.providers.items():
            _check_provider(portal, name)
            facts[f"files of {name}"] = location
    finally:
        portal.client.close()


def log_in(site: Site, prompts: Prompts) -> LoginResult:
    """See transfers.stores.login_protocol."""
    from hibali_plugins.cbrain import session  # start-up: config.toml is read with this module

    return session.log_in(site, prompts)


def log_out(site: Site) -> LoginResult:
    """See transfers.stores.login_protocol."""
    from hibali_plugins.cbrain import session  # start-up: config.toml is read with this module

    return session.log_out(site)


def _check_provider(portal: Portal, name: str) -> None:
    """Raise `NotFoundError` for a provider in the settings that cannot be used to register files."""
    provider = portal.provider(name)
    problem = ""
    if not provider.browsable:
        problem = "the portal registers no files of it, because it is not browsable"
    elif not portal.client.is_alive(provider.id):
        problem = "the portal cannot reach it"
    if problem:
        raise NotFoundError(
            "provider-not-usable",
            f"the data provider {name} cannot be used: {problem}",
            subject=portal.site.name,
            hint="Check it on the portal's page of the data provider, or remove it from the site's cbrain.providers.",
        )


def _portal(site: Site, on_event: Listener) -> Portal:
    from hibali_plugins.cbrain.client import CbrainClient  # start-up: config.toml is read with this module
    from hibali_plugins.cbrain.portal import Portal  # start-up: as above

    return Portal(CbrainClient(site, on_event=on_event), site)
