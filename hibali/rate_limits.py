"""Count requests per site, and pause requests to a site after repeated refusals, also in later calls."""

from __future__ import annotations

import contextlib
import json
import os
import re
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from hibali.documents import line_of_json
from hibali.errors import HibaliError, TryLaterError
from hibali.events import Listener, Noted
from hibali.files import open_regular, read_regular, write_atomic
from hibali.ledger import ledger_folder, now, read_records
from hibali.retry import pause
from hibali.text import counted, printable

_HOUR = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2})\.jsonl")
_RETENTION = timedelta(days=8)
# bytes of an hour's file, some forty thousand requests; beyond that the count is approximate
_MOST_BYTES = 4 << 20


def note_use(*names: str, request: str, times: int = 1) -> None:
    """Count uses of something in the ledger folder `names`. A failure to count is ignored."""
    at = now()
    line = line_of_json({"schema": 1, "kind": "use", "at": at, "what": request, "times": times}).encode(
        "ascii"
    )
    with contextlib.suppress(HibaliError, OSError):
        folder = ledger_folder(*names, "usage")
        path = folder / f"{at[:13]}.jsonl"
        if not path.exists():
            _forget_old(folder, at)
        descriptor = open_regular(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            if os.fstat(descriptor).st_size < _MOST_BYTES:
                os.write(descriptor, line + b"\n")
        finally:
            os.close(descriptor)


def read_uses(names: Iterable[tuple[str, ...]], since: datetime) -> Counter[str]:
    """Return how often each thing was used since `since`, summed over the folders `names`."""
    found: Counter[str] = Counter()
    first = since.astimezone(UTC).strftime("%Y-%m-%dT%H")
    start = since.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    for each in names:
        for path, hour in _hours(ledger_folder(*each, "usage")):
            if hour >= first:
                for record in read_records(path, is_cache=True):
                    _add(found, record, start)
    return found


def _add(found: Counter[str], record: dict[str, object], start: str) -> None:
    request, times, at = record.get("what"), record.get("times"), record.get("at")
    if isinstance(request, str) and isinstance(times, int) and isinstance(at, str) and at >= start:
        found[request] += times


def _hours(folder: Path) -> list[tuple[Path, str]]:
    return [(path, found[1]) for path in sorted(folder.iterdir()) if (found := _HOUR.fullmatch(path.name))]


def _forget_old(folder: Path, at: str) -> None:
    oldest = (datetime.fromisoformat(at) - _RETENTION).strftime("%Y-%m-%dT%H")
    for path, hour in _hours(folder):
        if hour < oldest:
            path.unlink(missing_ok=True)


ALLOWED = 5  # refusals in a row after which the next request has to wait
_FIRST_SECONDS = 60.0
_LONGEST_SECONDS = 900.0


@dataclass(frozen=True, slots=True)
class Refused:
    """The number of refusals in a row, the last reason, and the end of the pause (seconds since the epoch)."""

    times: int = 0
    because: str = ""
    until: float = 0.0


def pause_after(times: int) -> float:
    """Return the pause in seconds after this many refusals in a row: none at first, then growing up to a limit."""
    if times < ALLOWED:
        return 0.0
    return float(min(_LONGEST_SECONDS, _FIRST_SECONDS * 2.0 ** min(times - ALLOWED, 30)))


class Refusals:
    """The recorded refusals of a host or service; `names` is the place in the ledger, `subject` its name in messages.

    A record that cannot be written is dropped silently.
    """

    def __init__(self, *names: str, subject: str) -> None:
        self._names = names
        self._subject = subject

    def read(self) -> Refused:
        """Return the current record."""
        try:
            found = json.loads(read_regular(self._path()))
            return Refused(int(found["times"]), str(found["because"]), float(found["until"]))
        except (HibaliError, OSError, ValueError, KeyError, TypeError, RecursionError):
            return Refused()

    def check(self) -> None:
        """Raise `TryLaterError` during a pause."""
        known = self.read()
        left = known.until - time.time()
        if 0 < left <= _LONGEST_SECONDS:  # a clock that was set back must not block a site for years
            at = time.strftime("%H:%M:%S", time.localtime(known.until))
            raise TryLaterError(
                "paused",
                f"it refused {counted(known.times, 'request')} in a row ({known.because}); hibali sends no requests until {at}",
                subject=self._subject,
                hint="To try now: hibali sites check SITE",
            )

    def wait(self, longest: float, on_event: Listener) -> None:
        """Wait for the end of a pause of at most `longest` seconds; a longer one is left to `check`."""
        known = self.read()
        left = known.until - time.time()
        if 0 < left <= longest:
            on_event(
                Noted(
                    f"{self._subject} refused requests ({known.because}): waiting {left:.0f} s before the next one"
                )
            )
            pause(left)

    def refused(self, because: str) -> None:
        """Record one more refusal."""
        times = self.read().times + 1
        record = {
            "schema": 1,
            "times": times,
            "because": printable(because)[:300],
            "until": time.time() + pause_after(times) if pause_after(times) else 0.0,
        }
        with contextlib.suppress(HibaliError, OSError):
            write_atomic(self._path(), json.dumps(record).encode("ascii") + b"\n")

    def answered(self) -> None:
        """Clear the record, after an accepted request or when the user wants to retry now."""
        with contextlib.suppress(HibaliError, OSError):
            self._path().unlink(missing_ok=True)

    def _path(self) -> Path:
        return ledger_folder(*self._names) / "refusals.json"
