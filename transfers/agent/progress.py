"""Report that work proceeds: the client cannot tell a long operation from a system call that never returns."""

import contextlib
import itertools
import threading
from typing import Callable, Iterator, List, Set

from transfers.agent import protocol

step = itertools.count().__next__  # called after each read, write, sync or name; atomic
# whether other agents on which the work depends were heard since the last report
awaited: List[Callable[[], bool]] = []
_working: Set[int] = set()  # threads


@contextlib.contextmanager
def working() -> Iterator[None]:
    """Mark this thread as working: then only steps show that it is not blocked."""
    step()
    _working.add(threading.get_ident())
    try:
        yield
    finally:
        _working.discard(threading.get_ident())


@contextlib.contextmanager
def waiting() -> Iterator[None]:
    """Mark this working thread as waiting for another agent."""
    _working.discard(threading.get_ident())
    try:
        yield
    finally:
        _working.add(threading.get_ident())


def report_progress(channel: protocol.Channel, seconds: float) -> None:
    """Send a heartbeat every `seconds` in which a step was made, or nothing was to do; runs in its own thread.

    There is none for a thread that waits for the filesystem, although this thread runs: the mount may hang.
    """
    before = step()
    while not channel.disconnected.wait(seconds):
        now = step()
        if (now > before + 1 or not _working) and all(was_heard() for was_heard in awaited):
            with contextlib.suppress(OSError):  # the main thread also notices that the client is disconnected
                channel.send(protocol.HEARTBEAT, {})
        before = now
