"""Cancel an operation from another thread: its waits end, its connections are closed, its programs are killed.

A cancellation applies to the operations that run inside `cancelled_by`, in the same thread. It reaches the other threads
of an operation by the connections that `on_cancel` closes.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from typing import Any

from hibali.errors import CancelledError


class Cancellation:
    """A request to cancel operations; safe to use from any thread, and for several operations.

    >>> cancellation = Cancellation()
    >>> cancellation.cancel()
    >>> cancellation.cancelled
    True
    """

    def __init__(self) -> None:
        self._descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._guard = threading.Lock()
        self._callbacks: list[Callable[[], None]] = []
        self._cancelled = False
        weakref.finalize(self, os.close, self._descriptor)

    @property
    def cancelled(self) -> bool:
        """Whether `cancel` was called."""
        return self._cancelled

    def cancel(self) -> None:
        """Cancel all operations of this cancellation, now and in future; they raise `CancelledError` soon after.

        What they transferred before stays, and the same operation resumes it later.
        """
        with self._guard:
            if self._cancelled:
                return
            self._cancelled = True
            callbacks, self._callbacks = self._callbacks, []
        os.eventfd_write(self._descriptor, 1)
        for act in callbacks:
            act()

    def check(self) -> None:
        """Raise `CancelledError` after `cancel`."""
        if self._cancelled:
            raise CancelledError("cancelled", "cancelled by the program that started it")

    def on_cancel(self, act: Callable[[], None]) -> Callable[[], None]:
        """Call `act` when it is cancelled, at once if it is already; return a function that takes this back."""
        with self._guard:
            if not self._cancelled:
                self._callbacks.append(act)
                return lambda: self._forget(act)
        act()
        return lambda: None

    def _forget(self, act: Callable[[], None]) -> None:
        with self._guard, contextlib.suppress(ValueError):
            self._callbacks.remove(act)

    def fileno(self) -> int:
        """Return a descriptor that is readable after `cancel`, for `poll`."""
        return self._descriptor


_current: ContextVar[Cancellation | None] = ContextVar("cancellation", default=None)


def current_cancellation() -> Cancellation | None:
    """Return the cancellation of this thread's operation; None for one that only a signal ends."""
    return _current.get()


@contextmanager
def cancelled_by(cancellation: Cancellation) -> Iterator[None]:
    """Let `cancellation` cancel what happens inside. Any error after that is a `CancelledError`."""
    token = _current.set(cancellation)
    try:
        cancellation.check()
        yield
    except CancelledError:
        raise
    except Exception as problem:  # noqa: BLE001  # raised again, or as what it means now
        raise as_cancelled(problem) from problem.__cause__
    finally:
        _current.reset(token)


def in_this_context(act: Callable[..., Any]) -> Callable[..., Any]:
    """Return `act` for another thread of the same operation, so that the cancellation reaches what it does."""
    context = copy_context()
    return lambda *arguments: context.run(act, *arguments)


def as_cancelled(problem: BaseException) -> BaseException:
    """Return the error to report for `problem`: a `CancelledError` if the operation was cancelled, else the same."""
    cancellation = current_cancellation()
    if cancellation is None or not cancellation.cancelled or not isinstance(problem, Exception):
        return problem
    if isinstance(problem, CancelledError):
        return problem
    cancelled = CancelledError("cancelled", "cancelled by the program that started it")
    cancelled.__cause__ = problem
    return cancelled
