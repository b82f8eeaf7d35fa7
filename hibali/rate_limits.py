"""Count requests per site, and leave a site alone after repeated refusals, also in later calls."""

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
from hibali.files import write_atomic
from hibali.ledger import ledger_folder, now, read_records
from hibali.text import printable

_HOUR = re.compile(r"([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2})\.jsonl")
_KEPT = timedelta(days=8)
_MOST_BYTES = (
    4 << 20
)  # of an hour; who asks some forty thousand times in it does not need to be counted exactly


def note_use(*names: str, what: str, times: int = 1) -> None:
    """Count that something was used; `names` is whose folder of the ledger. Counting is never a reason to fail."""
    at = now()
    line = line_of_json({"schema": 1, "kind": "use", "at": at, "what": what, "times": times}).encode("ascii")
    with contextlib.suppress(HibaliError, OSError):
        folder = ledger_folder(*names, "usage")
        path = folder / f"{at[:13]}.jsonl"
        if not path.exists():
            _forget_old(folder, at)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(path, flags, 0o600)
        try:
            if os.fstat(descriptor).st_size < _MOST_BYTES:
                os.write(descriptor, line + b"\n")
        finally:
            os.close(descriptor)


def read_uses(names: Iterable[tuple[str, ...]], since: datetime) -> Counter[str]:
    """How often each thing was used from `since` on, by all of these folders together."""
    found: Counter[str] = Counter()
    first = since.astimezone(UTC).strftime("%Y-%m-%dT%H")
    start = since.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    for each in names:
        for path, hour in _hours(ledger_folder(*each, "usage")):
            if hour >= first:
                for record in read_records(path):
                    _add(found, record, start)
    return found


def _add(found: Counter[str], record: dict[str, object], start: str) -> None:
    what, times, at = record.get("what"), record.get("times"), record.get("at")
    if isinstance(what, str) and isinstance(times, int) and isinstance(at, str) and at >= start:
        found[what] += times


def _hours(folder: Path) -> list[tuple[Path, str]]:
    return [(path, found[1]) for path in sorted(folder.iterdir()) if (found := _HOUR.fullmatch(path.name))]


def _forget_old(folder: Path, at: str) -> None:
    oldest = (datetime.fromisoformat(at) - _KEPT).strftime("%Y-%m-%dT%H")
    for path, hour in _hours(folder):
        if hour < oldest:
            path.unlink(missing_ok=True)


ALLOWED = 5  # refusals in a row, and the next question has to wait
_FIRST_SECONDS = 60.0
_LONGEST_SECONDS = 900.0


@dataclass(frozen=True, slots=True)
class Refused:
    """How often in a row, why the last time, and until when nobody asks (seconds since the epoch)."""

    times: int = 0
    because: str = ""
    until: float = 0.0


def pause_after(times: int) -> float:
    """How many seconds nobody asks after so many refusals in a row: none at first, then ever more up to a limit."""
    if times < ALLOWED:
        return 0.0
    return float(min(_LONGEST_SECONDS, _FIRST_SECONDS * 2.0 ** min(times - ALLOWED, 30)))


class Refusals:
    """What is remembered of one who may refuse; `names` is where in the ledger, `subject` how people call him.

    Remembering is no reason to fail: what cannot be written is forgotten.
    """

    def __init__(self, *names: str, subject: str) -> None:
        self._names = names
        self._subject = subject

    def read(self) -> Refused:
        """What is known now."""
        try:
            found = json.loads(self._path().read_bytes())
            return Refused(int(found["times"]), str(found["because"]), float(found["until"]))
        except (HibaliError, OSError, ValueError, KeyError, TypeError, RecursionError):
            return Refused()

    def check(self) -> None:
        """Raise `TryLaterError` while nobody is to ask."""
        known = self.read()
        left = known.until - time.time()
        if 0 < left <= _LONGEST_SECONDS:  # a clock that was set back must not shut a site for years
            at = time.strftime("%H:%M:%S", time.localtime(known.until))
            raise TryLaterError(
                "paused",
                f"it refused {known.times} times in a row ({known.because}) and is left alone until {at}",
                subject=self._subject,
                hint="`hibali sites check SITE` asks now.",
            )

    def refused(self, because: str) -> None:
        """It did so once more."""
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
        """It did not refuse, or somebody wants to see for himself: all is forgotten."""
        with contextlib.suppress(HibaliError, OSError):
            self._path().unlink(missing_ok=True)

    def _path(self) -> Path:
        return ledger_folder(*self._names) / "refusals.json"
