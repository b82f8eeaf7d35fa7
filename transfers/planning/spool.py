"""Keep plans and listings on disk that are too large for memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from transfers.agent.protocol import unpack_records
from transfers.model.entry import entry_of
from transfers.model.spool import Spooled, decode_list, entry_from_list, entry_to_list
from transfers.model.store import PlainPage
from transfers.planning.actions import NEW, Action, Verb

_VERBS = {verb.value: verb for verb in Verb}  # many times faster than the class
_COPIES = b"c"  # begins a block of packed records; one of JSON begins with a bracket


class Spool(Spooled[Action]):
    """The actions of a plan."""

    def add_copies(self, page: PlainPage) -> None:
        """Append the copying of every name of a page; it stays packed."""
        self.append(_COPIES + page.packed)
        self.count += page.names - 1

    def __iter__(self) -> Iterator[Action]:
        """See Spooled."""
        for content in self.blocks():
            if content.startswith(_COPIES):
                for record in unpack_records(content[len(_COPIES) :]):
                    yield Action(Verb.COPY, entry_of(record), NEW)
            else:
                yield self._unpack(decode_list(content))

    def _pack(self, value: Action) -> list[Any]:
        target = entry_to_list(value.target) if value.target is not None else None
        return [value.verb, value.because, value.implied, entry_to_list(value.entry), target]

    def _unpack(self, fields: list[Any]) -> Action:
        verb, because, implied, entry, target = fields
        found = entry_from_list(entry), because, entry_from_list(target) if target else None
        return Action(_VERBS[verb], *found, implied)
