"""Implement Auth's introspection, consents, identities and OpenID documents."""

from __future__ import annotations

import time
from typing import Any

from tests.services.globus.auth import client_of
from tests.services.globus.http import Request, route
from tests.services.globus.id_tokens import jwk
from tests.services.globus.world import AUTH, ApiError, Token


@route("POST", "/v2/oauth2/token/introspect")
def introspect(request: Request) -> dict[str, Any]:
    form = request.form()
    client_of(request, form)
    world = request.world
    known = world.valid_token(form.get("token", ""))
    if known is None:
        return {"active": False}
    person = world.identities[known.identity]
    return {
        "active": True,
        "token_type": "Bearer",
        "scope": " ".join(known.scopes),
        "client_id": known.client,
        "username": person.username,
        "name": person.name,
        "email": person.email,
        "exp": int(known.expires),
        "iat": int(known.issued),
        "nbf": int(known.issued),
        "sub": person.id,
        "aud": [known.resource_server, known.client],
        "iss": "https://auth.globus.org",
    }


@route("GET", "/v2/api/identities/{identity}/consents")
def consents(request: Request, identity: str) -> dict[str, Any]:
    known = _auth_token(request)
    if identity != known.identity:
        raise ApiError(403, "FORBIDDEN", "Consents are shown to their owner")
    found = request.world.consents.items()
    return {"consents": [document for key, document in found if key[:2] == (known.client, identity)]}


@route("GET", "/v2/api/identities")
def identities(request: Request) -> dict[str, Any]:
    _auth_token(request)
    ids = request.query.get("ids", "").split(",")
    names = request.query.get("usernames", "").split(",")
    return {
        "identities": [
            {
                "email": person.email,
                "id": person.id,
                "identity_provider": "41143743-f3c8-4d60-bbdb-eeecaba85bd9",
                "identity_type": "login",
                "name": person.name,
                "organization": None,
                "status": "used",
                "username": person.username,
            }
            for person in request.world.identities.values()
            if person.id in ids or person.username in names
        ]
    }


@route("GET", "/v2/oauth2/userinfo")
def userinfo(request: Request) -> dict[str, Any]:
    person = request.world.identities[_auth_token(request).identity]
    return {
        "sub": person.id,
        "preferred_username": person.username,
        "name": person.name,
        "email": person.email,
        "organization": None,
        "identity_provider": "41143743-f3c8-4d60-bbdb-eeecaba85bd9",
        "identity_provider_display_name": "Globus ID",
        "last_authentication": int(time.time()),
    }


@route("GET", "/.well-known/openid-configuration")
def openid_configuration(request: Request) -> dict[str, Any]:
    url = request.world.url
    return {
        "issuer": "https://auth.globus.org",
        "authorization_endpoint": f"{url}/v2/oauth2/authorize",
        "userinfo_endpoint": f"{url}/v2/oauth2/userinfo",
        "token_endpoint": f"{url}/v2/oauth2/token",
        "revocation_endpoint": f"{url}/v2/oauth2/token/revoke",
        "jwks_uri": f"{url}/jwk.json",
        "response_types_supported": ["code", "token", "token id_token", "id_token"],
        "id_token_signing_alg_values_supported": ["RS512"],
        "scopes_supported": ["openid", "email", "profile"],
    }


@route("GET", "/jwk.json")
def keys(_: Request) -> dict[str, Any]:
    return {"keys": [jwk()]}


def _auth_token(request: Request) -> Token:
    known = request.world.valid_token(request.bearer(), refresh=False)
    if known is None or known.resource_server != AUTH:
        raise ApiError(401, "UNAUTHORIZED", "Call must be authenticated")
    return known
