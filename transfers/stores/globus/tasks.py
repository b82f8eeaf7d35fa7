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
from hibali.text import path_fields, path_from_fields
from transfers.stores.globus.errors import fault_of, is_fault, with_details
from transfers.stores.globus.paths import (
    CHECKSUM,
    CollectionPair,
    Piece,
    TaskTimeouts,
    below,
    deadline_after,
    label_of,
    transfer_body,
)
from transfers.stores.globus.requests import MOST_EVENTS, Answer, Globus


@dataclass(frozen=True, slots=True)
class Sent:
    """One file of a task, as the source listed it, and the path below the target's root that it is written at."""

    path: bytes
    size: int
    mtime_ns: int
    written: bytes
    source: str
    digest: str | None = None


@dataclass(slots=True)
class BegunTask:
    """A submission with all that belongs to it; `task` is known once Globus has answered."""

    path: Path
    submission: str
    label: str
    files: list[Sent]
    task: str | None = None

    def answered(self, task: str) -> None:
        """Globus knows it as this task."""
        self.task = task
        with Journal(self.path) as journal:
            journal.append({"kind": "submitted", "at": now(), "task": task}, durable=True)

    def forget(self) -> None:
        """All of it is answered for."""
        self.path.unlink(missing_ok=True)


def key_of(ends: CollectionPair) -> str:
    """What tasks from one folder to another are known by."""
    return hashlib.sha256(line_of_json({"ends": ends.words()}).encode("ascii")).hexdigest()[:32]


def begin_task(ends: CollectionPair, submission: str, label: str, files: Iterable[Sent]) -> BegunTask:
    """On disk when this returns, before anything is submitted. Raises `RefusedError`, `IncompleteError`."""
    sent = list(files)
    path = _folder(ends) / f"{submission}.jsonl"
    with Journal(path) as journal:
        journal.append({"kind": "task", "at": now(), "submission": submission, "label": label})
        for file in sent:
            journal.append(_record(file))
        journal.append({"kind": "ready", "count": len(sent)}, durable=True)
    return BegunTask(path, submission, label, sent)


def begun_tasks(ends: CollectionPair) -> Iterator[BegunTask]:
    """Those that earlier calls left, the oldest first; one that was not written in whole was never submitted."""
    found = [(path, _read(path)) for path in _folder(ends).glob("*.jsonl")]
    for path, task in sorted(found, key=lambda pair: pair[0].stat().st_mtime_ns):
        if task is None:
            path.unlink(missing_ok=True)
        else:
            yield task


def _folder(ends: CollectionPair) -> Path:
    return ledger_folder("globus-tasks", key_of(ends))


def _record(file: Sent) -> dict[str, Any]:
    told = {**path_fields(file.path), **path_fields(file.written, "written"), "source": file.source}
    return {"kind": "file", **told, "size": file.size, "mtime_ns": file.mtime_ns, "sha256": file.digest}


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


HOPELESS_SECONDS = 60.0  # a task that only tries again what cannot succeed is given so long
_LONGEST_PAUSE = 10.0
_SAID = 20  # faults of one kind are told so often


@dataclass(frozen=True, slots=True)
class End:
    """How a task ended: `code` is Globus's word for what ended it, empty for success; `details` what was said of it."""

    task: str
    code: str = ""
    details: str = ""
    given_up: bool = False
    bytes: int = 0
    moved: int = 0


class Standstill:
    """For how long a task has not got on while something is wrong with it; a pure decision."""

    def __init__(self, give_up_after: float | None) -> None:
        self._patience = give_up_after
        self._mark: Any = None
        self._since = 0.0

    def is_too_long(self, now: float, task: Answer) -> bool:
        """Whether it has stood still for too long. Without a fault a task may take its time."""
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


def code_of(task: Answer) -> str:
    """What is wrong with a task that is under way, in Globus's word; empty for nothing."""
    if task.get("is_paused"):
        return "PAUSED"
    status = str(task.get("nice_status") or "")
    if is_fault(status):
        return status
    return "TIMEOUT" if task.get("status") == "INACTIVE" else ""


