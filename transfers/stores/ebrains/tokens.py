"""Find the bearer token of a site, and renew it when the service rejects it."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from pathlib import Path
from urllib.parse import urlencode, urlsplit

from hibali.errors import AccessError, TryLaterError
from hibali.files import check_private_file, private_folder, state_folder, write_atomic
from hibali.http import HttpClient
from hibali.keyring_secrets import keyring_secret
from hibali.locks import wait_for_lock
from hibali.retry import with_retries
from hibali.subprocesses import credentials_from, hidden_variable, remember_secret
from transfers.stores.ebrains.settings import EbrainsSettings
from transfers.stores.webdav.requests import BUSY, elsewhere

_LONGEST = 32 * 1024  # of a token
_MOST_ANSWER = 256 * 1024
_TOKEN_SECONDS = 60.0


def read_token(text: bytes) -> str:
    """Return a token: the first line, or of JSON the member `token` or `access_token`.

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
    line = found.partition(b"\n")[0].strip()
    if not line or len(line) > _LONGEST or not all(0x21 <= byte <= 0x7E for byte in line):
        raise ValueError("its output is not a token: one line of ASCII without spaces")
    return line.decode("ascii")


class Tokens:
    """The token of one site, which is fetched at its first use; thread-safe."""

    def __init__(self, settings: EbrainsSettings, subject: str) -> None:
        self._settings = settings
        self._subject = subject
        self._token = ""
        self._fetching = threading.Lock()

    def current(self) -> str:
        """Return the token, or "" for a site without a login. Raise `AccessError`, `TryLaterError`."""
        if not self._settings.has_login:
            return ""
        with self._fetching:
            if not self._token:
                self._token = self._fetch()
            return self._token

    def renew(self, rejected: str) -> str:
        """Return another token than the rejected one; of several threads only the first one fetches it.

        Raises `AccessError("expired")` if there is no other token.
        """
        with self._fetching:
            if self._token == rejected:
                fetched = "" if self._settings.token_variable is not None else self._fetch()
                if fetched in {"", rejected}:
                    raise self._expired()
                self._token = fetched
            return self._token

    def _expired(self) -> AccessError:
        variable = self._settings.token_variable
        hint = (
            f"Set {variable} to a new token, then run the same command again."
            if variable is not None
            else "Run the token_command of the site yourself: it must print a new token when the old one has expired."
        )
        return AccessError(
            "expired",
            "the service rejected the token, and there is no newer one",
            subject=self._subject,
            hint=hint,
        )

    def _fetch(self) -> str:
        settings = self._settings
        if settings.token_command:
            return credentials_from(
                settings.token_command,
                read_token,
                key="token_command",
                what="token",
                subject=self._subject,
                hint='Run the command yourself: it must print a token, or JSON such as {"token": "..."}.',
            )
        if settings.token_variable is not None:
            return _from_variable(settings.token_variable, "token", self._subject)
        token = RefreshToken(settings, self._subject).exchange()
        remember_secret(token)
        return token


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


class RefreshToken:
    """The refresh token of a site, exchanged for access tokens at the OIDC service.

    A service may issue a new refresh token at each exchange and accept the old one no more. The new one is kept
    in the state folder, 0600, for as long as the configured one, from which it descends, stays the same.
    """

    def __init__(self, settings: EbrainsSettings, subject: str) -> None:
        self._settings = settings
        self._subject = subject

    def exchange(self) -> str:
        """Return a new access token. Raise `AccessError("login-expired")`, `TryLaterError`."""
        configured = self._configured()
        remember_secret(configured)
        identity = "\n".join((self._settings.token_url, self._settings.client_id or "", configured))
        folder = private_folder(state_folder() / "ebrains")
        kept = private_folder(folder / hashlib.sha256(identity.encode()).hexdigest()[:32])
        with wait_for_lock(kept):
            path = kept / "refresh-token"
            newest = _read_kept(path) or configured
            remember_secret(newest)
            access, refresh = self._post(newest)
            if refresh not in {"", newest}:
                remember_secret(refresh)
                write_atomic(path, refresh.encode("ascii"))
        return access

    def _configured(self) -> str:
        settings = self._settings
        if settings.refresh_variable is not None:
            return _from_variable(settings.refresh_variable, "refresh token", self._subject)
        if settings.refresh_keyring is not None:
            return keyring_secret(
                settings.refresh_keyring,
                settings.client_id or "",
                owner="this client",
                subject=self._subject,
                otherwise="refresh_variable or refresh_command",
            )
        return credentials_from(
            settings.refresh_command,
            read_token,
            key="refresh_command",
            what="refresh token",
            subject=self._subject,
            hint="Run the command yourself: it must print the refresh token as its first line.",
        )

    def _post(self, refresh: str) -> tuple[str, str]:
        """Exchange a refresh token; return an access token and the next refresh token, "" for the same."""
        parts = urlsplit(self._settings.token_url)
        client = HttpClient(f"{parts.scheme}://{parts.netloc}", self._subject)
        body = urlencode(
            {
                "grant_type": "refresh_token",
                "client_id": self._settings.client_id or "",
                "refresh_token": refresh,
            }
        ).encode("ascii")
        headers = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json"}

        def send() -> bytes:
            response = client.request(
                "POST",
                parts.path or "/",
                headers=headers,
                body=body,
                limit=_MOST_ANSWER,
                seconds=_TOKEN_SECONDS,
            )
            if response.status in BUSY:
                raise TryLaterError(
                    "busy",
                    f"the login service is busy or failing (status {response.status})",
                    subject=self._subject,
                )
            if 300 <= response.status < 400:
                raise elsewhere(self._subject)
            if response.status >= 300:
                raise AccessError(
                    "login-expired",
                    f"the login service does not accept the refresh token (status {response.status})",
                    subject=self._subject,
                    hint="Log in to EBRAINS again, and store the new refresh token where the site's settings say.",
                )
            return response.body

        try:
            return self._read_answer(with_retries(send, subject=self._subject))
        finally:
            client.close()

    def _read_answer(self, body: bytes) -> tuple[str, str]:
        try:
            record = json.loads(body)
            access, refresh = record["access_token"], record.get("refresh_token") or ""
            return read_token(access.encode()), read_token(refresh.encode()) if refresh else ""
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise TryLaterError(
                "bad-answer",
                "the login service did not answer with a token",
                subject=self._subject,
                hint="Check the token_url of the site.",
                transient=False,
            ) from None


def _read_kept(path: Path) -> str:
    """Return the refresh token in a file that only this account can have written, "" without one."""
    if not os.path.lexists(path):
        return ""
    check_private_file(path, "the refresh token")
    try:
        return read_token(path.read_bytes())
    except (OSError, ValueError):
        return ""
