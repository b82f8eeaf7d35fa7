"""Read the table [sites.NAME.cbrain]: the portal, where the login is, and the defaults of userfiles."""

from __future__ import annotations

import re
from typing import Any, Self
from urllib.parse import urlsplit

from hibali.config.model import SITE_NAME, PresentKeys, is_loopback_host
from hibali.config.schema import Note, argv, duration, line, setting, strings, table, text

PROVIDER_NAME = re.compile(r"[A-Za-z0-9][\w.=+-]*", re.ASCII)
TYPE_NAME = r"[A-Z][A-Za-z0-9]*"
_LOCATION = re.compile(rf"{SITE_NAME.pattern}:[^\x00-\x1f]*")
_TOKENS = ("token_command", "token_keyring")
_PASSWORDS = ("password_command", "password_keyring")


def _url(value: Any, note: Note) -> str:
    """Read the URL of a portal: https, or http to this machine, because each request has the token (S15)."""
    url = line(value, note).rstrip("/")
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname or "", parts.port
    except ValueError:
        raise ValueError("is not a URL") from None
    if parts.scheme not in {"https", "http"} or not host:
        raise ValueError("must be a URL that starts with https://")
    if parts.scheme == "http" and not is_loopback_host(host):
        raise ValueError("must start with https://, except for this machine")
    if "@" in parts.netloc or parts.query or parts.fragment:
        raise ValueError("must not contain a login, a query or a fragment")
    return url


def _providers(value: Any, note: Note) -> dict[str, str]:
    """Read the locations at other sites that have the files of data providers."""
    providers = strings(value, note)
    for name, location in providers.items():
        if not PROVIDER_NAME.fullmatch(name):
            note(f"{name!r} is not the name of a data provider", name)
        if not _LOCATION.fullmatch(location):
            note(f"{location!r} is not SITE:PATH", name)
    return providers


@table
class CbrainSettings:
    """The portal and the login.

    Without a `token_` or `password_` setting the login is the one that `hibali sites login` made. A token is
    used as it is; with a password hibali makes its own tokens, and new ones when they expire.
    """

    url: str = setting(_url, doc="the URL of the portal")
    login: str | None = setting(
        text(r"[^\s:]+", "a login name"), default=None, doc="your login name at the portal"
    )
    token_command: tuple[str, ...] = setting(argv, default=(), doc="a command that prints a token")
    token_keyring: str | None = setting(line, default=None, doc="a keyring service with a token")
    password_command: tuple[str, ...] = setting(argv, default=(), doc="a command that prints the password")
    password_keyring: str | None = setting(line, default=None, doc="a keyring service with the password")
    project: str | None = setting(line, default=None, doc="the project of new userfiles; yours by default")
    type: str | None = setting(
        text(TYPE_NAME, "a type such as TextFile"),
        default=None,
        doc="the type of new userfiles; by default guessed from their names",
    )
    providers: dict[str, str] = setting(
        _providers, default={}, doc="your own data providers, and the SITE:PATH where their files are"
    )
    results: str | None = setting(
        text(r"@?" + PROVIDER_NAME.pattern, "a data provider"),
        default=None,
        doc="the data provider of the outputs of runs, and of inputs that are copied to the portal",
    )
    copy_seconds: float = setting(
        duration("1s", "1d"),
        default=600.0,
        name="copy_wait",
        doc="how long to wait until the portal has copied an upload",
    )

    def finish(self, present_keys: PresentKeys, note: Note) -> Self:
        """Check that there is one source of the login, and a login name where it is needed."""
        sources = [key for key in (*_TOKENS, *_PASSWORDS) if key in present_keys]
        if len(sources) > 1:
            note(f"only one of {', '.join((*_TOKENS, *_PASSWORDS))} can be set")
        for key in (*_PASSWORDS, "token_keyring"):
            if key in present_keys and self.login is None:
                note("needs login: whose it is", key)
        return self
