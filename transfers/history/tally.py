"""Sum up the events of an operation: files, bytes, rate and remaining time."""

from __future__ import annotations

from collections import deque
from typing import Any

from hibali.amounts import format_duration, format_size
from hibali.events import (
    Carried,
    Carrying,
    Connected,
    Deleted,
    Ended,
    Event,
    Failed,
    Hashing,
    Listing,
    Moved,
    Planned,
    Retried,
)
from hibali.text import counted, path_fields

_RATE_SECONDS = 15.0  # seconds over which the shown rate is averaged
_SAMPLE_SECONDS = 0.5
_FILLING_SECONDS = 1.0  # seconds at the start that are ignored: the first bytes fill buffers
_TRUSTED_SECONDS = 2.0  # seconds of measurement before the remaining time is shown
_RETRY_SHOWN_SECONDS = 5.0
_MAX_CURRENT = 64

WAITING, LISTING, MOVING, HASHING = "waiting", "listing", "moving", "hashing"
_PHASES = frozenset({Listing, Planned, Hashing, Ended})
_OTHERS = frozenset({Connected, Retried, Carrying, Deleted, Failed})
_COUNTED = frozenset({"file", "link"})


def rate_of(size: int, seconds: float) -> float | None:
    """Return the rate in bytes per second of a measurement; None where it has not begun."""
    return size / seconds if seconds > 0 else None


def time_left(left: int, size: int, seconds: float) -> float | None:
    """Return the seconds for `left` bytes at the rate of a measurement; None where it says too little."""
    rate = rate_of(size, seconds)
    return left / rate if rate and left > 0 and seconds >= _TRUSTED_SECONDS else None


