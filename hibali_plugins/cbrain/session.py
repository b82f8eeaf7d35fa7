"""Log in to a CBRAIN portal, and keep the token of the login.

A token expires after a day without use, and is valid only from the IP address where it was made. A site with a
password gets a new one where the portal rejects the old one; other sites name the command to type.
"""

from __future__ import annotations

import json
import os
import stat
import threading
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from hibali.config.model import Site
from hibali.errors import AccessError, RefusedError
from hibali.files import private_folder, read_regular, state_folder, write_atomic
from hibali.http.errors import MAX_ERROR_BYTES
from hibali.http.login import Authorization, bearer_authorization
from hibali.http.rest import Call
from hibali.keyring_secrets import first_line, keyring_secret
from hibali.ledger import now
from hibali.subprocesses import credentials_from, remember_secret
from hibali_plugins.cbrain.errors import (
    needed_login,
    refused_login,
    rejected_token,
)
from hibali_plugins.cbrain.records import SessionInfo, read_record
from hibali_plugins.cbrain.requests import Portal
from hibali_plugins.cbrain.settings import CbrainSettings
from transfers.stores.login_protocol import LoginResult, Prompts

_OTHERS = stat.S_IRWXG | stat.S_IRWXO


class Session:
    """The token of one site; thread-safe. Processes share the tokens that passwords make, in a file."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._settings: CbrainSettings = site.own
        self._lock = threading.Lock()
        self._token = ""

    def token(self) -> str:
        """Return the current token; make one if a password is set. Raise `AccessError` without any login."""
        with self._lock:
            if not self._token:
                self._token = self._find("")
            return self._token

    def renew(self, rejected: str) -> str:
        """Return another token than the rejected one; threads that are rejected together renew it once.

        Raises `AccessError` where only the user can log in again.
        """
        with self._lock:
            if self._token in {"", rejected}:
                self._token = self._find(rejected)
            return self._token

    def authorization(self) -> Authorization:
        """Return the header of requests."""
        return bearer_authorization(self.token, self.renew)

    def _find(self, rejected: str) -> str:
        """Return a token that is not `rejected`."""
        settings = self._settings
        if settings.token_command or settings.token_keyring:
            token = self._given_token()
        elif settings.password_command or settings.password_keyring:
            token = stored_token(self._site)
            if token in {"", rejected}:
                token = self._made_token()
        else:
            token = stored_token(self._site)
            if not token:
                raise needed_login(self._site.name)
        if token == rejected:
            raise rejected_token(self._site.name, self._site.name)
        remember_secret(token)
        return token

    def _given_token(self) -> str:
        settings = self._settings
        if settings.token_keyring:
            return self._from_keyring(settings.token_keyring, "the token", "token_command")
        return self._from_command(settings.token_command, "token_command", "token")

    def _made_token(self) -> str:
        settings = self._settings
        if settings.password_keyring:
            password = self._from_keyring(settings.password_keyring, "the password", "password_command")
        else:
            password = self._from_command(settings.password_command, "password_command", "password")
        info = make_session(self._site, settings.login or "", password)
        store_token(self._site, info)
        return info.token

    def _from_keyring(self, service: str, owner: str, otherwise: str) -> str:
        login = self._settings.login or ""
        found = keyring_secret(
            service, login, owner=f"{owner} of {login}", subject=self._site.name, otherwise=otherwise
        )
        remember_secret(found)
        return found

    def _from_command(self, command: tuple[str, ...], key: str, what: str) -> str:
        return credentials_from(
            command,
            first_line,
            key=key,
            what=what,
            subject=self._site.name,
            hint=f"Run the command yourself: it must print the {what} as its first line.",
        )


def make_session(site: Site, login: str, password: str) -> SessionInfo:
    """Log in with a password.

    Raises:
        AccessError: The portal refused the login; it is never retried, because portals ban who does.
        TryLaterError: The portal cannot be reached, or is busy.
    """
    remember_secret(password)
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    body = urlencode({"login": login, "password": password}).encode()
    call = Call("POST", "/session", body=body, headers=form, accept=(401, 403), most=MAX_ERROR_BYTES)
    with closing(Portal(site)) as portal:
        response = portal.repeat(call)
        if response.status >= 300:
            raise refused_login(site.name)
        info = read_record(SessionInfo, portal.json_of(response), site.name)
    remember_secret(info.token)
    return info


def session_of(site: Site, token: str) -> SessionInfo | None:
    """Return the session of a token, or None if the portal rejects it. Raise connection errors."""
    with closing(Portal(site)) as portal:
        response = portal.send(Call("GET", "/session", headers=_bearer(token), accept=(401,)))
        return (
            None if response.status == 401 else read_record(SessionInfo, portal.json_of(response), site.name)
        )


def _bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def stored_token(site: Site) -> str:
    """Return the token that a login stored for this site, portal and login name; "" without one.

    Raises `RefusedError` if others can read the file.
    """
    path = _file(site)
    try:
        found = path.lstat()
    except FileNotFoundError:
        return ""
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & _OTHERS:
        raise RefusedError(
            "not-private",
            "the file of the portal's token must be a regular file that belongs to you and that only you can read",
            subject=str(path),
            hint=f"chmod 600 {path}",
        )
    record = _record(path)
    token = record.get("token")
    ours = (record.get("url"), record.get("login")) == (site.own.url, site.own.login or record.get("login"))
    return token if ours and isinstance(token, str) else ""


def store_token(site: Site, info: SessionInfo, login: str = "") -> None:
    """Store the token of a login in a file that only this account can read."""
    record = {
        "schema": 1,
        "url": site.own.url,
        "login": login or site.own.login,
        "user_id": info.user_id,
        "token": info.token,
        "at": now(),
    }
    write_atomic(_file(site), json.dumps(record).encode("ascii") + b"\n")


def _file(site: Site) -> Path:
    return private_folder(state_folder() / "cbrain") / f"{site.name}.json"


def _record(path: Path) -> dict[str, Any]:
    try:
        record = json.loads(read_regular(path))
    except (OSError, ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


_SERVICE = "the portal"


def log_in(site: Site, prompts: Prompts) -> LoginResult:
    """Log in to the portal if needed, and store the token. A site with a source of tokens or passwords is only checked.

    Raises `AccessError` and connection errors.
    """
    settings: CbrainSettings = site.own
    facts: dict[str, str | int | bool] = {"url": settings.url}
    if (
        settings.token_command
        or settings.token_keyring
        or settings.password_command
        or settings.password_keyring
    ):
        session = Session(site)
        token = session.token()
        info = session_of(site, token) or session_of(site, session.renew(token))
        if info is None:
            raise rejected_token(site.name, site.name)
        return LoginResult(_SERVICE, "client", {**facts, "user id": info.user_id})
    token = stored_token(site)
    info = session_of(site, token) if token else None
    if info is not None:
        return LoginResult(_SERVICE, "same", {**facts, "user id": info.user_id})
    login = settings.login or prompts.ask(f"Login name at {settings.url}").strip()
    password = prompts.ask(f"Password of {login}", hidden=True) if login else ""
    if not login or not password:
        raise AccessError(
            "cbrain-login-refused",
            "no login name or no password was entered",
            subject=site.name,
            hint=f"To log in: hibali sites login {site.name}",
        )
    info = make_session(site, login, password)
    store_token(site, info, login)
    return LoginResult(_SERVICE, "logged in", {**facts, "user id": info.user_id})


def log_out(site: Site) -> LoginResult:
    """End the session at the portal, and remove its token; keep it if the portal cannot be reached.

    Raises `TryLaterError`.
    """
    token = stored_token(site)
    if not token:
        return LoginResult(_SERVICE, "same", {})
    with closing(Portal(site)) as portal:
        portal.send(Call("DELETE", "/session", headers=_bearer(token), accept=(401, 404)))
    _file(site).unlink(missing_ok=True)
    return LoginResult(_SERVICE, "logged out", {})
