"""Count the places in the queue of each site that runs hold, and reserve them within the queue limit."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Mapping

from hibali.files import read_regular, write_atomic
from hibali.ledger import ledger_folder
from hibali.locks import wait_for_lock
from runs.model import RUN_ID


def count_queued(held: Mapping[str, int]) -> int:
    """Return the number of taken places in the queue, from the places of each holder."""
    return sum(held.values())


def free_places(limit: int, queued: int) -> int:
    """Return how many more jobs may be submitted; never less than 0."""
    return max(0, limit - queued)


def format_queue_full(limit: int, queued: int) -> str:
    """Return the reason of a run that waits because the queue is full."""
    return f"the queue is full: {queued} of {limit} jobs"


_HOLDER = re.compile(rf"({RUN_ID.pattern})(\.[0-9]{{1,6}})?")


def holder_of(run: str, chunk: int = 0) -> str:
    """Return the name of a holder of places: a run by its id, or one chunk of a sweep."""
    return f"{run}.{chunk}" if chunk else run


class QueuePlaces:
    """The places in a site's queue that runs of this ledger hold, or are about to reserve; stored in files, so that they survive processes.

    A holder is a run's id, or `RUNID.N` for the Nth of several jobs of one run.
    """

    def __init__(self, site: str) -> None:
        """Open the record of a site; raises `RefusedError` where the ledger cannot be written."""
        self._folder = ledger_folder("sites", site, "queued")
        self._lock_folder = ledger_folder("sites", site, "turns")

    def held(self) -> dict[str, int]:
        """Return how many places each holder has."""
        found: dict[str, int] = {}
        for name in sorted(os.listdir(self._folder)):  # noqa: PTH208  # read before each submission
            if _HOLDER.fullmatch(name):
                with contextlib.suppress(OSError, ValueError):
                    found[name] = int(read_regular(self._folder / name))
        return found

    def reserve(
        self, holder: str, places: int, limit: int, *, on_reserved: Callable[[], object] = lambda: None
    ) -> bool:
        """Reserve places for a holder within a limit; return whether it has them now or had some before.

        A holder gets all of them or none; one that needs more than the limit gets them when no other holder has any. One process at a time:
        `on_reserved` is called before the next one may count, and records the submission in the ledger.
        """
        with wait_for_lock(self._lock_folder):
            held = self.held()
            queued = count_queued(held)
            if holder not in held:
                if queued and free_places(limit, queued) < places:
                    return False
                self.set_places(holder, places)
            on_reserved()
            return True

    def set_places(self, holder: str, places: int) -> None:
        """Set how many places a holder has; 0 for one that has ended or was never submitted."""
        path = self._folder / holder
        assert _HOLDER.fullmatch(holder)
        if places > 0:
            write_atomic(path, b"%d\n" % places)
        else:
            path.unlink(missing_ok=True)

    def release(self, run_id: str) -> None:
        """Free all places of a run that has ended."""
        for holder in self.held():
            if holder.partition(".")[0] == run_id:
                self.set_places(holder, 0)

    def release_stale(self, is_active: Callable[[str], bool]) -> None:
        """Free the places of all runs for whose id `is_active` returns false; no place is reserved meanwhile."""
        with wait_for_lock(self._lock_folder):
            for holder in self.held():
                found = _HOLDER.fullmatch(holder)
                if found is not None and not is_active(found[1]):
                    self.set_places(holder, 0)

    def runs(self) -> list[str]:
        """Return the ids of the runs that hold places, oldest first."""
        return sorted({holder.partition(".")[0] for holder in self.held()})
