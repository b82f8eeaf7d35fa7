"""Read the files of a dataset in a public archive, and compare them with the archive's own checksums."""

from __future__ import annotations

import hashlib
import shlex
import threading
from collections.abc import Iterator, Sequence

from hibali.errors import AccessError, NotFoundError, UsageError
from hibali_plugins.archives.client import ArchiveClient
from hibali_plugins.archives.files import ArchivedFile, Listing
from hibali_plugins.archives.finding import list_files
from hibali_plugins.archives.settings import Place, place_of
from transfers.agent.identity import Identity
from transfers.model.entry import Entry, Kind, Verification, enclosing
from transfers.model.facts import Facts
from transfers.model.identities import identity_of_keys
from transfers.model.units import ListingIncompleteError
from transfers.stores.server.listing import walk_tree
from transfers.stores.server.reading import Got, ServerReader

_THREADS = 8  # archives are shared by many, and most limit the rate
_PIECE = 8 * 1024 * 1024
_FACTS = Facts(
    kind="doi",
    read_verification=Verification.CLAIMED,
    write_verification=Verification.NONE,
    folders=False,
    links=False,
    modes=False,
    mtime_unit_ns=10**9,
    locks=False,
    utf8_names=True,
    segment_bytes=_PIECE,
    least_segment_bytes=_PIECE,
    writable=False,
)


class ArchiveStore(ServerReader):
    """A read-only store of one version of a dataset; the archive is asked for its files once."""

    facts = _FACTS

    def __init__(self, client: ArchiveClient, place: Place, root: bytes, *, is_configured: bool) -> None:
        """`root` is a path in the dataset, without leading or trailing slashes; `is_configured` whether it is a site's."""
        super().__init__(self._read, root, client.subject, threads=_THREADS, name="archive")
        self._client = client
        self._place = place
        self._is_configured = is_configured
        self._known: Listing | None = None
        self._guard = threading.Lock()
        self._folders: dict[bytes, set[bytes]] = {}

    @property
    def listing(self) -> Listing:
        """The files of the dataset.

        Raises:
            UsageError: The DOI stands for all versions, so that its files would change.
            AccessError: The archive gives out no file.
        """
        with self._guard:
            if self._known is None:
                self._known = self._listed()
            return self._known

    def _listed(self) -> Listing:
        listing = list_files(self._client, self._place)
        if self._place.service == "zenodo":
            is_exact = listing.version == self._place.identifier
        else:  # a site without a version has the newest one, because its owner wanted that
            is_exact = self._is_configured or bool(self._place.version) or not listing.version
        if not is_exact:
            raise self._not_one_version(listing)
        if not listing.count:
            raise AccessError(
                "denied",
                "the archive lists no file: the dataset is embargoed or restricted, or has only a description",
                subject=self._subject,
                hint="Open its DOI in a browser.",
            )
        for path in listing.files:
            self._add_folders(path)
        for path in listing.files.keys() & self._folders.keys():
            size = listing.files.pop(path).size
            listing.leave_out(path, "unsafe-name", "the dataset has a folder of the same name", size)
        return listing

    def _not_one_version(self, listing: Listing) -> UsageError:
        place, newest = self._place, listing.doi
        exact = place_of(newest, place.service)
        if place.service == "dataverse":
            newest = f"{place.identifier.removeprefix('doi:')}@{listing.version}"
        elif exact is None or exact.service != place.service:  # one that others gave, which leads elsewhere
            prefix = "10.5072" if "sandbox" in place.url else "10.5281"
            by_number = {
                "zenodo": f"{prefix}/zenodo.{listing.version}",
                "figshare": f"10.6084/m9.figshare.{place.identifier}.v{listing.version}",
            }
            newest = by_number.get(place.service, newest)
        named = f"hibali config set sites.{self._subject}.doi.name {shlex.quote(newest)}"
        return UsageError(
            "not-one-version",
            f"this DOI stands for all versions of the dataset; the newest one is {newest}",
            subject=self._subject,
            hint=f"To name it: {named if self._is_configured else f'doi:{newest}'}",
        )

    def _add_folders(self, path: bytes) -> None:
        for above in enclosing(path):
            children = self._folders.setdefault(above, set())
            if path in children:
                return
            children.add(path)
            path = above

    def identities(self) -> Sequence[Identity]:
        """See Store."""
        return [identity_of_keys(f"archive {self._place.url} {self._place.identifier}", self.root_path)]

    def stat(self, path: bytes = b"") -> Entry | None:
        """See Store."""
        full = self._path(path) if path else self.root_path
        return self._entry(full, path)

    def _entry(self, full: bytes, path: bytes) -> Entry | None:
        file = self.listing.files.get(full)
        if file is not None:
            return Entry(
                path, Kind.FILE, file.size, file.mtime_ns, etag=_tag(file), digest=file.sha256 or None
            )
        return Entry(path, Kind.FOLDER) if full in self._folders or not full else None

    def list(self, *, shallow: bool = False) -> Iterator[Entry]:
        """See Store."""
        root = self.stat()
        if root is None:
            raise NotFoundError("no-such-place", "it does not exist", subject=self._subject)
        if root.kind is Kind.FILE:
            return
        for entry in walk_tree(self._children, shallow=shallow):
            if shallow or entry.kind is Kind.FILE:  # an archive has no folders of its own
                yield entry
        inside = self.root_path + b"/" if self.root_path else b""
        known = [
            (entry._replace(path=entry.path[len(inside) :]), problem)
            for entry, problem in self.listing.known
            if entry.path.startswith(inside)
        ]
        others = [
            (path[len(inside) :], problem)
            for path, problem in self.listing.problems
            if path.startswith(inside)
        ]
        if known or others:
            raise ListingIncompleteError(self._subject, others, known)

    def _children(self, folder: bytes) -> Iterator[Entry]:
        inside = len(self.root_path) + 1 if self.root_path else 0
        full = b"/".join(part for part in (self.root_path, folder) if part)
        found = (self._entry(child, child[inside:]) for child in self._folders.get(full, ()))
        yield from sorted((entry for entry in found if entry is not None), key=lambda entry: entry.order)

    def _read(self, key: bytes, /, *, etag: str | None, offset: int, length: int | None, most: int) -> Got:
        """See Getter: a file of a version never changes, so its tag is that of the listing."""
        del etag
        file = self.listing.files.get(key)
        if file is None:
            raise NotFoundError("vanished", "the file no longer exists", subject=self._subject)
        content, total = self._client.content(file.address, offset, length, most)
        return Got(content, _tag(file), file.size if total < 0 else total, checksum=file.checksum)

    def _size_now(self, entry: Entry) -> int | None:
        file = self.listing.files.get(self._path(entry.path))
        return None if file is None else file.size

    def close(self) -> None:
        """See Store."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._client.close()


def _tag(file: ArchivedFile) -> str:
    """Return what changes with the content, as far as the archive tells."""
    known = file.sha256 or file.checksum or f"{file.size} {file.address}"
    return hashlib.sha256(known.encode("utf-8", "surrogatepass")).hexdigest()[:16]