class Tally:
    """The numbers of one operation; times are parameters, in seconds of a monotonic clock."""

    def __init__(self) -> None:
        self.phase = WAITING
        self.files = self.files_to_do = 0
        self.bytes_to_do = 0
        self.deleted = self.to_delete = 0
        self.failed = self.retries = 0
        self._resumed: set[bytes] = set()
        self._planned = False
        self.current: dict[bytes, Carrying] = {}  # large files under way, the latest last
        self._carried = self._begun = 0
        self._places: dict[str, Connected] = {}
        self._retried: tuple[float, Retried] | None = None
        self._began: float | None = None
        self._samples: deque[tuple[float, int]] = deque()

    def update(self, event: Event, now: float) -> None:
        """Count one event."""
        if isinstance(event, Moved):  # one for each of millions of files
            if event.kind in _COUNTED:
                self.files += 1
                self.current.pop(event.path, None)
            return
        kind = type(event)
        if isinstance(event, Carried):
            self._carried += event.bytes
            self.files += self.phase == HASHING
            self._sample(now)
        elif kind in _PHASES:
            self._update_phase(event)
        elif kind in _OTHERS:
            self._update_other(event, now)

    def _update_phase(self, event: Event) -> None:
        match event:
            case Listing():
                self._begin(LISTING, 0, 0)
            case Planned():
                self._begin(MOVING, event.files_to_move, event.bytes_to_move)
                self._planned = True
                self.to_delete = event.files_to_delete
            case Hashing():
                self._begin(HASHING, event.files, event.bytes)
            case _:
                self.phase = WAITING

    def _update_other(self, event: Event, now: float) -> None:
        match event:
            case Connected():
                self._places[event.subject] = event
            case Retried():
                self.retries += 1
                self._retried = (now + max(event.wait_seconds, _RETRY_SHOWN_SECONDS), event)
            case Carrying():
                self._update_large(event)
            case Deleted(kind="file" | "link" | "special"):
                self.deleted += 1
            case Failed():
                self.failed += 1
                self.current.pop(event.path, None)
            case _:
                pass

    def _begin(self, phase: str, files: int, size: int) -> None:
        self.phase = phase
        self.files = self.deleted = self.to_delete = self.failed = self._carried = self._begun = 0
        self.files_to_do, self.bytes_to_do = files, size
        self.current.clear()
        self._resumed.clear()
        self._began = None
        self._samples.clear()

    def _update_large(self, event: Carrying) -> None:
        """Update a large file; its last progress may come after its commit, so a complete one is not active."""
        if event.begun and event.path not in self._resumed:
            self._resumed.add(event.path)
            self._begun += event.begun
        self.current.pop(event.path, None)
        if event.bytes < event.size:
            self.current[event.path] = event
        if len(self.current) > _MAX_CURRENT:
            del self.current[next(iter(self.current))]

    def _sample(self, now: float) -> None:
        self._began = self._began or now
        if now - self._began < _FILLING_SECONDS:
            self._samples.clear()
        if not self._samples or now - self._samples[-1][0] >= _SAMPLE_SECONDS:
            self._samples.append((now, self._carried))
            while now - self._samples[0][0] > _RATE_SECONDS and len(self._samples) > 2:
                self._samples.popleft()

    @property
    def bytes(self) -> int:
        """The bytes done; bytes that are sent again do not count twice."""
        return min(self._carried + self._begun, self.bytes_to_do)

    @property
    def share(self) -> float:
        """The share that is done, from 0 to 1: of the bytes, or of the files where all are empty."""
        done, all_of_it = (
            (self.bytes, self.bytes_to_do) if self.bytes_to_do else (self.files, self.files_to_do)
        )
        return min(1.0, done / all_of_it) if all_of_it else 1.0

    def rate(self, now: float) -> float | None:
        """Return the recent rate in bytes per second; None while too little is known. It falls while nothing is transferred."""
        return rate_of(*self.window(now))

    def seconds_left(self, now: float) -> float | None:
        """Return the remaining time at this rate; None where unknown."""
        return time_left(self.bytes_to_do - self.bytes, *self.window(now))

    def window(self, now: float) -> tuple[int, float]:
        """Return the bytes of the recent measurement, and its seconds; (0, 0.0) while too little is known."""
        if len(self._samples) < 2:
            return 0, 0.0
        began, before = self._samples[0]
        return self._carried - before, now - began

    @property
    def lines(self) -> int:
        """The number of connections in use, where there are several."""
        return sum(place.lines for place in self._places.values())

    @property
    def logins(self) -> int:
        """The number of logins made for them."""
        return sum(place.logins for place in self._places.values())

    def retrying(self, now: float) -> Retried | None:
        """Return the retry in progress."""
        return self._retried[1] if self._retried is not None and now < self._retried[0] else None

    def facts(self, now: float) -> list[str]:
        """Return the progress as texts, the most important first."""
        if self.phase == LISTING:
            return ["listing files"]
        rate, left = self.rate(now), self.seconds_left(now)
        facts = [f"{format_size(self.bytes)} of {format_size(self.bytes_to_do)}"]
        facts += [f"{format_size(int(rate))}/s"] if rate is not None else []
        facts += [f"{format_duration(left)} left"] if left is not None else []
        facts.append(self._files_done())
        facts += [f"{self.failed:,} failed"] if self.failed else []
        facts += [f"{self.deleted:,} of {self.to_delete:,} deleted"] if self.deleted else []
        facts += [counted(self.lines, "connection")] if self.lines else []
        facts += [counted(self.logins, "login")] if self.lines and self.logins > 1 else []
        facts += [counted(self.retries, "retry", "retries")] if self.retries else []
        return facts

    def _files_done(self) -> str:
        noun = counted(self.files_to_do, "file").rpartition(" ")[2]
        return f"{self.files:,} of {self.files_to_do:,} {noun}"

    def to_record(self, now: float) -> dict[str, Any]:
        """Return the fields of a JSON line of kind `progress`."""
        rate, left = self.rate(now), self.seconds_left(now)
        return {
            "phase": self.phase,
            "files": self.files,
            "files_to_do": self.files_to_do,
            "bytes": self.bytes,
            "bytes_to_do": self.bytes_to_do,
            "bytes_per_second": None if rate is None else int(rate),
            "seconds_left": None if left is None else round(left),
            "files_deleted": self.deleted,
            "files_failed": self.failed,
            "retries": self.retries,
            "lines": self.lines or None,
            "current": [
                {**path_fields(one.path), "bytes": one.bytes, "size": one.size}
                for one in list(self.current.values())[-8:]
            ],
        }

    def safe(self) -> str:
        """Describe what an interruption leaves at the target; names in it are not escaped."""
        if not self._planned:
            return "Nothing was changed at the target."
        done = f"at least {self._files_done()} complete and verified at the target"
        if not self.files:
            done = "no file is complete yet"
        deleted = f", and {self.deleted:,} of {self.to_delete:,} are deleted" if self.deleted else ""
        large = [path.decode("utf-8", "surrogateescape") for path in self.current][-1:]
        partial_note = f" The partial upload of {large[0]} is kept." if large else ""
        return f"Safe: {done}{deleted}; no other file there is incomplete.{partial_note}"
