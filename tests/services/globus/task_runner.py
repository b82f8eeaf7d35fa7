"""Run a task: retry its steps until they succeed, are skipped, or end the task.

Globus retries for a day and waits minutes; the double waits a fraction of a second and retries when a fault is cleared.
"""

from __future__ import annotations

import errno
import json
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from tests.services.globus.collections import is_offline
from tests.services.globus.file_copy import TroubleError
from tests.services.globus.task_steps import Step, Steps
from tests.services.globus.world import World, now

if TYPE_CHECKING:
    from tests.services.globus.tasks import Task

_RETRY_SECONDS = 0.2  # seconds before the first retry, doubled up to
_LONGEST = 5.0
_CODES = {
    errno.ENOENT: "FILE_NOT_FOUND",
    errno.EACCES: "PERMISSION_DENIED",
    errno.EPERM: "PERMISSION_DENIED",
    errno.EDQUOT: "QUOTA_EXCEEDED",
    errno.ENOSPC: "NO_SPACE_LEFT",
    errno.EISDIR: "IS_A_DIRECTORY",
    errno.ENOTDIR: "NOT_A_DIRECTORY",
    errno.ENAMETOOLONG: "INVALID_PATH_NAME",
    errno.ENOTEMPTY: "IS_A_DIRECTORY",
}


_SKIPPED = {"FILE_NOT_FOUND", "PERMISSION_DENIED", "EXTERNAL_CHECKSUM_MISMATCH"}


class OverError(Exception):
    """End the task now, with this status and fatal error."""

    def __init__(self, code: str, description: str) -> None:
        super().__init__(description)
        self.code, self.description = code, description


class RunningTask:
    """A running task."""

    def __init__(self, world: World, task: Task) -> None:
        self.world, self.task = world, task
        self.steps = Steps(world, task)
        self.ends = self.steps.ends
        self.reported = time.monotonic()

    def run(self) -> None:
        """Run all steps and retry failed ones until none is left."""
        task, counts = self.task, self.task.counts
        self.check()
        task.add_event("STARTED", "started", json.dumps({"type": task.kind.lower()}))
        pending, seconds = self.steps.first(), _RETRY_SECONDS
        counts["subtasks_total"] = len(pending)
        while pending:
            again: list[Step] = []
            for step in pending:
                self.check()
                if time.monotonic() - self.reported > 1:
                    self._report_progress()
                again += self._attempt(step)
            stuck = [step for step in again if step in pending]
            counts["subtasks_pending"], counts["subtasks_retrying"] = len(again), len(stuck)
            self._report_progress()
            if not stuck:
                task.trouble = task.trouble_details = None
            if stuck and len(stuck) == len(again):
                self._wait(seconds)
                seconds = min(seconds * 2, _LONGEST)
            pending = again

    def _attempt(self, step: Step) -> list[Step]:
        """Run a step; return the steps that it found, or the step itself if it failed."""
        counts = self.task.counts
        try:
            found = step.do(step)
        except TroubleError as problem:
            return self._after_error(step, problem)
        except OSError as problem:
            code = _CODES.get(problem.errno or 0, "ENDPOINT_ERROR")
            message = problem.strerror or str(problem)
            at_source = not self.steps.is_at_destination(step, problem.filename)
            path = step.source if at_source else step.destination
            return self._after_error(step, TroubleError(code, path, message, at_source=at_source))
        counts["subtasks_succeeded"] += 1
        counts["subtasks_total"] += len(found)
        return found

    def _after_error(self, step: Step, problem: TroubleError) -> list[Step]:
        task, counts = self.task, self.task.counts
        counts["faults"] += 1
        collection = self.ends[0 if problem.at_source else -1]
        details = (
            f"Error ({'transfer' if task.kind == 'TRANSFER' else 'delete'})\n"
            f"Endpoint: {collection.display_name} ({collection.id})\n"
            f"File: {problem.path}\nMessage: {problem.message}\n"
        )
        task.add_event(problem.code, problem.code.lower().replace("_", " "), details, is_error=True)
        if problem.fatal or (problem.code == "QUOTA_EXCEEDED" and task.options["fail_on_quota_errors"]):
            raise OverError(problem.code, details)
        if problem.at_source and task.options["skip_source_errors"] and problem.code in _SKIPPED:
            counts["subtasks_skipped_errors"] += 1
            task.skipped.append(_skipped(step, problem, details))
            return []
        task.trouble, task.trouble_details = problem.code, details
        return [step]

    def _report_progress(self) -> None:
        self.reported, moved = time.monotonic(), self.task.counts["bytes_transferred"]
        self.task.add_event("PROGRESS", "progress", json.dumps({"bytes_transferred": moved}))

    def _wait(self, seconds: float) -> None:
        with self.world.changed:
            self.world.changed.wait(seconds)
        self.check()

    def check(self) -> None:
        """Wait while the task is held or paused; raise `OverError` when it has to end."""
        world = self.world
        with world.changed:
            held = None
            while True:
                self._end_if_cancelled_or_expired()
                found = self._hold_reason()
                if found != held:
                    self._show(held, found)
                    held = found
                if found is None:
                    return
                world.changed.wait(_RETRY_SECONDS)

    def _end_if_cancelled_or_expired(self) -> None:
        task = self.task
        if task.cancel or self.world.ended:
            raise OverError("CANCELED", "canceled")
        if datetime.now(UTC) >= task.deadline:
            raise OverError("EXPIRED", "expired")

    def _hold_reason(self) -> tuple[str, str] | None:
        """Return the event code and description of the current reason for holding the task."""
        about = {**self.steps.about, "done": self.task.done}
        for kind, code in (("paused", "PAUSED"), ("inactive", "AUTH"), ("held", "Queued")):
            fault = self.world.has(kind, **about)
            if fault is not None:
                return code, fault.message or {"PAUSED": "Paused for maintenance"}.get(code, code.lower())
        working = [one for one in self.task.alike(self.world) if one.trouble in {None, "Queued"}]
        if self.task not in working[: self.world.active_limit] and self.task in working:
            return "Queued", "queued"
        for end in self.ends:
            if is_offline(self.world, end):
                personal = end.entity_type.startswith("GCP_")
                return (
                    "GC_NOT_CONNECTED" if personal else "CONNECT_FAILED",
                    f"{end.display_name} is not connected",
                )
        return None

    def _show(self, held: tuple[str, str] | None, found: tuple[str, str] | None) -> None:
        task = self.task
        task = self.task
        code, words = found or (None, None)
        if held and held[0] == "PAUSED":
            task.add_event("UNPAUSED", "unpaused", "The task goes on")
        if code and code != "Queued":
            is_error = code != "PAUSED"
            task.add_event(code, code.lower().replace("_", " "), words or "", is_error=is_error)
            task.counts["faults"] += is_error
        task.is_paused = code == "PAUSED"
        task.status = "INACTIVE" if code == "AUTH" else "ACTIVE"
        task.trouble, task.trouble_details = code, words


