"""List the cache of a site, and evict the least recently used entries."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from hibali.config.model import Purge
from hibali.errors import HibaliError
from hibali.locations import Location
from runs.cache import HELD, IMAGE, Name, Use, read_use, remove_use, run_of, split_path, time_ns
from runs.model import Carrier, Run
from transfers.model.entry import Entry, Kind
from transfers.remote.host import RemoteHost

_HOUR_NS = 3600 * 1_000_000_000
_LONGEST_NS = 90 * 24 * _HOUR_NS  # an unfinished run of another machine counts as ended after this time
_LISTED = (b"cache", b"images")


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """One entry; `used_ns` is the time when a run last started to use it, or of its creation; the site deletes by `oldest_ns`."""

    name: Name
    files: int = 0
    bytes: int = 0
    used_ns: int = 0
    oldest_ns: int | None = None
    held_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CacheContents:
    """A site's cache at `now_ns`: its entries by name, all uses, and the unfinished runs among them."""

    entries: tuple[CacheEntry, ...]
    uses: tuple[Use, ...]
    holding: frozenset[str]
    now_ns: int

    @property
    def superseded(self) -> list[str]:
        """Runs that have ended and whose entries were all used later by others, or were removed."""
        present = {each.name: each.used_ns for each in self.entries}
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
    created_ns: int = 0
    oldest_ns: int | None = None
    whole: bool = True


def list_entries(
    host: RemoteHost,
    carrier: Carrier,
    place: Callable[[bytes], Location],
    work: bytes,
    find_run: Callable[[str], Run | None],
    now_ns: int,
    purge: Purge | None = None,
) -> CacheContents:
    """List a site's cache: two listings, and a query or two for each run that may hold something.

    `place` makes a location of an absolute path there; `find_run` knows the runs of this machine. A work folder can be shared: a run that is
    unknown here has ended if its folder at the site has an exit record.
    """
    listed: list[Entry] = []
    for folder in _LISTED:
        if host.stat(work + b"/" + folder) is not None:
            found_there = carrier.entries(place(work + b"/" + folder))
            listed += [entry._replace(path=folder + b"/" + entry.path) for entry in found_there]
    found = count_entries(listed, purge)
    uses = []
    for entry in listed:
        above, _, name = entry.path.rpartition(b"/")
        run = run_of(name) if above == HELD else None
        use = read_use(host, work, run, entry.mtime_ns) if run is not None else None
        if use is not None:
            uses.append(use)
    # include runs that hold nothing yet: their inputs may be in transfer
    holding = frozenset(use.run for use in uses if not _is_over(host, work, use, find_run(use.run), now_ns))
    return CacheContents(tuple(join(found, uses, holding)), tuple(uses), holding, now_ns)


def count_entries(listed: Iterable[Entry], purge: Purge | None = None) -> dict[Name, _Found]:
    """Return the entries in a listing of the work folder, without images that are being made."""
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
        counted.created_ns = max(counted.created_ns, entry.ctime_ns or entry.mtime_ns)
        if purge is not None and entry.kind is Kind.FILE:
            own = time_ns(purge, entry)
            counted.oldest_ns = own if counted.oldest_ns is None else min(own, counted.oldest_ns)
    return {
        name: each for name, each in found.items() if name.kind != IMAGE or (name in ready and each.whole)
    }


def join(found: Mapping[Name, _Found], uses: Iterable[Use], holding: frozenset[str]) -> list[CacheEntry]:
    """Join entries with their uses and holders, the least recently used first."""
    last: dict[Name, int] = {}
    held: dict[Name, list[str]] = {}
    for use in uses:
        for name in use.names:
            last[name] = max(last.get(name, 0), use.at_ns)
            if use.run in holding:
                held.setdefault(name, []).append(use.run)
    entries = [
        CacheEntry(
            name,
            each.files,
            each.bytes,
            last.get(name) or each.created_ns,
            each.oldest_ns,
            tuple(sorted(held.get(name, ()))),
        )
        for name, each in found.items()
    ]
    return sorted(entries, key=lambda each: (each.used_ns, each.name))


def _is_over(host: RemoteHost, work: bytes, use: Use, run: Run | None, now_ns: int) -> bool:
    """Return whether a run will not read its inputs any more."""
    if run is not None and run.state.final:
        return True
    folder = work + b"/runs/" + use.run.encode("ascii")
    if host.stat(folder + b"/exit.json") is not None:
        return True
    if host.stat(folder) is None:  # the folder is created before anything is held
        return now_ns - use.at_ns > _HOUR_NS
    return (run is None or run.state.ended) and now_ns - use.at_ns > _LONGEST_NS


