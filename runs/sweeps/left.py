"""What the tasks of a sweep left, by digest: as it was proven when it was collected, else hashed at its site, all of it together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from hibali.errors import NotFoundError
from hibali.events import Failed, Listener
from hibali.locations import Location
from hibali.sites import Site, local_site
from hibali.text import printable
from runs.book import Book
from runs.bundles.outputs import Left
from runs.run import Run
from runs.sweeps.collect import ChosenFiles, choose_tasks
from runs.sweeps.sweep import sweep_of
from transfers.entry import Entry, Kind
from transfers.places import open_store
from transfers.receipt import Receipt
from transfers.record import moved_by
from transfers.request import Request, Saving
from transfers.synchronise import synchronise


def left_by_tasks(run: Run, book: Book, site: Callable[[], Site]) -> Left:
    """Each file as `N/PATH`: the number of its task, and its path in the work folder of that task, as collecting names it.

    Of tasks that failed, too, an output is missing that is not there. Raises `NotFoundError` where the folder is gone.
    """
    for record in reversed(book.records(run.id)):
        moved = moved_by(str(record.get("receipt"))) if record.get("kind") == "collected" else None
        if moved is not None:
            chosen = _choose(run, (_at_site(path, each.size) for path, each in sorted(moved.items())))
            return Left(
                {name: (moved[name].digest, moved[name].size) for name in chosen.files}, chosen.problems
            )
    return _hash(run, tasks_folder(run, site()))


def tasks_folder(run: Run, site: Site) -> Location:
    """The folder of all tasks at their site."""
    folder = (run.folder + b"/tasks").decode("utf-8", "surrogateescape")
    return Location(site, folder, f"{site.name}:{folder}")


def _at_site(name: bytes, size: int) -> Entry:
    number, _, path = name.partition(b"/")
    return Entry(number + b"/work/" + path, Kind.FILE, size)


def _choose(run: Run, entries: Iterable[Entry]) -> ChosenFiles:
    sweep = sweep_of(run)
    return choose_tasks(entries, sweep.outputs(), sweep.tasks.keys())


def _hash(run: Run, source: Location) -> Left:
    store = open_store(source)
    try:
        if store.stat() is None:
            raise NotFoundError(
                "outputs-gone",
                "the sweep's folder is not at the site any more, and no record says what it held",
                about=f"{source.site.name}:{printable(run.folder)}",
                hint="Run it again.",
            )
        chosen = _choose(run, store.list())
        left = Left(problems=chosen.problems)
        names = {entry.path: name for name, entry in chosen.files.items()}
        for entry, digest, problem in store.digest(list(chosen.files.values())):
            if digest is None:
                code, message = (
                    (problem.code, problem.message) if problem else ("unreadable", "no digest came")
                )
                left.problems.append(Failed(names[entry.path], code, message))
            else:
                left.files[names[entry.path]] = (digest, entry.size)
        return left
    finally:
        store.close()


def pull_named(
    operation: str, run: Run, site: Site, folder: Path, names: Sequence[bytes], tell: Listener
) -> Receipt:
    """Bring just these files of the tasks into a folder of this machine, under those names."""
    source = tasks_folder(run, site)
    wanted = {_at_site(name, 0).path: name for name in names}
    store = open_store(source)
    try:
        chosen = {wanted[entry.path]: entry for entry in store.list() if entry.path in wanted}
    finally:
        store.close()
    target = Location(local_site(), str(folder), str(folder), typed_local=True)
    return synchronise(Request(operation, source, target, saving=Saving(save=False), chosen=chosen), tell)
