"""Turn SIGINT, SIGTERM, SIGHUP and `--max-time` into exceptions, and end the process in time.

The interpreter's own handler, in C, writes the signal's number to a pipe. A thread reads it there, wakes up whatever waits,
and ends the process when the main thread has not done so in time: it may be blocked in a call that no exception reaches, such as
waiting for a thread that reads from a server. The handler in Python sets a flag and raises; it takes no lock and calls nothing.
"""

from __future__ import annotations

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
_END_SECONDS = 1.6  # after a signal; two seconds are promised (S24), and a busy machine takes its time
_RENDER_SECONDS = 0.2
_WAKE_SECONDS = 0.05

Hint = str | Callable[[], str]


class Terminated(KeyboardInterrupt):  # an interruption, not an error
    """SIGTERM came, or SIGHUP: the terminal or the connection is gone."""

    exit = Exit.TERMINATED


class OutOfTime(KeyboardInterrupt):  # an interruption, not an error
    """`--max-time` has elapsed; an interruption, so that nothing takes it for one entry's failure."""

    exit = Exit.TRY_LATER

    def to_error(self) -> TryLaterError:
        """What a user is told."""
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
    """What is known of it; written by the handlers as single assignments."""

    number = 0  # the first signal that came; those behind it change nothing
    out_of_time = False
    ended = False  # the command has ended, and what is left is to print how
    code: int | None = None  # the exit code, once it is printed
    hint: str | None = None  # what becomes of the work that was interrupted


_state = _Interruption()
_hints: list[Hint] = []  # of the steps that are under way, the innermost last
Render = Callable[[BaseException], int]


@contextmanager
def hint_if_interrupted(hint: Hint) -> Iterator[None]:
    """Say after an interruption in here what becomes of the work; the innermost of several hints counts, an empty one too."""
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
    """What becomes of the work that was interrupted, "" where nobody said so."""
    if _state.hint is None and _hints:  # the main thread has not unwound
        return _text_of(_hints[-1])
    return _state.hint or ""


def _text_of(hint: Hint) -> str:
    return hint if isinstance(hint, str) else hint()


def listen_for_interruption(render: Render | None = None) -> None:
    """Let SIGTERM, SIGHUP and SIGINT unwind the main thread; SIGINT and SIGHUP that a shell or nohup has us ignore stay ignored.

    `render` prints an interruption where the process has to be ended before the main thread did so.
    """
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    threading.Thread(target=_watch, args=(reading, render), name="signals", daemon=True).start()
    sys.unraisablehook = _pass_over
    for number in _EXCEPTIONS:  # last: from here on a signal raises, also in this loop
        if number == signal.SIGTERM or signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _interrupt)


def interruption() -> KeyboardInterrupt | None:
    """The exception of the signal that came, or of the end of the time, whatever the unwinding has made of it since."""
    if _state.number:
        return _EXCEPTIONS[_state.number]()
    return OutOfTime() if _state.out_of_time else None


def end_interruptions() -> None:
    """The command has ended, and prints how: a signal no longer changes that, and only limits how long it may take."""
    _state.ended = True


def note_exit(code: int) -> None:
    """All is printed, and the process ends with this code as soon as it can."""
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
    """Print no traceback of an interruption that came while an object was finalized, and was lost there."""
    if not issubclass(problem.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(problem)


def _end_time(number: int, frame: FrameType | None) -> None:
    del number, frame
    if not (_state.ended or _state.number):
        _state.out_of_time = True
        raise OutOfTime


def _watch(reading: int, render: Render | None) -> None:
    """Read the numbers of signals until one is to end the process."""
    while told := os.read(reading, 1):
        if told[0] in _EXCEPTIONS:
            break
        if told[0] == signal.SIGALRM:
            interrupt_waits()
    interrupt_waits()
    ends = time.monotonic() + _END_SECONDS
    _wake_main_thread(told[0], ends)
    time.sleep(max(0.0, ends - time.monotonic()))
    _end(told[0], render)


def _wake_main_thread(number: int, until: float) -> None:
    """Send the main thread the signal again until its handler in Python has run.

    A signal that comes just before a call in C begins to wait, as readline does after its prompt, does not end that call.
    """
    main = threading.main_thread().ident
    while main is not None and not _is_handled() and time.monotonic() < until:
        time.sleep(_WAKE_SECONDS)
        if not _is_handled():
            signal.pthread_kill(main, number)


def _is_handled() -> bool:
    return _state.ended or bool(_state.number)


def _end(number: int, render: Render | None) -> None:
    """End the process as a kill would: that nothing half-done is seen then does not depend on the unwinding."""
    failure = _EXCEPTIONS[number]()
    code = int(getattr(failure, "exit", Exit.INTERRUPTED))
    if _state.code is None and render is not None:
        _state.ended, ended = True, _state.ended
        if not ended:
            # who holds a stream's lock, or reads nothing any more, must not keep us
            thread = threading.Thread(target=_render, args=(render, failure), daemon=True)
            thread.start()
            thread.join(_RENDER_SECONDS)
    os._exit(code if _state.code is None else _state.code)


def _render(render: Render, failure: BaseException) -> None:
    with contextlib.suppress(Exception):
        render(failure)
