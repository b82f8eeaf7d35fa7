"""Publish the progress of an operation in a small file while it runs, and read those of all running operations.

Each operation replaces its file in `running/` of the state folder at most once a second, and removes it at its end. The
file of a killed process is recognised by the process's number and start time, and removed when it is read.
"""

from __future__ import annotations

import contextlib
import math
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from hibali.documents import line_of_json, read_json
from hibali.errors import HibaliError
from hibali.events import Carried, Ended, Event, Hashing, Listener, Listing, Planned, Round
from hibali.files import read_regular, replace_content
from hibali.ledger import ledger_folder, now
from hibali.locks import Holder, has_ended, this_process
from transfers.history.rates import Rates, RateSeries, parse_rates
from transfers.history.tally import Tally, rate_of, time_left

_WRITE_SECONDS = 1.0
_FORGOTTEN_SECONDS = 86400.0  # a silent process of another machine, which cannot be checked, counts as killed
_MAX_BYTES = 64 * 1024
_NAME = re.compile(r"[0-9a-f-]{1,64}\.json")
_AT_ONCE = frozenset({Listing, Planned, Hashing, Round})
_COUNTS = ("files", "files_to_do", "bytes", "bytes_to_do", "files_deleted", "files_failed", "retries")


class ProgressFile:
    """A listener that publishes the progress of one operation, and passes every event on; safe to call from any thread.

    A full disk is ignored: the file is for people who look, and nothing depends on it.
    """

    def __init__(self, fields: Mapping[str, Any], on_event: Listener, *, follows: bool = False) -> None:
        """Publish the operation with these fields, which include its `id`, as one that has just begun."""
        folder = ledger_folder("running")
        self._path = folder / f"{fields['id']}.json"
        self._partial = folder / f".{fields['id']}"
        self._follows = follows
        self._fields = {**fields, "follows": follows, "holder": asdict(this_process())}
        self._on_event = on_event
        self._guard = threading.Lock()
        self._tally = Tally()
        self._series = RateSeries(time.monotonic())
        self._cycle: Round | None = None
        self._sent = [0, 0]  # files and bytes of the completed cycles of a followed source
        self._next = 0.0
        self._closed = False
        self._write(time.monotonic())

    def __call__(self, event: Event) -> None:
        """Count the event, publish the progress if it is due, and pass the event on."""
        with self._guard:
            at = time.monotonic()
            self._tally.update(self._of_cycle(event) if self._follows else event, at)
            if type(event) is Carried:
                self._series.add(event.worker, event.bytes)
            if at >= self._next or type(event) in _AT_ONCE:
                self._write(at)
        self._on_event(event)

    def _of_cycle(self, event: Event) -> Event:
        """Return what an event of a followed source means for its cycle: its plans are totals, and it pauses after a cycle."""
        if isinstance(event, Planned):
            files, size = event.files_to_move - self._sent[0], event.bytes_to_move - self._sent[1]
            return replace(event, files_to_move=max(0, files), bytes_to_move=max(0, size))
        if isinstance(event, Round):
            self._cycle = event
            self._sent = [self._sent[0] + event.files_moved, self._sent[1] + event.bytes_moved]
            return Ended()
        return event

    def rates(self) -> Rates | None:
        """Return what was carried over time, until now."""
        with self._guard:
            return self._series.rates(time.monotonic())

    def close(self) -> None:
        """Remove the file: the operation has ended; safe to call twice."""
        with self._guard:
            self._closed = True
            _remove(self._path, self._partial)

    def _write(self, at: float) -> None:
        if self._closed:
            return
        self._next = at + _WRITE_SECONDS
        self._series.sample(at)
        rates = self._series.rates(at)
        size, seconds = self._tally.window(at)
        record = {
            "schema": 1,
            **self._fields,
            "at": now(),
            "monotonic": at,
            **self._tally.to_record(at),
            "window_bytes": size,
            "window_seconds": seconds,
            "rates": None if rates is None else rates.to_record(),
        }
        if self._follows:
            record |= {
                "files_sent": self._sent[0],
                "bytes_sent": self._sent[1],
                "files_waiting": 0 if self._cycle is None else self._cycle.files_waiting,
            }
        with contextlib.suppress(OSError):
            replace_content(self._path, self._partial, line_of_json(record).encode("ascii") + b"\n")


def _remove(path: Path, partial: Path) -> None:
    for each in (partial, path):
        with contextlib.suppress(OSError):
            each.unlink()


@dataclass(frozen=True, slots=True)
class Clock:
    """The present: in seconds since the epoch, and of the monotonic clock, which counts since the boot of `own.boot`."""

    wall: float
    monotonic: float
    own: Holder


def read_clock() -> Clock:
    """Return the present of this process."""
    return Clock(time.time(), time.monotonic(), this_process())


