"""What a site's cache holds: every entry with its size, when it was used last, and which runs hold it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from hibali.locations import Location
from hibali.sites import Purge
from runs.cache_entry import IMAGE, Name, split_path
from runs.cache_lease import HELD, Use, read_use, run_of
from runs.cache_times import time_ns
from runs.run import Run
from runs.stage import Carrier
from transfers.entry import Entry, Kind
from transfers.far import Far

_HOUR_NS = 3600 * 1_000_000_000
_LONGEST_NS = (
    90 * 24 * _HOUR_NS
)  # a run of another machine that left no trace of its end for so long has none to come
_LISTED = (b"cache", b"images")


@dataclass(frozen=True, slots=True)
class Kept:
    """One entry; `used_ns` is when a run last began to use it, else when it came; `oldest_ns` is by what a site deletes."""

    name: Name
    files: int = 0
    bytes: int = 0
    used_ns: int = 0
    oldest_ns: int | None = None
    held_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Survey:
    """A look at a site's cache at `now_ns`: its entries by name, everybody's uses, and the runs among them that are not over."""

    kept: tuple[Kept, ...]
    uses: tuple[Use, ...]
    holding: frozenset[str]
    now_ns: int

    @property
    def superseded(self) -> list[str]:
        """Runs that are over and of whose entries none is left that nobody used later."""
        present = {each.name: each.used_ns for each in self.kept}
        return [
            use.run
            for use in self.uses
            if use.run not in self.holding and not any(present.get(name) == use.at_ns for name in use.names)
        ]


@dataclass(slots=True)
class _Found:
    """An entry while its files are counted."""

    files: int = 0
    bytes: int = 0
    came_ns: int = 0
    oldest_ns: int | None = None
    whole: bool = True


def look(
    far: Far,
    carrier: Carrier,
    place: Callable[[bytes], Location],
    work: bytes,
    find_run: Callable[[str], Run | None],
    now_ns: int,
    purge: Purge | None = None,
) -> Survey:
    """Look at all of it: two listings, and a question or two for each run that may still hold something.

    `place` makes a location of an absolute path there; `find_run` knows the runs of this machine. The site's work folder can be
    shared by several: of a run that nobody here knows, its own folder at the site tells whether it is over.
    """
    listed: list[Entry] = []
    for folder in _LISTED:
        if far.stat(work + b"/" + folder) is not None:
            found_there = carrier.entries(place(work + b"/" + folder))
            listed += [entry._replace(path=folder + b"/" + entry.path) for entry in found_there]
    found = count_entries(listed, purge)
    uses = []
    for entry in listed:
        above, _, name = entry.path.rpartition(b"/")
        run = run_of(name) if above == HELD else None
        use = read_use(far, work, run, entry.mtime_ns) if run is not None else None
        if use is not None:
            uses.append(use)
    # those too that hold nothing yet: what they are to find may be on its way
    holding = frozenset(use.run for use in uses if not _is_over(far, work, use, find_run(use.run), now_ns))
    return Survey(tuple(join(found, uses, holding)), tuple(uses), holding, now_ns)


def count_entries(listed: Iterable[Entry], purge: Purge | None = None) -> dict[Name, _Found]:
    """The entries that a listing of the work folder shows; an image that is being made is none yet; pure."""
    found: dict[Name, _Found] = {}
    ready: set[Name] = set()
    for entry in listed:
        split = split_path(entry.path)
        if split is None:
            continue
        name, below = split
        counted = found.setdefault(name, _Found())
        if below.partition(b"/")[0] == b"ready":
            ready.add(name)
        if below.startswith(b".hibali-"):
            counted.whole = False
        if entry.kind is Kind.FOLDER:
            continue
        counted.files += 1
        counted.bytes += entry.size if entry.kind is Kind.FILE else 0
        counted.came_ns = max(counted.came_ns, entry.ctime_ns or entry.mtime_ns)
        if purge is not None and entry.kind is Kind.FILE:
            own = time_ns(purge, entry)
            counted.oldest_ns = own if counted.oldest_ns is None else min(own, counted.oldest_ns)
    return {
        name: each for name, each in found.items() if name.kind != IMAGE or (name in ready and each.whole)
    }


def join(found: Mapping[Name, _Found], uses: Iterable[Use], holding: frozenset[str]) -> list[Kept]:
    """The entries with who used them last and who holds them, the least recently used first; pure."""
    last: dict[Name, int] = {}
    held: dict[Name, list[str]] = {}
    for use in uses:
        for name in use.names:
            last[name] = max(last.get(name, 0), use.at_ns)
            if use.run in holding:
                held.setdefault(name, []).append(use.run)
    kept = [
        Kept(
            name,
            each.files,
            each.bytes,
            last.get(name) or each.came_ns,
            each.oldest_ns,
            tuple(sorted(held.get(name, ()))),
        )
        for name, each in found.items()
    ]
    return sorted(kept, key=lambda each: (each.used_ns, each.name))


def _is_over(far: Far, work: bytes, use: Use, run: Run | None, now_ns: int) -> bool:
    """Whether nothing of that run will look at its inputs any more."""
    if run is not None and run.state.final:
        return True
    folder = work + b"/runs/" + use.run.encode("ascii")
    if far.stat(folder + b"/exit.json") is not None:
        return True
    if far.stat(folder) is None:  # which is made before anything is held
        return now_ns - use.at_ns > _HOUR_NS
    return (run is None or run.state.ended) and now_ns - use.at_ns > _LONGEST_NS
