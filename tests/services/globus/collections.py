"""Implement Transfer's collections: documents, search, authorization, and mapping of paths to local folders."""

from __future__ import annotations

import os
import posixpath
from pathlib import Path
from typing import Any

from tests.services.globus.auth import fail_if_asked
from tests.services.globus.http import Request, route
from tests.services.globus.world import (
    TRANSFER,
    TRANSFER_ALL,
    ApiError,
    Collection,
    Token,
    World,
    data_access,
)


def transfer_token(request: Request) -> Token:
    """Return the identity behind a request; raise an activated fault, or 401 for an invalid token."""
    fail_if_asked(request)
    about = f"{request.method} {request.path}"
    known = request.world.valid_token(request.bearer(), refresh=False)
    refused = request.world.take("unauthorized", request=about) is not None
    if refused or known is None or known.resource_server != TRANSFER or TRANSFER_ALL not in known.scopes:
        raise ApiError(
            401, "ClientError.AuthenticationFailed", "Token is not active or not valid for this service"
        )
    return known


def check_consent(request: Request, token: Token, collections: list[Collection]) -> None:
    """Raise ConsentRequired for mapped collections for whose data this client has no consent of the user."""
    world = request.world
    about = {
        "request": f"{request.method} {request.path}",
        "collections": [found.id for found in collections],
    }
    fault = world.take("consent_required", **about)
    missing = [
        found.id
        for found in collections
        if (fault is not None and fault.collection in {None, found.id})
        or (
            found.data_access
            and not world.consented(token.client, token.identity, (TRANSFER_ALL, data_access(found.id)))
        )
    ]
    if missing:
        raise ApiError(
            403,
            "ConsentRequired",
            "Missing required data_access consent",
            required_scopes=[f"{TRANSFER_ALL}[*{data_access(found)}]" for found in missing],
        )


def is_offline(world: World, collection: Collection) -> bool:
    return not collection.connected or world.has("offline", collections=[collection.id]) is not None


def normal_path(collection: Collection, path: str) -> str:
    """Normalize a path like Transfer: absolute, `~` is the home; raise 400 for a path outside the collection."""
    if "\0" in path or "\n" in path or "\r" in path:
        raise ApiError(400, "ClientError.BadRequest", "Paths may not contain NUL, newline or carriage return")
    for home in ("/~", "~"):
        if path == home or path.startswith(f"{home}/"):
            path = f"{collection.home}/{path.removeprefix(home)}"
    if ".." in path.split("/"):
        raise ApiError(400, "ClientError.BadRequest", "Paths may not contain '..'")
    return posixpath.normpath(f"/{path.lstrip('/')}")


def real_path(collection: Collection, path: str) -> Path:
    """Return the local path; raise `PermissionError` if a symlink points outside the collection."""
    found = collection.root / normal_path(collection, path).lstrip("/")
    root = os.path.realpath(collection.root)
    inside = os.path.realpath(found.parent)
    if inside != root and not inside.startswith(f"{root}/") and found != collection.root:
        raise PermissionError(13, "Permission denied", path)
    return found


def document(world: World, collection: Collection) -> dict[str, Any]:
    """Return the endpoint document; the members that the double uses are at the end."""
    personal = collection.entity_type.startswith("GCP_")
    nothing = (
        "organization description globus_connect_setup_key s3_url host_endpoint_id host_path myproxy_server "
        "myproxy_dn non_functional_endpoint_display_name non_functional_endpoint_id oauth_server contact_email "
        "contact_info department info_link keywords subscription_id sharing_target_endpoint location tlsftp_server "
        "user_message user_message_link network_use preferred_concurrency max_concurrency local_user_info_available"
    )
    false = (
        "public french_english_bilingual s3_owner_activated disable_anonymous_writes force_encryption mfa_required "
        "non_functional activated acl_available acl_editable in_use shareable high_assurance"
    )
    return {
        "DATA_TYPE": "endpoint",
        **dict.fromkeys(nothing.split()),
        **dict.fromkeys(false.split(), False),
        "expires_in": -1,
        "expire_time": "2100-01-01 00:00:00+00:00",
        "username": world.identities[collection.owner].username,
        "canonical_name": f"{collection.owner}#{collection.id}",
        "name": collection.id,
        "my_effective_roles": ["administrator"],
        "owner_id": collection.owner,
        "owner_string": world.identities[collection.owner].username,
        "id": collection.id,
        "display_name": collection.display_name,
        "entity_type": collection.entity_type,
        "is_globus_connect": personal,
        "gcp_connected": (not is_offline(world, collection)) if personal else None,
        "gcp_paused": False if personal else None,
        "disable_verify": collection.disable_verify,
        "force_verify": collection.force_verify,
        "default_directory": "/~/" if collection.home != "/" else "/",
        "https_server": f"{world.url}/collections/{collection.id}" if collection.https else None,
        "gcs_manager_url": None if personal else f"https://{collection.id[:6]}.data.example.org",
        "DATA": [],
    }


@route("GET", "/v0.10/endpoint/{collection}")
def get(request: Request, collection: str) -> dict[str, Any]:
    transfer_token(request)
    return document(request.world, request.world.collection(collection))


@route("GET", "/v0.10/endpoint_search")
def search(request: Request) -> dict[str, Any]:
    transfer_token(request)
    text, scope = request.query.get("filter_fulltext"), request.query.get("filter_scope", "all")
    if text is None and scope == "all":
        raise ApiError(400, "BadRequest", "filter_fulltext is required when filter_scope is all")
    words = (text or "").lower().split()
    found = [
        collection
        for collection in request.world.collections.values()
        if all(word in f"{collection.display_name} {collection.id}".lower() for word in words)
    ]
    offset, limit = request.number("offset", 0), min(request.number("limit", 25), 100)
    page = found[offset : offset + limit]
    return {
        "DATA_TYPE": "endpoint_list",
        "offset": offset,
        "limit": limit,
        "has_next_page": len(found) > offset + limit,
        "DATA": [{**document(request.world, collection), "search_rank": 1.0} for collection in page],
    }
