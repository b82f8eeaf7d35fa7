"""Look up and store what is recorded about files: digest, time and mode, in `.hibali/manifest.jsonl`.

This is for servers where hibali can set neither times nor metadata. A line counts only for the version of the
file that it names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from contextlib import closing, contextmanager, suppress
from functools import partial
from typing import NamedTuple, Protocol

from hibali.errors import AccessError, HibaliError, IncompleteError
from hibali.events import Listener, Noted
from transfers.model.entry import Entry, Kind, enclosing
from transfers.model.facts import is_own_name, unsafe_component
from transfers.stores.server.keys import MOST_UNLISTED, Cache, Listed
from transfers.stores.server.manifest import (
    LINE_LIMIT,
    NAME,
    Cursor,
    Keyed,
    Known,
    ManifestLines,
    differs,
    known_in,
    line_of,
    lines_in,
    merged,
    newest,
)
from transfers.stores.server.own_files import OWN, below
from transfers.stores.server.reading import Got, changed

Above = tuple[bytes, ManifestLines]  # the root's path below the folder of a manifest, and its lines
_Below = tuple[bytes, ManifestLines, Cursor]  # a folder with a final slash, its manifest's lines and a cursor


def _valid(line: bytes, size: int, etag: str) -> Known | None:
    """Return the record in a line if it is of an object with this size and version tag."""
    known = known_in(line)
    return known if etag and (known.etag, known.size) == (etag, size) else None


class Manifests:
    """Manifest lookups along a sorted listing; only the manifests around the current path are held."""

    def __init__(
        self,
        load: Callable[[bytes], ManifestLines],
        nested: AbstractSet[bytes],
        above: Iterable[Above],
        *,
        gathers: Callable[[bytes], bool] = lambda _: False,
    ) -> None:
        """Set the fields; `missing` has only paths for which `gathers` is true."""
        self._load = load
        self._gathers = gathers
        self._nested = nested
        self._entered: set[bytes] = set()
        self._missing: dict[bytes, bytes] = {}
        self._above: list[_Below] = []
        for before, lines in above:
            start = before + b"/" if before else b""
            self._above.append((start, lines, Cursor(lines, partial(self._miss_below, start))))
        self._below: list[_Below] = []  # for the folders above the current path, outermost first

    def find(self, listed: Listed) -> Known | None:
        """Return the valid record of the nearest enclosing manifest."""
        path, size, etag = listed[:3]
        if self._nested:
            self._enter(path)
        found: Known | None = None
        # every manifest is asked, so that it does not count this file as missing
        for folder, _, cursor in reversed(self._below):
            line = cursor.line(path[len(folder) :])
            if line and found is None:
                found = _valid(line, size, etag)
        for before, _, cursor in self._above:
            line = cursor.line(before + path)
            if line and found is None:
                found = _valid(line, size, etag)
        return found

    def _enter(self, path: bytes) -> None:
        while self._below and not path.startswith(self._below[-1][0]):
            self._leave()
        known = {folder for folder, _, _ in self._below}
        for around in reversed([folder for folder in enclosing(path) if folder in self._nested]):
            if around + b"/" not in known:
                self._hold(around)

    def _hold(self, folder: bytes) -> None:
        lines = self._load(folder)
        self._entered.add(folder)
        cursor = Cursor(lines, lambda key, line: self._miss(folder + b"/" + key, line))
        self._below.append((folder + b"/", lines, cursor))

    def _leave(self) -> None:
        _, lines, cursor = self._below.pop()
        cursor.end()
        lines.close()

    def _miss_below(self, start: bytes, key: bytes, line: bytes) -> None:
        if key.startswith(start):
            self._miss(key[len(start) :], line)

    def _miss(self, path: bytes, line: bytes) -> None:
        if not self._gathers(path) or len(self._missing) > MOST_UNLISTED:
            return
        if unsafe_component(path) is None and not is_own_name(path):  # a manifest may be forged (S1)
            self._missing[path] = line

    def missing(self) -> Iterator[tuple[bytes, Known]]:
        """Yield the recorded files for which `find` was not called; nothing can be found after this."""
        while self._below:
            self._leave()
        for folder in sorted(self._nested - self._entered):
            self._hold(folder)
            self._leave()
        for _, _, cursor in self._above:
            cursor.end()
        for path in sorted(self._missing):
            yield path, known_in(self._missing[path])

    def close(self) -> None:
        """Free the manifests."""
        for _, lines, _ in (*self._above, *self._below):
            lines.close()


def in_listing(*, shallow: bool) -> Callable[[bytes], bool]:
    """Return whether a listing has a path: with `shallow` only those of the first level."""
    return lambda path: not (shallow and b"/" in path)


def removed_below(before: bytes, changes: ManifestLines) -> Iterator[Keyed]:
    """Yield the removed paths of a root as a manifest above it has them, whose folder has the root at `before`."""
    return ((before + b"/" + path, b"") for path, line in changes if not line)


def inside(folder: bytes, *changes: ManifestLines) -> Iterator[Keyed]:
    """Yield a folder's changes as removals from its manifest: the root's manifest records them now."""
    start = folder + b"/"
    return ((path.removeprefix(start), b"") for path, _ in newest(*changes) if path.startswith(start))


PIECE_BYTES = 8 * 1024 * 1024  # read and written at once

Write = Callable[[bytes, Iterator[bytes], int], None]  # writes a file of this size, completely or not at all


class Found(NamedTuple):
    """The properties of a name. `tag` changes with the content, as far as it is known; size -1: unknown."""

    kind: Kind
    size: int = 0
    mtime_ns: int = 0
    tag: str = ""
    link: bytes = b""
    digest: str | None = None  # where the server itself stores digest and mode
    mode: int = -1

    @property
    def folder(self) -> bool:
        """Whether it is a folder."""
        return self.kind is Kind.FOLDER

    def is_still(self, entry: Entry) -> bool:
        """Return whether this matches the listed `entry`."""
        if self.kind is not entry.kind:
            return False
        if self.folder:
            return True
        if entry.etag and self.tag:
            return (entry.etag, entry.size) == (self.tag, self.size)
        return (entry.size, entry.mtime_ns) == (self.size, self.mtime_ns)


class RecordFiles(Protocol):
    """The requests that manifests need; paths are below the site's URL."""

    @property
    def subject(self) -> str:
        """The site, as errors name it."""

    def stat(self, path: bytes, /) -> Found | None:
        """Return the properties of a path, None if it is missing."""

    def get(self, path: bytes, /, *, etag: str | None, offset: int, length: int) -> Got:
        """Read `length` bytes from `offset` of the version `etag`. Raise `IncompleteError("source-changed")`."""

    def delete(self, path: bytes, /) -> object:
        """Remove a file; a missing one is no error."""

    def make_folder(self, path: bytes, /) -> None:
        """Make one folder whose parents exist; an existing one is no error."""


