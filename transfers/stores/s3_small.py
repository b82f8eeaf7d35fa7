"""Small objects by themselves: one listing, whole reads, and puts that replace nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from contextlib import contextmanager

from hibali.errors import IncompleteError, TryLaterError
from hibali.retry import pause
from hibali.text import printable
from transfers.entry import Entry, Kind
from transfers.store import PACK_BYTES, is_own_name, unsafe_component
from transfers.stores.s3_listing import pages
from transfers.stores.s3_probe import Honours
from transfers.stores.s3_records import time_of
from transfers.stores.s3_requests import Answer, Requests

_SETTLED_SECONDS = 2.0  # longer than anybody takes from looking at a key to having put it
_STANDS = frozenset({409, 412})  # what a conditional put is answered where something stands, or is being put


class S3SmallFiles:
    """The SmallFiles protocol (transfers.small_files.SmallFiles); the digest manifest of the prefix is not touched."""

    def __init__(
        self,
        requests: Requests,
        pool: Executor,
        prefix: bytes,
        probe: Callable[[], Honours],
        let_go: Callable[[], None],
    ) -> None:
        """`prefix` is empty or ends in a slash; `probe` tells what the server honours; `let_go` closes the store."""
        self._requests = requests
        self._pool = pool
        self._prefix = prefix
        self._probe = probe
        self._honours = Honours()
        self._let_go = let_go

    def list(self) -> Iterator[Entry]:
        """See SmallFiles. Keys that cannot be paths are passed over; a prefix without any is there all the same."""
        for page in pages(self._requests, self._prefix):
            for listed in page:
                path = listed.path
                if listed.size < 0 or unsafe_component(path) is not None or is_own_name(path):
                    continue
                modified = time_of(listed.modified)
                yield Entry(path, Kind.FILE, listed.size, modified, etag=listed.etag)

    def read(self, entries: Iterable[Entry]) -> Iterator[bytes]:
        """See SmallFiles."""
        return self._pool.map(self._read, entries)

    def _read(self, entry: Entry) -> bytes:
        answer = self._get(self._prefix + entry.path, entry.size)
        changed = answer.status >= 300 or (entry.etag and answer.etag != entry.etag)
        if entry.size and (changed or len(answer.body) != entry.size):
            raise IncompleteError(
                "changed", "it changed since it was listed", about=self._about(entry.path), transient=True
            )
        return answer.body if entry.size else b""

    def _get(self, key: bytes, size: int) -> Answer:
        """At most so many bytes of an object; of an empty one no range can be had."""
        return self._requests.ask(
            "GET", key, headers={"Range": f"bytes=0-{max(size, 1) - 1}"}, accept=(404, 416)
        )

    @contextmanager
    def writing(self) -> Iterator[None]:
        """See SmallFiles. No lock is needed where the server puts only if nothing stands; elsewhere `create` reads back."""
        self._honours = self._probe()
        yield

    def create(self, contents: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
        """See SmallFiles."""
        put = self._put_new if self._honours.conditional_create else self._put_absent
        stands = list(self._pool.map(put, contents, contents.values()))
        if contents and not self._honours.locks:
            # Fischer's way to exclude others where nothing can be compared and set: who wrote last, and waited, is the one.
            # Swift refuses what stands, but of two that come at once it takes both.
            pause(_SETTLED_SECONDS)
            stands = [True] * len(contents)
        doubtful = [path for path, there in zip(contents, stands, strict=True) if there]
        found = zip(doubtful, self._pool.map(self._other, doubtful, map(contents.get, doubtful)), strict=True)
        return {path: other for path, other in found if other is not None}

    def _put_new(self, path: bytes, content: bytes) -> bool:
        """Put it where nothing stands; whether something does."""
        headers = {"If-None-Match": "*"}
        put = self._requests.ask("PUT", self._prefix + path, body=content, headers=headers, accept=_STANDS)
        return put.status >= 300

    def _put_absent(self, path: bytes, content: bytes) -> bool:
        """Put it unless something stands there now; whether something does, which may be another's by the next moment."""
        standing = self._requests.ask("HEAD", self._prefix + path, accept=(404,))
        if standing.status == 404:
            self._requests.ask("PUT", self._prefix + path, body=content)
        return standing.status != 404

    def _other(self, path: bytes, content: bytes | None) -> bytes | None:
        """What stands there, where it is not this content. A put whose answer was lost finds its own."""
        found = self._get(self._prefix + path, PACK_BYTES)
        if found.status == 404:  # somebody else's put was refused, too, or has not ended
            raise TryLaterError("locked", "somebody else is writing this", about=self._about(path))
        standing = found.body if found.status < 300 else b""
        return None if standing == content else standing

    def _about(self, path: bytes) -> str:
        return f"{self._requests.about}/{printable(path)}"

    def close(self) -> None:
        """See SmallFiles."""
        self._let_go()
