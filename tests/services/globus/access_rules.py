"""Implement Transfer's access rules and bookmarks. They are stored and listed; access rules are not enforced."""

from __future__ import annotations

from typing import Any

from tests.services.globus.collections import normal_path, transfer_token
from tests.services.globus.http import Answer, Request, route
from tests.services.globus.world import ApiError, Collection, new_id, now

_PRINCIPALS = ("identity", "group", "all_authenticated_users", "anonymous")


def _result(request: Request, kind: str, code: str, message: str, **more: Any) -> dict[str, Any]:
    body = {"DATA_TYPE": kind, "code": code, "message": message}
    return {**body, "request_id": request.id, "resource": request.path.removeprefix("/v0.10"), **more}


def _shared(request: Request, collection_id: str) -> Collection:
    """Return a guest collection (only those have access rules); every user is its administrator."""
    transfer_token(request)
    found = request.world.collection(collection_id)
    if not found.entity_type.endswith("guest_collection"):
        raise ApiError(409, "Conflict", "Access rules are not available on this collection")
    return found


def _rule(request: Request, collection_id: str, rule_id: str) -> dict[str, Any]:
    _shared(request, collection_id)
    found = request.world.rules.get(collection_id, {}).get(rule_id)
    if found is None:
        raise ApiError(404, "AccessRuleNotFound", f"No access rule with id '{rule_id}'")
    return found


@route("GET", "/v0.10/endpoint/{collection}/access_list")
def rules(request: Request, collection: str) -> dict[str, Any]:
    _shared(request, collection)
    found = list(request.world.rules.get(collection, {}).values())
    return {"DATA_TYPE": "access_list", "endpoint": collection, "length": len(found), "DATA": found}


@route("POST", "/v0.10/endpoint/{collection}/access")
def add_rule(request: Request, collection: str) -> Answer:
    shared, body = _shared(request, collection), request.json()
    path, kind = str(body.get("path", "")), body.get("principal_type")
    if kind not in _PRINCIPALS or body.get("permissions") not in {"r", "rw"}:
        raise ApiError(400, "ClientError.BadRequest", "principal_type or permissions have no such value")
    if not path.startswith("/") or not path.endswith("/"):
        raise ApiError(400, "InvalidPath", "Path must be absolute, and a folder's name ends in '/'")
    principal = str(body.get("principal", ""))
    known = request.world.rules.setdefault(collection, {})
    key = (kind, principal, normal_path(shared, path))
    if any(
        key == (each["principal_type"], each["principal"], each["path"].rstrip("/") or "/")
        for each in known.values()
    ):
        raise ApiError(409, "Exists", "This principal has a rule for that path already")
    rule_id = new_id()
    known[rule_id] = {
        "DATA_TYPE": "access",
        "id": rule_id,
        "principal_type": kind,
        "principal": principal,
        "path": path,
        "permissions": body["permissions"],
        "role_id": None,
        "role_type": None,
        "create_time": now(),
        "expiration_date": body.get("expiration_date"),
    }
    document = _result(
        request, "access_create_result", "Created", "Access rule created successfully.", access_id=rule_id
    )
    return Answer(201, document)


@route("GET", "/v0.10/endpoint/{collection}/access/{rule}")
def rule(request: Request, collection: str, rule: str) -> dict[str, Any]:
    return _rule(request, collection, rule)


@route("PUT", "/v0.10/endpoint/{collection}/access/{rule}")
def change_rule(request: Request, collection: str, rule: str) -> dict[str, Any]:
    found, body = _rule(request, collection, rule), request.json()
    if body.get("permissions", "r") not in {"r", "rw"}:
        raise ApiError(400, "ClientError.BadRequest", "permissions have no such value")
    found |= {name: body[name] for name in ("permissions", "expiration_date") if name in body}
    return _result(request, "result", "Updated", "Access rule updated successfully.")


@route("DELETE", "/v0.10/endpoint/{collection}/access/{rule}")
def delete_rule(request: Request, collection: str, rule: str) -> dict[str, Any]:
    _rule(request, collection, rule)
    del request.world.rules[collection][rule]
    return _result(request, "result", "Deleted", "Access rule deleted successfully.")


def _bookmark(request: Request, bookmark_id: str) -> dict[str, Any]:
    token = transfer_token(request)
    found = request.world.bookmarks.get((token.identity, bookmark_id))
    if found is None:
        raise ApiError(404, "BookmarkNotFound", f"No bookmark with id '{bookmark_id}'")
    return found


def _check_name(request: Request, owner: str, name: object) -> str:
    if not isinstance(name, str) or not 0 < len(name) <= 128:
        raise ApiError(400, "ClientError.BadRequest", "A bookmark's name has from 1 to 128 characters")
    if any(each["name"] == name for (whose, _), each in request.world.bookmarks.items() if whose == owner):
        raise ApiError(409, "BookmarkExists", f"There is a bookmark '{name}' already")
    return name


@route("GET", "/v0.10/bookmark_list")
def bookmarks(request: Request) -> dict[str, Any]:
    owner = transfer_token(request).identity
    found = [each for (whose, _), each in request.world.bookmarks.items() if whose == owner]
    return {"DATA_TYPE": "bookmark_list", "length": len(found), "DATA": found}


@route("POST", "/v0.10/bookmark")
def add_bookmark(request: Request) -> Answer:
    owner, body = transfer_token(request).identity, request.json()
    name = _check_name(request, owner, body.get("name"))
    collection = request.world.collection(str(body.get("endpoint_id")))
    made = {
        "DATA_TYPE": "bookmark",
        "id": new_id(),
        "name": name,
        "endpoint_id": collection.id,
        "path": str(body.get("path", "/")),
        "pinned": False,
    }
    request.world.bookmarks[owner, made["id"]] = made
    return Answer(201, made)


@route("GET", "/v0.10/bookmark/{bookmark}")
def bookmark(request: Request, bookmark: str) -> dict[str, Any]:
    return _bookmark(request, bookmark)


@route("PUT", "/v0.10/bookmark/{bookmark}")
def rename_bookmark(request: Request, bookmark: str) -> dict[str, Any]:
    found, body = _bookmark(request, bookmark), request.json()
    if body.get("name", found["name"]) != found["name"]:
        found["name"] = _check_name(request, transfer_token(request).identity, body["name"])
    return found


@route("DELETE", "/v0.10/bookmark/{bookmark}")
def delete_bookmark(request: Request, bookmark: str) -> dict[str, Any]:
    _bookmark(request, bookmark)
    del request.world.bookmarks[transfer_token(request).identity, bookmark]
    return _result(request, "result", "Deleted", "Bookmark deleted successfully")
