"""What was asked of a site, counted: one file an hour, kept for eight days."""

from __future__ import annotations

import contextlib
import os
import re
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from hibali.errors import HibaliError
from hibali.ledger import ledger_folder, now, read_records
from hibali.strict_json import line_of_json

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
