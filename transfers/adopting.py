"""Files that somebody else writes at a target: what a store offers that can prove them there and give them their names."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from transfers.store import Item, Landed, Problem


@dataclass(frozen=True, slots=True)
class Written:
    """An item that somebody wrote under the partial name `partial`, and the sha256 in hexadecimal that it has to have."""

    item: Item
    partial: bytes
    digest: str


@runtime_checkable
class Adopter(Protocol):
    """The part of a Store that some have; the target must be locked."""

    def invite(self, items: Iterable[Item]) -> Iterator[tuple[Item, bytes, Problem | None]]:
        """Make room for files that somebody else will write: the path below the root that each is to be written at.

        What lies there is kept, from this call to the next, until it is adopted or another landing brings the same file.
        """

    def adopt(self, written: Iterable[Written]) -> Generator[Landed, None, None]:
        """Hash them there; what is right stands under its name, durable, and anything else of them is gone.

        A problem is to be sent `again` where nothing arrived, or something else than was read.
        """
