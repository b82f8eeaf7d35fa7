"""The large files that an earlier call began at an agent's target, and which of them may be gone on with."""

from __future__ import annotations

from typing import Any

from transfers.agent import frames
from transfers.store import Item


class BegunFiles:
    """What the agent tells of them when it begins to land: how far each one came, and which file it was."""

    def __init__(self) -> None:
        self._known: dict[bytes, tuple[int, int, str, int]] = {}

    def take(self, header: dict[str, Any]) -> None:
        """Read the answer to `land`; raises what an answer of another shape raises."""
        for path, size, mtime_ns, tag, there in header["begun"]:
            self._known[frames.bytes_of(path)] = (int(size), int(mtime_ns), str(tag), int(there))

    def bytes_of(self, item: Item) -> int:
        """How many bytes of this very file are there; 0 of one that was another then."""
        entry = item.entry
        size, mtime_ns, tag, there = self._known.get(entry.path, (-1, 0, "", 0))
        same = (size, mtime_ns, tag) == (entry.size, entry.mtime_ns, entry.etag or "")
        return there if same and 0 < there < size else 0

    @property
    def bytes(self) -> int:
        """Of all of them."""
        return sum(there for _, _, _, there in self._known.values())
