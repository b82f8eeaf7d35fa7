"""Define who may do what with a place, and what a store must be able to do to share it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from transfers.model.entry import Entry


class Permission(StrEnum):
    """What somebody may do with all files of a place; to write includes to read and to delete."""

    READ = "read"
    WRITE = "write"


@dataclass(frozen=True, slots=True)
class Grant:
    """A permission of one person or group, as the store names them; `until` None has no end."""

    who: str
    permission: Permission
    until: datetime | None = None

    def to_record(self) -> dict[str, str | None]:
        """Return the fields of JSON lines and of the ledger."""
        until = None if self.until is None else self.until.isoformat()
        return {"who": self.who, "permission": str(self.permission), "until": until}


@dataclass(frozen=True, slots=True)
class Reach:
    """What a change of access concerns: all files, their size in bytes, and how many entries it changes.

    Attributes:
        failures: How many entries could not be changed; `problems` has path, code and message of the first of them.
        blocked: Folders above the place that this person cannot enter, so that the permission has no effect.
    """

    files: int
    size: int
    changed: int
    failures: int = 0
    problems: tuple[tuple[bytes, str, str], ...] = ()
    blocked: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class ListedGrant:
    """A grant as its server lists it; `ours` if hibali gave it, None if it cannot be known."""

    grant: Grant
    ours: bool | None = None


class OtherView(ABC):
    """What a login sees through the interface in which shares are in effect. Methods raise `HibaliError` for what it may not see."""

    @abstractmethod
    def list_one(self) -> None:
        """Read the beginning of the listing."""

    @abstractmethod
    def beginning(self, path: bytes, most: int) -> bytes:
        """Return the first `most` bytes of a file."""


class Sharing(ABC):
    """The access to the root of an open store."""

    @abstractmethod
    def person(self, text: str) -> str:
        """Return the name of a person or group as the store wants it. Raise `UsageError` if it cannot be one."""

    @abstractmethod
    def plan(self, place: Entry, grant: Grant) -> Reach:
        """Count what `add` would change. Raise `RefusedError` if the place cannot be shared."""

    @abstractmethod
    def add(self, place: Entry, grant: Grant) -> Reach:
        """Give the permission; an earlier one of the same person for the same place is replaced."""

    @abstractmethod
    def remove(self, place: Entry, who: str) -> Reach:
        """Take away what `add` gave this person; what others gave stays."""

    @abstractmethod
    def people(self, place: Entry) -> list[ListedGrant]:
        """Return who has access besides the owner."""

    def view(self) -> OtherView | None:
        """Return how this login sees what others share with it; None if it does through the store."""
        return None
