"""Read and write the files of a draft of Zenodo (developers.zenodo.org: depositions, the files API; zenodo-rdm 6386403, legacy/resources.py).

A PUT replaces a file in one transaction and answers with the MD5 of what was stored: Zenodo's word, which is compared with the MD5 of what was
sent. It has no conditions, so what is there is looked up just before. Zenodo keeps no times and no sha256: for each file they are recorded on this machine, before its last byte is sent, by its MD5. So a
file whose answer was lost is not sent again either.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from time import monotonic
from typing import Any, NoReturn
from urllib.parse import quote_from_bytes

from hibali.errors import AccessError, NotFoundError, RefusedError, UsageError
from hibali.http.client import Bytes, Response
from hibali.http.rest import Call
from hibali_plugins.archives.client import ArchiveClient
from hibali_plugins.archives.files import checksums, size_or_none, text_in, value_in
from transfers.agent.identity import Identity
from transfers.model.entry import Entry, Kind, Verification
from transfers.model.facts import Facts
from transfers.model.identities import identity_of_url
from transfers.stores.server.files import LIST_SECONDS, Files, Put, Traits, Words
from transfers.stores.server.filesystem import FilesystemSupport
from transfers.stores.server.keys import Cache, Listed
from transfers.stores.server.lease import Held, Lease
from transfers.stores.server.manifest import Known
from transfers.stores.server.own_files import CHANGED_SINCE
from transfers.stores.server.reading import Got
from transfers.stores.server.records import PIECE_BYTES, Found
from transfers.stores.server.streaming import Refused

_NO_FOLDERS = "drafts of Zenodo have no folders; put each folder into an archive first, for example with tar"
# Zenodo removes spaces around names from some answers.
_NAMES = re.compile(rb"(?!\s)[^/\x00-\x1f\x7f]+(?<!\s)")
_BUCKET = re.compile(r"/api/files/[A-Za-z0-9-]{1,64}")
_THERE = Response(200, {}, b"")  # in place of an answer, if nothing had to be sent
_KNOWN_SECONDS = 10.0  # no listing is younger; each file is looked up several times


class DraftFiles(Files):
    """The files of one draft. Its only folder is the draft itself."""

    traits = Traits(
        "zenodo",
        keys=True,
        put=Put.WHOLE,
        threads=4,
        words=Words("draft", "Zenodo"),
        manifest=False,
        unrecorded=Verification.CLAIMED,
    )
    support = FilesystemSupport(writable=True, put=Put.WHOLE, replaces=True, versions=True, ranges=True)

    def __init__(self, client: ArchiveClient, draft: str, site: str) -> None:
        """`client` has the login."""
        self.subject = client.subject
        self._client = client
        self._path = f"/api/deposit/depositions/{draft}"
        self._address = f"{client.origin}{client.base}/deposit/{draft}"
        self._cache = Cache(site, self._address, "", b"")
        self._sent: dict[bytes, str] = {}  # the sha256 of what was sent and is stored
        self._guard = threading.Lock()
        self._bucket = ""
        self._listed: dict[bytes, Found] = {}
        self._listed_at = float("-inf")

    # What the draft has

    def _files(self, *, fresh: bool = False) -> dict[bytes, Found]:
        """Return all files. Raise `RefusedError` unless it is a draft."""
        with self._guard:
            if fresh or monotonic() - self._listed_at > _KNOWN_SECONDS:
                self._list()
            return self._listed

    def _list(self) -> None:
        began = monotonic()
        record = self._client.record(self._path)
        if record.get("submitted") is not False:
            raise RefusedError(
                "not-a-draft",
                "it is published, so its files can no longer be changed",
                subject=self.subject,
                hint="Make a new version of it in the archive, and set the number of that draft.",
            )
        bucket = self._client.path_of(value_in(record, "links", "bucket"))
        files = record.get("files")
        if not _BUCKET.fullmatch(bucket) or not isinstance(files, list):
            raise self._client.bad_answer("it is no draft")
        listed: dict[bytes, Found] = {}
        for file in files:
            path = text_in(file, "filename").encode("utf-8", "surrogatepass")
            size, md5 = size_or_none(file, "filesize"), _md5_in(file)
            if not path or size is None or not md5 or path in listed:
                raise self._client.bad_answer("a file has no name, size or MD5, or is listed twice")
            listed[path] = self._found(path, size, md5)
        self._bucket, self._listed, self._listed_at = bucket, listed, began

    def _found(self, path: bytes, size: int, md5: str) -> Found:
        known = self._cache.find(Listed(path, size, md5, ""))
        if known is None:
            return Found(Kind.FILE, size, tag=md5)
        return Found(Kind.FILE, size, known.mtime_ns, md5, digest=known.sha256)

    def stat(self, path: bytes) -> Found | None:
        """See Files. Nothing older is enough, because what a plan replaces is compared with it."""
        return self._files(fresh=True).get(path) if path else Found(Kind.FOLDER)

    def children(self, folder: bytes, *, seconds: float = LIST_SECONDS) -> list[tuple[bytes, Found]]:
        """See Files."""
        del seconds
        if folder:
            raise NotFoundError("vanished", "it does not exist", subject=self.subject)
        return self._in_order(folder, self._files(fresh=True).items())

    # Contents

    def get(
        self,
        path: bytes,
        *,
        etag: str | None = None,
        offset: int = 0,
        length: int | None = None,
        most: int = PIECE_BYTES,
    ) -> Got:
        """See Files."""
        del etag  # the caller compares it
        found = self._files().get(path)
        if found is None:
            raise NotFoundError("vanished", "it does not exist", subject=self.subject)
        address = f"{self._client.origin}{self._client.base}{self._target(path)}"
        content, total = self._client.content(address, offset, length, most)
        return Got(content, found.tag, found.size if total < 0 else total, checksum=f"md5:{found.tag}")

    def read(self, path: bytes, offset: int, length: int) -> bytes:
        """See Files."""
        return bytes(self.get(path, offset=offset, length=length).content)

    def _target(self, path: bytes) -> str:
        return f"{self._bucket}/{quote_from_bytes(path, safe='')}"

    def put(self, path: bytes, content: Bytes, *, seconds: float | None = None) -> None:
        """See Files."""
        del seconds
        self.put_entry(path, content, Entry(path, Kind.FILE, len(content)))

    def put_entry(self, path: bytes, content: Bytes, entry: Entry) -> None:
        """See Files. What is there already is not sent: `digest` reads it back, unless its answer was lost just now."""
        sums = _Sums()
        sums.update(content)
        self._record(path, entry, sums)
        attempts: list[str] = []  # with what was there before each

        def send() -> Response:
            existing = self._files(fresh=bool(attempts)).get(path)
            if existing is not None and (existing.size, existing.tag) == (len(content), sums.md5):
                return _THERE
            attempts.append("" if existing is None else existing.tag)
            if attempts[-1] != attempts[0]:
                raise Refused(CHANGED_SINCE)
            # over a connection of its own: a kept one may have ended, and then the request would be sent twice
            return self._client.upload(self._put_call(path), [content], len(content))

        with self._explained():
            response = self._client.tried(send)
        if response is not _THERE:
            self._note(path, sums, response)
        elif attempts:
            self._note_sent(path, sums.sha256)

    def _put_call(self, path: bytes) -> Call:
        return Call("PUT", self._target(path), headers={"Content-Type": "application/octet-stream"})

    def send(
        self,
        path: bytes,
        pieces: Iterator[Bytes],
        entry: Entry,
        before_commit: Callable[[], None],
        part_folders: Sequence[bytes] = (),
    ) -> None:
        """See Files. Nothing is stored of an upload that ends early."""
        del part_folders
        sums = _Sums()

        def hashed() -> Iterator[Bytes]:
            held: Bytes | None = None
            for piece in pieces:
                if held is not None:
                    yield held
                sums.update(piece)
                held = piece
            before_commit()
            self._record(path, entry, sums)
            if held is not None:
                yield held

        self._files()
        with self._explained():
            response = self._client.upload(self._put_call(path), hashed(), entry.size)
        self._note(path, sums, response)

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Raise `RefusedError("not-a-draft")` if access is denied because it was published meanwhile."""
        try:
            yield
        except AccessError:
            self._files(fresh=True)
            raise

    def _record(self, path: bytes, entry: Entry, sums: _Sums) -> None:
        """Record what will be stored: that counts once the archive lists this MD5."""
        known = Known(sums.md5, entry.size, sums.sha256, entry.mtime_ns)
        self._cache.add(Listed(path, entry.size, sums.md5, ""), known)

    def _note(self, path: bytes, sums: _Sums, response: Response) -> None:
        """Note what the archive says that it stored; `digest` compares it."""
        answer = self._client.record_of(response)
        size, md5 = size_or_none(answer, "size"), _md5_in(answer)
        with self._guard:
            self._listed[path] = self._found(path, -1 if size is None else size, md5)
        self._note_sent(path, sums.sha256 if md5 == sums.md5 else "")

    def _note_sent(self, path: bytes, sha256: str) -> None:
        with self._guard:
            self._sent[path] = sha256

    def digest(self, path: bytes, expected: int) -> tuple[str, Found | None]:
        """See Files. The sha256 of what was just sent is that of what is stored, if the MD5 of both is the same."""
        with self._guard:
            sent = self._sent.pop(path, None)
        return super().digest(path, expected) if sent is None else (sent, self._files().get(path))

    def written(self, *, read_back: bool) -> Verification:
        """See Files: Zenodo says what it stored."""
        del read_back
        return Verification.CLAIMED

    def delete(self, path: bytes) -> None:
        """See Files. hibali's own names have a slash, and a draft never has them. Zenodo's API removes no others with one."""
        is_there = path in self._files()
        if b"/" in path:
            if is_there:
                raise RefusedError(
                    "unsafe-name",
                    "a file with a slash in its name can only be removed in the browser",
                    subject=self.subject,
                )
            return
        with self._explained():
            self._client.repeat(Call("DELETE", self._target(path), accept=(404,)))
        with self._guard:
            self._listed.pop(path, None)

    def delete_unchanged(self, path: bytes, found: Found) -> bool:
        """See Files."""
        now = self._files(fresh=True).get(path)
        if now is not None and now.tag != found.tag:
            return False
        self.delete(path)
        return True

    # What a draft is not

    def make_folder(self, path: bytes) -> None:
        """See Files."""
        if path:
            raise UsageError("bad-location", _NO_FOLDERS, subject=self.subject)

    def remove_folder(self, path: bytes) -> None:
        """See Files."""

    def recall(self, site: str) -> None:
        """See Files: nothing is probed, because all drafts are alike."""

    def probe(self, site: str, root: bytes) -> None:
        """See Files."""

    def facts(self, root: bytes, read_verification: Verification, *, read_back: bool) -> Facts:
        """See Files."""
        del root, read_back
        return Facts(
            kind="zenodo",
            read_verification=read_verification,
            write_verification=Verification.CLAIMED,
            folders=False,
            links=False,
            modes=False,
            locks=False,
            utf8_names=True,
            segment_bytes=PIECE_BYTES,
            accepts=(_NAMES, _NO_FOLDERS + "; names do not begin or end with a space"),
        )

    def hold(self, root: bytes, operation: str, seconds: int) -> Lease:
        """See Files: never called, because drafts have no locks."""
        _no_locks(root, operation, seconds)

    def find_lock(self, folder: bytes) -> Held | None:
        """See Files."""
        del folder
        return None

    @property
    def address(self) -> str:
        """See Files."""
        return self._address

    def identity(self, path: bytes) -> Identity:
        """See Files."""
        return identity_of_url(self._address, path)

    def close(self) -> None:
        """See Files."""
        self._cache.close()
        self._client.close()


class _Sums:
    """The checksums of a file that is being sent."""

    def __init__(self) -> None:
        self._md5 = hashlib.md5(usedforsecurity=False)
        self._sha256 = hashlib.sha256()

    def update(self, content: Bytes) -> None:
        self._md5.update(content)
        self._sha256.update(content)

    @property
    def md5(self) -> str:
        return self._md5.hexdigest()

    @property
    def sha256(self) -> str:
        return self._sha256.hexdigest()


def _md5_in(file: Any) -> str:
    """Return the MD5 of a file, "" without one; some answers have `md5:` before it."""
    found = checksums([("md5", text_in(file, "checksum").removeprefix("md5:"))])
    return found["checksum"].removeprefix("md5:")


def _no_locks(*asked: object) -> NoReturn:
    raise NotImplementedError(f"drafts have no locks: {asked}")
