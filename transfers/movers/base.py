"""Define a mover: it turns the items of a plan into committed entries."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Protocol

from hibali.events import Event
from transfers.stores.base import Item, Landed, Source, Store


class Mover(Protocol):
    """A way of carrying: bytes through us, a copy by the server, a third party."""

    @property
    def word(self) -> str:
        """What receipts call it: `stream`, `server` or `direct`."""

    def carry(
        self, source: Source, target: Store, items: Iterable[Item]
    ) -> Generator[Event | Landed, None, None]:
        """Carry every item; a `Landed` for each, in any order, with events of what went wrong in between.

        Closing it ends what is under way.
        """
