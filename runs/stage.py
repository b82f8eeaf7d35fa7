"""Stage inputs into the content-addressed cache of a site, or use them in place."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from functools import partial

from hibali.config.model import Site
from hibali.errors import Exit, IncompleteError
from hibali.events import Event, Listener, Moved, ignore
from hibali.locations import Location, path_at
from hibali.retry import when_free, with_retries
from runs.cache import CONTENT, CacheRecords, Hold, Name, Times, oldest_ns, read_name, times_at
from runs.identity import Identity, identify_elsewhere
from runs.model import Carrier
from transfers.engine.operation import synchronise
from transfers.engine.request import Request, SaveOptions
from transfers.model.entry import Entry, Kind
from transfers.model.rules import Rules, is_named
from transfers.remote.host import RemoteHost
from transfers.remote.lending import lending
from transfers.single_files import follow_links
from transfers.stores.open_store import open_store

_LARGE_BYTES = 1 << 20  # a smaller file is sent in the time that its copy at the site would take
_PATIENCE_SECONDS = 150.0  # a lease lasts 120, and checking and committing takes a little longer


class Cache:
    """The content-addressed cache of a site, and its records in the ledger (S5)."""

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

        `times` are those of a site that deletes old files.
        """
        self._host = host
        self._work = work
        self._records = CacheRecords(site)
        self._target = target
        self._carrier = carrier
        self._times = times
        self._hold: Hold | None = None
        self._shared: dict[str, bytes] = {}  # where a large file of this content is that several parts have

    def location(self, path: bytes) -> Location:
        """Return the location of a path at the site."""
        return self._target(path)

    def hold(self, run: str, identities: Iterable[Identity]) -> None:
        """Hold these inputs for a run, and everything that is used from now on, so that no eviction removes it."""
        self._hold = Hold(self._host, self._work, run)
        self._hold.add(*(each.name for each in identities if each.digest))

    def use(self, name: Name) -> bytes:
        """Return the absolute path of an entry, and hold it for the run."""
        if self._hold is not None:
            self._hold.add(name)
        return self._work + b"/" + name.path

    def stage_with_retries(self, identity: Identity, source: Location, on_event: Listener = ignore) -> bytes:
        """Stage an input like `stage`, but wait if another process stages it, at most until its lease would have expired."""

        def stage() -> bytes:
            return with_retries(
                lambda: self.stage(identity, source, on_event),
                subject=source.text,
                attempts=6,
                on_event=on_event,
            )

        return when_free(stage, subject=source.text, patience=_PATIENCE_SECONDS, on_event=on_event)

    def stage(self, identity: Identity, source: Location, on_event: Listener = ignore) -> bytes:
        """Return the absolute path at the site of a verified copy of `source`; nothing is copied if there is one.

        Raises `IncompleteError` if the input changed since it was identified.
        """
        known = self._content_of(identity)
        if known is not None and self._is_valid(Name(CONTENT, known), known):
            return self.use(Name(CONTENT, known))
        single = identity.files is not None and b"" in identity.files
        if self._is_valid(identity.name, identity.digest if single else None):
            return self.use(identity.name)
        path = self.use(identity.name)
        there = self.mark(path) is not None
        if there and self._has_more(path, identity):
            self._host.remove_tree(path)
            there = False
        self._host.make_folder(path.rpartition(b"/")[0])
        moved = _MovedDigests(on_event)
        # a file of an existing copy may be in use, and cp(1) would empty it first
        there = there or self._copy_shared(identity, path)
        with lending(self._host):
            rules = replace(identity.part.rules, checksum=there)
            self._carrier.copy(source, self._target(path), moved, rules)
        for name, content in identity.part.written.items():
            self._host.put(path + b"/" + name, content)
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
            if not identity.part.is_whole:
                self._check_complete(identity, path, source)
        else:
            if not identity.part.is_whole:
                self._check_unchanged(identity, source)
            path = self._file_by_content(identity, path, moved)
        self._remember(path, source.text)
        return path

    def _copy_shared(self, identity: Identity, path: bytes) -> bool:
        """Copy large files that another part of this call has, too, at the site; return whether there are any. The transfer verifies them."""
        copies = [
            (self._shared[digest], path + b"/" + name)
            for name, digest in sorted((identity.files or {}).items())
            if digest in self._shared
        ]
        for folder in sorted({target.rpartition(b"/")[0] for _, target in copies}):
            self._host.make_folder(folder)
        self._host.copy_all(copies)
        return bool(copies)

    def _check_complete(self, identity: Identity, path: bytes, source: Location) -> None:
        """Raise `IncompleteError` if a file of a part is missing at the site; remember where those are that others have."""
        files = identity.files or {}
        sizes = {each.path: each.size for each in self._entries(path) if each.kind is Kind.FILE}
        if sizes.keys() != files.keys():
            raise _changed(source)
        self._shared |= {
            files[name]: path + b"/" + name
            for name, size in sizes.items()
            if size >= _LARGE_BYTES and is_named(name, identity.part.shared)
        }

    def _check_unchanged(self, identity: Identity, source: Location) -> None:
        """Raise `IncompleteError` if a part at another site is not as it was identified: a file of it may be missing in the copy."""
        with lending(self._host), closing(open_store(source)) as store:
            now = identify_elsewhere(source, store, identity.part)
        if now.text.rpartition(":")[2] != identity.text.rpartition(":")[2]:
            raise _changed(source)

    def size_at_site(self, identity: Identity) -> int:
        """Return how many bytes of an input are at the site already, by this account's records and one query of the site."""
        known = self._content_of(identity)
        name = identity.name if known is None else Name(CONTENT, known)
        path = self._work + b"/" + name.path
        found = self._host.stat(path)
        if found is None:
            return 0
        if found.kind is Kind.FILE:
            return found.size if identity.size in {None, found.size} else 0
        return sum(each.size for each in self._entries(path) if each.kind is Kind.FILE)

    def mark(self, path: bytes) -> str | None:
        """Return a digest of the metadata of a file or tree, which changes with each modification; None if it does not exist."""
        entry = self._host.stat(path)
        if entry is None or entry.kind is Kind.FILE:
            return None if entry is None else _mark(entry)
        whole = hashlib.sha256()
        for below in self._entries(path):
            whole.update(b"%d:%b%b\n" % (len(below.path), below.path, _mark(below).encode("ascii")))
        return whole.hexdigest()

    def warn_of_purge(self, paths: Mapping[str, bytes], wait_seconds: float) -> None:
        """Warn of inputs, by their names, that the site may delete before a run starts."""
        if self._times is None:
            return
        for label, path in paths.items():
            if self._times.covers(path):
                self._times.warn(label, path, self._oldest(path), wait_seconds)

    def _is_valid(self, name: Name, digest: str | None) -> bool:
        """Return whether an entry is there and unmodified since hibali hashed it, or has that digest now."""
        path, times = self.use(name), self._times
        if times is not None and times.may_refresh(path) and times.needs_refresh(self._oldest(path)):
            times.refresh(path)  # and check it again below
        mark = self.mark(path)
        if mark is None or self._records.mark_of(path) == mark:
            return mark is not None
        if digest is None or not self._is_file(path) or self._host.digest(path) != digest:
            return False
        if self.mark(path) != mark:  # it changed while it was read
            return False
        self._records.note_mark(path, mark)
        return True

    def _is_file(self, path: bytes) -> bool:
        found = self._host.stat(path)
        return found is not None and found.kind is Kind.FILE

    def _has_more(self, path: bytes, identity: Identity) -> bool:
        """Return whether a copy would leave something behind: an entry of another type, or files that the input does not have."""
        found = self._host.stat(path)
        if found is None or identity.files is None:
            return False
        single = b"" in identity.files
        if single or found.kind is not Kind.FOLDER:
            return found.kind is not (Kind.FILE if single else Kind.FOLDER)
        listed = self._entries(path)
        return any(each.kind is Kind.FILE and each.path not in identity.files for each in listed)

    def _content_of(self, identity: Identity) -> str | None:
        """Return the digest of a remote file when it was staged; None if unknown."""
        if identity.files is not None:
            return None
        known = self._records.content_of(identity.digest)
        if known is None:
            digest = (self._host.get(self._pointer(identity), maximum=64) or b"").decode("ascii", "replace")
            name = read_name(f"{CONTENT}:{digest}")
            known = name.digest if name is not None else None
        return known

    def _pointer(self, identity: Identity) -> bytes:
        """Return the path where the site records the content's digest of a remote input, for all users of a shared cache."""
        digest = identity.digest.encode("ascii")
        return self._work + b"/cache/names/" + digest[:2] + b"/" + digest

    def _file_by_content(self, identity: Identity, path: bytes, moved: _MovedDigests) -> bytes:
        """Move a remote file to the entry of its content; a tree stays under its origin.

        Each step is useful only with the next one, so that this can be interrupted anywhere.
        """
        if not self._is_file(path):
            return path
        digests = set(moved.digests.values())
        digest = digests.pop() if len(digests) == 1 else self._host.digest(path)
        name = Name(CONTENT, digest)
        final, pointer = self.use(name), self._pointer(identity)
        self._host.make_folder(pointer.rpartition(b"/")[0])
        self._host.put(pointer, digest.encode("ascii"))
        if self._is_valid(name, digest):
            self._host.remove_tree(path)
        else:
            self._host.make_folder(final.rpartition(b"/")[0])
            self._host.remove_tree(final)
            self._host.move(path, final)
        if not self._is_file(final):
            raise IncompleteError(
                "not-staged", "the staged input could not be moved to its final name", subject=identity.text
            )
        self._records.note_content(identity.digest, digest)
        return final

    def _oldest(self, path: bytes) -> int | None:
        found = self._host.stat(path)
        if found is None or self._times is None:
            return None
        one = found.kind is Kind.FILE
        return oldest_ns(self._times.purge, [found] if one else self._entries(path))

    def _entries(self, path: bytes) -> Iterator[Entry]:
        """List what is at a path of the site."""
        with lending(self._host):
            yield from self._carrier.entries(self._target(path))

    def _remember(self, path: bytes, source: str) -> None:
        mark = self.mark(path)
        if mark is not None:
            self._records.note_mark(path, mark, source)


