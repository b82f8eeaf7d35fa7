"""Read the table [sites.NAME.fsspec]: URL, options, and where the secrets are."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Self
from urllib.parse import urlsplit

from hibali.config.model import is_loopback_host
from hibali.config.schema import Note, argv, flag, line, setting, strings, table
from hibali_plugins.fsspec_sites.protocols import REFUSED, known_protocol

_PROTOCOL = re.compile(r"[a-z][a-z0-9_+.-]*")
_OPTION = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_CONTROL = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
# Names of options with secrets: account_key, sas_token, client_secret, connection_string, password, ...
_SECRET = re.compile(
    r"(^|_)(key|secret|token|passw(or)?d|passphrase|passwd|credentials?|connection_string|sas)$"
)
# Values of `token` by which gcsfs chooses a way to log in, or the path of a file with the credentials.
_GCS_LOGIN = re.compile(r"anon|cloud|cache|google_default|(/|~/).+\.json")
_NOT_HERE = (
    "secrets are not allowed here: name the option in secret_variables or secret_keyrings, or set a "
    "credentials_command"
)
_MOST_DEPTH = 8


def _read_url(value: Any, note: Note) -> str:
    """Read `PROTOCOL://...` of one filesystem, without a login."""
    url = line(value, note)
    protocol, separator, rest = url.partition("://")
    if not separator or not _PROTOCOL.fullmatch(protocol):
        raise ValueError("must be a URL such as gs://BUCKET/FOLDER")
    if "::" in url:
        raise ValueError("must name one filesystem: chains with :: are not supported")
    if protocol in {"http", "https", "webdav"}:
        raise ValueError("cannot be a URL of the web: add the site with --url")
    if protocol in {"osdf", "pelican"}:
        raise ValueError(
            "names a Pelican federation: add the namespace's collections URL with --url davs://HOST:PORT/PATH"
        )
    if protocol in {"roots", "xroot", "xroots"}:
        raise ValueError("must be root://HOST//PATH: a server that requires TLS gets it")
    if protocol in REFUSED:
        raise ValueError(f"{protocol} does not store files itself: name the filesystem below it")
    if protocol in {"file", "local"} and not rest.startswith("/"):
        raise ValueError("must be an absolute path, such as file:///data")
    try:
        has_password = urlsplit(url).password is not None
    except ValueError:
        raise ValueError("is not a URL") from None
    if has_password:
        raise ValueError(f"must not contain a password: {_NOT_HERE.partition(': ')[2]}")
    if "?" in url or "#" in url:
        raise ValueError("must not contain a query or a fragment")
    if any(part in {".", ".."} for part in rest.split("/")):
        raise ValueError("must not contain the component . or ..")
    return url if url.endswith("://") else url.rstrip("/") if rest.strip("/") else url


def _read_options(value: Any, note: Note) -> dict[str, Any]:
    """Read options of the filesystem: strings, numbers, booleans, lists and tables, but no secrets."""
    if not isinstance(value, dict):
        raise ValueError("must be a table of options")  # noqa: TRY004  # readers raise ValueError
    for keys, found in _values(value):
        problem = _option_problem(keys, found)
        if problem:
            note(problem, *keys)
    return value


def _values(
    table_read: Mapping[str, Any], keys: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield each value that is not a table, with the names that lead to it."""
    for name, value in table_read.items():
        if isinstance(value, dict) and len(keys) < _MOST_DEPTH:
            yield from _values(value, (*keys, name))
        else:
            yield (*keys, name), value


def _option_problem(keys: tuple[str, ...], value: Any) -> str | None:
    """Return why a value cannot be an option, or None."""
    if not (len(keys) > 1 or _OPTION.fullmatch(keys[0])):
        return "is not the name of an option"
    if isinstance(value, list):
        return next(filter(None, (_option_problem(keys, each) for each in value)), None)
    if not isinstance(value, str | int | float | bool):
        return "must be a string, a number, true, false, a list or a table"
    if not isinstance(value, str):
        return None
    if _CONTROL.search(value):
        return "must be one line of UTF-8 without control characters"
    if _SECRET.search(keys[-1].lower()) and not _GCS_LOGIN.fullmatch(value):
        return _NOT_HERE
    if _is_cleartext(value):
        return "must start with https://, except for this machine"
    return None


def _is_cleartext(value: str) -> bool:
    """Return whether a value is an http URL of another machine: requests there show the login (S15)."""
    if not value.lower().startswith("http://"):
        return False
    try:
        host = urlsplit(value).hostname
    except ValueError:
        return True
    return not is_loopback_host(host or "")


def _read_variables(value: Any, note: Note) -> dict[str, str]:
    found = strings(value, note)
    for option, variable in found.items():
        if not _OPTION.fullmatch(option):
            note("is not the name of an option", option)
        if not _VARIABLE.fullmatch(variable):
            note(f"{variable!r} is not the name of an environment variable", option)
    return found


def _read_keyrings(value: Any, note: Note) -> dict[str, str]:
    found = strings(value, note)
    for option, service in found.items():
        if not _OPTION.fullmatch(option):
            note("is not the name of an option", option)
        if not service:
            note("must be the name of a service", option)
    return found


@table
class FsspecSettings:
    """The table [sites.NAME.fsspec]: the filesystem's URL, its options, and where its secrets are."""

    url: str = setting(_read_url, doc="the bucket or folder, such as gs://BUCKET/FOLDER")
    options: dict[str, Any] = setting(
        _read_options, default={}, doc="options of the filesystem, without secrets"
    )
    secret_variables: dict[str, str] = setting(
        _read_variables, default={}, doc="options whose values are in environment variables"
    )
    secret_keyrings: dict[str, str] = setting(
        _read_keyrings, default={}, doc="options whose values are in services of the keyring"
    )
    credentials_command: tuple[str, ...] = setting(
        argv, default=(), doc="a command that prints further options as JSON"
    )
    read_back: bool = setting(flag, default=True, doc="read back what was written, to verify its checksum")

    @property
    def protocol(self) -> str:
        """The protocol of the URL."""
        return (self.url or "").partition("://")[0]

    @property
    def has_secrets(self) -> bool:
        """Whether any option is a secret."""
        return bool(self.secret_variables or self.secret_keyrings or self.credentials_command)

    def finish(self, present_keys: Mapping[str, Any], note: Note) -> Self:
        """Refuse options that are given twice, and a login in cleartext (S15)."""
        del present_keys
        for option in self.secret_keyrings:
            if option in self.secret_variables:
                note("is in secret_variables, too", "secret_keyrings", option)
        for option in self.options:
            if option in self.secret_variables or option in self.secret_keyrings:
                note("is also the name of a secret", "options", option)
        secure = known_protocol(self.protocol).secure
        if secure and self.has_secrets and not self.options.get(secure) and not self._is_here():
            note(f"sends the login in cleartext: set the option {secure} = true", "url")
        return replace(self, options=dict(self.options))

    def _is_here(self) -> bool:
        host = urlsplit(self.url or "").hostname or self.options.get("host", "")
        return is_loopback_host(str(host))
