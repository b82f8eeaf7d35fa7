"""Implement Globus Auth: tokens by three grants, the authorization page, consents, revocation."""

from __future__ import annotations

import base64
import hashlib
import html
import secrets
import time
import urllib.parse
import uuid
from typing import Any

from globus_sdk.scopes import Scope, ScopeParser

from tests.services.globus.http import Answer, Request, route
from tests.services.globus.id_tokens import signed
from tests.services.globus.world import AUTH, ApiError, Client, World, now

_OPENID = frozenset({"openid", "email", "profile"})


def oauth_error(status: int, error: str) -> ApiError:
    return ApiError(status, error.upper(), error, error=error)


def client_of(request: Request, form: dict[str, str]) -> Client:
    """Authenticate the client: a confidential one by its secret, a native one by its id."""
    basic = request.basic()
    name = basic[0] if basic else form.get("client_id", "")
    client = request.world.clients.get(name)
    if client is None or client.secret != (basic[1] if basic else None):
        raise oauth_error(401, "invalid_client")
    return client


def server_of(world: World, scope: str) -> str:
    """Return the resource server of a scope."""
    if scope in _OPENID:
        return AUTH
    if scope.startswith("urn:globus:auth:scope:"):
        return scope.split(":")[4]
    server = scope.removeprefix("https://auth.globus.org/scopes/").partition("/")[0]
    if server == scope or (scope.endswith(("/data_access", "/https")) and server not in world.collections):
        raise oauth_error(400, "unknown_scope")
    return server


def consent(world: World, client: str, identity: str, scopes: list[Scope]) -> None:
    """Record the user's consent for this client and scope, including dependent scopes."""

    def record(scope: Scope, above: tuple[str, ...]) -> None:
        server_of(world, scope.scope_string)
        path = (*above, scope.scope_string)
        known = world.consents.get((client, identity, path))
        if known is None:
            number = 100_000 + len(world.consents)
            parent = world.consents[client, identity, above]["dependency_path"] if above else []
            world.consents[client, identity, path] = {
                "created": now(),
                "id": number,
                "status": "approved",
                "updated": now(),
                "allows_refresh": True,
                "dependency_path": [*parent, number],
                "scope_name": scope.scope_string,
                "atomically_revocable": scope.optional,
                "effective_identity": identity,
                "auto_approved": False,
                "last_used": now(),
                "scope": hashlib.md5(scope.scope_string.encode()).hexdigest(),  # noqa: S324 - only an identifier
                "client": client,
            }
        for below in scope.dependencies:
            record(below, path)

    for scope in scopes:
        record(scope, ())


def token_answer(
    world: World, client: Client, identity: str, scopes: list[str], *, refresh: bool, state: str | None = None
) -> dict[str, Any]:
    """Issue a token for each resource server; the first one is at the top level, as in Auth's answers."""
    by_server: dict[str, list[str]] = {}
    for scope in scopes:
        by_server.setdefault(server_of(world, scope), []).append(scope)
    found = []
    for server, names in by_server.items():
        token = world.issue(client.id, identity, server, tuple(names), refresh=False)
        document = {
            "access_token": token.value,
            "scope": " ".join(names),
            "expires_in": world.token_seconds,
            "token_type": "Bearer",
            "resource_server": server,
        }
        if state is not None:
            document["state"] = state
        if refresh:
            again = world.issue(client.id, identity, server, tuple(names), refresh=True)
            document["refresh_token"] = again.value
        found.append(document)
    if not found:
        raise oauth_error(400, "invalid_scope")
    answer = {**found[0], "other_tokens": found[1:]}
    if "openid" in scopes:
        answer["id_token"] = _id_token(world, client.id, identity)
    return answer


def _id_token(world: World, client: str, identity: str) -> str:
    person = world.identities[identity]
    moment = int(time.time())
    return signed(
        {
            "iss": "https://auth.globus.org",
            "sub": identity,
            "aud": client,
            "iat": moment,
            "exp": moment + world.token_seconds,
            "preferred_username": person.username,
            "name": person.name,
            "email": person.email,
            "last_authentication": moment,
        }
    )


@route("POST", "/v2/oauth2/token")
def token(request: Request) -> Answer:
    fail_if_asked(request)
    form = request.form()
    client = client_of(request, form)
    world = request.world
    grants = {
        "client_credentials": _client_credentials,
        "refresh_token": _refresh,
        "authorization_code": _exchange_code,
    }
    grant = grants.get(form.get("grant_type", ""))
    if grant is None:
        raise oauth_error(400, "unsupported_grant_type")
    with world.changed:
        return Answer(200, grant(world, client, form), {"Cache-Control": "no-store"})