class _MovedDigests:
    """A listener that records the digests of transferred files, and passes every event on."""

    def __init__(self, on_event: Listener) -> None:
        self.digests: dict[bytes, str] = {}
        self._on_event = on_event

    def __call__(self, event: Event) -> None:
        if isinstance(event, Moved) and event.digest is not None:
            self.digests[event.path] = event.digest
        self._on_event(event)


def _mark(entry: Entry) -> str:
    """Return the metadata of one entry; a folder's own times change when hibali locks it, so only its content counts."""
    if entry.kind is Kind.FOLDER:
        return entry.kind
    parts = (entry.kind, entry.device, entry.inode, entry.size, entry.mtime_ns, entry.ctime_ns)
    return ":".join([*(str(part) for part in parts), *([entry.etag] if entry.etag else [])])


def open_cache(
    host: RemoteHost, site: Site, work: bytes, carrier: Carrier, on_event: Listener = ignore
) -> Cache:
    """Return the cache in a site's work folder, which exists and belongs to this account alone."""
    return Cache(host, site.name, work, partial(path_at, site), carrier, times_at(host, site, on_event))


def _changed(source: Location) -> IncompleteError:
    return IncompleteError(
        "input-changed",
        "the input changed while hibali staged it",
        subject=source.text,
        hint="Nothing was submitted. Run the same command again when the input no longer changes.",
    )


def _at_site(request: Request) -> Request:
    """Return the request for an input of the site: for the file that symlinks lead to, and recalled from tape."""
    with closing(open_store(request.source)) as store:
        source = follow_links(request.source, store)
    return replace(request, source=source, rules=replace(request.rules, recall=True))


class Synchroniser:
    """A `Carrier` that synchronises stores."""

    def copy(self, source: Location, target: Location, on_event: Listener, rules: Rules) -> None:
        """Copy with `synchronise`; raises `IncompleteError` if not everything arrived."""
        # a cache inside a user's dataset is not part of the dataset
        request = Request("stage", source, target, rules, saving=SaveOptions(save=False))
        if source.site.name == target.site.name and not source.typed_local:
            request = _at_site(request)
        receipt = synchronise(request, on_event)
        if receipt.exit is not Exit.DONE:
            reasons = "; ".join(failed.message for failed in receipt.failures[:3])
            raise IncompleteError(
                "not-staged", f"not all of the input could be staged: {reasons}", subject=source.text
            )

    def entries(self, location: Location) -> Iterator[Entry]:
        """List the store at a location."""
        store = open_store(location)
        try:
            yield from store.list()
        finally:
            store.close()
