"""Find the bearer token of a site, share it between processes, and renew it when the service rejects it.

Tokens of an OIDC service are kept in the state folder, 0600, until they expire: many commands need one request.
Sources: RFC 6749 (client credentials, refresh tokens), RFC 8628 (logins with a code), for which see `device`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import threading
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from hibali.errors import AccessError, HibaliError, TryLaterError, UsageError
from hibali.files import check_private_file, private_folder, read_regular, state_folder, write_atomic
from hibali.http.client import Response
from hibali.http.errors import BUSY
from hibali.http.login import Authorization, bearer_authorization
from hibali.http.rest import Call, RestClient
from hibali.keyring_secrets import first_line, keyring_secret
from hibali.locks import wait_for_lock
from hibali.subprocesses import credentials_from, hidden_variable, remember_secret
from transfers.stores.bearer.settings import BearerSettings

_LONGEST = 32 * 1024  # of a token
_ANSWERS = frozenset(range(400, 600)) - BUSY
_TOKEN_SECONDS = 60.0
_EARLY_SECONDS = 30.0  # before a kept token expires, it is not used any more
_LONGEST_LIFE = 7 * 86400.0  # a service that promises more is not believed


def read_token(text: bytes) -> str:
    """Return a token: the first line, also as `scontrol token` prints it, or of JSON the member `token` or `access_token`.

    Raise ValueError without any of the text.
    """
    found = text.strip()
    if found.startswith(b"{"):
        try:
            record = json.loads(found)
        except (ValueError, RecursionError):
            raise ValueError("its output is not JSON") from None
        value = record.get("token", record.get("access_token"))
        if not isinstance(value, str):
            raise ValueError("its output has neither a token nor an access_token")
        found = value.encode("utf-8", "replace")
    line = found.partition(b"\n")[0].strip().removeprefix(b"SLURM_JWT=")
    if not line or len(line) > _LONGEST or not all(0x21 <= byte <= 0x7E for byte in line):
        raise ValueError("its output is not a token: one line of ASCII without spaces")
    return line.decode("ascii")


@dataclass(frozen=True, slots=True)
class Granted:
    """What an OIDC service granted: an access token, its life in seconds (0 if unknown), and the next refresh token or ""."""

    access: str
    life: float
    refresh: str = ""

    def __repr__(self) -> str:
        return "Granted(...)"


class Tokens:
    """The token of one site, which is obtained at its first use; thread-safe."""

    def __init__(self, settings: BearerSettings, subject: str) -> None:
        self._settings = settings
        self._subject = subject
        self._token = ""
        self._fetching = threading.Lock()

    def current(self) -> str:
        """Return the token, or "" for a site without a login. Raise `AccessError`, `TryLaterError`."""
        if not self._settings.source:
            return ""
        with self._fetching:
            if not self._token:
                self._token = self._obtain("")
            return self._token

    def renew(self, rejected: str) -> str:
        """Return another token than the rejected one; of several threads only the first one obtains it.

        Raises `AccessError("expired")` if there is no other token.
        """
        with self._fetching:
            if self._token in {"", rejected}:
                found = "" if self._settings.source == "variable" else self._obtain(rejected)
                if found in {"", rejected}:
                    raise self._expired()
                self._token = found
            return self._token

    def authorization(self) -> Authorization | None:
        """Return the header of requests; None for a site without a login."""
        if not self._settings.source:
            return None
        return bearer_authorization(self.current, self.renew)

    def _expired(self) -> AccessError:
        source, variable = self._settings.source, self._settings.token_variable
        if source == "variable":
            hint = f"Set {variable} to a new token, then run the same command again."
        elif source == "command":
            hint = "Run the token_command of the site yourself: it must print a new token when the old one has expired."
        else:
            hint = f"Check the permissions of the account or client: hibali sites check {self._subject}"
        return AccessError(
            "expired",
            "the service rejected the token, and there is no newer one",
            subject=self._subject,
            hint=hint,
        )

    def _obtain(self, rejected: str) -> str:
        settings = self._settings
        if settings.source == "command":
            token = credentials_from(
                settings.token_command,
                read_token,
                key="token_command",
                what="token",
                subject=self._subject,
                hint='Run the command yourself: it must print a token, or JSON such as {"token": "..."}.',
            )
        elif settings.source == "variable":
            token = _from_variable(settings.token_variable or "", "token", self._subject)
        else:
            return self._shared(rejected)
        remember_secret(token)  # what was printed may have had more around it
        return token

    def _shared(self, rejected: str) -> str:
        """Return the token that all processes share; the first one to find it expired or rejected obtains another one."""
        kept = _KeptTokens(self._settings, self._subject)
        with wait_for_lock(kept.folder):
            found = kept.access()
            if found in {"", rejected}:
                found = self._grant(kept)
        remember_secret(found)
        return found

    def _grant(self, kept: _KeptTokens) -> str:
        settings, subject = self._settings, self._subject
        service = OidcService(settings, subject)
        if settings.source == "client":
            granted = service.grant(
                {"grant_type": "client_credentials"}, secret=_client_secret(settings, subject)
            )
        else:
            refresh = kept.refresh() or _configured_refresh(settings, subject)
            remember_secret(refresh)
            granted = service.grant({"grant_type": "refresh_token", "refresh_token": refresh})
            if granted.refresh == refresh:
                granted = replace(granted, refresh="")  # it is kept where it came from
        kept.keep(granted)
        return granted.access


class _KeptTokens:
    """The tokens that an OIDC service granted, in a folder that only this account can read.

    A service may issue a new refresh token at each exchange and accept the old one no more. The new one is kept as long as the
    configured one, from which it descends, stays the same.
    """

    def __init__(self, settings: BearerSettings, subject: str) -> None:
        sources = (
            settings.token_url,
            settings.client_id or "",
            settings.scope or "",
            subject if settings.source == "device" else _source_text(settings, subject),
        )
        digest = hashlib.sha256("\n".join(sources).encode()).hexdigest()[:32]
        self.folder = private_folder(private_folder(state_folder() / "bearer") / digest)

    def access(self) -> str:
        """Return the access token, "" if there is none or it expires soon."""
        record = _read_record(self.folder / "access.json")
        until, token = record.get("until"), record.get("token")
        if not (isinstance(until, int | float) and isinstance(token, str)):
            return ""
        left = until - time.time()
        return token if _EARLY_SECONDS < left <= _LONGEST_LIFE else ""

    def refresh(self) -> str:
        """Return the newest refresh token, "" if there is none."""
        found = _read_record(self.folder / "refresh.json").get("token")
        return found if isinstance(found, str) else ""

    def keep(self, granted: Granted) -> None:
        """Keep what was granted."""
        remember_secret(granted.access)
        if granted.refresh:
            remember_secret(granted.refresh)
            self._write("refresh.json", {"token": granted.refresh})
        until = time.time() + min(granted.life, _LONGEST_LIFE)
        self._write("access.json", {"token": granted.access, "until": until if granted.life else 0})

    def forget(self) -> bool:
        """Remove what is kept; return whether there was anything."""
        found = [
            path for path in (self.folder / "refresh.json", self.folder / "access.json") if path.exists()
        ]
        for path in found:
            path.unlink(missing_ok=True)
        return bool(found)

    def _write(self, name: str, record: Mapping[str, Any]) -> None:
        write_atomic(self.folder / name, json.dumps(record).encode())


def _source_text(settings: BearerSettings, subject: str) -> str:
    """Return what identifies the account: the configured secret itself, which is hashed."""
    if settings.source == "client":
        return _client_secret(settings, subject)
    return _configured_refresh(settings, subject)


def _read_record(path: Path) -> dict[str, Any]:
    """Return a record that only this account can have written; an empty one without it."""
    if not os.path.lexists(path):
        return {}
    check_private_file(path, "the stored login")
    try:
        record = json.loads(read_regular(path))
    except (OSError, ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


def _from_variable(variable: str, what: str, subject: str) -> str:
    found = hidden_variable(variable)
    if not found:
        raise AccessError(
            "no-secret",
            f"the {what} is not in the environment: {variable} is not set",
            subject=subject,
            hint=f"In the script, from a file of mode 0600: export {variable}=$(cat ~/.{subject}-token)",
        )
    try:
        return read_token(found)
    except ValueError:
        raise AccessError(
            "no-secret", f"the variable {variable} does not contain a {what}", subject=subject
        ) from None


def _client_secret(settings: BearerSettings, subject: str) -> str:
    client = settings.client_id or ""
    if settings.client_secret_variable is not None:
        found = _from_variable(settings.client_secret_variable, "client secret", subject)
    elif settings.client_secret_keyring is not None:
        found = keyring_secret(
            settings.client_secret_keyring,
            client,
            owner="this client",
            subject=subject,
            otherwise="client_secret_variable or client_secret_command",
        )
    else:
        found = credentials_from(
            settings.client_secret_command,
            first_line,
            key="client_secret_command",
            what="client secret",
            subject=subject,
            hint="Run the command yourself: it must print the secret as its first line.",
        )
    remember_secret(found)
    return found


def _configured_refresh(settings: BearerSettings, subject: str) -> str:
    if settings.source == "device":
        raise AccessError(
            "login-needed",
            "you are not logged in to this service",
            subject=subject,
            hint=f"To log in: hibali sites login {subject}",
        )
    if settings.refresh_variable is not None:
        return _from_variable(settings.refresh_variable, "refresh token", subject)
    if settings.refresh_keyring is not None:
        return keyring_secret(
            settings.refresh_keyring,
            settings.client_id or "",
            owner="this client",
            subject=subject,
            otherwise="refresh_variable or refresh_command",
        )
    return credentials_from(
        settings.refresh_command,
        read_token,
        key="refresh_command",
        what="refresh token",
        subject=subject,
        hint="Run the command yourself: it must print the refresh token as its first line.",
    )


class OidcService:
    """The OIDC service of a site."""

    def __init__(self, settings: BearerSettings, subject: str) -> None:
        self._settings = settings
        self._subject = subject

    def grant(self, fields: Mapping[str, str], *, secret: str = "") -> Granted:
        """Return what the service grants for these fields. Raise `AccessError("login-expired")`, `TryLaterError`."""
        url = self._settings.token_url
        if not url:
            raise UsageError(
                "no-token-url",
                "the site has an OIDC client, but not the URL that issues its tokens",
                subject=self._subject,
                hint="Set token_url in its table: hibali config edit",
            )
        response = self.post(url, self._with_scope(fields), secret=secret)
        if response.status >= 300:
            raise AccessError(
                "login-expired",
                f"the login service does not accept the {self._what()} (status {response.status})",
                subject=self._subject,
                hint=self._cure(),
            )
        return self.read_grant(response.body)

    def _with_scope(self, fields: Mapping[str, str]) -> dict[str, str]:
        scope = self._settings.scope
        asks = scope is not None and fields.get("grant_type") == "client_credentials"
        return {**fields, **({"scope": scope or ""} if asks else {})}

    def _what(self) -> str:
        return "client's id and secret" if self._settings.source == "client" else "refresh token"

    def _cure(self) -> str:
        if self._settings.source == "client":
            return "Check client_id and the client's secret in the settings of the site."
        if self._settings.source == "device":
            return f"To log in: hibali sites login {self._subject}"
        return "Log in to the service again, and store the new refresh token where the site's settings say."

    def post(self, url: str, fields: Mapping[str, str], *, secret: str = "") -> Response:
        """Send a form, with the client's id in it, or with its id and secret as RFC 6749, 2.3.1, wants them.

        No redirect is followed, so that the secrets reach no other URL. Raises `TryLaterError`.
        """
        client_id = self._settings.client_id or ""
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        form = dict(fields)
        if secret:
            pair = f"{quote(client_id, safe='')}:{quote(secret, safe='')}"
            headers["Authorization"] = "Basic " + base64.b64encode(pair.encode()).decode("ascii")
        else:
            form["client_id"] = client_id
        parts = urlsplit(url)
        body = urlencode(form).encode("ascii")
        call = Call(
            "POST", parts.path or "/", body=body, headers=headers, accept=_ANSWERS, seconds=_TOKEN_SECONDS
        )
        origin = f"{parts.scheme}://{parts.netloc}"
        with closing(RestClient(origin, self._subject, judge=self._judge)) as client:
            return client.repeat(call, attempts=4)

    def _judge(self, call: Call, response: Response) -> HibaliError | None:
        del call
        message = f"the login service is busy or failing (status {response.status})"
        return TryLaterError("busy", message, subject=self._subject) if response.status in BUSY else None

    def read_grant(self, body: bytes) -> Granted:
        """Read an answer with tokens. Raise `TryLaterError("bad-answer")`."""
        try:
            record = json.loads(body)
            life = record.get("expires_in", 0)
            refresh = record.get("refresh_token") or ""
            return Granted(
                read_token(record["access_token"].encode()),
                float(life) if isinstance(life, int | float) and life > 0 else 0.0,
                read_token(refresh.encode()) if refresh else "",
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise TryLaterError(
                "bad-answer",
                "the login service did not answer with a token",
                subject=self._subject,
                hint="Check the token_url of the site.",
                transient=False,
            ) from None


def forget_login(settings: BearerSettings, subject: str) -> bool:
    """Remove the stored tokens of a login with a code; return whether there were any."""
    return _KeptTokens(settings, subject).forget()


def keep_login(settings: BearerSettings, subject: str, granted: Granted) -> None:
    """Keep the tokens of a login with a code."""
    kept = _KeptTokens(settings, subject)
    with wait_for_lock(kept.folder):
        kept.keep(granted)
