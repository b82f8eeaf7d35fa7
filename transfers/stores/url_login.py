"""Who we are at a site of kind url: what its credentials_command prints, sent over TLS or to this very machine alone."""

from __future__ import annotations

import json
from dataclasses import dataclass
from urllib.parse import urlsplit

from hibali.credentials_command import credentials_from
from hibali.errors import UsageError
from hibali.sites import Site


@dataclass(frozen=True, slots=True)
class Login:
    """A name and a password, or a token; never shown."""

    name: str = ""
    password: str = ""
    token: str = ""

    def __repr__(self) -> str:
        return "Login(...)"


def login_of(site: Site, *, secure: bool) -> Login | None:
    """What the site's credentials_command prints; nothing of it is ever shown. Raises `AccessError`."""
    if not site.credentials_command:
        return None
    host = urlsplit(site.url or "").hostname or ""
    if not secure and host not in {"localhost", "127.0.0.1", "::1"}:
        raise UsageError(
            "insecure-endpoint",
            "a login travels over https only",
            about=site.name,
            hint="Correct the site's url.",
        )
    return credentials_from(
        site.credentials_command,
        read_login,
        key="credentials_command",
        what="login",
        about=site.name,
        hint='Run it by hand: it has to print {"username": ..., "password": ...} or {"token": ...} as JSON.',
    )


def read_login(text: bytes) -> Login:
    """A username and a password, or a token; raises ValueError that repeats nothing of the text."""
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("what it printed is not JSON") from None
    if isinstance(record, dict) and all(isinstance(value, str) and value for value in record.values()):
        if record.keys() == {"token"}:
            return Login(token=record["token"])
        if record.keys() == {"username", "password"}:
            return Login(record["username"], record["password"])
    raise ValueError("what it printed has neither a username and a password nor a token")
