"""Space the logins to a host: close together where it accepts them, far apart where it refuses or delays them.

sshd drops connections at random above `MaxStartups` unauthenticated ones, and since OpenSSH 9.8 all of an address for some time
(`PerSourcePenalties`, sshd_config(5)); firewalls drop those above a rate. What a host once did is remembered.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Sequence
from pathlib import Path

from hibali.errors import HibaliError
from hibali.files import read_regular, write_atomic
from hibali.ledger import ledger_folder

_BURST, _BURST_SECONDS = 8, 60.0  # at most so many logins in this time, unless the interval is 0
_FIRST_SECONDS = 10.0  # the interval after the first sign that logins are too close
_MOST_SECONDS = 120.0
_HALVED_SECONDS = 86_400.0  # the learned interval halves in this time, because sites change their limits
_STAMP_BYTES = 4096
_ACCEPTED_SECONDS = (
    7 * 86_400.0
)  # how long it counts that a host accepted a further login, because sites change their limits
_FORGOTTEN_SECONDS = 1.0  # a shorter learned interval makes no difference
# A login is delayed if it took so many times as long as the last one, and so long.
_DELAY_FACTOR, _DELAY_SECONDS = 4.0, 5.0
# What ssh prints when a server or firewall ends a connection before it asks for a key.
_DROPPED = (
    "kex_exchange_identification",
    "ssh_exchange_identification",
    "Not allowed at this time",
    "Connection reset by",
    "banner exchange",
)


class LoginPace:
    """The interval between logins to one host, and what was learned of it; shared by all processes."""

    def __init__(self, name: str, least: float) -> None:
        """Set the fields; `name` identifies the login's settings and host, `least` is the configured interval."""
        self._name = name
        self._least = least

    def interval(self) -> float:
        """Return the seconds between the starts of two logins."""
        return max(self._least, self._learned())

    def wait_after(self, starts: Sequence[float], now: float) -> float:
        """Return the seconds until the next login may start, after logins that started at these times, the last one last."""
        interval = self.interval()
        if not interval or not starts:
            return 0.0
        waits = [starts[-1] + interval - now]
        if len(starts) >= _BURST:
            waits.append(starts[-_BURST] + _BURST_SECONDS - now)
        # a clock that was set back must not block logins for longer
        return max([0.0, *(wait for wait in waits if wait <= max(interval, _BURST_SECONDS) + 1)])

    def read_starts(self, stamp: Path) -> list[float]:
        """Return the times at which the last logins started."""
        with contextlib.suppress(OSError, ValueError):
            return [float(word) for word in read_regular(stamp, _STAMP_BYTES).split()]
        return []

    def write_start(self, stamp: Path, starts: Sequence[float], now: float) -> None:
        """Note that a login starts; the caller keeps other processes from doing so at once."""
        stamp.touch(mode=0o600)
        stamp.write_text("".join(f"{each:.3f}\n" for each in [*starts[1 - _BURST :], now]), "ascii")

    def failed(self, errors: str) -> None:
        """Learn from the messages of a login that failed after others had succeeded."""
        if any(phrase in errors for phrase in _DROPPED):
            self._slow_down()

    def succeeded(self, took: float, before: float | None) -> None:
        """Learn from the seconds that a login took, and those of the last one before it."""
        if before is not None and took > max(_DELAY_SECONDS, _DELAY_FACTOR * before):
            self._slow_down()

    def accepts_further(self) -> bool:
        """Return whether the host accepted a further login in the last days, and refused none since."""
        with contextlib.suppress(HibaliError, OSError):
            return abs(time.time() - self._accepted_path().stat().st_mtime) < _ACCEPTED_SECONDS
        return False

    def note_further(self, *, accepted: bool) -> None:
        """Remember whether the host accepted a further login."""
        with contextlib.suppress(HibaliError, OSError):
            if accepted:
                self._accepted_path().touch(mode=0o600)
            else:
                self._accepted_path().unlink(missing_ok=True)

    def _slow_down(self) -> None:
        seconds = min(max(2 * self._learned(), 2 * self._least, _FIRST_SECONDS), _MOST_SECONDS)
        record = {"schema": 1, "seconds": seconds, "at": time.time()}
        with contextlib.suppress(HibaliError, OSError):
            write_atomic(self._path(), json.dumps(record).encode("ascii") + b"\n")

    def _learned(self) -> float:
        try:
            record = json.loads(read_regular(self._path()))
            seconds, since = float(record["seconds"]), time.time() - float(record["at"])
        except (HibaliError, OSError, ValueError, KeyError, TypeError, RecursionError):
            return 0.0
        left = min(seconds, _MOST_SECONDS) * 0.5 ** (max(since, 0.0) / _HALVED_SECONDS)
        return left if left >= _FORGOTTEN_SECONDS else 0.0

    def _path(self) -> Path:
        return ledger_folder("logins", self._name) / "pace.json"

    def _accepted_path(self) -> Path:
        """Return the path of a mark that outlives the control sockets, which end with a user's last session."""
        return ledger_folder("logins", self._name) / "accepts-further"
