"""Declare, open and check the sites of services with bearer tokens; their modules `kind` say what differs.

config.toml is read with this module, so it imports neither a store nor a client.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Generic, TypeVar

from hibali.config.kinds import SERVICE_MACHINE, SiteOption, StoreKind, credentials_option
from hibali.config.model import Site
from hibali.errors import AccessError, IncompleteError
from hibali.events import Listener, ignore

if TYPE_CHECKING:
    from hibali.locations import Location
    from hibali.request_limits import RequestLimit
    from hibali_plugins.facilities.machine import MachineFiles
    from transfers.model.store import Store
    from transfers.stores.login_protocol import LoginResult, Prompts
    from transfers.stores.server.store import ServerStore


def system_option(service: str) -> SiteOption:
    """Return --system for a kind with that key."""
    return SiteOption("system", f"{service}.system", "NAME", "The system of a FirecREST or a facility.")


_Files = TypeVar("_Files", bound="MachineFiles")
_Facts = dict[str, str | int | bool]


class Facility(Generic[_Files]):
    """What the module of a kind of site has (`transfers.stores.open_store`), for a service that serves a machine's files and runs its jobs."""

    def __init__(
        self,
        kind: StoreKind,
        connect: Callable[[Site, RequestLimit, Listener], _Files],
        describe: Callable[[_Files, Site, _Facts], bytes],
    ) -> None:
        """`kind` has the service, its settings have `bearer` and `data`.

        `connect` returns the files of a site; `describe` fills in what is special about them, and returns a folder to write to.
        """
        self._connect = connect
        self._describe = describe
        self.KIND = replace(
            kind,
            keys=SERVICE_MACHINE,
            limits_requests=True,
            secret_variables=lambda site: tuple(site.own.bearer.secret_variables),
            data_site=lambda site: site.own.data or "",
            options=(*kind.options, credentials_option(f"{kind.service}.token_command")),
        )

    def open_files(self, site: Site, on_event: Listener = ignore) -> _Files:
        """Return the files of a site; the caller closes them."""
        from hibali.http.rest import REQUESTS  # start-up: config.toml is read with this module
        from hibali.request_limits import request_limit  # start-up: as above

        return self._connect(site, request_limit(site, requests=REQUESTS), on_event)

    def open_store(self, location: Location, *, on_event: Listener = ignore) -> ServerStore:
        """Return the store of a folder."""
        from hibali_plugins.facilities.machine import open_machine_store  # start-up: as above

        return open_machine_store(self.open_files(location.site, on_event), location, on_event)

    @staticmethod
    def open_over(location: Location, files: Store, *, on_event: Listener = ignore) -> Store:
        """Return the store of a folder whose files are moved through another site: its own."""
        del location, on_event
        return files

    def check(self, site: Site, facts: _Facts, *, on_event: Listener = ignore) -> None:
        """Query the account and its places, and fill `facts`. Raise connection errors."""
        files = self.open_files(site, on_event)
        try:
            facts["url"] = site.own.url
            folder = self._describe(files, site, facts)
            files.children(folder)
            _add_writable(files, folder, facts)
        finally:
            files.close()

    @staticmethod
    def log_in(site: Site, prompts: Prompts) -> LoginResult:
        """See transfers.stores.login_protocol."""
        from transfers.stores.bearer import login  # start-up: config.toml is read with this module

        return login.log_in(site.own.bearer, site.name, prompts)

    @staticmethod
    def log_out(site: Site) -> LoginResult:
        """See transfers.stores.login_protocol."""
        from transfers.stores.bearer import login  # start-up: config.toml is read with this module

        return login.log_out(site.own.bearer, site.name)


def describe_home(files: MachineFiles, places: Mapping[str, str], facts: _Facts) -> bytes:
    """Fill in the filesystems and the home folder, and return the latter."""
    facts.update({f"filesystem {name}": path for name, path in places.items()})
    home = files.home()
    facts["home"] = home.decode("utf-8", "replace")
    return home


def _add_writable(files: MachineFiles, folder: bytes, facts: _Facts) -> None:
    """Fill in whether a folder can be made in this one. Raise connection errors."""
    probe = folder + b"/.hibali-" + secrets.token_hex(16).encode("ascii")
    try:
        facts["writable"] = files.claim_folder(probe)
        files.release_folder(probe)
    except (AccessError, IncompleteError):
        facts["writable"] = False
