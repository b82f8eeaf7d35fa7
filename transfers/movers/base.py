"""Define the mover interface: transfer the items of a plan and yield the results."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Protocol

from hibali.events import Event
from transfers.stores.base import Committed, Item, Source, Store


class Mover(Protocol):
    """A way of transferring: through this machine, a copy by the server, or a third party."""

    @property
    def name(self) -> str:
        """The mover's name in receipts, such as `stream`, `server` or `direct`."""

    def carry(
        self, source: Source, target: Store, items: Iterable[Item]
    ) -> Generator[Event | Committed, None, None]:
        """Transfer every item; yield a `Committed` for each, in any order, and events of failures.

        Closing it ends active transfers.
        """
