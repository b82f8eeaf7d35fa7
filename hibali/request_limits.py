"""Limit the requests to a site: a second by all processes of this account on this machine, at a time by this one."""

from __future__ import annotations

import contextlib
import os
import struct
import threading
from collections.abc import Iterator
from functools import cache
from time import monotonic

from hibali.config.model import Site
from hibali.errors import HibaliError
from hibali.files import control_folder, lock_file
from hibali.retry import wait_unless_interrupted

_TIME = struct.Struct("<d")
# Only a few turns lie ahead, about one of each process. What is further away is of a clock that began again at a reboot.
_MOST_AHEAD_SECONDS = 121.0
# Without limits, a turn for nothing would be a tenth of the time of a small request.
_AT_ONCE = contextlib.nullcontext()


class RequestLimit:
    """The limits of one site; for several threads."""

    def __init__(self, site: str, requests: float, connections: int) -> None:
        """`requests` is their number a second, `connections` their number at a time; 0 for no limit."""
        self.connections = connections
        self._name = f"{site}.requests"
        self._interval = 1.0 / requests if requests else 0.0
        self._places = threading.BoundedSemaphore(connections) if connections else contextlib.nullcontext()
        self._line = threading.Lock()
        self._due = 0.0

    def turn(self, *, urgent: bool = False) -> contextlib.AbstractContextManager[None]:
        """Wait until one more request may be sent; the request ends with the block.

        An urgent one, such as the renewal of a lock, overtakes those that wait and needs no place among `connections`. After an
        interruption nothing waits for its time any more, so that the command can end.
        """
        if not (self._interval or self.connections or self._due):
            return _AT_ONCE
        return self._wait_for_turn(urgent=urgent)

    @contextlib.contextmanager
    def _wait_for_turn(self, *, urgent: bool) -> Iterator[None]:
        with contextlib.nullcontext() if urgent else self._places:
            if self._interval:
                # One at a time takes a turn and waits for it: the others could be killed before they use theirs.
                with contextlib.nullcontext() if urgent else self._line:
                    wait_unless_interrupted(self._take_turn())
            elif not urgent:
                wait_unless_interrupted(max(0.0, self._due - monotonic()))
            yield

    def postpone(self, seconds: float) -> None:
        """Let the next request of all processes begin after so many seconds, at most two minutes: the server asks for it.

        Without a number of requests a second, processes have no turns in common: then only this one waits.
        """
        due = monotonic() + min(seconds, _MOST_AHEAD_SECONDS - 1)
        if not self._interval:
            self._due = max(self._due, due)
            return
        try:
            with lock_file(control_folder() / self._name) as stamp:
                os.pwrite(stamp, _TIME.pack(max(due, _read_time(stamp))), 0)
        except (HibaliError, OSError):
            self._due = max(self._due, due)

    def _take_turn(self) -> float:
        """Take the next turn of all processes; return in how many seconds it begins."""
        try:
            with lock_file(control_folder() / self._name) as stamp:
                wait, due = next_turn(_read_time(stamp), monotonic(), self._interval)
                os.pwrite(stamp, _TIME.pack(due), 0)
                return wait
        except (HibaliError, OSError):
            # There is no local folder, or its disk is full: this process keeps the limit alone.
            wait, self._due = next_turn(self._due, monotonic(), self._interval)
            return wait


def next_turn(due: float, now: float, interval: float) -> tuple[float, float]:
    """Return the seconds until the next turn, and when the one after it is due; unused turns are not saved up."""
    start = due if now < due <= now + _MOST_AHEAD_SECONDS else now
    return start - now, start + interval


def _read_time(stamp: int) -> float:
    content = os.pread(stamp, _TIME.size, 0)
    return float(_TIME.unpack(content)[0]) if len(content) == _TIME.size else 0.0


def request_limit(site: Site, *, requests: float = 0) -> RequestLimit:
    """Return the limits of a site, the same object for all its stores in this process.

    `requests` is the number a second if the site's settings have none.
    """
    return _limit_of(site.name, site.limits.requests or requests, site.limits.connections)


_limit_of = cache(RequestLimit)