def _client_credentials(world: World, client: Client, form: dict[str, str]) -> dict[str, Any]:
    if client.secret is None:
        raise oauth_error(401, "unauthorized_client")
    wanted = ScopeParser.parse(form.get("scope", ""))
    identity = world.identity_of(client).id
    consent(world, client.id, identity, wanted)
    return token_answer(world, client, identity, [scope.scope_string for scope in wanted], refresh=False)


def _refresh(world: World, client: Client, form: dict[str, str]) -> dict[str, Any]:
    known = world.valid_token(form.get("refresh_token", ""), refresh=True)
    if known is None or known.client != client.id:
        raise oauth_error(400, "invalid_grant")
    answer = token_answer(world, client, known.identity, list(known.scopes), refresh=False)
    return {**answer, "refresh_token": known.value}


def _exchange_code(world: World, client: Client, form: dict[str, str]) -> dict[str, Any]:
    login = world.codes.pop(form.get("code", ""), None)
    if (
        login is None
        or login["client_id"] != client.id
        or login["redirect_uri"] != form.get("redirect_uri")
        or not _is_verified(login, form.get("code_verifier", ""))
    ):
        raise oauth_error(401, "invalid_grant")
    scopes = [scope.scope_string for scope in ScopeParser.parse(login["scope"])]
    offline = login.get("access_type") == "offline"
    return token_answer(
        world, client, login["identity"], scopes, refresh=offline, state=login.get("state", "_default")
    )


def _is_verified(login: dict[str, Any], verifier: str) -> bool:
    """Check the PKCE verifier (RFC 7636): the client that exchanges the code started the login."""
    if "code_challenge" not in login:
        return True
    digest = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
    return secrets.compare_digest(digest, login["code_challenge"])


@route("GET", "/v2/oauth2/authorize")
def authorize(request: Request) -> Answer:
    """Serve the authorization page; the world's user consents or denies immediately."""
    world, query = request.world, dict(request.query)
    client = world.clients.get(query.get("client_id", ""))
    if (
        client is None
        or "redirect_uri" not in query
        or (client.secret is None and "code_challenge" not in query)
    ):
        raise oauth_error(400, "invalid_request")
    given = {"state": query.get("state", "_default")}
    if world.denies:
        given["error"] = "access_denied"
    else:
        with world.changed:
            consent(world, client.id, world.user, ScopeParser.parse(query.get("scope", "")))
            given["code"] = secrets.token_urlsafe(16)
            world.codes[given["code"]] = {**query, "identity": world.user}
    separator = "&" if "?" in query["redirect_uri"] else "?"
    return Answer(302, {}, {"Location": query["redirect_uri"] + separator + urllib.parse.urlencode(given)})


@route("GET", "/v2/web/auth-code")
def show_code(request: Request) -> Answer:
    """Serve the page from which the user copies the code."""
    shown = html.escape(request.query.get("code") or request.query.get("error", ""))
    return Answer(
        200, f"<html><body><code>{shown}</code></body></html>".encode(), {"Content-Type": "text/html"}
    )


@route("POST", "/v2/oauth2/token/revoke")
def revoke(request: Request) -> dict[str, Any]:
    """Revoke a token for any client that has it: globus-cli uses its built-in native client for that."""
    form = request.form()
    if request.basic() is not None or not _is_uuid(form.get("client_id", "")):
        client_of(request, form)
    world = request.world
    with world.changed:
        world.tokens.pop(form.get("token", ""), None)
    return {"active": False}


def _is_uuid(text: str) -> bool:
    try:
        return str(uuid.UUID(text)) == text.lower()
    except ValueError:
        return False


def fail_if_asked(request: Request) -> None:
    """Raise the fault that the test activated for this request."""
    about = {"request": f"{request.method} {request.path}"}
    fault = request.world.take("too_many_requests", "unavailable", "error", **about)
    if fault is None:
        return
    codes = {"too_many_requests": (429, "TooManyRequests"), "unavailable": (503, "ServiceUnavailable")}
    status, code = codes.get(fault.kind, (500, "InternalError"))
    problem = ApiError(
        fault.status or status,
        fault.code or code,
        fault.message or "The service cannot do this now",
        **fault.body,
    )
    if fault.retry_after is not None:
        problem.headers["Retry-After"] = str(fault.retry_after)
    raise problem
