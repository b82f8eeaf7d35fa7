"""Names that a target takes for one another, because it does not tell upper from lower case."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator

from hibali.text import printable
from transfers.entry import Entry
from transfers.plan import Conflict
from transfers.rules import Selector


class FoldedNames:
    """All names of both sides, as a folding filesystem may see them; only made for such targets, because it holds them all."""

    def __init__(self) -> None:
        self._names: dict[str, bytes] = {}

    def watch(
        self, entries: Iterable[Entry], conflicts: list[Conflict], selected: Selector = bool
    ) -> Iterator[Entry]:
        """The same entries; those that cannot stand beside a name that came before are told as conflicts."""
        for entry in entries:
            clash = self._clash(entry) if selected(entry) else None
            if clash is not None:
                conflicts.append(clash)
            yield entry

    def _clash(self, entry: Entry) -> Conflict | None:
        other = self._names.setdefault(_folded(entry.path), entry.path)
        if other == entry.path:
            return None
        words = f"the target does not tell it from {printable(other)}: upper and lower case are one there"
        return Conflict(entry, "folded-name", words, refuse=True)


def _folded(path: bytes) -> str:
    """As one that folds most: cases and ways of composing (macOS, ext4 `casefold`) are one; what is not UTF-8 stays."""
    text = path.decode("utf-8", "surrogateescape")
    return unicodedata.normalize("NFD", unicodedata.normalize("NFD", text).casefold())
