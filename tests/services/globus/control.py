"""Serve the double's control API below /_test: identities, collections, faults, and the request log."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

from tests.services.globus.file_copy import KINDS
from tests.services.globus.http import Request, route
from tests.services.globus.world import ApiError, Client, Collection, Fault, Identity, new_id

_FAULTS = {
    *KINDS,
    "checksum",
    "conflict",
    "consent_required",
    "corrupted_later",
    "error",
    "held",
    "inactive",
    "lost_answer",
    "offline",
    "paused",
    "too_many_requests",
    "unauthorized",
    "unavailable",
}
_SETTINGS = {
    "active_limit",
    "denies",
    "folder_limit",
    "page_limit",
    "pending_limit",
    "token_seconds",
    "user",
}


@route("POST", "/_test/clients")
def make_client(request: Request) -> dict[str, Any]:
    given = request.json()
    client = Client(given.get("id") or new_id(), given.get("secret"), given.get("name", "a client"))
    request.world.clients[client.id] = client
    request.world.identity_of(client)
    return {"id": client.id}


@route("POST", "/_test/users")
def make_user(request: Request) -> dict[str, Any]:
    given = request.json()
    user = Identity(given.get("id") or new_id(), given["username"], given.get("name", given["username"]))
    request.world.identities[user.id] = user
    request.world.user = user.id
    return {"id": user.id}


@route("POST", "/_test/collections")
def make_collection(request: Request) -> dict[str, Any]:
    given = request.json()
    given["root"] = Path(given["root"])
    collection = Collection(id=new_id(), **given)
    request.world.collections[collection.id] = collection
    return {"id": collection.id}


@route("POST", "/_test/faults")
def switch_on(request: Request) -> dict[str, Any]:
    given = request.json()
    if given.get("kind") not in _FAULTS or set(given) - {field.name for field in fields(Fault)}:
        raise ApiError(400, "BadFault", f"{given} is none of {sorted(_FAULTS)}")
    fault = Fault(id=new_id(), **given)
    with request.world.changed:
        request.world.faults[fault.id] = fault
        request.world.changed.notify_all()
    return {"id": fault.id}


@route("DELETE", "/_test/faults/{fault}")
def switch_off(request: Request, fault: str) -> dict[str, Any]:
    with request.world.changed:
        found = request.world.faults.pop(fault, None)
        request.world.changed.notify_all()
    return {"hits": found.hits if found else 0}


@route("GET", "/_test/faults/{fault}")
def look_at(request: Request, fault: str) -> dict[str, Any]:
    return {"hits": request.world.faults[fault].hits}


@route("POST", "/_test/settings")
def settings(request: Request) -> dict[str, Any]:
    for name, value in request.json().items():
        if name not in _SETTINGS:
            raise ApiError(400, "BadSetting", name)
        setattr(request.world, name, value)
    return {}


@route("POST", "/_test/expire")
def expire(request: Request) -> dict[str, Any]:
    """Expire tokens or a task: `{"tokens": "access"|"refresh"}`, `{"task": id}`; forget consents: `{"consents": true}`."""
    world, given = request.world, request.json()
    with world.changed:
        for token in world.tokens.values():
            if given.get("tokens") == ("refresh" if token.refresh else "access"):
                token.expires = 0
        if given.get("consents"):
            world.consents = {key: value for key, value in world.consents.items() if len(key[2]) == 1}
        if "task" in given:
            world.tasks[given["task"]].deadline = world.tasks[given["task"]].began
        world.changed.notify_all()
    return {}


@route("POST", "/_test/cancel/{task}")
def cancel(request: Request, task: str) -> dict[str, Any]:
    """Cancel a task as a collection's administrator."""
    with request.world.changed:
        request.world.tasks[task].cancel = "admin"
        request.world.changed.notify_all()
        request.world.changed.wait_for(lambda: request.world.tasks[task].is_over, timeout=10)
    return {}


@route("GET", "/_test/rules")
def rules(request: Request) -> dict[str, Any]:
    return {name: list(found.values()) for name, found in request.world.rules.items()}


@route("GET", "/_test/tasks")
def tasks(request: Request) -> dict[str, Any]:
    found = request.world.tasks.values()
    return {
        "tasks": [
            {
                **task.document(request.world.identities[task.owner].username),
                "body": task.body,
                "events": task.events,
            }
            for task in found
        ]
    }


@route("GET", "/_test/wait/{task}")
def wait(request: Request, task: str) -> dict[str, Any]:
    """Return the task when it has ended, or has the state given by ?nice_status=CODE."""
    world, wanted = request.world, request.query.get("nice_status")
    found = world.tasks[task]

    def is_there() -> bool:
        return found.is_over or (wanted is not None and found.trouble == wanted)

    with world.changed:
        while not world.changed.wait_for(is_there, timeout=0.05):
            if world.ended:
                break
    return found.document(world.identities[found.owner].username)


@route("GET", "/_test/log")
def log(request: Request) -> dict[str, Any]:
    return {"submissions": request.world.submissions, "requests": request.world.requests}
