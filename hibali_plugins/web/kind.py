"""Declare, open and check sites with a URL: web servers and WebDAV servers.

config.toml is read with this module, so it imports neither the stores nor the events.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from hibali.config.kinds import SiteOption, StoreKind, credentials_option
from hibali.config.model import Site, login_url_problem
from hibali.config.schema import Note

if TYPE_CHECKING:
    from hibali.events import Listener
    from hibali.locations import Location
    from hibali_plugins.web.store import UrlStore
    from transfers.stores.login_protocol import LoginResult, Prompts
    from transfers.stores.server.store import ServerStore

_PORTS = {"https": 443, "davs": 443, "http": 80, "dav": 80}


def _check_login(site: Site, note: Note) -> None:
    """Refuse logins with several sources, and a login_url to which hibali must not send a password."""
    if site.secret_keyring and site.credentials_command:
        note("only one of credentials_command and secret_keyring can be set", "secret_keyring")
    if site.secret_keyring and not site.username:
        note("needs username: it is the password of that account", "secret_keyring")
    if site.login_url is not None:
        problem = login_url_problem(site.url or "", site.login_url)
        if problem:
            note(problem, "login_url")


def _server_of(site: Site) -> tuple[str, int]:
    parts = urlsplit(site.url or "")
    return parts.hostname or "", parts.port or _PORTS.get(parts.scheme, 443)


KIND = StoreKind(
    keys=("url", "credentials_command", "username", "secret_keyring", "login_url", "read_back", "proxy"),
    needs=("url", "url"),
    has_keys=True,
    address=lambda site: site.url or "",
    server=_server_of,
    check=_check_login,
    options=(
        SiteOption("url", "url", "URL", "A web server, by URL; read-only.", chooses=True),
        credentials_option("credentials_command"),
    ),
)


def open_store(location: Location, *, on_event: Listener) -> UrlStore | ServerStore:
    """See hibali_plugins.web.opening."""
    from hibali_plugins.web import opening  # start-up: config.toml is read with this module

    return opening.open_store(location, on_event=on_event)


def check(site: Site, facts: dict[str, str | int | bool], *, on_event: Listener) -> None:
    """See hibali_plugins.web.opening."""
    from hibali_plugins.web import opening  # start-up: as above

    opening.check(site, facts, on_event=on_event)


def log_in(site: Site, prompts: Prompts) -> LoginResult:
    """See transfers.stores.login_protocol."""
    from transfers.stores import web_login  # start-up: as above

    return web_login.log_in(site, prompts)


def log_out(site: Site) -> LoginResult:
    """See transfers.stores.login_protocol."""
    from transfers.stores import web_login  # start-up: as above

    return web_login.log_out(site)
