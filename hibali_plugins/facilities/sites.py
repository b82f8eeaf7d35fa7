"""Declare what the sites of services with bearer tokens have in common; their modules `kind` take it from here.

config.toml is read with this module, so it imports neither a store nor a client.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING

from hibali.config.kinds import SERVICE_MACHINE, SiteOption, StoreKind, credentials_option
from hibali.config.model import Site
from hibali.errors import AccessError, IncompleteError
from hibali.events import Listener, ignore

if TYPE_CHECKING:
    from hibali.locations import Location
    from hibali_plugins.facilities.machine import MachineFiles
    from transfers.model.store import Store
    from transfers.stores.login_protocol import LoginResult, Prompts


def secret_variables(site: Site) -> tuple[str, ...]:
    """Return the environment variables with secrets of a site (`StoreKind.secret_variables`)."""
    found: tuple[str, ...] = site.own.bearer.secret_variables
    return found


def service_machine(
    settings: type,
    service: str,
    address: Callable[[Site], str],
    *options: SiteOption,
    example: tuple[str, str],
) -> StoreKind:
    """Return the kind of a site whose files and jobs a service of this name serves; its settings have `bearer` and `data`."""
    return StoreKind(
        keys=SERVICE_MACHINE,
        settings=settings,
        service=service,
        limits_requests=True,
        address=address,
        secret_variables=secret_variables,
        data_site=lambda site: site.own.data or "",
        options=(*options, credentials_option(f"{service}.token_command")),
        example=example,
    )


def system_option(service: str) -> SiteOption:
    """Return --system for a kind with that key."""
    return SiteOption("system", f"{service}.system", "NAME", "The system of a FirecREST or a facility.")


def open_over(location: Location, files: Store, *, on_event: Listener = ignore) -> Store:
    """Return the store of a folder whose files are moved through another site: its own."""
    del location, on_event
    return files


def add_writable(files: MachineFiles, folder: bytes, facts: dict[str, str | int | bool]) -> None:
    """Fill in whether a folder can be made in this one. Raise connection errors."""
    probe = folder + b"/.hibali-" + secrets.token_hex(16).encode("ascii")
    try:
        facts["writable"] = files.claim_folder(probe)
        files.release_folder(probe)
    except (AccessError, IncompleteError):
        facts["writable"] = False


def log_in(site: Site, prompts: Prompts) -> LoginResult:
    """See transfers.stores.login_protocol."""
    from transfers.stores.bearer import login  # start-up: config.toml is read with this module

    return login.log_in(site.own.bearer, site.name, prompts)


def log_out(site: Site) -> LoginResult:
    """See transfers.stores.login_protocol."""
    from transfers.stores.bearer import login  # start-up: config.toml is read with this module

    return login.log_out(site.own.bearer, site.name)
