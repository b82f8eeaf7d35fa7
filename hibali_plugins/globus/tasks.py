"""Submit Globus tasks exactly once, follow them, and resume those of earlier calls."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hibali.documents import line_of_json
from hibali.errors import HibaliError, NotFoundError, RefusedError, TryLaterError
from hibali.events import Carried, Listener, Noted
from hibali.ledger import Journal, ledger_folder, now, read_records
from hibali.retry import growing_intervals, pause
from hibali.text import counted, path_fields, path_from_fields
from hibali_plugins.globus.errors import CONFLICT, TOO_MANY_TASKS, fault_of, is_fault, with_details
from hibali_plugins.globus.paths import (
    CHECKSUM,
    CollectionPair,
    Piece,
    below,
    label_of,
    transfer_body,
)
from hibali_plugins.globus.requests import MOST_EVENTS, Document, Globus
from hibali_plugins.globus.submitter import Submitter
from transfers.engine.request import TaskTimeouts


@dataclass(frozen=True, slots=True)
class Sent:
    """A file of a task, as listed at the source; `written` is its path below the target's root."""

    path: bytes
    size: int
    mtime_ns: int
    written: bytes
    source: str
    digest: str | None = None


@dataclass(slots=True)
class BegunTask:
    """A recorded submission; `task` is the task id, once Globus has returned it."""

    path: Path
    submission: str
    label: str
    files: list[Sent]
    task: str | None = None

    def record_task_id(self, task: str) -> None:
        """Record the task id that Globus returned."""
        self.task = task
        with Journal(self.path) as journal:
            journal.append({"kind": "submitted", "at": now(), "task": task}, durable=True)

    def forget(self) -> None:
        """Remove the record, when all files have a result."""
        self.path.unlink(missing_ok=True)


def key_of(ends: CollectionPair) -> str:
    """Return the key of tasks between two folders."""
    return hashlib.sha256(line_of_json({"ends": ends.key_fields()}).encode("ascii")).hexdigest()[:32]


def begin_task(ends: CollectionPair, submission: str, label: str, files: Iterable[Sent]) -> BegunTask:
    """Record a task durably before it is submitted. Raise `RefusedError`, `IncompleteError`."""
    sent = list(files)
    path = _folder(ends) / f"{submission}.jsonl"
    with Journal(path) as journal:
        journal.append({"kind": "task", "at": now(), "submission": submission, "label": label})
        for file in sent:
            journal.append(_record(file))
        journal.append({"kind": "ready", "count": len(sent)}, durable=True)
    return BegunTask(path, submission, label, sent)


def begun_tasks(ends: CollectionPair) -> Iterator[BegunTask]:
    """Yield the recorded tasks of earlier calls, oldest first; remove incomplete records, never submitted."""
    found = [(path, _read(path)) for path in _folder(ends).glob("*.jsonl")]
    for path, task in sorted(found, key=lambda pair: pair[0].stat().st_mtime_ns):
        if task is None:
            path.unlink(missing_ok=True)
        else:
            yield task


def _folder(ends: CollectionPair) -> Path:
    return ledger_folder("globus-tasks", key_of(ends))


def _record(file: Sent) -> dict[str, Any]:
    fields = {**path_fields(file.path), **path_fields(file.written, "written"), "source": file.source}
    return {"kind": "file", **fields, "size": file.size, "mtime_ns": file.mtime_ns, "sha256": file.digest}


def _read(path: Path) -> BegunTask | None:
    found: BegunTask | None = None
    ready = False
    for record in read_records(path):
        kind = record.get("kind")
        if kind == "task":
            found = BegunTask(path, str(record["submission"]), str(record["label"]), [])
        elif found is not None and kind == "file":
            written = path_from_fields(record, "written")
            place = path_from_fields(record), record["size"], record["mtime_ns"], written
            found.files.append(Sent(*place, str(record["source"]), record.get("sha256")))
        elif found is not None and kind == "ready":
            ready = record["count"] == len(found.files)
        elif found is not None and kind == "submitted":
            found.task = str(record["task"])
    return found if ready else None


