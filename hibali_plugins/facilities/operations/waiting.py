"""Wait for jobs of a service that handle files, and cancel those for which no command waits any more."""

from __future__ import annotations

import contextlib
import shlex
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from hibali.errors import HibaliError, TryLaterError, is_lost
from hibali.events import Listener, Noted, ignore
from hibali.retry import growing_intervals, pause, wait_anyway
from hibali.text import counted, printable

_LONGEST_WAIT = 24 * 3600.0
_LONGEST_PAUSE = 20.0
_CHECK_SECONDS = 1.0  # between looks whether the client is being closed
_SILENT_SECONDS = 30.0  # of a wait that nothing is said about
_NOT_LISTED_SECONDS = 60.0  # in which a job appears
_OUTAGE_SECONDS = 600.0  # of a service, that a wait survives
_CLOSING_SECONDS = 8.0  # in which jobs are cancelled again; an interrupted command ends within two
_NOTE_SECONDS = 0.7  # of them until the jobs that are left are noted
_MOST_SHOWN = 20  # jobs in a message

_Begun = TypeVar("_Begun")


class FileJobs:
    """The jobs that handle files for one client of a service. Those that it began do not outlive it; thread-safe."""

    def __init__(
        self,
        subject: str,
        query: Callable[[str], str | None],
        cancel: Callable[[str], None],
        is_over: Callable[[str], bool],
        on_event: Listener = ignore,
    ) -> None:
        """`query` returns the state of a job, None if the service does not list it, and `is_over` whether it has ended in a state.

        `subject` names the site in errors.
        """
        self._subject, self._query, self._cancel = subject, query, cancel
        self._is_over, self._on_event = is_over, on_event
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

    def wait(self, job: str, what: str) -> str:
        """Wait until a job has ended, and return its state. `what` it does is for errors.

        Raises:
            TryLaterError: It did not end in a day, is not listed any more, or the service fails for some minutes. It is then cancelled if it was begun here, as after any other error.
        """
        state = self._until(job, what, self._is_over, "end")
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
        waited, listed, said, hours = 0.0, 0.0, False, f"{_LONGEST_WAIT / 3600:.0f} h"
        while waited < _LONGEST_WAIT:
            self._check_open()
            state = self._state_of(job)
            if state is not None and is_over(state):
                return state
            listed = listed if state is None else waited
            if waited - listed > _NOT_LISTED_SECONDS:
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

    def _state_of(self, job: str) -> str | None:
        """Return the state of a job, also after an outage of the service, which says nothing about the job."""
        intervals, until = growing_intervals(1.0, _LONGEST_PAUSE), time.monotonic() + _OUTAGE_SECONDS
        while True:
            try:
                return self._query(job)
            except HibaliError as problem:
                if not problem.transient or time.monotonic() > until:
                    raise
            self._pause(intervals.next_pause())

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
        """Wait for a job no longer. Cancel it if it was begun here, unless it ends by itself; if that fails, `close` tries again."""
        if cancel and job in self._open and not self._is_gone(job):
            return
        self._open.discard(job)  # after the request, for which `close` must not end the connections

    def _is_gone(self, job: str) -> bool:
        """Cancel a job, and return whether it is cancelled, has ended, or is unknown."""
        try:
            self._cancel(job)
        except HibaliError as problem:
            if is_lost(problem):
                return False
            with contextlib.suppress(HibaliError):  # some services fail to cancel what has ended
                state = self._query(job)
                return state is None or self._is_over(state)
            return False
        return True

    def close(self) -> None:
        """Cancel what was begun here and has not ended, also by requests that are under way. Try for some seconds, and note which jobs are left."""
        with self._changed:
            self._closed = True
            self._changed.wait_for(lambda: not self._creating)
        if not self._open:
            return
        note = threading.Timer(_NOTE_SECONDS, self._note_left)  # also while a request hangs
        note.daemon = True
        note.start()
        intervals, until = growing_intervals(0.3, 2.0), time.monotonic() + _CLOSING_SECONDS
        while self._open and time.monotonic() < until:
            for job in sorted(self._open):
                self.end(job)
            if self._open:
                wait_anyway(intervals.next_pause())
        note.cancel()

    def _note_left(self) -> None:
        jobs = sorted(self._open)
        if not jobs:
            return
        shown = " ".join(shlex.quote(printable(job)[:50]) for job in jobs[:_MOST_SHOWN])
        text = f"{counted(len(jobs), 'job')} of the service could not be cancelled yet. To end what is left, run there"
        self._on_event(Noted(f"{self._subject}: {text}: scancel {shown} (with PBS: qdel {shown})"))


def transfer_failed(subject: str, what: str) -> TryLaterError:
    """Return the error for a job of the service that did not end well."""
    return TryLaterError("transfer-failed", f"the service's job {what}", subject=subject, transient=False)
