"""Create Globus clients with renewed tokens, limits and secrets (S16).

The SDK's app object, authorizers and token storage are not thread-safe. This module uses no app object, one
authorizer for each service behind one lock, and a separate `TransferClient` for each thread
(`GlobusAccess.transfer`).
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sqlite3
import stat
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, cast
from urllib.parse import urlsplit

import globus_sdk
import requests
from globus_sdk.authorizers import (
    ClientCredentialsAuthorizer,
    GlobusAuthorizer,
    RefreshTokenAuthorizer,
    RenewingAuthorizer,
)
from globus_sdk.gare import to_gare
from globus_sdk.scopes import GCSCollectionScopes, Scope, ScopeParser, TransferScopes
from globus_sdk.token_storage import SQLiteTokenStorage, TokenStorageData
from globus_sdk.transport import (
    RetryCheckResult,
    RetryConfig,
    RetryContext,
)
from requests.adapters import HTTPAdapter

from hibali.config.model import GlobusClient, Site, endpoint_problem
from hibali.errors import AccessError, RefusedError, UsageError
from hibali.files import private_folder, state_folder
from hibali.http.client import MAX_RESPONSE_BYTES
from hibali.http.deadline import RESPONSE_SECONDS, Deadline, watched
from hibali.http.errors import too_long
from hibali.keyring_secrets import first_line, keyring_secret
from hibali.subprocesses import credentials_from, hidden_variable
from hibali_plugins.globus.errors import login_needed, translated_errors

if TYPE_CHECKING:
    import requests


_SUBJECT = "Globus"
_RESPONSE_SECONDS = RESPONSE_SECONDS
_MOST = MAX_RESPONSE_BYTES
_PIECE = 64 * 1024


def limit_responses(client: globus_sdk.BaseClient) -> None:
    """Restrict a client of the SDK to its own service, and limit the size and time of responses."""
    adapter = _Adapter(client.base_url)
    for scheme in ("https://", "http://"):
        client.transport.session.mount(scheme, adapter)


class _Adapter(HTTPAdapter):
    """An adapter of requests, which sends every request, also those of redirects."""

    def __init__(self, base: str) -> None:
        parts = urlsplit(base)
        self._origin = (parts.scheme, parts.netloc)
        super().__init__()

    def init_poolmanager(self, *arguments: Any, **more: Any) -> None:
        super().init_poolmanager(*arguments, **more)
        _watch(self.poolmanager)

    def proxy_manager_for(self, proxy: str, **more: Any) -> Any:
        known = proxy in self.proxy_manager
        manager = super().proxy_manager_for(proxy, **more)
        if not known:
            _watch(manager)
        return manager

    def send(self, request: requests.PreparedRequest, *arguments: Any, **more: Any) -> requests.Response:
        parts = urlsplit(str(request.url))
        if (parts.scheme, parts.netloc) != self._origin:
            raise UsageError(
                "wrong-endpoint",
                "the service redirects to another host; redirects are not followed",
                subject=_SUBJECT,
                hint="Unset the variables GLOBUS_SDK_SERVICE_URL_* (the addresses of Globus).",
            )
        more["stream"] = True
        with Deadline(_RESPONSE_SECONDS, _SUBJECT):
            response = super().send(request, *arguments, **more)
            pieces: list[bytes] = []
            size = 0
            for piece in response.iter_content(_PIECE):
                size += len(piece)
                if size > _MOST:
                    response.close()
                    raise too_long(_SUBJECT, _MOST)
                pieces.append(piece)
        response._content = b"".join(pieces)  # noqa: SLF001  # as its property `content` does
        return response


def _watch(manager: Any) -> None:
    manager.pool_classes_by_scheme = {
        scheme: watched(kind) for scheme, kind in manager.pool_classes_by_scheme.items()
    }


def secret_of(client: GlobusClient, subject: str) -> str:
    """Return the secret without prompts; `subject` names the site. Raise `AccessError` with a hint."""
    if client.secret_variable is not None:
        found = hidden_variable(client.secret_variable)
        if found:
            return os.fsdecode(found)
        raise AccessError(
            "no-secret",
            f"the secret of the Globus client is not in the environment: {client.secret_variable} is not set",
            subject=subject,
            hint=f"In the crontab or the script, from a file of mode 0600: export {client.secret_variable}=$(cat ~/.globus-secret)",
        )
    if client.secret_keyring is not None:
        return keyring_secret(
            client.secret_keyring,
            client.client_id,
            owner="the Globus client",
            subject=subject,
            otherwise="secret_variable or secret_command",
        )
    return credentials_from(
        client.secret_command,
        first_line,
        key="secret_command",
        what="secret",
        subject=subject,
        hint="Run the command yourself: it must print the secret of the Globus client as its first line.",
    )


_CONNECT = {"check_same_thread": False, "timeout": 30.0}
_OTHERS = stat.S_IRWXG | stat.S_IRWXO


def open_tokens(client_id: str) -> SQLiteTokenStorage:
    """Open the tokens of one client; the caller closes it. Safe between processes (SQLite), not threads.

    Raises `RefusedError` if others have access to the file, `AccessError` if it cannot be read.
    """
    path = private_folder(state_folder() / "globus") / "tokens.db"
    if not os.path.lexists(path):
        _create(path)
    _check(path)
    found = SQLiteTokenStorage(path, namespace=client_id, connect_params=_CONNECT)
    try:
        found.get_token_data_by_resource_server()
    except (sqlite3.Error, ValueError, KeyError) as problem:
        found.close()
        raise AccessError(
            "tokens-unreadable",
            f"the stored logins to Globus cannot be read ({type(problem).__name__})",
            subject=str(path),
            hint=f"Remove the file, then log in again with `hibali sites login SITE`: rm {path}",
        ) from None
    return found


def _create(path: Path) -> None:
    """Create the file atomically: the SDK accepts a file without tables that a killed process left."""
    partial = path.with_name(f".{secrets.token_hex(16)}.db")
    try:
        SQLiteTokenStorage(partial, connect_params=_CONNECT).close()
        with contextlib.suppress(FileExistsError):
            os.link(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def _check(path: Path) -> None:
    found = path.lstat()
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & _OTHERS:
        raise RefusedError(
            "not-private",
            "the file of the Globus tokens must be a regular file that belongs to you and that only you can read",
            subject=str(path),
            hint=f"chmod 600 {path}",
        )


APP_NAME = "hibali"
TRANSFER = TransferScopes.resource_server

Renewing = (
    RenewingAuthorizer[globus_sdk.OAuthRefreshTokenResponse]
    | RenewingAuthorizer[globus_sdk.OAuthClientCredentialsResponse]
)


class _LockedAuthorizer(GlobusAuthorizer):
    """A thread-safe authorizer."""

    def __init__(self, inner: Renewing, lock: threading.RLock) -> None:
        self.inner = inner
        self._lock = lock

    def get_authorization_header(self) -> str:
        with self._lock:
            return self.inner.get_authorization_header()

    def handle_missing_authorization(self) -> bool:
        with self._lock:
            return self.inner.handle_missing_authorization()


class GlobusAccess:
    """The access of one client to Globus; close it, or use `with`."""

    def __init__(self, client: GlobusClient, site: Site) -> None:
        self._client = client
        self._site = site
        self._lock = threading.RLock()
        self._tokens = open_tokens(client.client_id)
        self._authorizers: dict[str, _LockedAuthorizer] = {}
        self._opened: list[globus_sdk.TransferClient] = []
        self._login: globus_sdk.AuthLoginClient | None = None
        self._consented: set[str] = set()

    def transfer(self) -> globus_sdk.TransferClient:
        """Return a logged-in client of the Transfer API for one thread; it is closed with this object.

        Its methods raise errors of the SDK: call them inside `errors.translated_errors`. Raises `AccessError`.
        """
        authorizer = self._authorizer(TRANSFER, TransferScopes.all)
        retries = RetryConfig()
        if self._client.confidential:
            retries.checks.register_check(self._request_consent)
        made = globus_sdk.TransferClient(authorizer=authorizer, app_name=APP_NAME, retry_config=retries)
        check_url(made.base_url)
        limit_responses(made)
        with self._lock:
            self._opened.append(made)
        return made

    def https_header(self, collection: str) -> str:
        """Return the `Authorization` header for HTTPS, valid for at least a minute. Raise `AccessError`."""
        authorizer = self._authorizer(collection, GCSCollectionScopes(collection).https)
        with translated_errors(self._site):
            return authorizer.get_authorization_header()

    def close(self) -> None:
        """Close the connections and the token file."""
        with self._lock:
            for each in self._opened:
                each.close()
            if self._login is not None:
                self._login.close()
            self._tokens.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _authorizer(self, server: str, scope: Scope) -> _LockedAuthorizer:
        with self._lock:
            if server not in self._authorizers:
                known = self._tokens.get_token_data(server)
                self._authorizers[server] = _LockedAuthorizer(self._renewing(known, scope), self._lock)
            return self._authorizers[server]

    def _renewing(self, known: TokenStorageData | None, scope: Scope) -> Renewing:
        if self._login is None:
            self._login = login_client(self._client, self._site)
        if self._client.confidential:
            confidential = cast("globus_sdk.ConfidentialAppAuthClient", self._login)
            with translated_errors(self._site):
                return ClientCredentialsAuthorizer(
                    confidential,
                    scope,
                    access_token=known.access_token if known else None,
                    expires_at=known.expires_at_seconds if known else None,
                    on_refresh=self._tokens.store_token_response,
                )
        if known is None or known.refresh_token is None:
            raise login_needed(self._site)
        made = RefreshTokenAuthorizer(
            known.refresh_token,
            self._login,
            access_token=known.access_token,
            expires_at=known.expires_at_seconds,
        )
        made.on_refresh = self._store_refreshed(made, known.refresh_token)
        return made

    def _store_refreshed(
        self, authorizer: RefreshTokenAuthorizer, before: str
    ) -> Callable[[globus_sdk.OAuthTokenResponse], None]:
        """Return a function that stores new tokens and keeps the old refresh token if the response has none.

        The old one stays valid then (RFC 6749, section 6), but the SDK's storage and authorizer would drop
        it.
        """

        def store_response(response: globus_sdk.OAuthTokenResponse) -> None:
            authorizer.refresh_token = authorizer.refresh_token or before
            self._tokens.store_token_response(response)
            for server in response.by_resource_server:
                stored = self._tokens.get_token_data(server)
                if stored is not None and stored.refresh_token is None:
                    stored.refresh_token = authorizer.refresh_token
                    self._tokens.store_token_data_by_resource_server({server: stored})

        return store_response

    def _request_consent(self, context: RetryContext) -> RetryCheckResult:
        """Request a token with the missing scope: this is how a confidential client consents."""
        if context.response is None or context.response.status_code != 403:
            return RetryCheckResult.no_decision
        wanted = _required_scopes(context.response)
        with self._lock:
            if not wanted or set(wanted) <= self._consented:
                return RetryCheckResult.no_decision
            self._consented.update(wanted)
            inner = self._authorizers[TRANSFER].inner
            assert isinstance(inner, ClientCredentialsAuthorizer)
            inner.scopes = " ".join(merged_scopes([inner.scopes], wanted))
            inner.handle_missing_authorization()  # the next header has a new token
        return RetryCheckResult.do_retry


def open_access(sites: Sequence[Site]) -> GlobusAccess:
    """Open access to Globus for these sites with stored tokens or the client's secret, without prompts.

    No request is sent before the first use.

    Raises:
        UsageError: A site has no collection or client, or the sites have different clients.
        AccessError: A login, a consent or a secret is missing; the hint has the command.
    """
    clients = {client_of(site) for site in sites}
    if len(clients) > 1:
        raise UsageError(
            "two-clients",
            "the two sites have different Globus clients, but one client must be able to use both collections",
            subject=", ".join(site.name for site in sites),
            hint="Set the same client_id for both sites, or one in [globus] for all sites.",
        )
    return GlobusAccess(clients.pop(), sites[0])


def client_of(site: Site) -> GlobusClient:
    """Return the client for the site's collection. Raise `UsageError`."""
    if site.globus is None:
        raise UsageError(
            "no-collection",
            "this site has no Globus collection",
            subject=site.name,
            hint=f'Add a table [sites.{site.name}.globus] with collection = "UUID".',
        )
    if site.globus.client is None:
        raise UsageError(
            "no-globus-client",
            "config.toml names no client_id for Globus",
            subject=site.name,
            hint='Register a native app at https://app.globus.org/settings/developers (docs/globus.md, "Logging in"), then: '
            "hibali config set globus.client_id UUID",
        )
    return site.globus.client


