"""Implement Transfer's tasks: documents, events, successful and skipped files, cancellation."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from tests.services.globus.collections import transfer_token
from tests.services.globus.http import Request, route
from tests.services.globus.world import ApiError, Collection, World, filters, now, passes

_COUNTS = [
    "bytes_checksummed",
    "bytes_transferred",
    "directories",
    "files",
    "files_skipped",
    "files_transferred",
    "faults",
    "symlinks",
    "subtasks_canceled",
    "subtasks_expired",
    "subtasks_failed",
    "subtasks_pending",
    "subtasks_retrying",
    "subtasks_skipped_errors",
    "subtasks_succeeded",
    "subtasks_total",
]
PAGE = 100  # entries per page of listings with markers


@dataclass
class Task:
    """The state of a task; `counts` and `options` become members of its document under their own names."""

    id: str
    kind: str
    owner: str
    body: dict[str, Any]
    source: Collection
    destination: Collection | None
    options: dict[str, Any]
    deadline: datetime
    paths: tuple[Any, ...]
    requested: str = field(default_factory=now)
    began: datetime = field(default_factory=lambda: datetime.now(UTC))
    status: str = "ACTIVE"
    completed: str | None = None
    trouble: str | None = None
    trouble_details: str | None = None
    fatal: dict[str, str] | None = None
    is_paused: bool = False
    cancel: str | None = None
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_COUNTS, 0))
    events: list[dict[str, Any]] = field(default_factory=list)
    succeeded: list[dict[str, Any]] = field(default_factory=list)
    skipped: list[dict[str, Any]] = field(default_factory=list)
    label: str | None = None

    @property
    def is_over(self) -> bool:
        return self.status in {"SUCCEEDED", "FAILED"}

    def alike(self, world: World) -> list[Task]:
        """Return the account's tasks of this kind that have not ended, oldest first."""
        alike = (self.owner, self.kind)
        return [
            task for task in world.tasks.values() if (task.owner, task.kind) == alike and not task.is_over
        ]

    @property
    def done(self) -> int:
        """Return the number of files transferred or items deleted."""
        return self.counts["files_transferred" if self.kind == "TRANSFER" else "files"]

    def add_event(self, code: str, description: str, details: str, *, is_error: bool = False) -> None:
        """Add an event; listings have the newest first."""
        self.events.append(
            {
                "DATA_TYPE": "event",
                "code": code,
                "description": description,
                "details": details,
                "is_error": is_error,
                "time": now(),
            }
        )

    def document(self, username: str) -> dict[str, Any]:
        seconds = (datetime.now(UTC) - self.began).total_seconds()
        nice = None if self.is_over else (self.trouble or "OK")
        ends = {"source": self.source, "destination": self.destination}
        return {
            "DATA_TYPE": "task",
            **self.counts,
            **self.options,
            **{f"{end}_endpoint": found and f"u_owner#{found.id}" for end, found in ends.items()},
            **{f"{end}_endpoint_display_name": found and found.display_name for end, found in ends.items()},
            **{f"{end}_endpoint_id": found and found.id for end, found in ends.items()},
            "canceled_by_admin": "SOURCE" if self.cancel == "admin" else None,
            "canceled_by_admin_message": "Canceled by an administrator" if self.cancel == "admin" else None,
            "command": "API 0.10",
            "completion_time": self.completed,
            "deadline": self.deadline.isoformat(timespec="seconds"),
            "effective_bytes_per_second": int(self.counts["bytes_transferred"] / max(seconds, 0.001)),
            "fatal_error": self.fatal,
            "history_deleted": False,
            "is_ok": None if self.is_over else self.trouble is None,
            "is_paused": self.is_paused,
            "label": self.label,
            "nice_status": nice,
            "nice_status_details": None if self.is_over else self.trouble_details,
            "nice_status_expires_in": None if self.is_over else -1,
            "nice_status_short_description": nice and nice.lower().replace("_", " "),
            "owner_id": self.owner,
            "request_time": self.requested,
            "status": self.status,
            "task_id": self.id,
            "type": self.kind,
            "username": username,
        }


def deadline_of(body: dict[str, Any]) -> datetime:
    if not body.get("deadline"):
        return datetime.fromisoformat(now(86_400))
    try:
        found = datetime.fromisoformat(str(body["deadline"]))
    except ValueError:
        raise ApiError(400, "ClientError.BadRequest", "deadline is not a time of ISO 8601") from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _own(request: Request, task_id: str) -> Task:
    """Return the client's task with that id."""
    token = transfer_token(request)
    found = request.world.tasks.get(task_id)
    if found is None or found.owner != token.identity:
        raise ApiError(404, "TaskNotFound", f"No task with id '{task_id}'")
    return found


def _document(request: Request, task: Task) -> dict[str, Any]:
    return task.document(request.world.identities[task.owner].username)


