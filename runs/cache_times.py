"""What a site deletes by itself, and what that means for inputs: their age, and times set only where the site allows it."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from datetime import datetime

from hibali.errors import HibaliError
from hibali.events import Listener, Noted, ignore
from hibali.sites import Purge, Site
from hibali.text import printable
from runs.run import Run
from transfers.entry import Entry, Kind
from transfers.far import Far

_DAY_NS = 86_400 * 1_000_000_000
_LAST_RUNS = 20
_AT_ONCE = 200  # paths in one command line
# of touch(1): any of them sets the time of the last change as well
_TOUCH = {"mtime": "-m", "atime": "-a", "ctime": "-a"}


def time_ns(purge: Purge, entry: Entry) -> int:
    """The time by which the site judges a file. When it was read last is not listed: not before its last change."""
    return entry.mtime_ns if purge.by == "mtime" else entry.ctime_ns


def oldest_ns(purge: Purge, entries: Iterable[Entry]) -> int | None:
    """The earliest time among these files; None where there are none."""
    return min((time_ns(purge, each) for each in entries if each.kind is Kind.FILE), default=None)


def is_doomed(purge: Purge, oldest: int, now_ns: int, wait_seconds: float) -> bool:
    """Whether a file of that time will be deleted within `wait_seconds`."""
    return now_ns + wait_seconds * 1e9 - oldest >= purge.days * _DAY_NS


def expected_wait(runs: Iterable[Run], site: str) -> float:
    """The longest time in seconds that one of the last runs at the site waited for its start; 0 where nobody knows."""
    waits = [_seconds(run.created, run.started) for run in runs if run.site == site and run.started]
    return max(waits[-_LAST_RUNS:], default=0.0)


def _seconds(first: str, last: str) -> float:
    try:
        return max(0.0, (datetime.fromisoformat(last) - datetime.fromisoformat(first)).total_seconds())
    except (ValueError, TypeError):
        return 0.0


class Times:
    """The times of files at a site that deletes by them."""

    def __init__(self, far: Far, purge: Purge, root: bytes, tell: Listener = ignore) -> None:
        """`root` is the folder in which the site deletes, absolute."""
        self._far = far
        self._root = root.rstrip(b"/")
        self._tell = tell
        self.purge = purge

    def covers(self, path: bytes) -> bool:
        """Whether the site deletes there."""
        return path == self._root or path.startswith(self._root + b"/")

    def begin(self, paths: Sequence[bytes]) -> None:
        """Copies that were just made are as old as that, and not as their originals: they came with the originals' times."""
        covered = [path for path in paths if self.covers(path)]
        if self.purge.by != "ctime":
            for start in range(0, len(covered), _AT_ONCE):
                some = covered[start : start + _AT_ONCE]
                self._touch(("touch", "-c", _TOUCH[self.purge.by], "--", *some), some[0])

    def may_refresh(self, path: bytes) -> bool:
        """Whether the site's configuration allows to set times anew of what lies there."""
        return self.purge.refresh_times and self.covers(path)

    def is_due(self, oldest: int | None) -> bool:
        """Whether half of the time is over."""
        return oldest is not None and is_doomed(
            self.purge, oldest, time.time_ns(), self.purge.days * 43_200.0
        )

    def refresh(self, path: bytes) -> None:
        """Set the times of all files there to now."""
        touch = ("touch", "-c", _TOUCH[self.purge.by], "--", "{}", "+")
        self._touch(("find", path, "-type", "f", "-exec", *touch), path)

    def warn(self, what: str, path: bytes, oldest: int | None, wait_seconds: float) -> None:
        """Tell a person of what will be gone before a run can start."""
        now = time.time_ns()
        if oldest is None or not self.covers(path) or not is_doomed(self.purge, oldest, now, wait_seconds):
            return
        age = max(0, now - oldest) // _DAY_NS
        self._tell(
            Noted(
                f"{what}: the site deletes by {self.purge.by} after {self.purge.days} days, this is {age} days old, and runs"
                f" there waited up to {_rounded(wait_seconds)}: it may be gone before the run starts ({printable(path)})"
            )
        )

    def _touch(self, words: Sequence[bytes | str], about: bytes) -> None:
        try:
            failed = self._far.run(words, timeout=600.0).exit_code != 0
        except HibaliError:
            failed = True
        if failed:
            self._tell(
                Noted(f"the times of {printable(about)} could not be set: the site may delete it soon")
            )


def times_at(far: Far, site: Site, tell: Listener = ignore) -> Times | None:
    """The times of a site that deletes by itself; None for one that does not."""
    if site.purge is None:
        return None
    return Times(far, site.purge, far.expand(site.roots[site.purge.root]), tell)


def _rounded(seconds: float) -> str:
    return f"{seconds / 3600:.0f} h" if seconds >= 5400 else f"{seconds / 60:.0f} min"
