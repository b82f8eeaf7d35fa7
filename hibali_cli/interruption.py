"""Convert SIGINT, SIGTERM, SIGHUP and `--max-time` into exceptions, and end the process in time.

The interpreter's own handler, in C, writes the signal's number to a pipe. A thread reads it, wakes up all waits, and
after a signal ends the process when the main thread has not done so in time: it may be blocked in a call that no
exception reaches, such as waiting for a thread that reads from a server. `--max-time` only wakes up waits. The handler
in Python sets a flag and raises; it takes no lock and calls nothing.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

from hibali.errors import Exit, TryLaterError
from hibali.retry import interrupt_waits

RESUMES = "Run the same command again to resume."
_END_SECONDS = 1.6  # seconds after a signal; the limit is two (S24), also on a busy machine
_RENDER_SECONDS = 0.2
_WAKE_SECONDS = 0.05

Hint = str | Callable[[], str]


class Terminated(KeyboardInterrupt):  # an interruption, not an error
    """The process received SIGTERM or SIGHUP."""

    exit = Exit.TERMINATED


class OutOfTime(KeyboardInterrupt):  # an interruption, not an error
    """`--max-time` has elapsed; an interruption, so that it is not handled as the failure of one entry."""

    exit = Exit.TRY_LATER

    def to_error(self) -> TryLaterError:
        """Return the error for the user."""
        return TryLaterError(
            "max-time",
            "stopped because --max-time has elapsed",
            hint=interruption_hint(),
        )


_EXCEPTIONS: Final[dict[int, type[KeyboardInterrupt]]] = {
    signal.SIGINT: KeyboardInterrupt,
    signal.SIGTERM: Terminated,
    signal.SIGHUP: Terminated,
}


class _Interruption:
    """The state of an interruption; the handlers write it by single assignments."""

    number = 0  # the first signal; later ones change nothing
    out_of_time = False
    ended = False  # the command has ended; only its result remains to be printed
    code: int | None = None  # the exit code, once it is printed
    hint: str | None = None  # what happens to the interrupted work


_state = _Interruption()
_hints: list[Hint] = []  # hints of the active steps, the innermost last
Render = Callable[[BaseException], int]


@contextmanager
def hint_if_interrupted(hint: Hint) -> Iterator[None]:
    """Set the hint shown after an interruption inside; the innermost one is used, even an empty one."""
    _hints.append(hint)
    try:
        yield
    except KeyboardInterrupt:
        if _state.hint is None:
            _state.hint = _text_of(hint)
        raise
    finally:
        _hints.pop()


def interruption_hint() -> str:
    """Return what happens to the interrupted work, "" without a hint."""
    if _state.hint is None and _hints:  # the main thread has not reported it yet
        return _text_of(_hints[-1])
    return _state.hint or ""


def _text_of(hint: Hint) -> str:
    return hint if isinstance(hint, str) else hint()


def listen_for_interruption(render: Render | None = None) -> None:
    """Let SIGTERM, SIGHUP and SIGINT raise in the main thread; SIGINT and SIGHUP that a shell or nohup ignores stay ignored.

    `render` prints an interruption where the process must end before the main thread did so.
    """
    atexit.register(_ignore_signals)
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=(reading, render), name="signals", daemon=True).start()
    sys.unraisablehook = _pass_over
    for number in _EXCEPTIONS:  # last: from here on, signals raise, also in this loop
        if number == signal.SIGTERM or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)


def _ignore_signals() -> None:
    """Ignore signals at the very end: the interpreter restores their default there, which would change the exit code."""
    for number in _EXCEPTIONS:
        signal.signal(number, signal.SIG_IGN)


def interruption() -> KeyboardInterrupt | None:
    """Return the exception of the signal or of the elapsed time, also where another exception replaced it since."""
    if _state.number:
        return _EXCEPTIONS[_state.number]()
    return OutOfTime() if _state.out_of_time else None


def end_interruptions() -> None:
    """Note that the command has ended and prints its result: a signal now only limits the time for that."""
    _state.ended = True


def note_exit(code: int) -> None:
    """Note that everything is printed, and the exit code."""
    _state.code = code


@contextmanager
def limit_time(seconds: float | None) -> Iterator[None]:
    """Raise `OutOfTime` in the main thread when `seconds` have passed; None is no limit."""
    if seconds is None:
        yield
        return
    before = signal.signal(signal.SIGALRM, _end_time)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.001))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _interrupt(number: int, frame: FrameType | None) -> None:
    del frame
    if _state.ended or _state.number:
        return
    _state.number = number
    raise _EXCEPTIONS[number]


def _pass_over(problem: sys.UnraisableHookArgs) -> None:
    """Print no traceback of an interruption that was lost while an object was finalized."""
    if not issubclass(problem.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(problem)


def _end_time(number: int, frame: FrameType | None) -> None:
    del number, frame
    if not (_state.ended or _state.number):
        _state.out_of_time = True
        raise OutOfTime


def _watch(reading: int, render: Render | None) -> None:
    """Read signal numbers until one has to end the process."""
    while signals := os.read(reading, 1):
        if signals[0] in _EXCEPTIONS:
            break
        if signals[0] == signal.SIGALRM:
            interrupt_waits()
    interrupt_waits()
    ends = time.monotonic() + _END_SECONDS
    _wake_main_thread(signals[0], ends)
    time.sleep(max(0.0, ends - time.monotonic()))
    _end(signals[0], render)


def _wake_main_thread(number: int, until: float) -> None:
    """Resend the signal to the main thread until its Python handler has run.

    A signal just before a C function starts to wait, such as readline, does not end that call.
    """
    main = threading.main_thread().ident
    while main is not None and not _is_handled() and time.monotonic() < until:
        time.sleep(_WAKE_SECONDS)
        if not _is_handled():
            signal.pthread_kill(main, number)


def _is_handled() -> bool:
    return _state.ended or bool(_state.number)


def _end(number: int, render: Render | None) -> None:
    """End the process at once, like SIGKILL, without cleanup by the main thread."""
    failure = _EXCEPTIONS[number]()
    code = int(getattr(failure, "exit", Exit.INTERRUPTED))
    if _state.code is None and render is not None:
        _state.ended, ended = True, _state.ended
        if not ended:
            # a held stream lock or a reader that does not read must not delay the exit
            thread = threading.Thread(target=_render, args=(render, failure), daemon=True)
            thread.start()
            thread.join(_RENDER_SECONDS)
    os._exit(code if _state.code is None else _state.code)


def _render(render: Render, failure: BaseException) -> None:
    with contextlib.suppress(Exception):
        render(failure)
