"""The half of a store that is the same wherever nothing can be written: each change is refused."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Iterator
from typing import NoReturn

from hibali.locations import Location
from transfers.entry import Entry
from transfers.store import Adjustment, Landed, Payload, Problem


class OnlyRead(ABC):
    """What of the Store protocol would change something."""

    @abstractmethod
    def _refuse(self) -> NoReturn:
        """Raise the `RefusedError` that says why."""

    def write(self, payloads: Iterable[Payload]) -> Generator[Landed, None, None]:
        """See Store."""
        del payloads
        self._refuse()

    def remove(self, entries: Iterable[Entry]) -> Iterator[tuple[Entry, Problem | None]]:
        """See Store."""
        del entries
        self._refuse()

    def adjust(self, adjustments: Iterable[Adjustment]) -> Iterator[tuple[Adjustment, Problem | None]]:
        """See Store."""
        del adjustments
        self._refuse()

    def keep(self, place: Location, entries: Iterable[Entry]) -> Iterator[tuple[Entry, Problem | None]]:
        """See Store."""
        del place, entries
        self._refuse()

    def make_root(self) -> None:
        """See Store."""
        self._refuse()
