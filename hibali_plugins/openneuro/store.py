"""Write files to the draft of a dataset in OpenNeuro: contents first, then one commit that points at them.

A draft has no partial names, renames or locks: the commit makes all files of a call appear at once, or none. Only then they are reported.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import replace

from hibali.config.model import Site
from hibali.errors import IncompleteError, NotFoundError, RefusedError
from hibali.events import Listener, ignore
from hibali.request_limits import request_limit
from hibali.text import printable
from hibali_plugins.openneuro.draft import Draft, DraftFile
from hibali_plugins.openneuro.service import DraftService
from hibali_plugins.openneuro.writing import DraftWriter
from transfers.agent.identity import Identity
from transfers.model.entry import Entry, Kind, Verification
from transfers.model.facts import Facts
from transfers.model.identities import identity_of_keys
from transfers.model.units import Committed, Payload, Problem
from transfers.stores.server.lease import NoLease
from transfers.stores.server.reading import Got, ServerReader

_THREADS = 8
_PIECE = 16 * 1024 * 1024
_MOST_READ = 64 * 1024 * 1024  # the server sends contents only as a whole
_ACCEPTED_BELOW = re.compile(rb"(?!\.)(?:(?!/\.)[^\x00-\x1f\x7f])+", re.DOTALL)
_ACCEPTED = re.compile(rb"\.bidsignore|" + _ACCEPTED_BELOW.pattern, re.DOTALL)
_REFUSED = "OpenNeuro takes no control characters, and no name that begins with a dot, except .bidsignore of the dataset"
_FACTS = Facts(
    kind="openneuro",
    read_verification=Verification.RECORDED,
    write_verification=Verification.DIGEST,
    ordered=False,
    folders=False,
    links=False,
    modes=False,
    mtimes=False,
    locks=False,
    utf8_names=True,
    accepts=(_ACCEPTED, _REFUSED),
    segment_bytes=_PIECE,
    names_by_digest=True,
)
_ELSEWHERE = Problem(
    "no-digest",
    "the draft has its content only in the store of published snapshots; verify the snapshot by its DOI",
)


class DraftStore(ServerReader):
    """A store over a path of a draft, which is fetched once; a commit brings it up to date."""

    def __init__(self, site: Site, root: bytes, on_event: Listener = ignore) -> None:
        """`root` is a path in the dataset without outer slashes."""
        super().__init__(self._read, root, site.name, threads=_THREADS, name="openneuro")
        self._settings = site.own
        self._service = DraftService(site.own, site.name, request_limit(site), on_event)
        self._guard = threading.Lock()
        self._draft: Draft | None = None
        self._proven: dict[str, int] = {}
        self._is_target = False

    @property
    def facts(self) -> Facts:
        """What a draft can hold; what is sent is verified if it is read back."""
        verification = Verification.DIGEST if self._settings.read_back else Verification.SIZE
        accepted = _ACCEPTED_BELOW if self.root_path else _ACCEPTED
        return replace(_FACTS, write_verification=verification, accepts=(accepted, _REFUSED))

    @property
    def draft(self) -> Draft:
        """The draft as it was when it was first used, or after the last commit."""
        with self._guard:
            if self._draft is None:
                self._draft = Draft(self._service)
            return self._draft

    def identities(self) -> Sequence[Identity]:
        """See Store."""
        return [identity_of_keys(f"openneuro {self._settings.url} {self._settings.dataset}", self.root_path)]

    def become_target(self) -> None:
        """See Store: the length of each content at the server is compared when it is looked up.

        Raises `RefusedError` for a path that OpenNeuro refuses, or that belongs to git or DataLad.
        """
        if self.root_path and _ACCEPTED.fullmatch(self.root_path) is None:
            raise RefusedError("unsafe-name", _REFUSED, subject=self._subject)
        self._is_target = True

    # Finding

    def stat(self, path: bytes = b"") -> Entry | None:
        """See Store."""
        full = self._path(path) if path else self.root_path
        file = self.draft.files.get(full)
        if file is not None:
            return self._entry(path, file)
        inside = full + b"/" if full else b""
        exists = not full or any(name.startswith(inside) for name in self.draft.files)
        return Entry(path, Kind.FOLDER) if exists else None

    def list(self, *, shallow: bool = False) -> Iterator[Entry]:
        """See Store."""
        root = self.stat()
        if root is None:
            raise NotFoundError("no-such-place", "it does not exist", subject=self._subject)
        inside = self.root_path + b"/" if self.root_path else b""
        files = {
            path[len(inside) :]: file for path, file in self.draft.files.items() if path.startswith(inside)
        }
        if shallow:
            for folder in {path.partition(b"/")[0] for path in files if b"/" in path}:
                yield Entry(folder, Kind.FOLDER)
        found = [(path, file) for path, file in files.items() if not (shallow and b"/" in path)]
        yield from self._pool.map(lambda each: self._entry(*each), found)

    def _entry(self, path: bytes, file: DraftFile) -> Entry:
        """Return a file; without its digest if the server of a target lacks its content, so it is compared, and sent again."""
        if file.link:
            return Entry(path, Kind.LINK, link=file.link, etag=file.blob)
        is_asked = self._is_target and file.key and file.key not in self._proven
        is_there = not is_asked or self._service.size_of(file.key) in {file.size, -1}
        return Entry(path, Kind.FILE, file.size, etag=file.blob, digest=(is_there and file.sha256) or None)

    # Reading

    def _read(self, key: bytes, /, *, etag: str | None, offset: int, length: int | None, most: int) -> Got:
        """See Getter. The server sends whole contents only, so large ones are read from a published snapshot."""
        del etag
        file = self.draft.files.get(key)
        if file is None:
            raise NotFoundError("vanished", "the file no longer exists", subject=self._subject)
        if file.size > _MOST_READ:
            raise IncompleteError(
                "no-ranges",
                "the draft gives out no parts of files, which large ones need; publish a snapshot and read that by its DOI",
                subject=self._subject,
            )
        content = self._content(key, file, most)
        end = len(content) if length is None else offset + length
        return Got(content[offset:end], file.blob, len(content))

    def _content(self, path: bytes, file: DraftFile, most: int) -> bytes:
        if not file.key:
            return self.draft.read(file.blob)
        content = self._service.content(file.key, min(most, file.size))
        if content is None:
            raise NotFoundError(
                "vanished", f"the worker lacks the content of {printable(path)}", subject=self._subject
            )
        return content

    def digest(self, entries: Iterable[Entry]) -> Iterator[tuple[Entry, str | None, Problem | None]]:
        """See Store: contents in the annex are read from the server, others were fetched."""
        asked = list(entries)
        yield from (
            zip(asked, *zip(*self._pool.map(self._digest, asked), strict=True), strict=True) if asked else ()
        )

    def _digest(self, entry: Entry) -> tuple[str | None, Problem | None]:
        file = self.draft.files.get(self._path(entry.path))
        if file is None:
            return None, Problem("vanished", "the file no longer exists")
        if not file.key:
            return file.sha256, None
        there = self._service.size_of(file.key)
        if there == -1:
            return None, _ELSEWHERE
        found = self._service.digest_of(file.key, file.size) if there == file.size else None
        if found is None:
            return None, Problem("corrupt", "the server does not have the whole content")
        return found, None

    def _size_now(self, entry: Entry) -> int | None:
        file = self.draft.files.get(self._path(entry.path))
        return None if file is None else file.size

    # Changing

    def make_root(self) -> None:
        """See Store: folders are only parts of names."""

    def lock(self, operation: str, *, make: bool = False) -> NoLease:
        """See Store: a draft has no locks, so this holds nothing; a commit that others overtake is checked again."""
        del operation, make
        return NoLease()

    def write(self, payloads: Iterable[Payload]) -> Generator[Committed, None, None]:
        """See Store. Files are reported when the commit that has them is at the server."""
        writing = DraftWriter(
            self._service,
            self.draft,
            self._pool,
            self._path,
            self._proven,
            read_back=self._settings.read_back,
        )
        self._writings.append(writing)
        stored: list[Committed] = []
        for committed in writing.run(payloads):
            if committed.problem is None:
                stored.append(committed)
            else:
                yield committed
        for key in writing.interrupted & self._proven.keys():
            if self._service.size_of(key) not in {self._proven[key], -1}:
                del self._proven[key]
                raise IncompleteError(
                    "corrupt",
                    "an upload that broke off replaced a content that was sent after it, so nothing was committed",
                    subject=self._subject,
                    hint="Run the same command again.",
                )
        if stored:
            self.draft.commit()
        yield from stored

    def remove(self, entries: Iterable[Entry]) -> Iterator[tuple[Entry, Problem | None]]:
        """See Store: by one commit; the contents stay, because earlier snapshots have them."""
        problems: dict[bytes, Problem] = {}
        removed = list(entries)
        for entry in removed:
            path = self._path(entry.path)
            file = self.draft.files.get(path)
            if file is not None and entry.etag not in {None, file.blob}:
                problems[entry.path] = Problem(
                    "changed", "it changed after it was listed, so it was not removed"
                )
            elif file is not None:
                self.draft.remove(path)
        self.draft.commit()
        for entry in removed:
            yield entry, problems.get(entry.path)

    def close(self) -> None:
        """See Store."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        if self._draft is not None:
            self._draft.close()
        self._service.close()
