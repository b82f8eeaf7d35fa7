"""A target some of whose files nobody has proven: somebody else wrote them for a call that did not come to its end."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from transfers.entry import Entry
from transfers.mover import Side
from transfers.store import Facts, Problem


class UnprovenSide:
    """The same, but that of those files nothing counts: where the source has them a plan has them, too."""

    def __init__(self, side: Side, paths: Collection[bytes]) -> None:
        self._side = side
        self._paths = paths

    @property
    def facts(self) -> Facts:
        """The side's own."""
        return self._side.facts

    def list(self) -> Iterator[Entry]:
        """See Store."""
        for entry in self._side.list():
            unproven = entry.path in self._paths
            yield entry._replace(mtime_ns=0, digest=None) if unproven else entry

    def digest(self, entries: Iterable[Entry]) -> Iterator[tuple[Entry, str | None, Problem | None]]:
        """See Store."""
        return self._side.digest(entries)