HOPELESS_SECONDS = 60.0  # limit for a task whose retries cannot succeed
_LONGEST_PAUSE = 10.0
_MOST_REPORTS = 20  # maximum reports of one kind of fault


@dataclass(frozen=True, slots=True)
class End:
    """The end of a task: `code` is Globus's error code, empty for success; `details` is its message."""

    task: str
    code: str = ""
    details: str = ""
    cancelled: bool = False
    bytes: int = 0
    moved: int = 0


class ProgressTimeout:
    """A measure of the time that a faulty task made no progress; pure."""

    def __init__(self, give_up_after: float | None) -> None:
        self._patience = give_up_after
        self._mark: Any = None
        self._since = 0.0

    def is_too_long(self, now: float, task: Document) -> bool:
        """Return whether the limit is exceeded. A task without a fault has no limit."""
        mark = [task.get(key) for key in ("bytes_transferred", "files_transferred", "subtasks_succeeded")]
        code = code_of(task)
        if mark != self._mark or not code:
            self._mark, self._since = mark, now
            return False
        limits = [seconds for seconds in (self._patience, self._longest(code)) if seconds is not None]
        return bool(limits) and now - self._since >= min(limits)

    @staticmethod
    def _longest(code: str) -> float | None:
        return HOPELESS_SECONDS if fault_of(code).hopeless else None


def code_of(task: Document) -> str:
    """Return the fault code of an active task; empty without a fault."""
    if task.get("is_paused"):
        return "PAUSED"
    status = str(task.get("nice_status") or "")
    if is_fault(status):
        return status
    return "TIMEOUT" if task.get("status") == "INACTIVE" else ""


class Following:
    """A poller of one task, which reports each fault once."""

    def __init__(self, globus: Globus, task: str, on_event: Listener, *, give_up_after: float | None) -> None:
        self._globus = globus
        self._task = task
        self._on_event = on_event
        self._progress_timeout = ProgressTimeout(give_up_after)
        self._bytes = 0
        self._faults = 0
        self._reported: dict[str, int] = {}
        self._paused = False
        self._queued = False

    def until_over(self, *, on_interruption: Callable[[], None]) -> End:
        """Poll the task until it ends; cancel it after too long without progress.

        `on_interruption` is called before KeyboardInterrupt is raised again.
        """
        pauses = growing_intervals(0.2, _LONGEST_PAUSE)
        try:
            while True:
                task = self._globus.task(self._task)
                self._report_progress(task)
                if task["status"] in {"SUCCEEDED", "FAILED"}:
                    return self._end(task)
                self._report_faults(task)
                if self._progress_timeout.is_too_long(time.monotonic(), task):
                    return self._cancel(code_of(task))
                pause(pauses.next_pause())
        except KeyboardInterrupt:
            on_interruption()
            raise

    def _report_progress(self, task: Document) -> None:
        now = int(task.get("bytes_transferred") or 0)
        if now > self._bytes:
            self._on_event(Carried(now - self._bytes))
            self._bytes = now

    def _report_faults(self, task: Document) -> None:
        if task.get("nice_status") == "Queued" and not self._queued:
            self._queued = True
            self._on_event(
                Noted(f"Globus task {self._task} is queued: Globus runs 3 of an account at a time")
            )
        if task.get("is_paused") and not self._paused:
            self._note("PAUSED", self._globus.pause_messages(self._task))
        self._paused = bool(task.get("is_paused"))
        faults = int(task.get("faults") or 0)
        if faults > self._faults:
            new, self._faults = faults - self._faults, faults
            self._report_events(min(new, MOST_EVENTS))

    def _report_events(self, count: int) -> None:
        errors = [event for event in self._globus.events(self._task) if event.get("is_error")]
        for event in reversed(errors[:count]):
            self._note(str(event.get("code") or ""), str(event.get("details") or ""))

    def _note(self, code: str, details: str) -> None:
        count = self._reported[code] = self._reported.get(code, 0) + 1
        if count <= _MOST_REPORTS:
            more = "; further reports of this kind are not shown" if count == _MOST_REPORTS else ""
            message = with_details(fault_of(code).message, details)
            self._on_event(Noted(f"Globus task {self._task}: {message}{more}"))

    def _cancel(self, code: str) -> End:
        """Cancel the task and wait until it ended, so that it writes no more files."""
        details = self._last_details(code)
        self._globus.cancel(self._task)
        pauses = growing_intervals(0.1, _LONGEST_PAUSE)
        while (task := self._globus.task(self._task))["status"] not in {"SUCCEEDED", "FAILED"}:
            pause(pauses.next_pause())
        self._report_progress(task)
        if task["status"] == "SUCCEEDED":
            return self._end(task)
        moved = int(task.get("files_transferred") or 0)
        return End(self._task, code, details, cancelled=True, bytes=self._bytes, moved=moved)

    def _end(self, task: Document) -> End:
        moved = int(task.get("files_transferred") or 0)
        if task["status"] == "SUCCEEDED":
            return End(self._task, bytes=self._bytes, moved=moved)
        error = task.get("fatal_error") or {}
        code = str(error.get("code") or task.get("nice_status") or "") or "UNKNOWN"
        details = str(error.get("description") or "") or self._last_details(code)
        return End(self._task, code, details, bytes=self._bytes, moved=moved)

    def _last_details(self, code: str) -> str:
        for event in self._globus.events(self._task):
            if event.get("code") == code:
                return str(event.get("details") or "")
        return ""


