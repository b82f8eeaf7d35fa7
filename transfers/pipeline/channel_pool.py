"""Open further channels to a site in the background."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

from hibali.cancellation import in_this_context
from hibali.errors import HibaliError
from hibali.events import Connected, Listener, Noted, ignore
from transfers.agent.identity import Identity
from transfers.model.units import FIRST_BYTES, LINE_BYTES, MOST_BYTES, WINDOW_BYTES
from transfers.remote.connection import Connection

# window of an OpenSSH channel: its bytes per round trip (channels.h, CHAN_SES_WINDOW_DEFAULT)
_CHANNEL_RATE_BYTES = 2 * 1024 * 1024
_RATE = 1_250_000_000  # assumed bandwidth of a site in bytes per second (10 Gbit/s)
_LONG_SECONDS = 0.01
_MIN_BYTES_PER_CHANNEL = 8 * 1024 * 1024  # opening a channel is worthwhile for this many bytes
_MOST_LOST = 8  # lost channels that are replaced
_REPLACED_AFTER_SECONDS = 3.0  # after this time it is known whether the first channel is lost, too


def count_channels(round_trip: float, size: int, most: int, rate: int = 0) -> int:
    """Return how many channels fill a link: `round_trip` in seconds, `size` bytes, `rate` in bytes per second (0: unknown).

    It is 1 for a short round trip, where a further channel costs more than it gains.
    """
    window = round_trip * (rate or _RATE)
    needed = -(-int(window) // _CHANNEL_RATE_BYTES)
    return max(1, min(needed, most, -(-size // _MIN_BYTES_PER_CHANNEL)))


class ChannelPool:
    """Opens further channels in background threads, and passes them to the pipeline."""

    def __init__(
        self,
        open_channel: Callable[[int], Connection] | None,
        most: int,
        *,
        on_event: Listener = ignore,
        logins: Callable[[], int] = int,
        most_logins: int = 1,
        rate: int = 0,
        early: bool = False,
        hosts: int = 1,
    ) -> None:
        """`open_channel` gets the channel's number from 1, and raises as a login does; None: no further channels.

        `logins` returns the number of logins so far; `rate` is the limit in bytes per second, 0 for none; with `early`,
        channels need no further login and are opened before the amount of data is known. The channels lead to `hosts` in turn.
        """
        self._rate = rate
        self._early = early
        self._hosts = hosts
        self._logins = logins
        self._most_logins = most_logins
        self._open_channel = open_channel
        self._most = most if open_channel is not None else 0
        self._on_event = on_event
        self._guard = threading.Lock()
        self._settled = threading.Condition(self._guard)
        self._started = 0
        self._resolved = 0
        self._wanted = 0
        self._watcher: Callable[[Connection], None] | None = None
        self._all: list[Connection] = []
        self._numbers: dict[Connection, int] = {}
        self.processes: list[dict[str, Any]] = []  # the agents of all channels so far
        self._lost_bytes = 0
        self.lost = 0  # lost channels
        self.lately_lost = 0  # lost channels, while it is unknown whether all others are lost, too
        self._failed = False
        self._closed = False
        self.root: tuple[bytes, Identity] | None = None  # the folder that the first channel reads or writes
        self.written = False  # whether it writes

    @property
    def possible(self) -> bool:
        """Return whether further channels may be opened at all."""
        return self._most > 0

    @property
    def expected(self) -> bool:
        """Return whether further channels were requested and may open."""
        return self._started > 0 and (self._resolved < self._started or bool(self._all))

    def start(self, round_trip: float, size: int) -> None:
        """Open as many channels as `size` bytes need; returns at once."""
        if not self._most:
            return
        hosts = min(self._hosts, size // _MIN_BYTES_PER_CHANNEL)  # each has a link of its own
        self._wanted = max(hosts, count_channels(round_trip, size, size, self._rate))
        self._open_up_to(min(self._wanted, self._most))

    def start_early(self, round_trip: float) -> None:
        """Open as many channels as the link can use, if they may be opened before the plan is known."""
        if self._early:
            self._open_up_to(count_channels(round_trip, sys.maxsize, self._most, self._rate))

    def _open_up_to(self, count: int) -> None:
        while self._started < count and count > 1:
            self._started += 1
            name = f"channel {self._started}"
            threading.Thread(
                target=in_this_context(self._run), args=(self._started,), name=name, daemon=True
            ).start()

    def _run(self, number: int) -> None:
        assert self._open_channel is not None
        try:
            connection = self._open_channel(number)
        except HibaliError as problem:
            with self._guard:
                first, self._failed = not self._failed, True
                self._resolved += 1
                self._settled.notify_all()
            if first:
                self._on_event(Noted(f"{problem.subject}: fewer channels than requested: {problem.message}"))
            return
        with self._guard:
            accepted = not self._closed
            self._resolved += 1
            self._settled.notify_all()
            if accepted:
                self._all.append(connection)
                self._numbers[connection] = number
                self.processes.append(connection.process)
                if self._watcher is not None:
                    self._watcher(connection)
            channels = 1 + len(self._all)
        if accepted:
            self._on_event(Connected(connection.subject, channels, self._logins()))
        else:
            connection.close()

    def replace(self, lost: Connection) -> None:
        """Replace a lost channel after a pause, unless too many were lost; returns at once."""
        with self._guard:
            if self._closed or lost not in self._all:
                return
            self._all.remove(lost)
            self._lost_bytes += lost.data_bytes
            self.lost += 1
            is_replaced = self.lost <= _MOST_LOST
            self._started += is_replaced
            self.lately_lost += is_replaced
            number = self._numbers.pop(lost)  # the same number, over the same login
        lost.close(0.1)
        if is_replaced:
            threading.Thread(
                target=in_this_context(self._run_later),
                args=(number,),
                name=f"channel {number}",
                daemon=True,
            ).start()

    def _run_later(self, number: int) -> None:
        with self._guard:
            if self._settled.wait_for(lambda: self._closed, _REPLACED_AFTER_SECONDS):
                return
            self.lately_lost -= 1
        self._run(number)

    def wait(self, seconds: float) -> int:
        """Wait until all started channels are open or failed; return their number, including the first."""
        with self._guard:
            self._settled.wait_for(lambda: self._resolved >= self._started, seconds)
            return 1 + len(self._all)

    def watch(self, on_channel: Callable[[Connection], None]) -> None:
        """Pass every open channel, and each later one, to `on_channel`, which is called from any thread and returns at once."""
        with self._guard:
            self._watcher = on_channel
            for connection in self._all:
                on_channel(connection)

    def unwatch(self) -> None:
        """Pass no more channels."""
        with self._guard:
            self._watcher = None

    @property
    def logins(self) -> int:
        """The number of logins of the first channel and these."""
        return self._logins()

    def limit(self, round_trip: float) -> str | None:
        """Return which setting limited the speed, if known: `logins`, `channels` or None."""
        if self._open_channel is None or round_trip < _LONG_SECONDS or self._wanted <= 1:
            return None
        if self._most_logins == 1:
            return "logins"
        return "channels" if self._wanted > self._most else None

    @property
    def data_bytes(self) -> int:
        """The file bytes transferred over these channels."""
        with self._guard:
            return self._lost_bytes + sum(connection.data_bytes for connection in self._all)

    def close(self, patience: float) -> None:
        """Close all channels, and wait `patience` seconds for the ends of their agents; safe to call twice."""
        with self._guard:
            self._closed = True
            ending, self._all = self._all, []
            self._lost_bytes += sum(connection.data_bytes for connection in ending)
            self._settled.notify_all()
        threads = [threading.Thread(target=connection.close, args=(patience,)) for connection in ending]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def window_bytes(ready: int, channels: ChannelPool) -> int:
    """Return how many bytes may be in flight over the first channel and the open others.

    Data given to the first channel while others open would still be in flight when those are long idle.
    """
    if not ready:
        return FIRST_BYTES if channels.expected else WINDOW_BYTES
    return min(MOST_BYTES, WINDOW_BYTES + ready * LINE_BYTES)


def no_channels() -> ChannelPool:
    """Return a pool without further channels."""
    return ChannelPool(None, 0)
