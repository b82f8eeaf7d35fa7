"""Log in to the services of a site, and out again.

The module of a kind of site that has logins of its own has `log_in` and `log_out`; a web server with a login_url, and any
site with a Globus collection, have theirs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from hibali.config.model import Site
from hibali.errors import UsageError
from hibali.plugins import load


class Prompts(Protocol):
    """Asks the user who sits at the terminal; raises `AccessError` if there is none."""

    def ask(self, prompt: str, *, hidden: bool = False) -> str:
        """Return what the user typed; `hidden` for a secret."""

    def show(self, message: str) -> None:
        """Show what the user has to do elsewhere, such as a URL to open in a browser."""


@dataclass(frozen=True, slots=True)
class LoginResult:
    """What a login or logout did at a service, and facts for the user.

    `change` is `client` if a source in config.toml gives the login, which was only tested. `note` says what more changed.
    """

    service: str
    change: Literal["logged in", "same", "client", "logged out"]
    facts: dict[str, str | int | bool] = field(default_factory=dict)
    note: str = ""


def log_in(site: Site, prompts: Prompts) -> LoginResult:
    """Log in to the service of a site if needed, and store the login for later commands. Raise `AccessError` and connection errors."""
    found: LoginResult = _module_with_logins(site).log_in(site, prompts)
    return found


def log_out(site: Site) -> LoginResult:
    """Revoke the login of a site where the service can do that, and remove it. Raise `TryLaterError`."""
    found: LoginResult = _module_with_logins(site).log_out(site)
    return found


def _module_with_logins(site: Site) -> Any:
    module = load("transfers.stores", site.kind)
    if hasattr(module, "log_in"):
        return module
    if site.globus is not None:
        return load("transfers.stores", "globus")
    raise UsageError(
        "no-login",
        f"a site of kind {site.kind} has no service to log in to",
        subject=site.name,
        hint=f"hibali sites check {site.name}",
    )
