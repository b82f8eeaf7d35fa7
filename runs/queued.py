"""Who holds places in a site's queue: one small file for each holder, counted before anything is submitted."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable

from hibali.claim import wait_for_claim
from hibali.ledger import ledger_folder, write_atomic
from runs.budget import count_queued, room
from runs.run import RUN_ID

_HOLDER = re.compile(rf"({RUN_ID.pattern})(\.[0-9]{{1,6}})?")


def holder_of(run: str, chunk: int = 0) -> str:
    """Who has places there: a run by its id, or one chunk of a sweep."""
    return f"{run}.{chunk}" if chunk else run


class Queued:
    """The places that runs of this ledger hold at one site, or are about to take; kept over the death of any process.

    A holder is a run's id, or `RUNID.N` for the Nth of several jobs of one run.
    """

    def __init__(self, site: str) -> None:
        """Open the record of a site; raises `RefusedError` where the ledger cannot be written."""
        self._folder = ledger_folder("sites", site, "queued")
        self._turns = ledger_folder("sites", site, "turns")

    def held(self) -> dict[str, int]:
        """How many places each holder has."""
        found: dict[str, int] = {}
        for name in sorted(os.listdir(self._folder)):  # noqa: PTH208  # asked before each submission
            if _HOLDER.fullmatch(name):
                with contextlib.suppress(OSError, ValueError):
                    found[name] = int((self._folder / name).read_bytes())
        return found

    def take(
        self, holder: str, places: int, limit: int, *, taken: Callable[[], object] = lambda: None
    ) -> bool:
        """Whether a holder has that many places of a budget of `limit` now, or has some from an earlier call.

        All or none; who wants more than all of them goes in when nobody else is there. One process at a time: `taken` is
        called before the next one may count, and writes into the ledger what is going to be submitted.
        """
        with wait_for_claim(self._turns):
            held = self.held()
            queued = count_queued(held)
            if holder not in held:
                if queued and room(limit, queued) < places:
                    return False
                self.keep(holder, places)
            taken()
            return True

    def keep(self, holder: str, places: int) -> None:
        """Hold exactly so many from now on: none for what is over, or never went in."""
        path = self._folder / holder
        assert _HOLDER.fullmatch(holder)
        if places > 0:
            write_atomic(path, b"%d\n" % places)
        else:
            path.unlink(missing_ok=True)

    def release(self, run_id: str) -> None:
        """Free all places of a run that is over."""
        for holder in self.held():
            if holder.partition(".")[0] == run_id:
                self.keep(holder, 0)

    def forget_dead(self, is_alive: Callable[[str], bool]) -> None:
        """Free the places of runs, by their id, for which `is_alive` is false; nobody takes any meanwhile."""
        with wait_for_claim(self._turns):
            for holder in self.held():
                found = _HOLDER.fullmatch(holder)
                if found is not None and not is_alive(found[1]):
                    self.keep(holder, 0)

    def runs(self) -> list[str]:
        """The ids of the runs that hold places, oldest first."""
        return sorted({holder.partition(".")[0] for holder in self.held()})