class Records:
    """The records of one root; `nested` are folders below it that have a manifest of their own.

    A `cache` has the records of files that this machine wrote, also if it ended before it wrote the manifest. Without a
    `manifest`, the server itself stores them (`Found.digest`), and nothing is read or written here.
    """

    def __init__(
        self, files: RecordFiles, root: bytes, cache: Cache | None = None, *, manifest: bool = True
    ) -> None:
        self._files = files
        self._root = root
        self._cache = cache
        self._manifest = manifest
        self._manifests: Manifests | None = None
        self._shallow = False
        self.nested: set[bytes] = set()

    def begin(self, *, shallow: bool) -> None:
        """Forget what was loaded: a listing starts."""
        self.close()
        self._shallow = shallow
        self.nested.clear()

    def entry_of(self, path: bytes, found: Found) -> Entry:
        """Return the entry of a listed name, in ascending order of paths."""
        if found.kind is not Kind.FILE:
            return Entry(path, found.kind, link=found.link)
        known = self._find(self._opened(), path, found) if self._manifest else None
        return _entry(path, found, known)

    def one(self, path: bytes, found: Found) -> Entry:
        """Return the entry of a single name."""
        if found.kind is not Kind.FILE:
            return Entry(path, found.kind, link=found.link)
        if not self._manifest:
            return _entry(path, found, None)
        with closing(Manifests(self._load, frozenset(), self._above() if found.tag else ())) as manifests:
            return _entry(path, found, self._find(manifests, path, found))

    def missing(self) -> Iterator[tuple[bytes, Known]]:
        """Yield what is recorded but was not listed; see `Manifests.missing`."""
        return self._opened().missing() if self._manifest else iter(())

    def _opened(self) -> Manifests:
        if self._manifests is None:
            gathers = in_listing(shallow=self._shallow)
            self._manifests = Manifests(self._load, self.nested, self._above(), gathers=gathers)
        return self._manifests

    def _find(self, manifests: Manifests, path: bytes, found: Found) -> Known | None:
        listed = Listed(path, found.size, found.tag, "")
        known = manifests.find(listed)
        if not found.tag:
            return None
        return known if known is not None or self._cache is None else self._cache.find(listed)

    def close(self) -> None:
        """Free what was loaded; safe to call twice."""
        if self._manifests is not None:
            self._manifests.close()
            self._manifests = None

    def _above(self) -> list[tuple[bytes, ManifestLines]]:
        """Return the manifests at and above the root, nearest first, with the root's path below each."""
        found = []
        for folder in (self._root, *(enclosing(self._root) if self._root else ())):
            try:
                lines = self._read(below(folder, NAME))
            except AccessError:
                if folder == self._root:
                    raise
                break  # folders of others, at a machine
            if lines is not None:
                found.append((self._root[len(folder) :].lstrip(b"/"), lines))
        return found

    def _load(self, folder: bytes) -> ManifestLines:
        return self._read(below(below(self._root, folder), NAME)) or ManifestLines()

    def _read(self, path: bytes) -> ManifestLines | None:
        """Return the lines of a manifest, None if it is missing; a changing one counts as missing."""
        found = self._files.stat(path)
        if found is None or found.kind is not Kind.FILE:
            return None
        lines, held = ManifestLines(), b""
        try:
            for offset in range(0, found.size, PIECE_BYTES):
                length = min(PIECE_BYTES, found.size - offset)
                got = self._files.get(path, etag=found.tag or None, offset=offset, length=length)
                if (got.etag, got.size, len(got.content)) != (found.tag, found.size, length):
                    raise changed(self._files.subject)
                held += bytes(got.content)
                stop = len(held) if offset + length == found.size else held.rfind(b"\n") + 1
                lines.extend(lines_in(held[:stop]))
                held = held[stop:][: LINE_LIMIT + 1]
        except BaseException as problem:
            lines.close()
            if isinstance(problem, IncompleteError) and problem.code == "source-changed":
                return None
            raise
        return lines

    def save(
        self, changes: ManifestLines, write: Write, on_event: Listener, cleared: Iterable[bytes] = ()
    ) -> None:
        """Apply changes to the root's manifest, and remove changed files from manifests below it.

        An empty line removes a file; `cleared` are folders whose files were removed. A failure is only reported: such
        files are hashed or sent again.
        """
        if not self._manifest:
            return
        try:
            changes.extend((path, b"") for path in self._recorded_below([each + b"/" for each in cleared]))
            if not changes:
                return
            self._merge_into(b"", lambda: iter(changes), write)
            for folder in sorted(
                {above for path, _ in changes for above in enclosing(path) if above in self.nested}
            ):
                self._merge_into(folder, partial(inside, folder, changes), write)
            self._forget_above(changes, write)
        except HibaliError as problem:
            on_event(
                Noted(f"{self._files.subject}: the digest manifest could not be written: {problem.message}")
            )

    @contextmanager
    def renaming(self, name: bytes, target: bytes, write: Write, on_event: Listener) -> Iterator[None]:
        """Rename a file or folder of the root to the full path `target` in the block, then record it by that name.

        Only the manifests at the root and above it have the old name: that of the folder itself moves with it.
        """
        folder, _, new = target.rpartition(b"/")
        old, added = ManifestLines(), ManifestLines()
        with closing(old), closing(added):
            for before, lines in reversed(self._above() if self._manifest else []):  # the last one wins
                start = below(before, name)
                with closing(lines):
                    for path, line in lines:
                        if path == start or path.startswith(start + b"/"):
                            rest = path[len(start) :]
                            old.add(name + rest, b"")
                            added.add(new + rest, line_of(new + rest, known_in(line)))
            yield
            Records(self._files, folder).save(added, write, on_event)
            self.save(old, write, on_event)

    def _recorded_below(self, folders: list[bytes]) -> list[bytes]:
        """Return the recorded files below folders of the root."""
        found: list[bytes] = []
        for before, lines in self._above() if folders else ():
            start = before + b"/" if before else b""
            starts = tuple(start + folder for folder in folders)
            with closing(lines):
                found += [path[len(start) :] for path, _ in lines if path.startswith(starts)]
        return found

    def _forget_above(self, changes: ManifestLines, write: Write) -> None:
        """Remove removed files from the manifests above the root, unless others own them."""
        if all(line for _, line in changes):
            return
        for before, lines in self._above():
            lines.close()
            if before:
                around = Records(self._files, self._root[: -len(before)].rstrip(b"/"))
                with suppress(AccessError):
                    around._merge_into(b"", partial(removed_below, before, changes), write)

    def _merge_into(self, folder: bytes, changes: Callable[[], Iterator[Keyed]], write: Write) -> None:
        path = below(below(self._root, folder), NAME)
        old = self._read(path) or ManifestLines()
        with closing(old):
            if not differs(old, changes()):
                return
            size = sum(len(line) for _, line in merged(old, changes()))
            if not size:
                self._files.delete(path)
                return
            self._files.make_folder(below(below(self._root, folder), OWN))
            write(path, _pieces(merged(old, changes())), size)


def _pieces(lines: Iterable[Keyed]) -> Iterator[bytes]:
    piece = bytearray()
    for _, line in lines:
        piece += line
        if len(piece) >= PIECE_BYTES:
            yield bytes(piece)
            piece.clear()
    if piece:
        yield bytes(piece)


def _entry(path: bytes, found: Found, known: Known | None) -> Entry:
    return Entry(
        path,
        Kind.FILE,
        found.size,
        (known.mtime_ns if known else 0) or found.mtime_ns,
        known.mode if known else found.mode,
        etag=found.tag or None,
        digest=known.sha256 if known else found.digest,
    )


def known_version(entry: Entry, found: Found, digest: str | None) -> Known | None:
    """Return the record of a committed file; None if its versions cannot be told apart."""
    if not found.tag:
        return None
    mode = entry.mode & 0o777 if entry.mode >= 0 else -1
    return Known(found.tag, found.size, digest, entry.mtime_ns, mode)


def record_line(entry: Entry, found: Found, digest: str | None) -> bytes:
    """Return the manifest's line of a committed file; empty if its versions cannot be told apart."""
    known = known_version(entry, found, digest)
    return b"" if known is None else line_of(entry.path, known)
