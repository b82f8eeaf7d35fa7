"""Several runs followed at once: a thread for each site, and the ledger, which says what has changed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence

from hibali.errors import HibaliError
from runs.book import Book
from runs.run import Run

Follow = Callable[[], object]


class Watching:
    """Runs that are followed in the background, and how they are now.

    Whoever else notes something of them in the ledger (a `runs wait` in another window) is seen, too.
    """

    def __init__(self, book: Book, run_ids: Sequence[str], follow: Iterable[Follow]) -> None:
        """Start all of `follow`, each of which returns when the runs of one site are over."""
        self._book = book
        self._lengths = dict.fromkeys(run_ids, -1)
        self._problems: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._run, args=(each,), name="follow", daemon=True) for each in follow
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, follow: Follow) -> None:
        try:
            follow()
        except BaseException as problem:  # noqa: BLE001  # raised again where somebody hears of it
            self._problems.append(problem)

    @property
    def is_over(self) -> bool:
        """Whether nothing is followed any more."""
        return not any(thread.is_alive() for thread in self._threads)

    @property
    def problems(self) -> list[HibaliError]:
        """Why some are not followed any more before they are over; raises what is no error of ours."""
        for problem in list(self._problems):
            if not isinstance(problem, HibaliError):
                raise problem
        return [problem for problem in self._problems if isinstance(problem, HibaliError)]

    def changed(self) -> list[Run]:
        """The runs of which something was noted since the last call, at first all of them."""
        found = []
        for run_id, before in self._lengths.items():
            length = self._book.length(run_id)
            if length != before:
                self._lengths[run_id] = length
                found.append(self._book.load(run_id))
        return found