def _skipped(step: Step, problem: TroubleError, details: str) -> dict[str, Any]:
    return {
        "DATA_TYPE": "skipped_error",
        "source_path": step.source,
        "destination_path": step.destination,
        "error_code": problem.code,
        "error_details": details,
        "error_time": now(),
        "is_directory": step.is_folder,
        "is_symlink": False,
        "is_delete_destination_extra": False,
        "checksum_algorithm": step.item.get("checksum_algorithm"),
        "external_checksum": step.item.get("external_checksum"),
    }


def run(world: World, task: Task) -> None:
    """Run the task to its end."""
    try:
        RunningTask(world, task).run()
        end: OverError | None = None
    except OverError as over:
        end = over
    except Exception as problem:  # noqa: BLE001 - a bug in the double must not leave the task active
        end = OverError("INTERNAL_ERROR", repr(problem))
    with world.changed:
        left = task.counts["subtasks_total"] - task.counts["subtasks_succeeded"]
        left -= task.counts["subtasks_skipped_errors"]
        task.counts["subtasks_pending"] = task.counts["subtasks_retrying"] = 0
        if end is None:
            task.add_event(
                "SUCCEEDED", "succeeded", json.dumps({"files_succeeded": task.counts["files_transferred"]})
            )
        else:
            task.fatal = {"code": end.code, "description": end.description}
            word = {"CANCELED": "canceled", "EXPIRED": "expired"}.get(end.code, "failed")
            task.counts[f"subtasks_{word}"] = left
            task.add_event(end.code, end.code.lower().replace("_", " "), end.description, is_error=True)
        task.completed, task.is_paused = now(), False
        task.trouble = task.trouble_details = None
        task.status = "SUCCEEDED" if end is None else "FAILED"
        world.changed.notify_all()
