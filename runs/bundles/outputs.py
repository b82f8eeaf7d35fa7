"""The digests of what a run left: as they were proven when it was collected, else hashed at its site."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from hibali.errors import NotFoundError
from hibali.events import Failed
from hibali.sites import Site
from hibali.text import printable
from runs.book import Book
from runs.collect import choose_outputs, work_of
from runs.run import Run
from transfers.entry import Entry, Kind
from transfers.places import open_store
from transfers.record import moved_by
from transfers.store import Store


@dataclass(slots=True)
class Left:
    """sha256 and size by path, relative to the work folder, and what is wrong with the rest (S12)."""

    files: dict[bytes, tuple[str, int]] = field(default_factory=dict)
    problems: list[Failed] = field(default_factory=list)

    @property
    def size(self) -> int:
        """Of all files together."""
        return sum(size for _, size in self.files.values())

    @property
    def digests(self) -> dict[bytes, str]:
        """The sha256 of each file alone."""
        return {path: digest for path, (digest, _) in self.files.items()}


def recorded_outputs(run: Run, book: Book) -> Left | None:
    """What one `runs collect` moved whole, with the digests that both ends had then; None where no call did by itself."""
    for record in reversed(book.records(run.id)):
        if record.get("kind") != "collected":
            continue
        moved = moved_by(str(record.get("receipt")))
        if moved is not None:
            entries = [Entry(path, Kind.FILE, each.size) for path, each in moved.items()]
            chosen = choose_outputs(run.outputs, entries)
            files = {path: (moved[path].digest, moved[path].size) for path in chosen.files}
            return Left(files, chosen.problems)
    return None


def hash_outputs(run: Run, site: Site) -> Left:
    """List the work folder and hash every output there, now. Raises `NotFoundError` where the folder is gone."""
    store = open_store(work_of(run, site))
    try:
        if store.stat() is None:
            raise NotFoundError(
                "outputs-gone",
                "the run's folder is not at the site any more, and no record says what it held",
                about=f"{site.name}:{printable(run.folder)}",
                hint="Run it again, and bundle that run.",
            )
        return _hash(run, store)
    finally:
        store.close()


def _hash(run: Run, store: Store) -> Left:
    listed: dict[bytes, Entry] = {}
    chosen = choose_outputs(run.outputs, _noting(store.list(), listed))
    left = Left(problems=chosen.problems)
    for entry, digest, problem in store.digest([listed[path] for path in chosen.files]):
        if digest is None:
            code, message = (problem.code, problem.message) if problem else ("unreadable", "no digest came")
            left.problems.append(Failed(entry.path, code, message))
        else:
            left.files[entry.path] = (digest, entry.size)
    return left


def _noting(entries: Iterable[Entry], listed: dict[bytes, Entry]) -> Iterator[Entry]:
    for entry in entries:
        if entry.kind is Kind.FILE:
            listed[entry.path] = entry
        yield entry
