"""Who of several processes asks a site's scheduler: whoever asks does so for all that is under way there, and the others read."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Collection

from hibali.errors import NotFoundError
from hibali.ledger import ledger_folder
from runs.book import Book
from runs.queued import Queued
from runs.run import Run


class Asking:
    """What the processes of this account know of each other's questions to one scheduler of a site."""

    def __init__(self, site: str, scheduler: str) -> None:
        self._site = site
        self._scheduler = scheduler
        self._stamp = ledger_folder("sites", site) / f"asked-{scheduler}"

    def seconds_ago(self) -> float:
        """When the last question was answered, by whomever; infinite where none was, or nobody knows."""
        with contextlib.suppress(OSError):
            return abs(time.time() - self._stamp.stat().st_mtime)
        return math.inf

    def note(self) -> None:
        """It was answered just now, for all that is under way."""
        with contextlib.suppress(OSError):
            self._stamp.touch(mode=0o600)

    def others(self, book: Book, known: Collection[str]) -> list[Run]:
        """The runs that have jobs there, but for those that are `known`."""
        found = []
        for run_id in Queued(self._site).runs():
            if run_id not in known:
                with contextlib.suppress(NotFoundError):
                    found.append(book.load(run_id))
        return [run for run in found if run.job and run.scheduler == self._scheduler and not run.state.ended]
