"""Read the table [sites.NAME.ebrains]: a bucket or a dataset, and where its token comes from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Self

from hibali.config.model import endpoint_problem
from hibali.config.schema import Note, argv, flag, line, setting, table, text

URL = "https://data-proxy.ebrains.eu/api"
TOKEN_URL = "https://iam.ebrains.eu/auth/realms/hbp/protocol/openid-connect/token"  # noqa: S105  # an address
_UUID = r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
_VARIABLE = text(r"[A-Za-z_][A-Za-z0-9_]*", "a variable's name")
_REFRESH = ("refresh_variable", "refresh_keyring", "refresh_command")
_SOURCES = ("token_command", "token_variable", *_REFRESH)


def _read_url(value: Any, note: Note) -> str:
    """Read the URL of a service: https, and http to this machine only, because requests have a token (S15)."""
    url = line(value, note).rstrip("/")
    problem = endpoint_problem(url) if url != "aws" else "must be a URL that starts with https://"
    if problem is not None:
        raise ValueError(problem)
    return url


@table
class EbrainsSettings:
    """The bucket or dataset of a site, and at most one source of tokens; public data need none."""

    bucket: str | None = setting(
        text(r"[A-Za-z0-9][A-Za-z0-9._-]*", "a bucket's name"), default=None, doc="the bucket"
    )
    dataset: str | None = setting(
        text(_UUID, "the UUID of a dataset"), default=None, doc="a dataset instead, which is read-only"
    )
    url: str = setting(_read_url, default=URL, doc="the address of the data proxy")
    token_command: tuple[str, ...] = setting(argv, default=(), doc="a command that prints a token")
    token_variable: str | None = setting(
        _VARIABLE, default=None, doc="an environment variable with a token, which cannot be renewed"
    )
    client_id: str | None = setting(
        text(r"[!-~]+", "the id of a client"), default=None, doc="the OIDC client of the refresh token"
    )
    refresh_variable: str | None = setting(
        _VARIABLE, default=None, doc="an environment variable with a refresh token"
    )
    refresh_keyring: str | None = setting(line, default=None, doc="a keyring service with a refresh token")
    refresh_command: tuple[str, ...] = setting(argv, default=(), doc="a command that prints a refresh token")
    token_url: str = setting(_read_url, default=TOKEN_URL, doc="where a refresh token is exchanged")
    read_back: bool = setting(flag, default=True, doc="read back what was written, to verify its checksum")

    @property
    def resource(self) -> str:
        """The path of the bucket or dataset in the API; without special characters."""
        return f"buckets/{self.bucket}" if self.bucket is not None else f"datasets/{self.dataset}"

    @property
    def refreshes(self) -> bool:
        """Whether tokens come from a refresh token."""
        return self.client_id is not None

    @property
    def has_login(self) -> bool:
        """Whether there is a source of tokens."""
        return bool(self.token_command or self.token_variable or self.refreshes)

    def finish(self, present_keys: Mapping[str, Any], note: Note) -> Self:
        """Require one of bucket and dataset, and what belongs to a source of tokens."""
        if ("bucket" in present_keys) + ("dataset" in present_keys) != 1:
            note("needs either bucket or dataset")
        found = [key for key in _SOURCES if key in present_keys]
        if len(found) > 1:
            note(f"only one of {', '.join(_SOURCES)} can be set")
        refresh = [key for key in _REFRESH if key in present_keys]
        if refresh and "client_id" not in present_keys:
            note("needs client_id, the client for which it was issued", refresh[0])
        if "client_id" in present_keys and not refresh:
            note(f"needs one of {', '.join(_REFRESH)}", "client_id")
        return replace(self, dataset=self.dataset.lower()) if self.dataset is not None else self