@dataclass(frozen=True, slots=True)
class RunningOperation:
    """An operation that runs now.

    Attributes:
        fields: its `id`, `operation`, `source`, `target`, `began`, and `schedule` if it belongs to one.
        host: the machine of its process, and `pid` the process.
        phase: waiting (connecting, or between two cycles), listing, moving or hashing.
        counts: files and bytes done and to do, and files deleted and failed, in this phase.
        following: for a followed source, the files and bytes sent before, and the files not finished yet.
        rate: recent bytes per second; None while too little is known.
        seconds_left: at this rate; None where unknown.
        silent_seconds: the time since it last reported anything.
        rates: what was carried over time; None while there is little.
    """

    fields: Mapping[str, Any]
    host: str
    pid: int
    phase: str
    counts: Mapping[str, int]
    following: Mapping[str, int] | None
    rate: float | None
    seconds_left: float | None
    silent_seconds: float
    rates: Rates | None = None

    @property
    def id(self) -> str:
        """The id of the operation."""
        return str(self.fields["id"])

    @property
    def share(self) -> float | None:
        """The share that is done, from 0 to 1: of the bytes, or of the files if all are empty; None if unknown."""
        for done, all_of_it in (("bytes", "bytes_to_do"), ("files", "files_to_do")):
            if self.counts[all_of_it]:
                return min(1.0, self.counts[done] / self.counts[all_of_it])
        return None

    def to_record(self) -> dict[str, Any]:
        """Return the fields of a JSON line of kind `running`."""
        return {
            **self.fields,
            "host": self.host,
            "pid": self.pid,
            "phase": self.phase,
            **self.counts,
            "bytes_per_second": None if self.rate is None else int(self.rate),
            "seconds_left": None if self.seconds_left is None else round(self.seconds_left),
            "seconds_silent": round(self.silent_seconds),
            "following": None if self.following is None else dict(self.following),
        }


_FIELDS = ("id", "operation", "source", "target", "began")


def running_operations() -> list[RunningOperation]:
    """Return the operations of this account that run now, oldest first; files of ended processes are removed."""
    folder, clock = ledger_folder("running"), read_clock()
    found = []
    for path in sorted(folder.iterdir()):
        if not _NAME.fullmatch(path.name):
            continue
        record = _read(path)
        operation = None if record is None else parse_progress(record, clock)
        if operation is not None:
            found.append(operation)
        elif record is not None:
            _remove(path, path.with_name(f".{path.stem}"))
    return sorted(found, key=lambda each: (str(each.fields["began"]), each.id))


def is_running(operation: str) -> bool:
    """Return whether the process of an operation runs now, as far as this machine can tell."""
    record = (
        _read(ledger_folder("running") / f"{operation}.json")
        if _NAME.fullmatch(f"{operation}.json")
        else None
    )
    return record is not None and parse_progress(record, read_clock()) is not None


def _read(path: Path) -> dict[str, Any] | None:
    """Return the content of a file; None if it was removed meanwhile. An unreadable one is empty."""
    try:
        record = read_json(read_regular(path, _MAX_BYTES), str(path))
    except FileNotFoundError:
        return None
    except (HibaliError, OSError):
        return {}
    return record if isinstance(record, dict) else {}


def parse_progress(record: Mapping[str, Any], clock: Clock) -> RunningOperation | None:
    """Return the operation of a file as it is now; None if its process has ended, or the file is damaged.

    The rate falls while nothing is reported. On the machine that wrote the file this does not depend on the time of day,
    which may be changed.
    """
    try:
        holder = Holder(**record["holder"])
        silent = _silence(record, holder, clock)
        if has_ended(holder, clock.own) or (silent > _FORGOTTEN_SECONDS and holder.host != clock.own.host):
            return None
        counts = {name: max(0, int(record[name])) for name in _COUNTS}
        window = int(record["window_bytes"]), float(record["window_seconds"])
        if window[1]:
            window = window[0], window[1] + silent
        following = None
        if record["follows"]:
            following = {name: int(record[name]) for name in ("files_sent", "bytes_sent", "files_waiting")}
        return RunningOperation(
            {**{name: str(record[name]) for name in _FIELDS}, "schedule": record.get("schedule")},
            holder.host,
            holder.pid,
            str(record["phase"]),
            counts,
            following,
            rate_of(*window),
            time_left(counts["bytes_to_do"] - counts["bytes"], *window),
            silent,
            parse_rates(record["rates"]) if record.get("rates") else None,
        )
    except (KeyError, TypeError, ValueError, OverflowError):
        return None


def _silence(record: Mapping[str, Any], holder: Holder, clock: Clock) -> float:
    """Return the seconds since the file was written."""
    if (holder.host, holder.boot) == (clock.own.host, clock.own.boot):
        since = clock.monotonic - float(record["monotonic"])
    else:
        since = clock.wall - datetime.fromisoformat(str(record["at"])).timestamp()
    if not math.isfinite(since):
        raise ValueError("not a time")
    return max(0.0, since)
