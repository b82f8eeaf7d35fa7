"""What a store has to offer for a whole tree in it to be removed."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from transfers.store import Problem


@runtime_checkable
class Vacating(Protocol):
    """A store whose root can go with all in it; its lock is held."""

    def check_vacant(self, *, itself: bool) -> None:
        """Raise `TryLaterError("locked")` where somebody of this account is at work at a place above the root or below it.

        Below as far as the last listing showed. With `itself` a root that is a symlink by itself is a `RefusedError`.
        """

    def sweep(self) -> list[tuple[bytes, Problem]]:
        """Remove what hibali keeps below the root as the last listing showed it, partial files too; what could not be."""

    def vacate(self) -> Problem | None:
        """Remove what hibali keeps at the root, give the lock back, and remove the root; why it stays, where it does."""