class Tasks:
    """The tasks from a folder of one collection to a folder of another."""

    def __init__(
        self, globus: Globus, ends: CollectionPair, operation: str, patience: TaskTimeouts, on_event: Listener
    ) -> None:
        self._globus = globus
        self._ends = ends
        self._label = label_of(operation, key_of(ends))
        self._patience = patience
        self._on_event = on_event
        waits = ends.deadline_seconds if patience.give_up_after is None else patience.give_up_after
        self._submitter = Submitter(globus, ends.most_tasks, waits, on_event)
        self.bytes = 0

    def begin(self, files: Sequence[Sent]) -> BegunTask:
        """Submit one task. Raise `TryLaterError` if an identical one is active, or too many are."""
        task = begin_task(self._ends, self._globus.submission(), self._label, files)
        try:
            self._submit(task)
        except HibaliError as problem:
            # A refused task does not exist; after other errors it may, if only the response was lost.
            if isinstance(problem, RefusedError) or problem.code in {CONFLICT, TOO_MANY_TASKS}:
                task.forget()
            raise
        return task

    def earlier(self, known: Collection[str]) -> Iterator[BegunTask]:
        """Follow the tasks that earlier calls left, except `known`; yield each at its end."""
        for task in begun_tasks(self._ends):
            if task.submission in known:
                continue
            self._on_event(
                Noted(f"continuing the task that an earlier call began: {counted(len(task.files), 'file')}")
            )
            try:
                if task.task is None:
                    self._submit(task, besides=self._label)  # it may be one of the active tasks already
                self.follow(task)
            except (NotFoundError, RefusedError):
                task.forget()  # Globus no longer has this task
            else:
                yield task

    def follow(self, task: BegunTask) -> End:
        """Follow the task to its end."""
        assert task.task is not None
        return self._follow(task.task)

    def check(self, files: Sequence[Sent]) -> tuple[End, set[bytes]]:
        """Compare checksums in a second task; return its end and the paths that it had to transfer again."""
        pieces = [self._piece(file) for file in files]
        body = transfer_body(
            self._ends,
            pieces,
            submission=self._globus.submission(),
            label=self._label,
            sync_level=CHECKSUM,
        )
        task = self._submitter.submit(body, self._ends.deadline_seconds)
        end = self._follow(task)
        if not (end.moved or end.code):
            return end, set()
        moved = {str(one["destination_path"]) for one in self._globus.moved(task)}
        return end, {file.path for file, piece in zip(files, pieces, strict=True) if piece.target in moved}

    def written(self, task: BegunTask) -> set[bytes]:
        """Return the paths of the files that Globus reports as written."""
        assert task.task is not None
        moved = {str(one["destination_path"]) for one in self._globus.moved(task.task)}
        return {file.path for file in task.files if self._piece(file).target in moved}

    def skipped(self, task: BegunTask) -> dict[bytes, tuple[str, str]]:
        """Return the skipped source files: path to Globus's error code and message."""
        assert task.task is not None
        by_source = {self._piece(file).source: file.path for file in task.files}
        found = {}
        for one in self._globus.skipped(task.task):
            path = by_source.get(str(one.get("source_path")))
            if path is not None:
                found[path] = (str(one.get("error_code") or ""), str(one.get("error_details") or ""))
        return found

    def _piece(self, file: Sent) -> Piece:
        return Piece(file.source, below(self._ends.target_root, file.written), file.digest)

    def _submit(self, task: BegunTask, *, besides: str | None = None) -> None:
        """Submit the task; repeating the same submission id is safe. Globus ignores a new deadline then.

        Active tasks with the label `besides` do not count for the limit.
        """
        body = transfer_body(
            self._ends,
            [self._piece(file) for file in task.files],
            submission=task.submission,
            label=task.label,
        )
        try:
            submitted = self._submitter.submit(body, self._ends.deadline_seconds, besides=besides)
        except HibaliError as problem:
            if problem.code != CONFLICT:
                raise
            self._wait_for_other(problem)
            submitted = self._submitter.submit(body, self._ends.deadline_seconds, besides=besides)
        task.record_task_id(submitted)
        self._on_event(
            Noted(
                f"Globus task {submitted} transfers {counted(len(task.files), 'file')}: https://app.globus.org/activity/{submitted}",
                kept=True,
            )
        )

    def _wait_for_other(self, problem: HibaliError) -> None:
        """Wait for an identical task of this account from another machine or without a ledger record."""
        others = (task for task in self._globus.active() if task.get("label") == self._label)
        other = next((str(task["task_id"]) for task in others), None)
        if other is None:
            raise TryLaterError(
                CONFLICT,
                "another task is transferring the same files between these collections",
                subject=problem.subject,
                hint="See https://app.globus.org/activity. When that task has ended, run the same command again.",
                transient=False,
            )
        self._on_event(Noted(f"an identical Globus task is already active; waiting until task {other} ends"))
        self._follow(other)

    def _follow(self, task: str) -> End:
        following = Following(self._globus, task, self._on_event, give_up_after=self._patience.give_up_after)
        end = following.until_over(on_interruption=self.leaving(task))
        self.bytes += end.bytes
        if end.code:
            message = with_details(fault_of(end.code).message, end.details)
            ended = "was cancelled because it made no progress" if end.cancelled else "failed"
            self._on_event(Noted(f"Globus task {task} {ended}: {message}", kept=True))
        return end

    def leaving(self, task: str) -> Callable[[], None]:
        """Return a function that handles an interruption: cancel the task, or report that it continues."""

        def leave() -> None:
            if self._patience.cancel_on_interrupt:
                self._globus.cancel(task)
                self._on_event(Noted(f"Globus task {task} is cancelled", kept=True))
                return
            self._on_event(
                Noted(
                    f"Globus task {task} continues at Globus. Run the same command again to follow it to its end and check"
                    " what it wrote; `hibali history` lists it. --cancel-on-interrupt would have cancelled it.",
                    kept=True,
                )
            )

        return leave
