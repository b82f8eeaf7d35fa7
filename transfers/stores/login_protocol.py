"""Log in to the services of a site, and out again.

The module of a kind of site that has logins of its own has `log_in` and `log_out`; a web server with a login_url, and any
site with a Globus collection, have theirs. For ssh, a login is a new certificate, where the site has a command for it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, Protocol

from hibali.config.model import Site
from hibali.errors import UsageError
from hibali.plugins import load
from hibali.ssh_options import query_options, with_jump_hosts
from hibali.subprocesses import has_terminal


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
    certificate = _renew_certificate(site)
    if certificate is not None and site.globus is None:
        return certificate
    found: LoginResult = _module_with_logins(site).log_in(site, prompts)
    return found


def _renew_certificate(site: Site) -> LoginResult | None:
    """Get a new ssh certificate if that is needed; None if the site has no command for it. Raise `AccessError`."""
    if site.ssh is None or site.ssh.certificate is None:
        return None
    from hibali.ssh.certificates import SiteCertificate  # start-up: only for sites with certificates

    query = partial(query_options, site.ssh.command)
    hops = with_jump_hosts(query(site.ssh.host), query)
    certificate = SiteCertificate(site.ssh.certificate, hops, subject=site.name)
    renewed = certificate.ensure(may_prompt=has_terminal())
    valid = certificate.read()
    facts: dict[str, str | int | bool] = {} if valid is None else {"certificate": valid.describe()}
    return LoginResult(f"{site.ssh.host} by an ssh certificate", "logged in" if renewed else "same", facts)


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
        hint=f"To check the connection: hibali sites check {site.name}",
    )
