"""Stage inputs into the content-addressed cache of a site, or use them in place."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol

from hibali.config.model import Site
from hibali.errors import Exit, IncompleteError
from hibali.events import Event, Listener, Moved, ignore
from hibali.locations import Location
from hibali.retry import when_free, with_retries
from runs.cache.entries import CONTENT, CacheRecords, Hold, Name, Times, oldest_ns, read_name, times_at
from runs.inputs import Identity
from transfers.entry import Entry, Kind
from transfers.operation import synchronise
from transfers.remote.host import RemoteHost
from transfers.request import Request, Saving
from transfers.rules import Rules
from transfers.stores.open_store import open_store

_PATIENCE_SECONDS = 150.0  # a lease lasts 120, and a little more is left to look and to land


class Carrier(Protocol):
    """How files get from one location to another; `runs.stage.Synchroniser`, unless a test counts."""

    def copy(self, source: Location, target: Location, on_event: Listener, *, checksum: bool) -> None:
        """Bring a file or folder there, verified, or raise; with `checksum` what stands there is hashed."""

    def entries(self, location: Location) -> Iterable[Entry]:
        """Everything below a folder, in order."""


def at_site(site: Site) -> Callable[[bytes], Location]:
    """Makes locations of absolute paths at a site."""

    def place(path: bytes) -> Location:
        text = path.decode("utf-8", "surrogateescape")
        return Location(site, text, f"{site.name}:{text}")

    return place


class Cache:
    """The content-addressed cache of a site, and what is remembered of it here (S5)."""

    def __init__(
        self,
        host: RemoteHost,
        site: str,
        work: bytes,
        target: Callable[[bytes], Location],
        carrier: Carrier,
        times: Times | None = None,
    ) -> None:
        """`work` is the site's work folder, absolute; `target` makes a location of an absolute path there.

        `times` are those of a site that deletes by itself.
        """
        self._host = host
        self._work = work
        self._run_store = CacheRecords(site)
        self._target = target
        self._carrier = carrier
        self._times = times
        self._hold: Hold | None = None

    def location(self, path: bytes) -> Location:
        """A path at the site as others open it."""
        return self._target(path)

    def hold(self, run: str, identities: Iterable[Identity]) -> None:
        """From now on whatever is used here is held for that run, and these before anybody looks whether they are there."""
        self._hold = Hold(self._host, self._work, run)
        self._hold.take(*(each.name for each in identities if each.digest))

    def use(self, name: Name) -> bytes:
        """The absolute path of an entry, which is held by the run, if there is one."""
        if self._hold is not None:
            self._hold.take(name)
        return self._work + b"/" + name.path

    def stage_with_retries(self, identity: Identity, source: Location, on_event: Listener = ignore) -> bytes:
        """The same, where somebody else may be at it: whoever comes second waits until the lease of a dead one would be over."""

        def bring() -> bytes:
            return with_retries(
                lambda: self.bring(identity, source, on_event),
                subject=source.text,
                attempts=6,
                on_event=on_event,
            )

        return when_free(bring, subject=source.text, patience=_PATIENCE_SECONDS, on_event=on_event)

    def bring(self, identity: Identity, source: Location, on_event: Listener = ignore) -> bytes:
        """The absolute path at the site of a verified copy of `source`; nothing moves where there is one.

        Raises `IncompleteError` when the input is no longer what was identified.
        """
        known = self._content_of(identity)
        if known is not None and self._stands(Name(CONTENT, known), known):
            return self.use(Name(CONTENT, known))
        single = identity.files is not None and b"" in identity.files
        if self._stands(identity.name, identity.digest if single else None):
            return self.use(identity.name)
        path = self.use(identity.name)
        there = self.mark(path) is not None
        if there and self._has_more(path, identity):
            self._host.remove_tree(path)
            there = False
        self._host.make_folder(path.rpartition(b"/")[0])
        moved = _MovedDigests(on_event)
        self._carrier.copy(source, self._target(path), moved, checksum=there)
        if self._times is not None and moved.digests:
            below = [path + b"/" + each for each in moved.digests]
            self._times.begin([path] if self._is_file(path) else below)
        if single:
            if (
                set(moved.digests.values()) != {identity.digest}
                and self._host.digest(path) != identity.digest
            ):
                raise _changed(source)
        elif identity.files is not None:
            if not moved.digests.items() <= identity.files.items():
                raise _changed(source)
        else:
            path = self._file_by_content(identity, path, moved)
        self._remember(path, source.text)
        return path

    def size_at_site(self, identity: Identity) -> int:
        """How many bytes of an input need not move, as far as this account's own book and a look at the site tell."""
        known = self._content_of(identity)
        name = identity.name if known is None else Name(CONTENT, known)
        path = self._work + b"/" + name.path
        found = self._host.stat(path)
        if found is None:
            return 0
        if found.kind is Kind.FILE:
            return found.size if identity.size in {None, found.size} else 0
        return sum(each.size for each in self._carrier.entries(self._target(path)) if each.kind is Kind.FILE)

    def mark(self, path: bytes) -> str | None:
        """What would change if anybody touched a file or tree there; None where there is nothing."""
        entry = self._host.stat(path)
        if entry is None or entry.kind is Kind.FILE:
            return None if entry is None else _mark(entry)
        whole = hashlib.sha256()
        for below in self._carrier.entries(self._target(path)):
            whole.update(b"%d:%b%b\n" % (len(below.path), below.path, _mark(below).encode("ascii")))
        return whole.hexdigest()

    def warn_of_purge(self, paths: Mapping[str, bytes], wait_seconds: float) -> None:
        """Tell which of these inputs, by what they are called, the site itself may delete before a run starts."""
        if self._times is None:
            return
        for what, path in paths.items():
            if self._times.covers(path):
                self._times.warn(what, path, self._oldest(path), wait_seconds)

    def _stands(self, name: Name, digest: str | None) -> bool:
        """Whether an entry is there as it was after our own look, or is of that digest now."""
        path, times = self.use(name), self._times
        if times is not None and times.may_refresh(path) and times.is_due(self._oldest(path)):
            times.refresh(path)  # and then it is looked at anew
        mark = self.mark(path)
        if mark is None or self._run_store.mark_of(path) == mark:
            return mark is not None
        if digest is None or not self._is_file(path) or self._host.digest(path) != digest:
            return False
        if self.mark(path) != mark:  # it changed while it was read
            return False
        self._run_store.note_mark(path, mark)
        return True

    def _is_file(self, path: bytes) -> bool:
        found = self._host.stat(path)
        return found is not None and found.kind is Kind.FILE

    def _has_more(self, path: bytes, identity: Identity) -> bool:
        """Whether something stands there that no copy would take away: of another kind, or more files than the input has."""
        found = self._host.stat(path)
        if found is None or identity.files is None:
            return False
        single = b"" in identity.files
        if single or found.kind is not Kind.FOLDER:
            return found.kind is not (Kind.FILE if single else Kind.FOLDER)
        listed = self._carrier.entries(self._target(path))
        return any(each.kind is Kind.FILE and each.path not in identity.files for each in listed)

    def _content_of(self, identity: Identity) -> str | None:
        """The content of a file from elsewhere, as it was when it was staged; None where nobody knows."""
        if identity.files is not None:
            return None
        known = self._run_store.content_of(identity.digest)
        if known is None:
            said = (self._host.get(self._pointer(identity), maximum=64) or b"").decode("ascii", "replace")
            name = read_name(f"{CONTENT}:{said}")
            known = name.digest if name is not None else None
        return known

    def _pointer(self, identity: Identity) -> bytes:
        """Where the site keeps the content's digest of what came from elsewhere, for all who share the cache."""
        digest = identity.digest.encode("ascii")
        return self._work + b"/cache/names/" + digest[:2] + b"/" + digest

    def _file_by_content(self, identity: Identity, path: bytes, moved: _MovedDigests) -> bytes:
        """A file from elsewhere goes where everything of its content goes; a tree stays under its origin.

        What is written first is of use only with what comes after it, so that this can end anywhere.
        """
        if not self._is_file(path):
            return path
        digests = set(moved.digests.values())
        digest = digests.pop() if len(digests) == 1 else self._host.digest(path)
        name = Name(CONTENT, digest)
        final, pointer = self.use(name), self._pointer(identity)
        self._host.make_folder(pointer.rpartition(b"/")[0])
        self._host.put(pointer, digest.encode("ascii"))
        if self._stands(name, digest):
            self._host.remove_tree(path)
        else:
            self._host.make_folder(final.rpartition(b"/")[0])
            self._host.remove_tree(final)
            self._host.move(path, final)
        if not self._is_file(final):
            raise IncompleteError("not-staged", "the input could not be put in place", subject=identity.text)
        self._run_store.note_content(identity.digest, digest)
        return final

    def _oldest(self, path: bytes) -> int | None:
        found = self._host.stat(path)
        if found is None or self._times is None:
            return None
        one = found.kind is Kind.FILE
        return oldest_ns(self._times.purge, [found] if one else self._carrier.entries(self._target(path)))

    def _remember(self, path: bytes, source: str) -> None:
        mark = self.mark(path)
        if mark is not None:
            self._run_store.note_mark(path, mark, source)