class Following:
    """One task. Its faults are told once each."""

    def __init__(self, globus: Globus, task: str, on_event: Listener, *, give_up_after: float | None) -> None:
        self._globus = globus
        self._task = task
        self._on_event = on_event
        self._standstill = Standstill(give_up_after)
        self._bytes = 0
        self._faults = 0
        self._said: dict[str, int] = {}
        self._paused = False

    def until_over(self, *, on_interruption: Callable[[], None]) -> End:
        """How it ended; a task that stands still for too long is cancelled.

        `on_interruption` is called before an interruption goes on.
        """
        pauses = growing_intervals(0.2, _LONGEST_PAUSE)
        try:
            while True:
                task = self._globus.task(self._task)
                self._report_progress(task)
                if task["status"] in {"SUCCEEDED", "FAILED"}:
                    return self._end(task)
                self._tell_faults(task)
                if self._standstill.is_too_long(time.monotonic(), task):
                    return self._give_up(code_of(task))
                pause(pauses.next_pause())
        except KeyboardInterrupt:
            on_interruption()
            raise

    def _report_progress(self, task: Answer) -> None:
        now = int(task.get("bytes_transferred") or 0)
        if now > self._bytes:
            self._on_event(Carried(now - self._bytes))
            self._bytes = now

    def _tell_faults(self, task: Answer) -> None:
        if task.get("is_paused") and not self._paused:
            self._note("PAUSED", self._globus.pause_words(self._task))
        self._paused = bool(task.get("is_paused"))
        faults = int(task.get("faults") or 0)
        if faults > self._faults:
            new, self._faults = faults - self._faults, faults
            self._tell_events(min(new, MOST_EVENTS))

    def _tell_events(self, count: int) -> None:
        errors = [event for event in self._globus.events(self._task) if event.get("is_error")]
        for event in reversed(errors[:count]):
            self._note(str(event.get("code") or ""), str(event.get("details") or ""))

    def _note(self, code: str, details: str) -> None:
        told = self._said[code] = self._said.get(code, 0) + 1
        if told <= _SAID:
            more = "; further ones are not told" if told == _SAID else ""
            words = with_details(fault_of(code).words, details)
            self._on_event(Noted(f"Globus task {self._task}: {words}{more}"))

    def _give_up(self, code: str) -> End:
        """Cancelled, and over: what it had under way is not written any more."""
        details = self._last_details(code)
        self._globus.cancel(self._task)
        pauses = growing_intervals(0.1, _LONGEST_PAUSE)
        while (task := self._globus.task(self._task))["status"] not in {"SUCCEEDED", "FAILED"}:
            pause(pauses.next_pause())
        self._report_progress(task)
        if task["status"] == "SUCCEEDED":
            return self._end(task)
        moved = int(task.get("files_transferred") or 0)
        return End(self._task, code, details, given_up=True, bytes=self._bytes, moved=moved)

    def _end(self, task: Answer) -> End:
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


_CONFLICT = "globus-conflict"  # see answers; this module is loaded without the SDK


