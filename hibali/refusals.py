"""Whoever refused us several times in a row is left alone for a while, by later calls too."""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import dataclass
from pathlib import Path

from hibali.errors import HibaliError, TryLaterError
from hibali.ledger import ledger_folder, write_atomic
from hibali.text import printable

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
    """What is remembered of one who may refuse; `names` is where in the ledger, `about` how people call him.

    Remembering is no reason to fail: what cannot be written is forgotten.
    """

    def __init__(self, *names: str, about: str) -> None:
        self._names = names
        self._about = about

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
                about=self._about,
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