def login_client(client: GlobusClient, site: Site) -> globus_sdk.AuthLoginClient:
    """Return the client of Globus Auth; raise `AccessError` if its secret is missing."""
    if not client.confidential:
        return native_client(client)
    secret = secret_of(client, site.name)
    made = globus_sdk.ConfidentialAppAuthClient(client.client_id, secret, app_name=APP_NAME)
    check_url(made.base_url)
    limit_responses(made)
    return made


def native_client(client: GlobusClient) -> globus_sdk.NativeAppAuthClient:
    """Return the client of Globus Auth for logins of people."""
    made = globus_sdk.NativeAppAuthClient(client.client_id, app_name=APP_NAME)
    check_url(made.base_url)
    limit_responses(made)
    return made


def check_url(url: str) -> None:
    """Raise `UsageError` for an unencrypted URL (S15): environment variables can set the SDK's URLs."""
    problem = endpoint_problem(url)
    if problem is not None:
        raise UsageError(
            "insecure-endpoint",
            f"the address of Globus {problem}",
            subject="GLOBUS_SDK_SERVICE_URL_*",
            hint="Unset the SDK's variables for the addresses of Globus.",
        )


def merged_scopes(*lists: Sequence[str]) -> list[str]:
    """Return the union of the scopes, with merged dependencies."""
    parsed = [scope for each in lists for text in each for scope in ScopeParser.parse(text)]
    return [str(scope) for scope in ScopeParser.merge_scopes(parsed, [])]


def _required_scopes(response: requests.Response) -> list[str]:
    try:
        found = to_gare(response.json())
    except ValueError:
        return []
    return list(found.authorization_parameters.required_scopes or ()) if found is not None else []
