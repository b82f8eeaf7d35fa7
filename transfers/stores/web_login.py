"""Log in to web servers with a name and password, with a token, or with a login that returns a token (S15, S16)."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, unquote, urlsplit

from hibali.config.model import Site, is_loopback_host
from hibali.errors import AccessError, HibaliError, IncompleteError, TryLaterError, UsageError
from hibali.files import check_private_file, private_folder, read_regular, state_folder, write_atomic
from hibali.http.client import HttpClient
from hibali.http.errors import is_failing
from hibali.http.login import Authorization
from hibali.keyring_secrets import keyring_secret
from hibali.subprocesses import credentials_from, remember_secret
from transfers.stores.login_protocol import LoginResult, Prompts

_MOST_ANSWER = 64 * 1024
_MOST_TOKEN = 16 * 1024
_LOGIN_SECONDS = 30.0
_SERVICE = "the server"


@dataclass(frozen=True, slots=True)
class Login:
    """A name and a password, or a token; never printed."""

    name: str = ""
    password: str = ""
    token: str = ""

    def __repr__(self) -> str:
        return "Login(...)"


def login_of(site: Site, *, secure: bool) -> Login | None:
    """Return the login of a site from its credentials_command or the keyring; None without either.

    The output of the command is never shown. Raises `AccessError`, and `UsageError` where the login would not be encrypted.
    """
    if not has_password(site):
        return None
    if not secure and not is_loopback_host(urlsplit(site.url or "").hostname or ""):
        raise UsageError(
            "insecure-endpoint",
            "hibali sends a login only over https",
            subject=site.name,
            hint="Correct the site's url.",
        )
    if site.secret_keyring and site.username:
        found = keyring_secret(
            site.secret_keyring,
            site.username,
            owner=f"the account {site.username}",
            subject=site.name,
            otherwise="credentials_command",
        )
        remember_secret(found)
        return Login(site.username, found)
    return credentials_from(
        site.credentials_command,
        read_login,
        key="credentials_command",
        what="login",
        subject=site.name,
        hint='Run the command yourself: it must print {"username": ..., "password": ...} or {"token": ...} as JSON.',
    )


def read_login(text: bytes) -> Login:
    """Parse a username and a password, or a token. Raise ValueError without any of the text."""
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("its output is not JSON") from None
    if isinstance(record, dict) and all(isinstance(value, str) and value for value in record.values()):
        if record.keys() == {"token"}:
            return Login(token=record["token"])
        if record.keys() == {"username", "password"}:
            return Login(record["username"], record["password"])
    raise ValueError("its output has neither a username and a password nor a token")


def has_login(site: Site) -> bool:
    """Return whether requests to a site of kind url need a login."""
    return has_password(site) or site.login_url is not None


def has_password(site: Site) -> bool:
    """Return whether config.toml names a command or a keyring with the login, so that nothing is prompted for."""
    return bool(site.credentials_command or site.secret_keyring)


def site_above(url: str, sites: Iterable[Site]) -> Site | None:
    """Return the site with the longest URL at or above this one, whose login may be sent there; None without one (S15)."""
    above = [site for site in sites if _is_below(url, site.url or "")]
    return max(above, key=lambda site: len(site.url or ""), default=None)


def _is_below(url: str, base: str) -> bool:
    """Return whether a URL is the base or below it, at the same scheme, host and port, and without a login of its own."""
    try:
        parts, above = urlsplit(url), urlsplit(base)
        same = (parts.scheme, parts.hostname, _port(parts)) == (above.scheme, above.hostname, _port(above))
    except ValueError:
        return False
    climbs = {".", ".."} & set(unquote(parts.path).split("/"))
    folder = above.path.rstrip("/")
    return same and "@" not in parts.netloc and not climbs and f"{parts.path}/".startswith(f"{folder}/")


def _port(parts: SplitResult) -> int:
    return parts.port or (443 if parts.scheme == "https" else 80)


def header_of(login: Login) -> str:
    """Return the header `Authorization` for a login."""
    if login.token:
        return f"Bearer {login.token}"
    pair = f"{login.name}:{login.password}".encode()
    return "Basic " + base64.b64encode(pair).decode("ascii")


def authorize(site: Site) -> Authorization | None:
    """Return the authorization for a site of kind url; None without a login. It never prompts.

    All requests of this process to the site share it, so that they log in once.
    """
    if not has_login(site):
        return None
    source = (
        site.name,
        site.url,
        site.login_url,
        site.credentials_command,
        site.username,
        site.secret_keyring,
    )
    return _shared.setdefault(source, Authorization(lambda _: _header_for(site)))


_shared: dict[tuple[object, ...], Authorization] = {}


def _header_for(site: Site) -> str:
    """Log in to a site and return the header."""
    login = login_of(site, secure=(site.url or "").startswith(("https:", "davs:")))
    if site.login_url and login is None:
        login = Login(token=_stored_token(site))
    elif site.login_url and login is not None and not login.token:
        login = Login(token=request_token(site, login))
    assert login is not None
    return header_of(login)


def request_token(site: Site, login: Login) -> str:
    """Exchange a name and a password for a token at the site's login_url. Raises `AccessError` where they are refused.

    No redirect is followed, so that the password reaches no other URL.
    """
    parts = urlsplit(site.login_url or "")
    client = HttpClient(f"{parts.scheme}://{parts.netloc}", site.name)
    body = json.dumps({"username": login.name, "password": login.password}).encode()
    try:
        response = client.request(
            "POST",
            parts.path or "/",
            headers={"Content-Type": "application/json", "Accept": "application/json"},
            body=body,
            limit=_MOST_ANSWER,
            seconds=_LOGIN_SECONDS,
        )
    finally:
        client.close()
    if response.status in {400, 401, 403}:
        raise AccessError(
            "bad-credentials",
            f"the server refused the username and password (status {response.status})",
            subject=site.name,
            hint=f"Passwords expire at some servers: set a new one there, store it, and run: hibali sites check {site.name}",
        )
    if is_failing(response.status):
        raise TryLaterError("busy", f"the login failed (status {response.status})", subject=site.name)
    if response.status not in {200, 201}:
        raise _no_token(site, f"the login_url answered with status {response.status}")
    return _read_token(response.body, site)


def _read_token(body: bytes, site: Site) -> str:
    try:
        token = json.loads(body)["token"]
    except (ValueError, RecursionError, KeyError, TypeError):
        raise _no_token(site, "the login_url answered without a token") from None
    if not isinstance(token, str) or not token.isascii() or not token.isprintable() or " " in token:
        raise _no_token(site, "the login_url answered with something that is not a token")
    if not 0 < len(token) <= _MOST_TOKEN:
        raise _no_token(site, f"the login_url answered with a token of {len(token)} characters")
    remember_secret(token)
    return token


def _no_token(site: Site, message: str) -> HibaliError:
    return IncompleteError(
        "no-token",
        message,
        subject=site.name,
        hint=f"Correct it: hibali config set sites.{site.name}.login_url URL",
    )


def log_in(site: Site, prompts: Prompts) -> LoginResult:
    """Exchange a name and a password for a token, and store the token, not the password, for later commands.

    A login of the site's settings is only tested: each command logs in with it.
    """
    if site.login_url is None:
        raise UsageError(
            "no-login",
            "the site has no login_url",
            subject=site.name,
            hint=f"To set it: hibali config set sites.{site.name}.login_url URL",
        )
    login = login_of(site, secure=True)
    if login is not None:
        if not login.token:
            request_token(site, login)
        return LoginResult(_SERVICE, "client")
    name = site.username or prompts.ask(f"User name at {site.name}").strip()
    login = Login(name, prompts.ask(f"Password of {name} at {site.name}", hidden=True))
    store_token(site, request_token(site, login))
    return LoginResult(_SERVICE, "logged in", note="The token is stored, the password is not.")


def store_token(site: Site, token: str) -> None:
    """Store the token of a site for later commands."""
    record = {"schema": 1, "login_url": site.login_url, "token": token}
    write_atomic(_token_file(site), json.dumps(record).encode())


def log_out(site: Site) -> LoginResult:
    """Remove the stored token; the server offers no way to revoke it."""
    file = _token_file(site)
    existed = file.exists()
    file.unlink(missing_ok=True)
    return LoginResult(_SERVICE, "logged out" if existed else "same")


def _token_file(site: Site) -> Path:
    return private_folder(state_folder() / "logins") / f"{site.name}.json"


def _stored_token(site: Site) -> str:
    """Return the token that `log_in` stored, unless it was for another URL. Raises `AccessError`."""
    file = _token_file(site)
    check_private_file(file, "the stored login")
    try:
        record = json.loads(read_regular(file))
        token = str(record["token"]) if record["login_url"] == site.login_url else ""
    except FileNotFoundError:
        token = ""
    except (OSError, ValueError, RecursionError, KeyError, TypeError):
        raise AccessError(
            "login-needed",
            "the stored login cannot be read",
            subject=site.name,
            hint=f"To log in: hibali sites login {site.name}",
        ) from None
    if not token:
        raise AccessError(
            "login-needed",
            "you are not logged in to this server",
            subject=site.name,
            hint=f"To log in: hibali sites login {site.name}",
        )
    remember_secret(token)
    return token