ASIDE = b"evicted"
_ASIDE_NAME = re.compile(rb"(sha256|origin|image-([a-z][a-z0-9_-]*))-([0-9a-f]{64})-[0-9a-f]{32}")


class EvictionResult(StrEnum):
    """The result for an entry to evict."""

    EVICTED = "evicted"
    PLANNED = "planned"
    HELD = "held"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Evicted:
    """One entry and its result; `because` is the reason if it was kept."""

    entry: CacheEntry
    result: EvictionResult
    because: str = ""


def choose_entries(
    contents: CacheContents, *, keep_bytes: int | None = None, keep_seconds: float | None = None
) -> list[CacheEntry]:
    """Choose the entries to evict, the least recently used first.

    With `keep_bytes` only until at most so much is left, with `keep_seconds` only those unused for so long, else all. Entries that a run holds
    stay, and count.
    """
    left = sum(each.bytes for each in contents.entries)
    chosen = []
    for each in contents.entries:
        recent = keep_seconds is not None and contents.now_ns - each.used_ns <= keep_seconds * 1e9
        if each.held_by or recent or (keep_bytes is not None and left <= keep_bytes):
            continue
        chosen.append(each)
        left -= each.bytes
    return chosen


def evict(
    host: RemoteHost,
    work: bytes,
    contents: CacheContents,
    chosen: Sequence[CacheEntry],
    on_event: Callable[[Evicted], None],
) -> None:
    """Evict entries, and finish an earlier interrupted eviction. `work` belongs to this account alone."""
    folder = work + b"/" + ASIDE
    by_name = {each.name: each for each in chosen}
    if chosen:
        host.make_folder(folder)
    for each in chosen:
        host.move(work + b"/" + each.name.path, folder + b"/" + _aside_name(each.name))
    aside = [(entry, name) for entry in host.names(folder) if (name := _name_of(entry)) is not None]
    held = _held_now(host, work, contents) if aside else frozenset()
    for entry, name in aside:
        on_event(_settle(host, work, folder + b"/" + entry, by_name.pop(name, CacheEntry(name)), held))
    for name, each in by_name.items():
        if host.stat(work + b"/" + name.path) is not None:
            on_event(Evicted(each, EvictionResult.FAILED, "it could not be moved aside"))
    for run in contents.superseded:
        remove_use(host, work, run)


def _settle(host: RemoteHost, work: bytes, aside: bytes, entry: CacheEntry, held: frozenset[Name]) -> Evicted:
    """Remove entries that were set aside, or restore them if a run held them meanwhile."""
    try:
        if entry.name in held:
            home = work + b"/" + entry.name.path
            host.make_folder(home.rpartition(b"/")[0])
            host.move(aside, home)
            if host.stat(aside) is None:
                return Evicted(entry, EvictionResult.HELD, "a run started to use it meanwhile")
        if entry.name.kind == IMAGE:  # folders of an image may be read-only
            host.run(("chmod", "-R", "u+rwX", "--", aside), timeout=600.0)
        host.remove_tree(aside)
    except HibaliError as problem:
        return Evicted(entry, EvictionResult.FAILED, problem.message)
    return Evicted(entry, EvictionResult.EVICTED)


def _held_now(host: RemoteHost, work: bytes, contents: CacheContents) -> frozenset[Name]:
    """Return what runs hold now, including those that started after the listing."""
    over = {use.run for use in contents.uses} - contents.holding
    runs = (run_of(name) for name in host.names(work + b"/" + HELD))
    uses = [read_use(host, work, run) for run in runs if run is not None and run not in over]
    return frozenset(name for use in uses if use is not None for name in use.names)


def _aside_name(name: Name) -> bytes:
    kind = f"{name.kind}-{name.runtime}" if name.runtime else name.kind
    return f"{kind}-{name.digest}-{secrets.token_hex(16)}".encode("ascii")


def _name_of(aside: bytes) -> Name | None:
    found = _ASIDE_NAME.fullmatch(aside)
    if found is None:
        return None
    digest = found[3].decode("ascii")
    if found[2] is not None:
        return Name(IMAGE, digest, found[2].decode("ascii"))
    return Name(found[1].decode("ascii"), digest)
