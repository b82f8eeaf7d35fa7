"""Following one task of Globus to its end: how far it is, what goes wrong, and when nobody waits any longer."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hibali.events import Carried, Listener, Noted
from hibali.retry import growing_intervals, pause
from transfers.globus.asking import MOST_EVENTS, Answer, Globus
from transfers.globus.faults import fault_of, is_fault, with_details

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

    def __init__(self, globus: Globus, task: str, tell: Listener, *, give_up_after: float | None) -> None:
        self._globus = globus
        self._task = task
        self._tell = tell
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
                self._tell_progress(task)
                if task["status"] in {"SUCCEEDED", "FAILED"}:
                    return self._end(task)
                self._tell_faults(task)
                if self._standstill.is_too_long(time.monotonic(), task):
                    return self._give_up(code_of(task))
                pause(pauses.next_pause())
        except KeyboardInterrupt:
            on_interruption()
            raise

    def _tell_progress(self, task: Answer) -> None:
        now = int(task.get("bytes_transferred") or 0)
        if now > self._bytes:
            self._tell(Carried(now - self._bytes))
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
            self._tell(Noted(f"Globus task {self._task}: {words}{more}"))

    def _give_up(self, code: str) -> End:
        """Cancelled, and over: what it had under way is not written any more."""
        details = self._last_details(code)
        self._globus.cancel(self._task)
        pauses = growing_intervals(0.1, _LONGEST_PAUSE)
        while (task := self._globus.task(self._task))["status"] not in {"SUCCEEDED", "FAILED"}:
            pause(pauses.next_pause())
        self._tell_progress(task)
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