@route("GET", "/v0.10/task/{task_id}")
def get(request: Request, task_id: str) -> dict[str, Any]:
    return _document(request, _own(request, task_id))


@route("PUT", "/v0.10/task/{task_id}")
def update(request: Request, task_id: str) -> dict[str, Any]:
    task, body = _own(request, task_id), request.json()
    with request.world.changed:
        task.label = body.get("label", task.label)
        if body.get("deadline"):
            task.deadline = deadline_of(body)
        request.world.changed.notify_all()
    return _result(request, "Updated", "The task has been updated")


@route("GET", "/v0.10/task_list")
def task_list(request: Request) -> dict[str, Any]:
    token = transfer_token(request)
    found = [
        _document(request, task) for task in request.world.tasks.values() if task.owner == token.identity
    ]
    rules = filters(request.query.get("filter", ""))
    rules |= {name[7:]: rule for name, rule in request.query.items() if name.startswith("filter_")}
    found = [task for task in found if all(passes(rule, str(task.get(name))) for name, rule in rules.items())]
    return _paged(request, "task_list", found[::-1])


@route("GET", "/v0.10/task/{task_id}/event_list")
def event_list(request: Request, task_id: str) -> dict[str, Any]:
    task = _own(request, task_id)
    only = request.query.get("filter_is_error") == "1" or request.query.get("filter") == "is_error:1"
    return _paged(
        request, "event_list", [event for event in task.events[::-1] if event["is_error"] or not only]
    )


def _paged(request: Request, kind: str, found: list[Any]) -> dict[str, Any]:
    """Return a page by limit and offset, which cover the first thousand entries only."""
    most = request.world.page_limit
    offset, limit = request.number("offset", 0), min(request.number("limit", 10), most)
    page = found[:most][offset : offset + limit]
    total = min(len(found), most)
    return {
        "DATA_TYPE": kind,
        "length": len(page),
        "limit": limit,
        "offset": offset,
        "total": total,
        "DATA": page,
    }


@route("GET", "/v0.10/task/{task_id}/successful_transfers")
def successful_transfers(request: Request, task_id: str) -> dict[str, Any]:
    task = _own(request, task_id)
    if task.kind != "TRANSFER" or not task.is_over:
        raise ApiError(400, "ClientError.BadRequest", "Only transfers that ended have these")
    return _marked(request, "successful_transfers", task.succeeded)


@route("GET", "/v0.10/task/{task_id}/skipped_errors")
def skipped_errors(request: Request, task_id: str) -> dict[str, Any]:
    return _marked(request, "skipped_errors", _own(request, task_id).skipped)


def _marked(request: Request, kind: str, found: list[dict[str, Any]]) -> dict[str, Any]:
    marker = request.number("marker", 0)
    following = marker + PAGE if marker + PAGE < len(found) else None
    page = found[marker : marker + PAGE]
    return {"DATA_TYPE": kind, "marker": marker, "next_marker": following, "DATA": page}


@route("GET", "/v0.10/task/{task_id}/pause_info")
def pause_info(request: Request, task_id: str) -> dict[str, Any]:
    task = _own(request, task_id)
    ends = [task.source] + ([task.destination] if task.destination else [])
    about = {"collections": [end.id for end in ends], "task": task.id}
    fault = request.world.has("paused", **about)
    message = (fault.message or "Paused for maintenance") if fault else None
    rules = [
        {
            "DATA_TYPE": "limited_pause_rule",
            "id": fault.id,
            "message": message,
            "start_time": None,
            "endpoint_id": fault.collection or ends[0].id,
            "endpoint_display_name": ends[0].display_name,
            "identity_id": None,
            "modified_time": task.requested,
            "created_by_host_manager": False,
            "editable": False,
            **{
                f"pause_{what}": True
                for what in ("ls", "mkdir", "rename", "task_delete", "task_transfer_read")
            },
            "pause_task_transfer_write": True,
        }
        for fault in [fault]
        if fault is not None
    ]
    return {
        "DATA_TYPE": "pause_info_limited",
        "endpoint_display_name": ends[0].display_name,
        "message": message,
        "pause_rules": rules,
        "source_pause_message": message,
        "source_pause_message_share": None,
        "destination_pause_message": None,
        "destination_pause_message_share": None,
    }


@route("POST", "/v0.10/task/{task_id}/cancel")
def cancel(request: Request, task_id: str) -> dict[str, Any]:
    task = _own(request, task_id)
    with request.world.changed:
        if task.is_over:
            return _result(request, "TaskComplete", "The task completed before it could be cancelled")
        task.cancel = "owner"
        request.world.changed.notify_all()
        request.world.changed.wait_for(lambda: task.is_over, timeout=10)
    return _result(request, "Canceled", "The task has been cancelled successfully.")


def _result(request: Request, code: str, message: str) -> dict[str, Any]:
    document = {"DATA_TYPE": "result", "code": code, "message": message}
    return {**document, "request_id": request.id, "resource": request.path}
