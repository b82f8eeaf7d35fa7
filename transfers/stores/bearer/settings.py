"""Read where the bearer tokens of a site come from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self

from hibali.config.model import SITE_NAME, endpoint_problem
from hibali.config.schema import Note, argv, line, setting, table, text

_VARIABLE = text(r"[A-Za-z_][A-Za-z0-9_]*", "a variable's name")
_SECRETS = ("client_secret_variable", "client_secret_keyring", "client_secret_command")
_REFRESH = ("refresh_variable", "refresh_keyring", "refresh_command")
_SOURCES = ("token_command", "token_variable", *_SECRETS, *_REFRESH, "device_url")
Source = Literal["", "command", "variable", "client", "refresh", "device"]


def read_url(value: Any, note: Note) -> str:
    """Read the URL of a service: https, and http to this machine only, because requests have a token (S15)."""
    url = line(value, note).rstrip("/")
    problem = endpoint_problem(url) if url != "aws" else "must be a URL that starts with https://"
    if problem is not None:
        raise ValueError(problem)
    return url


def data_setting() -> Any:
    """Return the setting `data` of a site whose files can be moved through another site."""
    return setting(
        text(SITE_NAME.pattern, "the name of a site"),
        default=None,
        doc="the site through which files are moved, with the same paths",
    )


@table
class BearerSettings:
    """At most one source of tokens.

    A command or a variable with a token; or an OIDC client: one with a secret of its own, one with a refresh token, or one with which
    users log in (`device_url`, RFC 8628).
    """

    token_command: tuple[str, ...] = setting(argv, default=(), doc="a command that prints a token")
    token_variable: str | None = setting(
        _VARIABLE, default=None, doc="an environment variable with a token, which cannot be renewed"
    )
    client_id: str | None = setting(
        text(r"[!-~]+", "the id of a client"), default=None, doc="the OIDC client"
    )
    client_secret_variable: str | None = setting(
        _VARIABLE, default=None, doc="an environment variable with the client's secret"
    )
    client_secret_keyring: str | None = setting(
        line, default=None, doc="a keyring service with the client's secret"
    )
    client_secret_command: tuple[str, ...] = setting(
        argv, default=(), doc="a command that prints the client's secret"
    )
    refresh_variable: str | None = setting(
        _VARIABLE, default=None, doc="an environment variable with a refresh token"
    )
    refresh_keyring: str | None = setting(line, default=None, doc="a keyring service with a refresh token")
    refresh_command: tuple[str, ...] = setting(argv, default=(), doc="a command that prints a refresh token")
    token_url: str = setting(read_url, default="", doc="the OIDC service's URL for tokens")
    device_url: str = setting(
        read_url, default="", doc="the OIDC service's URL for logins with a code (`hibali sites login`)"
    )
    scope: str | None = setting(line, default=None, doc="the scopes to ask for, with spaces between them")

    def require_source(self, note: Note) -> None:
        """Report it where there is no source."""
        if not self.source:
            note("needs a source of tokens, such as token_command or client_id")

    @property
    def source(self) -> Source:
        """Where tokens come from; "" without a login."""
        if self.token_command:
            return "command"
        if self.token_variable:
            return "variable"
        if self.client_secret_variable or self.client_secret_keyring or self.client_secret_command:
            return "client"
        if self.refresh_variable or self.refresh_keyring or self.refresh_command:
            return "refresh"
        return "device" if self.device_url else ""

    @property
    def secret_variables(self) -> tuple[str, ...]:
        """The environment variables with secrets."""
        found = (self.token_variable, self.client_secret_variable, self.refresh_variable)
        return tuple(filter(None, found))

    def finish(self, present_keys: Mapping[str, Any], note: Note) -> Self:
        """Refuse several sources, and an OIDC client without its URLs."""
        found = [key for key in _SOURCES if key in present_keys]
        if len(found) > 1:
            note(f"only one of {', '.join(_SOURCES)} can be set")
        of_client = [key for key in found if key not in {"token_command", "token_variable"}]
        if of_client and self.client_id is None:
            note("needs client_id, the client for which it was issued", of_client[0])
        if self.client_id is not None and not of_client:
            note(f"needs one of {', '.join((*_SECRETS, *_REFRESH, 'device_url'))}", "client_id")
        return self
