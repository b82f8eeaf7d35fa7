"""Declare, open and check sites that only Globus reaches.

config.toml is read with this module, so it imports neither the store nor the SDK of Globus.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hibali.config.kinds import FOLDERS, SiteOption, StoreKind
from hibali.config.model import Site
from hibali.config.schema import Note
from hibali.events import Listener, ignore

if TYPE_CHECKING:
    from hibali.locations import Location
    from hibali_plugins.globus.store import GlobusStore
    from transfers.stores.login_protocol import LoginResult, Prompts


def _check_collection(site: Site, note: Note) -> None:
    """Refuse mappings of paths and variables, which a site without a machine cannot have."""
    if site.globus is not None and site.globus.paths:
        note(
            "does not belong to a site of kind globus: its paths are those of the collection",
            "globus",
            "paths",
        )
    for name, path in site.roots.items():
        if path.startswith("$"):
            note(f"{path!r} has a variable, but a collection has no variables", "roots", name)


KIND = StoreKind(
    keys=("globus", *FOLDERS),
    needs=("globus", "a table globus with collection"),
    address=lambda site: site.globus.collection if site.globus is not None else "",
    check=_check_collection,
    options=(
        SiteOption(
            "globus",
            "globus.collection",
            "UUID",
            "The Globus collection of this site; together with --ssh or --local, that site's collection.",
            chooses=True,
        ),
        SiteOption(
            "globus-path",
            "globus.paths",
            "THERE=IN_COLLECTION",
            "The path in the collection for a path of the site; repeatable.",
            pairs=True,
        ),
    ),
    example=("hibali sites add archive --globus UUID", "A Globus collection, reached by Globus alone."),
)


def open_store(location: Location, *, on_event: Listener = ignore) -> GlobusStore:
    """Open a folder of a collection. Raise `UsageError`, or `AccessError` without a login."""
    from hibali_plugins.globus.store import GlobusStore  # start-up: config.toml is read with this module

    return GlobusStore(location.site, location.path, on_event=on_event)


def log_in(site: Site, prompts: Prompts) -> LoginResult:
    """See transfers.stores.login_protocol."""
    from hibali_plugins.globus import login  # start-up: config.toml is read with this module

    return login.log_in(site, prompts)


def log_out(site: Site) -> LoginResult:
    """See transfers.stores.login_protocol."""
    from hibali_plugins.globus import login  # start-up: config.toml is read with this module

    return login.log_out(site)


def check(site: Site, facts: dict[str, str | int | bool], *, on_event: Listener = ignore) -> None:
    """Query the collection and fill `facts`. Raise connection errors."""
    from hibali_plugins.globus.requests import inspect_collection  # start-up: as above

    del on_event
    inspect_collection(site, facts)