class _MovedDigests:
    """A listener that keeps the digests of what moved, and passes everything on."""

    def __init__(self, on_event: Listener) -> None:
        self.digests: dict[bytes, str] = {}
        self._on_event = on_event

    def __call__(self, event: Event) -> None:
        if isinstance(event, Moved) and event.digest is not None:
            self.digests[event.path] = event.digest
        self._on_event(event)


def _mark(entry: Entry) -> str:
    """A folder's own times change when hibali locks it, so only what it holds counts."""
    if entry.kind is Kind.FOLDER:
        return entry.kind
    parts = (entry.kind, entry.device, entry.inode, entry.size, entry.mtime_ns, entry.ctime_ns)
    return ":".join(str(part) for part in parts)


def open_cache(
    host: RemoteHost, site: Site, work: bytes, carrier: Carrier, on_event: Listener = ignore
) -> Cache:
    """The cache in a site's work folder, which is there and ours alone."""
    return Cache(host, site.name, work, at_site(site), carrier, times_at(host, site, on_event))


def _changed(source: Location) -> IncompleteError:
    return IncompleteError(
        "input-changed",
        "the input changed while it was staged",
        subject=source.text,
        hint="Nothing was submitted. Let it come to rest and type the same line again.",
    )


class Synchroniser:
    """A `runs.stage.Carrier` over stores."""

    def copy(self, source: Location, target: Location, on_event: Listener, *, checksum: bool) -> None:
        """Raises `IncompleteError` where anything of it did not arrive."""
        # a cache that lies in somebody's dataset is not part of it
        request = Request("stage", source, target, Rules(checksum=checksum), saving=Saving(save=False))
        receipt = synchronise(request, on_event)
        if receipt.exit is not Exit.DONE:
            said = "; ".join(failed.message for failed in receipt.failures[:3])
            raise IncompleteError(
                "not-staged", f"the input could not be staged whole: {said}", subject=source.text
            )

    def entries(self, location: Location) -> Iterator[Entry]:
        """The listing of the store there."""
        store = open_store(location)
        try:
            yield from store.list()
        finally:
            store.close()
