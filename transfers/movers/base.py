"""Define a mover: it turns the items of a plan into committed entries."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from typing import Protocol, runtime_checkable

from hibali.events import Event
from transfers.entry import Entry
from transfers.stores.base import Facts, Item, Landed, Payload, Problem, Store, Unit


class Side(Protocol):
    """The part of a Store that planning uses."""

    @property
    def facts(self) -> Facts:
        """See Store."""

    def list(self) -> Iterator[Entry]:
        """See Store."""

    def digest(self, entries: Iterable[Entry]) -> Iterator[tuple[Entry, str | None, Problem | None]]:
        """See Store."""


class Source(Side, Protocol):
    """The reading half of a Store."""

    def read(self, units: Iterable[Unit]) -> Iterator[Payload]:
        """See Store."""


@runtime_checkable
class ListsAhead(Protocol):
    """A store that can list while something else is done."""

    def list_ahead(self) -> None:
        """Start the listing that `list` will return; no other request may come before it."""


@runtime_checkable
class OverLines(Protocol):
    """A store that may use several connections."""

    @property
    def several_lines(self) -> bool:
        """Return whether further connections exist or are being opened."""


class Mover(Protocol):
    """A way of transferring: through this machine, a copy by the server, or a third party."""

    @property
    def word(self) -> str:
        """Its name in receipts: `stream`, `server` or `direct`."""

    def carry(
        self, source: Source, target: Store, items: Iterable[Item]
    ) -> Generator[Event | Landed, None, None]:
        """Transfer every item; yield a `Landed` for each, in any order, and events of failures.

        Closing it ends active transfers.
        """
