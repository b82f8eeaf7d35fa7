"""Log in with a code that the user types into a browser, on any machine (RFC 8628)."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hibali.errors import AccessError, TryLaterError
from hibali.retry import pause
from transfers.stores.bearer.settings import BearerSettings
from transfers.stores.bearer.tokens import OidcService, keep_login

_GRANT = "urn:ietf:params:oauth:grant-type:device_code"
_INTERVAL = 5.0  # seconds between two questions, unless the service says otherwise (RFC 8628, 3.2)
_LONGEST_INTERVAL = 60.0
_LONGEST_WAIT = 30 * 60.0
_MOST_TEXT = 2000


@dataclass(frozen=True, slots=True)
class DeviceCode:
    """What the user has to do: open `url` and type `code`; `complete_url` has the code in it, "" if the service gives none."""

    url: str
    code: str
    complete_url: str


def log_in_by_code(settings: BearerSettings, subject: str, show: Callable[[DeviceCode], None]) -> None:
    """Let the user log in, and keep the tokens for later commands.

    Args:
        settings: An OIDC client with a `device_url`.
        subject: The site.
        show: Called once with what the user has to do.

    Raises:
        AccessError: The user refused, or did not log in in time.
        TryLaterError: The service does not answer, or with nonsense.
    """
    service = OidcService(settings, subject)
    scope = {"scope": settings.scope} if settings.scope else {}
    record = _read(service.post(settings.device_url, scope).body)
    device_code, seconds, interval = _device_code(record, subject)
    show(_shown(record, subject))
    while seconds > 0:
        pause(interval)
        seconds -= interval
        response = service.post(settings.token_url, {"grant_type": _GRANT, "device_code": device_code})
        if response.status < 300:
            keep_login(settings, subject, service.read_grant(response.body))
            return
        problem = _read(response.body).get("error")
        if problem == "slow_down":
            interval = min(interval + 5.0, _LONGEST_INTERVAL)
        elif problem != "authorization_pending":
            break
    raise AccessError(
        "login-refused",
        "the login was not completed in the browser",
        subject=subject,
        hint=f"To log in: hibali sites login {subject}",
    )


def _device_code(record: dict[str, Any], subject: str) -> tuple[str, float, float]:
    """Return the code that only hibali sees, how long it is valid, and the pause between two questions."""
    code, seconds, interval = (
        record.get("device_code"),
        record.get("expires_in"),
        record.get("interval", _INTERVAL),
    )
    if not (isinstance(code, str) and 0 < len(code) <= _MOST_TEXT and isinstance(seconds, int | float)):
        raise _bad_answer(subject)
    usable = isinstance(interval, int | float) and 0 < interval <= _LONGEST_INTERVAL
    return code, min(float(seconds), _LONGEST_WAIT), float(interval) if usable else _INTERVAL


def _shown(record: dict[str, Any], subject: str) -> DeviceCode:
    url, code = record.get("verification_uri"), record.get("user_code")
    complete = record.get("verification_uri_complete", "")
    for text in (url, code, complete):
        if (
            not isinstance(text, str)
            or not text.isascii()
            or not text.isprintable()
            or len(text) > _MOST_TEXT
        ):
            raise _bad_answer(subject)
    if not (isinstance(url, str) and url.startswith(("https://", "http://127.0.0.1:")) and code):
        raise _bad_answer(subject)
    return DeviceCode(url, str(code), str(complete))


def _read(body: bytes) -> dict[str, Any]:
    try:
        record = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


def _bad_answer(subject: str) -> TryLaterError:
    return TryLaterError(
        "bad-answer",
        "the login service did not answer with a code",
        subject=subject,
        hint="Check the device_url of the site.",
        transient=False,
    )