class Tasks:
    """Transfers from one folder of a collection to another."""

    def __init__(
        self, globus: Globus, ends: CollectionPair, operation: str, patience: TaskTimeouts, on_event: Listener
    ) -> None:
        self._globus = globus
        self._ends = ends
        self._label = label_of(operation, key_of(ends))
        self._patience = patience
        self._on_event = on_event
        self.bytes = 0

    def begin(self, files: Sequence[Sent]) -> BegunTask:
        """Submit them as one task. Raises `TryLaterError("globus-conflict")` where others are at the same."""
        task = begin_task(self._ends, self._globus.submission(), self._label, files)
        try:
            self._submit(task)
        except HibaliError as problem:
            # Where it was refused for what it is there is no such task; anything else may hide that an answer was lost.
            if isinstance(problem, RefusedError) or problem.code == _CONFLICT:
                task.forget()
            raise
        return task

    def earlier(self, known: Collection[str]) -> Iterator[BegunTask]:
        """But for submissions that are `known`, what earlier calls of the same ends began and did not see the end of, each once it is over."""
        for task in begun_tasks(self._ends):
            if task.submission in known:
                continue
            self._on_event(Noted(f"going on with what an earlier call began: {len(task.files)} files"))
            try:
                if task.task is None:
                    self._submit(task)
                self.follow(task)
            except (NotFoundError, RefusedError):
                task.forget()  # Globus knows nothing of it any more
            else:
                yield task

    def follow(self, task: BegunTask) -> End:
        """How it ended."""
        assert task.task is not None
        return self._follow(task.task)

    def check(self, files: Sequence[Sent]) -> tuple[End, set[bytes]]:
        """A second pass over the same files by their checksums, and the paths of those that it had to move."""
        pieces = [self._piece(file) for file in files]
        body = transfer_body(
            self._ends,
            pieces,
            submission=self._globus.submission(),
            label=self._label,
            deadline=deadline_after(self._ends.deadline_seconds),
            sync_level=CHECKSUM,
        )
        task = self._globus.submit(body)
        end = self._follow(task)
        if not (end.moved or end.code):
            return end, set()
        moved = {str(one["destination_path"]) for one in self._globus.moved(task)}
        return end, {file.path for file, piece in zip(files, pieces, strict=True) if piece.target in moved}

    def written(self, task: BegunTask) -> set[bytes]:
        """The paths of the files that Globus says it has written."""
        assert task.task is not None
        moved = {str(one["destination_path"]) for one in self._globus.moved(task.task)}
        return {file.path for file in task.files if self._piece(file).target in moved}

    def skipped(self, task: BegunTask) -> dict[bytes, tuple[str, str]]:
        """The paths of the files that the source would not give, with Globus's word for why and what was said."""
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

    def _submit(self, task: BegunTask) -> None:
        """The same files under the same id, however often it takes: of a body that it knows Globus takes no new deadline."""
        body = transfer_body(
            self._ends,
            [self._piece(file) for file in task.files],
            submission=task.submission,
            label=task.label,
            deadline=deadline_after(self._ends.deadline_seconds),
        )
        try:
            submitted = self._globus.submit(body)
        except HibaliError as problem:
            if problem.code != _CONFLICT:
                raise
            self._wait_for_other(problem)
            submitted = self._globus.submit(body)
        task.answered(submitted)
        count = f"{len(task.files)} file{'s' if len(task.files) != 1 else ''}"
        self._on_event(
            Noted(
                f"Globus task {submitted} carries {count}: https://app.globus.org/activity/{submitted}",
                kept=True,
            )
        )

    def _wait_for_other(self, problem: HibaliError) -> None:
        """Whoever of ours is at the very same, from another machine or without its ledger, is let finish."""
        other = self._globus.active(self._label)
        if other is None:
            raise TryLaterError(
                _CONFLICT,
                "Globus carries the very same files for somebody else just now",
                subject=problem.subject,
                hint="See https://app.globus.org/activity; later, run the same command again to resume.",
                transient=False,
            )
        self._on_event(Noted(f"Globus is at the very same already; waiting for the end of task {other}"))
        self._follow(other)

    def _follow(self, task: str) -> End:
        following = Following(self._globus, task, self._on_event, give_up_after=self._patience.give_up_after)
        end = following.until_over(on_interruption=self.leaving(task))
        self.bytes += end.bytes
        if end.code:
            words = with_details(fault_of(end.code).words, end.details)
            ended = "was cancelled, because it got nowhere" if end.given_up else "failed"
            self._on_event(Noted(f"Globus task {task} {ended}: {words}", kept=True))
        return end

    def leaving(self, task: str) -> Callable[[], None]:
        """What is done with a task when the call is interrupted, in words."""

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
