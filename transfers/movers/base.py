"""Define a mover: it turns the items of a plan into committed entries."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from typing import Protocol, runtime_checkable

from hibali.events import Event
from transfers.entry import Entry
from transfers.stores.base import Facts, Item, Landed, Payload, Problem, Store, Unit


class Side(Protocol):
    """The part of a Store that a plan is made from."""

    @property
    def facts(self) -> Facts:
        """See Store."""

    def list(self) -> Iterator[Entry]:
        """See Store."""

    def digest(self, entries: Iterable[Entry]) -> Iterator[tuple[Entry, str | None, Problem | None]]:
        """See Store."""


class Source(Side, Protocol):
    """The half of a Store that is read from."""

    def read(self, units: Iterable[Unit]) -> Iterator[Payload]:
        """See Store."""


@runtime_checkable
class ListsAhead(Protocol):
    """A store that can list while something else is done."""

    def list_ahead(self) -> None:
        """Begin with the listing that `list` is going to be asked for; nothing else is asked before that."""


@runtime_checkable
class OverLines(Protocol):
    """A store that may be reached over several lines at once."""

    @property
    def several_lines(self) -> bool:
        """Whether further lines are up or on their way."""


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
