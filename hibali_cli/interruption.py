"""Signals and the end of `--max-time`, as interruptions that unwind like a Ctrl-C."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from hibali.errors import Exit, TryLaterError
from hibali.retry import interrupt_waits

RESUMES = "Run the same command again to resume."


class Terminated(KeyboardInterrupt):  # an interruption, not an error
    """SIGTERM came."""

    exit = Exit.TERMINATED


class OutOfTime(KeyboardInterrupt):  # an interruption, not an error
    """`--max-time` has elapsed; an interruption, so that nothing takes it for one entry's failure."""

    exit = Exit.TRY_LATER

    def to_error(self) -> TryLaterError:
        """What a user is told."""
        return TryLaterError(
            "max-time",
            "stopped because --max-time has elapsed",
            hint=hint_of(self),
        )


@contextmanager
def hint_if_interrupted(hint: str | Callable[[], str]) -> Iterator[None]:
    """Say after an interruption in here what becomes of the work; the innermost of several hints counts, an empty one too."""
    try:
        yield
    except KeyboardInterrupt as interruption:
        interruption.add_note(hint if isinstance(hint, str) else hint())
        raise


def hint_of(interruption: BaseException) -> str:
    """The hint that was left with an interruption, "" for none."""
    notes: list[str] = getattr(interruption, "__notes__", [])
    return notes[0] if notes else ""


def listen_for_termination() -> None:
    """Let SIGTERM unwind the command as Ctrl-C does; a shell that has us ignore SIGINT goes on being obeyed."""
    signal.signal(signal.SIGTERM, _terminate)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)


def ignore_interruptions() -> None:
    """What happened is decided and being told: an interruption now would only garble it."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
        signal.signal(number, signal.SIG_IGN)


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
    del number, frame
    interrupt_waits()
    raise KeyboardInterrupt


def _terminate(number: int, frame: FrameType | None) -> None:
    del number, frame
    interrupt_waits()
    raise Terminated


def _end_time(number: int, frame: FrameType | None) -> None:
    del number, frame
    interrupt_waits()
    raise OutOfTime
