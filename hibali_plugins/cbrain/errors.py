"""Translate answers of a CBRAIN portal into errors with what to do next."""

from __future__ import annotations

import json
from typing import Any

from hibali.errors import (
    AccessError,
    HibaliError,
    IncompleteError,
    NotFoundError,
    RefusedError,
    TryLaterError,
)
from hibali.http.client import Response
from hibali.http.errors import BUSY
from hibali.text import printable

_MOST_TEXT = 300  # characters of the portal's reason that an error repeats


def error_of(response: Response, subject: str, site: str) -> HibaliError:
    """Return the error for an answer that is no success.

    `subject` names what was requested, and `site` the site in commands to type.
    """
    status = response.status
    if status == 401:
        return rejected_token(subject, site)
    reason = reason_in(response.body)
    if status == 403 and "license" in reason.lower():
        return AccessError(
            "licence-not-signed",
            "the portal wants you to sign its licence agreements first",
            subject=subject,
            hint=f"Log in to the portal in a browser and sign them. Then: hibali sites check {site}",
        )
    if status == 403:
        return AccessError(
            "denied",
            f"the portal denied access (status 403){reason and ': ' + reason}",
            subject=subject,
            hint="Ask the owner of the project or data provider for access.",
        )
    if status in {404, 410}:
        return NotFoundError("vanished", "it does not exist", subject=subject)
    if status in BUSY:
        return TryLaterError("busy", f"the portal is busy or failing (status {status})", subject=subject)
    if status == 413:
        return IncompleteError(
            "too-large", "the portal does not accept files of this size (status 413)", subject=subject
        )
    if 300 <= status < 400:
        # Pages redirect a person to a list with a message; the API has no redirects.
        return RefusedError(
            "refused-by-server", f"the portal refused the request (redirect, {status})", subject=subject
        )
    return RefusedError(
        "refused-by-server",
        f"the portal refused the request (status {status}){reason and ': ' + reason}",
        subject=subject,
    )


def rejected_token(subject: str, site: str) -> AccessError:
    """Return the error for a token that the portal does not accept, which it does not explain."""
    return AccessError(
        "token-rejected",
        "the portal rejected the login: a token expires after a day without use, and is valid only from the "
        "IP address where it was made",
        subject=subject,
        hint=f"To log in: hibali sites login {site}",
    )


def refused_login(site: str) -> AccessError:
    """Return the error for a login that the portal refused."""
    return AccessError(
        "cbrain-login-refused",
        "the portal refused the login: the login name or the password is wrong, the account is locked, or the "
        "portal has banned this IP address",
        subject=site,
        hint=f"Try them on the portal's web page. Then: hibali sites login {site}",
    )


def needed_login(site: str) -> AccessError:
    """Return the error for a site without a login."""
    return AccessError(
        "cbrain-login-needed",
        "there is no login to the portal on this machine",
        subject=site,
        hint=f"To log in: hibali sites login {site}",
    )


def reason_in(body: bytes) -> str:
    """Return the reason in the body of an error, printable and short; "" if there is none.

    The portal answers `{"notice": text}`, `{"error": text}`, `{field: [texts]}`, or plain text.
    """
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        text = body[: 4 * _MOST_TEXT].decode("utf-8", "replace")
        return "" if "<" in text else _short(text)
    return _short("; ".join(_texts(content)))


def _texts(content: Any) -> list[str]:
    """Return the texts of an error's body, with the names of fields that they belong to."""
    if isinstance(content, str):
        return [content]
    if not isinstance(content, dict):
        return []
    found = []
    for name, value in content.items():
        texts = [each for each in (value if isinstance(value, list) else [value]) if isinstance(each, str)]
        if texts:
            label = "" if name in {"notice", "error"} else f"{name} "
            found.append(label + ", ".join(texts))
    return found


def _short(text: str) -> str:
    words = " ".join(text.split())
    return printable(words if len(words) <= _MOST_TEXT else words[:_MOST_TEXT] + " ...")
