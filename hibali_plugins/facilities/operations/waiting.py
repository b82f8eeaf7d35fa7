"""Wait for jobs of a service that handle files, and cancel those that nobody waits for any more."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

from hibali.errors import HibaliError, TryLaterError
from hibali.events import Listener, Noted, ignore
from hibali.retry import growing_intervals, pause
from hibali.text import printable

_LONGEST_WAIT = 24 * 3600.0
_LONGEST_PAUSE = 20.0
_CHECK_SECONDS = 1.0  # between looks whether the client is being closed
_SILENT_SECONDS = 30.0  # of a wait that nothing is said about
_NOT_LISTED_SECONDS = 60.0  # in which a job appears

_Begun = TypeVar("_Begun")


class FileJobs:
    """The jobs that handle files for one client of a service. Those that it began do not outlive it; thread-safe."""

    def __init__(
        self,
        subject: str,
        query: Callable[[str], str | None],
        cancel: Callable[[str], None],
        on_event: Listener = ignore,
    ) -> None:
        """`query` returns the state of a job, None if the service does not list it; `subject` names the site in errors."""
        self._subject, self._query, self._cancel, self._on_event = subject, query, cancel, on_event
        self._changed = threading.Condition()
        self._creating = 0  # requests that begin a job
        self._open: set[str] = set()
        self._closed = False

    def begin(self, create: Callable[[], _Begun], job_of: Callable[[_Begun], str] = str) -> _Begun:
        """Return what `create` does, a job or what has one. The caller waits for it, or calls `end`."""
        with self._changed:
            self._check_open()
            self._creating += 1
        try:
            begun = create()
            self._open.add(job_of(begun))
            return begun
        finally:
            with self._changed:
                self._creating -= 1
                self._changed.notify_all()

    def wait(self, job: str, what: str, is_over: Callable[[str], bool]) -> str:
        """Wait until a job has ended, and return its state. `what` it does is for errors.

        Raises:
            TryLaterError: It did not end in a day, or is not listed. It is then cancelled if it was begun here, as after any other error.
        """
        state = self._until(job, what, is_over, "end")
        self.end(job, cancel=False)
        return state

    def wait_for_start(self, job: str, what: str, is_waiting: Callable[[str], bool]) -> str:
        """Wait until a job does not wait in the queue any more, and return its state. Raise as `wait` does."""
        return self._until(job, what, lambda state: not is_waiting(state), "start")

    def _until(self, job: str, what: str, is_over: Callable[[str], bool], goal: str) -> str:
        try:
            return self._waited(job, what, is_over, goal)
        except BaseException:
            self.end(job)
            raise

    def _waited(self, job: str, what: str, is_over: Callable[[str], bool], goal: str) -> str:
        intervals = growing_intervals(0.3, _LONGEST_PAUSE)
        waited, said, hours = 0.0, False, f"{_LONGEST_WAIT / 3600:.0f} h"
        while waited < _LONGEST_WAIT:
            self._check_open()
            state = self._query(job)
            if state is not None and is_over(state):
                return state
            if state is None and waited > _NOT_LISTED_SECONDS:
                raise transfer_failed(self._subject, f"{job} that {what} is not listed")
            if waited > _SILENT_SECONDS and not said:
                said = True
                known = printable(state or "not listed")[:50]
                text = f"{self._subject}: waiting at most {hours} for the service's job {job} that {what}: {known}"
                self._on_event(Noted(text))
            seconds = intervals.next_pause()
            self._pause(seconds)
            waited += seconds
        raise transfer_failed(self._subject, f"{job} that {what} did not {goal} within {hours}")

    def _pause(self, seconds: float) -> None:
        """Pause; it ends early if the client is closed, as a thread that waits would delay the end of the command."""
        while seconds > 0:
            self._check_open()
            pause(min(seconds, _CHECK_SECONDS))
            seconds -= _CHECK_SECONDS

    def _check_open(self) -> None:
        if self._closed:
            raise TryLaterError("interrupted", "interrupted", subject=self._subject, transient=False)

    def end(self, job: str, *, cancel: bool = True) -> None:
        """Wait for a job no longer. Cancel it if it was begun here, as far as possible, unless it ends by itself."""
        if cancel and job in self._open:
            with contextlib.suppress(HibaliError):
                self._cancel(job)
        self._open.discard(job)  # after the request, for which `close` must not end the connections

    def close(self) -> None:
        """Cancel what was begun here and has not ended, also by requests that are under way."""
        with self._changed:
            self._closed = True
            self._changed.wait_for(lambda: not self._creating)
        for job in sorted(self._open):
            self.end(job)


def transfer_failed(subject: str, what: str) -> TryLaterError:
    """Return the error for a job of the service that did not end well."""
    return TryLaterError("transfer-failed", f"the service's job {what}", subject=subject, transient=False)
