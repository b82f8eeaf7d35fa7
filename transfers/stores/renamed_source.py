"""Present a source whose entries have the paths that `--rename` gives them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from itertools import islice
from typing import Any, NamedTuple

from transfers.model.entry import NO_SOURCE, Entry, Kind, enclosing
from transfers.model.facts import Facts, unsafe_component
from transfers.model.renaming import BATCH, Rewriting
from transfers.model.spool import Spooled, entry_from_list, entry_to_list, sort_on_disk
from transfers.model.store import Source, Store, read_renamed, with_answers
from transfers.model.units import ListingIncompleteError, Payload, Problem, Unit
from transfers.stores.single_file import GatheredSource

_Problems = list[ListingIncompleteError]
_RUN = 100_000  # entries of a listing that are sorted in memory at a time
_RUN_BYTES = 64 * 1024  # bytes of each sorted run that stay in memory


class RenamedSource(Source):
    """A source with other paths; each entry has the one that it has in `source`, so that no list of them is needed."""

    def __init__(self, source: Store | GatheredSource, rules: Sequence[str]) -> None:
        """`rules` are those of `Rules.rename`; without any, a source that is only read."""
        self.source = source
        self._rules = rules

    @property
    def facts(self) -> Facts:
        """The source's own."""
        return self.source.facts

    @property
    def several_channels(self) -> bool:
        """See Store."""
        return self.source.several_channels

    def list(self) -> Iterator[Entry]:
        """See Store, but a plan must check it: several entries may have one path, and a path may lead out of the root.

        A folder whose whole content goes elsewhere is left out, and one that only the new paths have is added.
        """
        problems: _Problems = []
        found = sort_on_disk(
            self._renamed(problems), lambda each: each.entry.order, lambda: _FoundSpool(_RUN_BYTES), _RUN
        )
        yield from _with_needed_folders(found, adds=self.facts.folders)
        for problem in problems:
            raise problem  # its paths are those of the source

    def _renamed(self, problems: _Problems) -> Iterator[_Found]:
        def listed() -> Iterator[Entry]:
            try:
                yield from self.source.list()
            except ListingIncompleteError as problem:
                problems.append(problem)

        with closing(Rewriting(self._rules)) as rewriting:
            coming = _with_contents_known(listed())
            while some := list(islice(coming, BATCH)):
                paths = rewriting.rewrite([each.entry.path for each in some])
                for (entry, is_filled), path in zip(some, paths, strict=True):
                    former = b"" if path == entry.path else entry.path
                    yield _Found(entry._replace(path=path, renamed_from=former), is_filled)

    def read(self, units: Iterable[Unit]) -> Iterator[Payload]:
        """See Store."""
        return read_renamed(self.source.read, units, _as_at_source)

    def digest(self, entries: Iterable[Entry]) -> Iterator[tuple[Entry, str | None, Problem | None]]:
        """See Store."""
        for entry, (_, digest, problem) in with_answers(self.source.digest, entries, _as_at_source):
            yield entry, digest, problem

    def name_in_store(self, entry: Entry) -> bytes:
        """Return the path of an entry in the store."""
        entry = _as_at_source(entry)
        return self.source.name_in_store(entry) if isinstance(self.source, GatheredSource) else entry.path


def _as_at_source(entry: Entry) -> Entry:
    """Return the entry as the source lists it."""
    return entry._replace(path=entry.source_path, renamed_from=b"")


class _Found(NamedTuple):
    """An entry, and whether it is a folder with contents."""

    entry: Entry
    is_filled: bool


class _FoundSpool(Spooled[_Found]):
    def _pack(self, value: _Found) -> list[Any]:
        return [value.is_filled, *entry_to_list(value.entry)]

    def _unpack(self, fields: list[Any]) -> _Found:
        return _Found(entry_from_list(fields[1:]), fields[0])


def _with_contents_known(entries: Iterable[Entry]) -> Iterator[_Found]:
    """Yield entries in canonical order, of which the content of a folder follows it."""
    coming = iter(entries)
    entry = next(coming, None)
    while entry is not None:
        following = next(coming, None)
        is_folder = entry.kind is Kind.FOLDER
        yield _Found(entry, is_folder and following is not None and following.order.startswith(entry.order))
        entry = following


def _with_needed_folders(found: Iterable[_Found], *, adds: bool) -> Iterator[Entry]:
    """Yield renamed entries in canonical order with the folders around them, and no folder that is filled no more."""
    held: list[Entry] = []  # filled folders, into which nothing goes so far
    last = b""
    for entry, is_filled in found:
        held = [folder for folder in held if entry.order.startswith(folder.order)]
        if is_filled:
            held.append(entry)
            continue
        around = [] if unsafe_component(entry.path) else [*enclosing(entry.path)][-2::-1]
        for path in around:
            folders = [folder for folder in held if folder.path == path]
            yield from folders
            if not folders and adds and not last.startswith(path + b"/"):
                yield Entry(path, Kind.FOLDER, renamed_from=NO_SOURCE)
        held = [folder for folder in held if folder.order == entry.order]
        yield entry
        last = entry.order
