"""Store files at the data providers of a CBRAIN portal, through its API.

The root of a store is the portal, a data provider, a userfile, or a folder in a collection. Paths start with
`@PROVIDER`. A provider has no folders of its own: its names are userfiles, single files or whole collections.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from hibali.errors import HibaliError, IncompleteError, NotFoundError, RefusedError
from hibali.text import printable
from hibali_plugins.cbrain.archive import CollectionArchive
from hibali_plugins.cbrain.contents import WHOLE_BYTES, Contents
from hibali_plugins.cbrain.described import entry_of, tag_of
from hibali_plugins.cbrain.names import LEGAL_TEXT
from hibali_plugins.cbrain.portal import Portal
from hibali_plugins.cbrain.records import DataProvider, Userfile
from hibali_plugins.cbrain.writing import PortalWriter
from transfers.agent.identity import Identity
from transfers.model.entry import Entry, Kind, Verification
from transfers.model.facts import Facts, name_problem, unsafe_component
from transfers.model.identities import identity_of_url
from transfers.model.store import problem_of
from transfers.model.units import Committed, ListingIncompleteError, Payload, Problem
from transfers.stores.server.lease import NoLease
from transfers.stores.server.own_files import below
from transfers.stores.server.reading import Got, ServerReader

THREADS = 8
_PROVIDER = "@[A-Za-z0-9][A-Za-z0-9_.=+-]*"
_ONE_NAME = "a data provider takes names of letters, digits and some signs, without spaces and folders"
_NO_FOLDERS = "a data provider has no folders: files can be pushed to the provider itself"
_ACCEPTS = {
    0: (re.compile(f"{_PROVIDER}/{LEGAL_TEXT}".encode()), _ONE_NAME),
    1: (re.compile(LEGAL_TEXT.encode()), _ONE_NAME),
    2: (re.compile(b"(?!)"), _NO_FOLDERS),
}
_FACTS = Facts(
    kind="cbrain",
    read_verification=Verification.RECORDED,
    write_verification=Verification.DIGEST,
    links=False,
    locks=False,
    swaps=False,
    name_bytes=250,
    utf8_names=True,
    segment_bytes=WHOLE_BYTES,
    least_segment_bytes=WHOLE_BYTES,
    complete=False,  # the portal hides some userfiles, and a list that changes while it is read can omit some
)

_Problems = list[tuple[bytes, Problem]]


class Place(NamedTuple):
    """What a path names: a provider, a userfile of it (the nearest one), and the path inside that one."""

    provider: DataProvider
    name: str
    userfile: Userfile | None
    inside: bytes


class PortalStore(ServerReader):
    """A store over one path of a portal."""

    def __init__(self, portal: Portal, root: bytes) -> None:
        """`root` is a path without outer slashes; b"" is the portal."""
        super().__init__(self._get, root, portal.site.name, threads=THREADS, name="cbrain")
        self._portal = portal
        self._contents = Contents(portal.client)
        self._archives: dict[int, CollectionArchive] = {}
        self._receiving = threading.Lock()
        self._userfiles: dict[str, Mapping[str, Userfile]] = {}  # by provider, as listed last
        self._read_verification = Verification.RECORDED
        self._is_target = False
        self._whole = False  # the root is removed as a whole

    @property
    def facts(self) -> Facts:
        """The facts, with the names that the root takes and the verification that its listings allow."""
        depth = len(self.root_path.split(b"/")) if self.root_path else 0
        return replace(
            _FACTS,
            accepts=_ACCEPTS[min(depth, 2)],
            folders=not self._is_target,  # collections have some, which are only read
            read_verification=self._read_verification,
        )

    def identities(self) -> Sequence[Identity]:
        """See Store."""
        return [identity_of_url(self._portal.settings.url, self.root_path)]

    @property
    def portal(self) -> Portal:
        """The portal."""
        return self._portal

    def shared_userfiles(self) -> Sequence[Userfile]:
        """Return the userfiles that the root names, as they are now. Raise `RefusedError` for what is no userfile."""
        place = self._place(self.root_path, fresh=True) if self.root_path else None
        if place is None or not place.name or place.inside:
            raise RefusedError(
                "not-shared",
                "only whole userfiles, and folders of a data provider, are shared at a portal",
                subject=f"{self._subject}:{printable(self.root_path)}",
            )
        if place.userfile is not None:
            return [place.userfile]
        listed = self._listed(place.provider)
        return [each for name, each in listed.items() if name.startswith(f"{place.name}/")]

    def become_target(self) -> None:
        """See Store: collections cannot be changed, so they are not received to list their files."""
        self._is_target = True

    # Finding

    def _place(self, path: bytes, *, fresh: bool = False) -> Place:
        """Return what a full path names. Raise `NotFoundError` for an unknown provider."""
        first, _, rest = path.decode("utf-8", "surrogateescape").partition("/")
        if not first.startswith("@"):
            raise NotFoundError(
                "no-such-provider",
                f"paths at a portal start with a data provider: {self._subject}:@PROVIDER/NAME",
                subject=f"{self._subject}:{printable(path)}",
                hint=f"To see what exists: hibali ls {self._subject}:",
            )
        provider = self._portal.provider(first[1:])
        if not rest:
            return Place(provider, "", None, b"")
        userfiles = self._listed(provider, fresh=fresh)
        parts = rest.split("/")
        for count in range(1, len(parts) + 1):
            name = "/".join(parts[:count])
            if name in userfiles:
                inside = "/".join(parts[count:]).encode("utf-8", "surrogateescape")
                return Place(provider, name, userfiles[name], inside)
        return Place(provider, rest, None, b"")

    def _listed(self, provider: DataProvider, *, fresh: bool = False) -> Mapping[str, Userfile]:
        """Return the userfiles of a provider by path; `fresh` ones are requested anew."""
        if fresh or provider.name not in self._userfiles:
            self._userfiles[provider.name] = self._portal.listed(provider.id)
        return self._userfiles[provider.name]

    def stat(self, path: bytes = b"") -> Entry | None:
        """See Store."""
        full = self._path(path) if path else self.root_path
        if not full:
            return Entry(path, Kind.FOLDER)
        try:
            place = self._place(full)
        except NotFoundError:
            if not self.root_path:
                return None
            raise
        if not place.name:
            return Entry(path, Kind.FOLDER)
        if place.userfile is None:
            within = any(name.startswith(f"{place.name}/") for name in self._listed(place.provider))
            return Entry(path, Kind.FOLDER) if within else None
        if not place.userfile.is_collection:
            return None if place.inside else self._weakened(entry_of(path, place.userfile))
        if not place.inside:
            return Entry(path, Kind.FOLDER)
        found = self._archive(place.userfile).find(place.inside)
        return None if found is None else self._weakened(found._replace(path=path))

    def _weakened(self, entry: Entry) -> Entry:
        if entry.kind is Kind.FILE and entry.digest is None:
            self._read_verification = Verification.SIZE
        return entry

    def _archive(self, userfile: Userfile) -> CollectionArchive:
        """Return the received collection; it is kept until the store is closed."""
        with self._receiving:
            known = self._archives.get(userfile.id)
            if known is None:
                known = self._archives[userfile.id] = CollectionArchive(self._portal.client, userfile)
            return known

    # Listing

    def list(self, *, shallow: bool = False) -> Iterator[Entry]:
        """See Store. Collections are received to list their files, except in a shallow listing and at a target."""
        root = self.stat()
        if root is None:
            raise NotFoundError(
                "no-such-place",
                "it does not exist",
                subject=f"{self._subject}:{printable(self.root_path)}",
            )
        if root.kind is Kind.FILE:
            return
        problems: _Problems = []
        found = {entry.path: entry for entry in self._below(problems, shallow=shallow)}
        if shallow:
            found = {path: entry for path, entry in found.items() if b"/" not in path}
        for entry in sorted(found.values(), key=lambda entry: entry.order):
            yield self._weakened(entry)
        if problems:
            raise ListingIncompleteError(self._subject, problems)

    def _below(self, problems: _Problems, *, shallow: bool) -> Iterator[Entry]:
        """Yield all entries below the root, unsorted; folders may be repeated."""
        if not self.root_path:
            for name in self._portal.providers():
                top = f"@{name}".encode()
                yield Entry(top, Kind.FOLDER)
                if not shallow:
                    yield from self._below_provider(self._place(top), top, "", problems, shallow=False)
            return
        place = self._place(self.root_path, fresh=True)
        if place.userfile is not None:
            for entry in self._archive(place.userfile).entries():
                if not place.inside:
                    yield entry
                elif entry.path.startswith(place.inside + b"/"):
                    yield entry._replace(path=entry.path[len(place.inside) + 1 :])
            return
        yield from self._below_provider(place, b"", place.name, problems, shallow=shallow)

    def _below_provider(
        self,
        place: Place,
        top: bytes,
        folder: str,
        problems: _Problems,
        *,
        shallow: bool,
    ) -> Iterator[Entry]:
        """Yield the userfiles of a provider in a folder, "" for all, with paths below `top`."""
        for name, userfile in self._listed(place.provider, fresh=bool(top)).items():
            if folder and not name.startswith(f"{folder}/"):
                continue
            path = below(top, name[len(folder) :].lstrip("/").encode())
            reason = unsafe_component(path)
            if reason:
                problems.append((path, Problem("unsafe-name", reason)))
                continue
            for parent in _above(path, top):
                yield Entry(parent, Kind.FOLDER)
            if not userfile.is_collection:
                if userfile.size is None and not self._is_target:
                    problems.append((path, Problem("no-size", "the portal has not stored it yet")))
                else:
                    yield entry_of(path, userfile)
            elif not self._is_target:
                yield Entry(path, Kind.FOLDER)
                if not shallow:
                    yield from self._below_collection(path, userfile, problems)

    def _below_collection(self, path: bytes, userfile: Userfile, problems: _Problems) -> Iterator[Entry]:
        try:
            archive = self._archive(userfile)
        except HibaliError as problem:
            problems.append((path, problem_of(problem, denied=True)))
            return
        for entry in archive.entries():
            yield entry._replace(path=below(path, entry.path))

    # Reading

    def _get(self, key: bytes, /, *, etag: str | None, offset: int, length: int | None, most: int) -> Got:
        """Return bytes of a file; the tag tells whether it is the listed version."""
        del etag
        place = self._place(key)
        if place.userfile is None:
            raise NotFoundError("vanished", "it does not exist", subject=printable(key))
        if place.userfile.is_collection:
            archive = self._archive(place.userfile)
            content, size = archive.read(place.inside, offset, length)
            if size > most:
                raise IncompleteError(
                    "source-changed", "it changed while it was read", subject=printable(key)
                )
            return Got(content, archive.tag, size)
        content, size = self._contents.read(place.userfile, offset, length, most)
        return Got(content, tag_of(place.userfile), size)

    def _size_now(self, entry: Entry) -> int | None:
        place = self._place(self._path(entry.path), fresh=True)
        if place.userfile is None or place.userfile.is_collection:
            return None
        return place.userfile.size

    # Changing

    def make_root(self) -> None:
        """See Store: only providers, which exist, can be roots of what is written."""
        if self.root_path.count(b"/"):
            raise RefusedError(
                "not-supported",
                _NO_FOLDERS,
                subject=f"{self._subject}:{printable(self.root_path)}",
                hint=f"Push to {self._subject}:{printable(self.root_path.partition(b'/')[0])}/ instead.",
            )
        if self.root_path:
            self._check_writable(self._place(self.root_path).provider)

    def lock(self, operation: str, *, make: bool = False) -> NoLease:
        """See Store: a portal has no locks, so this holds nothing."""
        del operation
        if make:
            self.make_root()
        return NoLease()

    def _check_writable(self, provider: DataProvider) -> None:
        if provider.read_only or not provider.online:
            state = "read-only" if provider.read_only else "offline"
            raise RefusedError(
                "read-only-site",
                f"the data provider is {state}",
                subject=f"{self._subject}:@{provider.name}",
                hint="Write to another data provider.",
            )

    def write(self, payloads: Iterable[Payload]) -> Generator[Committed, None, None]:
        """See Store. The portal copies an upload after it answered; then it is read back."""
        writing = PortalWriter(self._portal, self._contents, self._pool, self._target)
        self._writings.append(writing)
        try:
            yield from writing.run(payloads)
        finally:
            self._userfiles.clear()

    def _target(self, path: bytes) -> tuple[DataProvider, str]:
        """Return the provider and the name of a file to write. Raise `RefusedError` for an unfit name."""
        reason = name_problem(path, self.facts)
        if reason:
            raise RefusedError("unsafe-name", reason, subject=printable(path))
        first, _, name = below(self.root_path, path).decode().partition("/")
        provider = self._portal.provider(first[1:])
        self._check_writable(provider)
        return provider, name

    def remove(self, entries: Iterable[Entry]) -> Iterator[tuple[Entry, Problem | None]]:
        """See Store. A collection is removed only as a whole."""
        for entry in entries:
            try:
                yield entry, self._remove(entry)
            except HibaliError as problem:
                yield entry, problem_of(problem, denied=True)

    def _remove(self, entry: Entry) -> Problem | None:
        place = self._place(self._path(entry.path))
        if place.userfile is None:
            return None
        if place.inside:
            return None if self._whole else _OF_COLLECTION
        current = self._portal.find(place.provider.id, place.name)
        if current is None:
            return None
        if tag_of(current) != tag_of(place.userfile) or entry.etag not in {None, tag_of(current)}:
            return Problem("changed", "it changed after it was listed, so it was not removed")
        self._portal.delete(current)
        return None

    def check_no_locks(self, *, itself: bool) -> None:
        """See Store: a portal has no locks."""
        del itself

    def remove_own_files(self) -> Sequence[tuple[bytes, Problem]]:
        """See Store: there are none. The removal of the root follows, and with it that of all its files."""
        self._whole = True
        return []

    def remove_root(self) -> Problem | None:
        """See Store: remove a collection."""
        place = self._place(self.root_path) if self.root_path else None
        if place is None or not place.name or place.inside:
            return Problem("not-removed", "only userfiles can be removed")
        if place.userfile is not None:
            self._portal.delete(place.userfile)
        return None

    def close(self) -> None:
        """See Store."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._contents.close()
        for archive in self._archives.values():
            archive.close()
        self._portal.client.close()


_OF_COLLECTION = Problem("part-of-collection", "a collection is removed only as a whole")


def _above(path: bytes, top: bytes) -> Iterator[bytes]:
    """Yield the folders between `top` and a path."""
    parts = path.split(b"/")[:-1]
    for count in range(1 + (top.count(b"/") + 1 if top else 0), len(parts) + 1):
        yield b"/".join(parts[:count])
