"""Implement Transfer's submissions: each submission id creates one task, even if it is sent repeatedly."""

from __future__ import annotations

import threading
import uuid
from typing import Any

from tests.services.globus.collections import check_consent, normal_path, transfer_token
from tests.services.globus.http import Answer, Request, route
from tests.services.globus.task_runner import run
from tests.services.globus.tasks import Task, deadline_of
from tests.services.globus.world import ApiError, Token, new_id, now

_OPTIONS: dict[str, Any] = {
    "delete_destination_extra": False,
    "encrypt_data": False,
    "fail_on_quota_errors": False,
    "filter_rules": None,
    "preserve_timestamp": False,
    "recursive_symlinks": "ignore",
    "skip_source_errors": False,
    "sync_level": None,
    "verify_checksum": True,
}


@route("GET", "/v0.10/submission_id")
def submission_id(request: Request) -> dict[str, Any]:
    transfer_token(request)
    value = new_id()
    request.world.submission_ids.add(value)
    return {"value": value}


@route("POST", "/v0.10/transfer")
def transfer(request: Request) -> Answer:
    return _submit(request, "TRANSFER")


@route("POST", "/v0.10/delete")
def delete(request: Request) -> Answer:
    return _submit(request, "DELETE")


def _submit(request: Request, kind: str) -> Answer:
    """Record the submission and its result, and start its task if its id is new."""
    world, body = request.world, {}
    logged: dict[str, Any] = {"kind": kind, "time": now(), "task_id": None, "lost": False}
    try:
        token = transfer_token(request)
        body = request.json()
        with world.changed:
            answer, logged["task_id"] = _accept(request, kind, body, token)
        logged["code"] = answer["code"]
    except ApiError as problem:
        logged["code"] = problem.code
        raise
    finally:
        logged.update(submission_id=body.get("submission_id"), body=body)
        world.submissions.append(logged)
    logged["lost"] = world.take("lost_answer", request=f"{request.method} {request.path}") is not None
    return Answer(202, answer, lost=logged["lost"])


def _accept(request: Request, kind: str, body: dict[str, Any], token: Token) -> tuple[dict[str, Any], str]:
    world = request.world
    submission = str(body.get("submission_id"))
    try:
        uuid.UUID(submission)
    except ValueError:
        raise ApiError(400, "ClientError.BadRequest", "submission_id is missing or malformed") from None
    known = next((task for task in world.tasks.values() if task.body["submission_id"] == submission), None)
    if known is not None:
        if known.owner != token.identity or known.kind != kind:
            raise ApiError(400, "ClientError.BadRequest", "The submission id was used for something else")
        message = "Submission was a duplicate of one that was accepted before"
        return _accepted(request, kind, known, "Duplicate", message), known.id
    task = _new_task(request, kind, body, token)
    if world.take("conflict", request=f"{request.method} {request.path}") or any(
        other.paths == task.paths and not other.is_over for other in world.tasks.values()
    ):
        raise ApiError(409, "Conflict", f"A {kind.lower()} with identical paths has not yet completed")
    if len(task.alike(world)) >= world.pending_limit:
        raise ApiError(
            409, "ClientError.Conflict.TooManyPendingJobs", "The limit of pending tasks is reached"
        )
    world.tasks[task.id] = task
    threading.Thread(target=run, args=(world, task), daemon=True).start()
    message = f"The {kind.lower()} has been accepted and a task has been created and queued for execution"
    return _accepted(request, kind, task, "Accepted", message), task.id


def _new_task(request: Request, kind: str, body: dict[str, Any], token: Token) -> Task:
    items = body.get("DATA")
    if not isinstance(items, list) or not items:
        word = "transfer" if kind == "TRANSFER" else "delete"
        raise ApiError(
            400, f"ClientError.BadRequest.No{word.title()}Items", f"A {word} requires at least one item"
        )
    world = request.world
    members = {"source_endpoint": "source_path", "destination_endpoint": "destination_path"}
    members = members if kind == "TRANSFER" else {"endpoint": "path"}
    ends = [world.collection(str(body.get(member))) for member in members]
    names = list(zip(members.values(), ends, strict=True))
    check_consent(request, token, ends)
    paths = tuple(sorted(tuple(normal_path(end, str(item[name])) for name, end in names) for item in items))
    return Task(
        new_id(),
        kind,
        token.identity,
        body,
        ends[0],
        ends[1] if len(ends) > 1 else None,
        {name: body.get(name, default) for name, default in _OPTIONS.items()},
        deadline_of(body),
        (kind, *(end.id for end in ends), paths),
        label=body.get("label"),
    )


def _accepted(request: Request, kind: str, task: Task, code: str, message: str) -> dict[str, Any]:
    return {
        "DATA_TYPE": f"{kind.lower()}_result",
        "code": code,
        "message": message,
        "request_id": request.id,
        "resource": request.path,
        "submission_id": task.body["submission_id"],
        "task_id": task.id,
        "task_link": {
            "DATA_TYPE": "link",
            "href": f"/v0.10/task/{task.id}?format=json",
            "rel": "related",
            "resource": "task",
            "title": "related task",
        },
    }
