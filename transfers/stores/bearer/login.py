"""Log in to a site with bearer tokens, and out again, as `hibali sites login` does."""

from __future__ import annotations

from hibali.errors import AccessError, UsageError
from transfers.stores.bearer.device import DeviceCode, log_in_by_code
from transfers.stores.bearer.settings import BearerSettings
from transfers.stores.bearer.tokens import Tokens, forget_login
from transfers.stores.login_protocol import LoginResult, Prompts

_SERVICE = "the service"


def log_in(settings: BearerSettings, subject: str, prompts: Prompts) -> LoginResult:
    """Log in with a code if there is no valid login; test another source of tokens.

    Raises `UsageError` for a site without any, `AccessError`, `TryLaterError`.
    """
    if not settings.source:
        raise UsageError(
            "no-login",
            "the site has no source of tokens",
            subject=subject,
            hint="Set a client_id with a device_url, or a token_command: hibali config edit",
        )
    tokens = Tokens(settings, subject)
    if settings.source != "device":
        tokens.current()
        return LoginResult(_SERVICE, "client")
    try:
        tokens.renew("")
    except AccessError:
        log_in_by_code(settings, subject, lambda found: prompts.show(_message(found)))
        return LoginResult(_SERVICE, "logged in")
    return LoginResult(_SERVICE, "same")


def _message(found: DeviceCode) -> str:
    if found.complete_url:
        return f"Open this URL in a browser, on any machine, and confirm the code {found.code}.\n\n{found.complete_url}\n"
    return f"Open this URL in a browser, on any machine, and type the code {found.code}.\n\n{found.url}\n"


def log_out(settings: BearerSettings, subject: str) -> LoginResult:
    """Remove the stored tokens of a login with a code."""
    existed = settings.source == "device" and forget_login(settings, subject)
    return LoginResult(_SERVICE, "logged out" if existed else "same")
