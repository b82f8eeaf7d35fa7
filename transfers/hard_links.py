"""Names of one file: which of a listing are further names of one that came before, and which of them stand already."""

from __future__ import annotations

from collections.abc import Iterator

from transfers.entry import Entry, Kind
from transfers.plan import Action, Verb
from transfers.spool import Spool


class FirstNames:
    """Marks the names of a listing; held are only files with names still to come."""

    def __init__(self) -> None:
        self._first: dict[tuple[int, int], tuple[bytes, int]] = {}

    def mark(self, entry: Entry) -> Entry:
        """The entry, with the first name of its file where that came before."""
        if entry.kind is not Kind.FILE or entry.links < 2:
            return entry
        key = (entry.device, entry.inode)
        first, left = self._first.get(key, (entry.path, entry.links))
        if left > 1:
            self._first[key] = (first, left - 1)
        else:
            self._first.pop(key, None)
        return entry if first == entry.path else entry._replace(same_as=first)


class Names:
    """The further names of a plan, decided once it is known what becomes of the first ones."""

    def __init__(self) -> None:
        self._standing: dict[bytes, tuple[int, int]] = {}
        self._further = Spool()

    def holds(self, action: Action) -> bool:
        """Whether it is a further name, which is held back; a first name that stays is remembered."""
        if action.verb is Verb.LINK:
            self._further.add(action)
            return True
        target = action.target
        if target is not None and action.entry.links > 1 and action.verb in {Verb.KEEP, Verb.ADJUST}:
            self._standing[action.entry.path] = (target.device, target.inode)
        return False

    def decided(self) -> Iterator[Action]:
        """What is held back, kept where it is a name of that very file already."""
        for action in self._further:
            first, target = self._standing.get(action.entry.same_as), action.target
            if target is not None and first == (target.device, target.inode):
                yield Action(Verb.KEEP, action.entry, "a name of the same file already", target)
            else:
                yield action

    def close(self) -> None:
        """Forget them."""
        self._further.close()
