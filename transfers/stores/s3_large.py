"""One large file on its way into an object in parts, gone on with where an earlier call was stopped."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from dataclasses import dataclass
from typing import Any, Protocol

from hibali.errors import HibaliError
from transfers.entry import Entry, Proof
from transfers.store import Item, Payload, Problem
from transfers.stores.s3_bulk import Bulk
from transfers.stores.s3_errors import problem_of
from transfers.stores.s3_manifest import Known, to_metadata
from transfers.stores.s3_multipart import Upload, abort, begin, part_bytes, standing_parts
from transfers.stores.s3_probe import Honours
from transfers.stores.s3_requests import Bytes, Requests
from transfers.stores.s3_uploads import Begun, Part, Uploads

CORRUPT = Problem("corrupt", "what arrived here is not what was read (sha256)", again=True)
OUT_OF_ORDER = Problem("out-of-order", "its segments did not come one after the other")


class Holder(Protocol):
    """Whoever knows whether the target is still ours."""

    @property
    def held(self) -> bool:
        """Whether it is surely ours alone."""

    def check(self, *, now: bool = False) -> None:
        """Raise `TryLaterError` where it is not; with `now` whoever knows is asked."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where and how objects land: what a store gives to each `write`."""

    requests: Requests
    bulk: Bulk
    pool: Executor
    uploads: Uploads
    key_of: Callable[[bytes], bytes]
    make_room: Callable[[Item], None]
    honours: Honours
    holder: Holder

    @property
    def checksum(self) -> bool:
        """Needed only where the server does not look at the payload's sha256 in the signature."""
        return self.honours.checks_checksum and not self.honours.checks_sha256


class Large:
    """A file that is coming in segments; once it has a `problem`, the rest of it is passed over.

    Every byte is read and hashed again when an earlier upload is gone on with; a part that stands at the server
    is left out only while these very bytes are what was sent then. `continued` tells whether one was.
    """

    def __init__(self, place: Place, item: Item, segment: int) -> None:
        self.item = item
        self.problem: Problem | None = None
        self.continued = False
        self.sent: list[Future[None]] = []
        self._place = place
        self._part = part_bytes(item.entry.size, segment)
        self._sha256: Any = hashlib.sha256()
        self._held = bytearray()
        self._taken = 0
        self._count = 0
        self._begun: Begun | None = None
        self._upload: Upload | None = None

    def take(self, payload: Payload) -> tuple[int, Bytes] | None:
        """The next segment; a part's number and content once there is a whole one. Called by one thread, in order."""
        unit = payload.unit
        self.problem = self.problem or payload.problems.get(0)
        if self.problem is None and unit.offset != self._taken:
            self.problem = OUT_OF_ORDER
        self._taken = unit.offset + unit.length
        if self.problem is not None:
            return None
        self._sha256.update(payload.data)
        whole: Bytes = payload.data
        if self._held or (len(whole) < self._part and not unit.last):
            self._held += payload.data
            whole = self._held
        if (len(whole) < self._part and not unit.last) or not self._open():
            return None
        self._held = bytearray()
        self._count += 1
        return self._count, whole

    def _open(self) -> bool:
        """The upload, begun or gone on with; False where that is a problem of this file."""
        if self._upload is None:
            with self._kept():
                key = self._place.key_of(self.item.entry.path)
                begun, standing = self._find(key)
                self._begun = begun
                self._upload = Upload(
                    self._place.requests,
                    key,
                    begun.identifier,
                    checksum=self._place.checksum,
                    proves=self._place.honours.proves,
                    standing=standing,
                )
        return self.problem is None

    def _find(self, key: bytes) -> tuple[Begun, dict[int, Part]]:
        """One that was left and is of this very source; what is left of others of that key is ended."""
        entry = self.item.entry
        source = {
            "size": entry.size,
            "mtime_ns": entry.mtime_ns,
            "mode": entry.mode,
            "etag": entry.etag,
            "digest": entry.digest,
            "part": self._part,
        }
        resumed = find_begun(self._place, key, source)
        if resumed is not None:
            return resumed
        metadata = to_metadata(known_from(entry, entry.digest))
        made = Begun(self._place.requests.bucket, key, begin(self._place.requests, key, metadata), source)
        self._place.uploads.begin(made)
        return made, {}

    def send(self, number: int, content: Bytes) -> int:
        """Send a part; how many bytes went out, none where it stands there already. Called by several threads."""
        if self._upload is None or self._begun is None or self.problem is not None:
            return 0
        size = 0
        with self._kept():
            part = self._upload.send(number, content)
            if part is None:
                self.continued = True
            else:
                self._place.uploads.add(self._begun, number, part)
                size = part.size
        return size

    def complete(self, digest: str | None) -> tuple[Known, Proof] | None:
        """Make it the object, once all parts were submitted; None where it has a `problem`."""
        for sent in self.sent:
            sent.result()
        if self.problem is None and self._sha256.hexdigest() != digest:
            self.problem = CORRUPT
        etag = ""
        if self.problem is None and self._upload is not None:
            with self._kept():
                if not self._place.honours.file_and_folder:
                    self._place.make_room(self.item)
                etag = self._upload.complete()
        if self.problem is not None or self._upload is None or self._begun is None:
            self.let_go()
            return None
        self._place.uploads.end(self._begun)
        return known_from(self.item.entry, digest)._replace(etag=etag), self._proof(self._upload)

    def _proof(self, upload: Upload) -> Proof:
        """Parts of an earlier call were hashed by the server then, and are unchanged since: no more is said."""
        if self._place.honours.proves:
            return Proof.RECORDED if self.continued else Proof.DIGEST
        return Proof.CLAIMED if upload.claimed else Proof.SIZE

    def let_go(self) -> None:
        """Keep what arrived for whoever goes on with it; give it up where the file itself is the problem.

        Parts still under way would keep an aborted upload alive, so they are waited for.
        """
        for sent in self.sent:
            sent.exception()
        if self._begun is None:
            return
        if self.problem is None or self.problem.again:
            self._place.uploads.leave(self._begun)
            return
        with contextlib.suppress(HibaliError):
            abort(self._place.requests, self._begun.key, self._begun.identifier)
            self._place.uploads.end(self._begun)

    @contextlib.contextmanager
    def _kept(self) -> Iterator[None]:
        """What goes wrong with one file is its problem; what goes wrong with all is raised."""
        try:
            yield
        except HibaliError as error:
            self.problem = problem_of(error)


def find_begun(place: Place, key: bytes, source: dict[str, Any]) -> tuple[Begun, dict[int, Part]] | None:
    """An upload that was left, is of this very source, and the parts of it that stand; what is left of others is ended."""
    for begun in reversed(place.uploads.of_key(key)):
        if not (begun.left or place.holder.held):
            continue  # somebody may be at it, and there is no lock here that says who
        if begun.source == source and begun.parts:
            # What was recorded here and is told by the server to be just that.
            told = standing_parts(place.requests, key, begun.identifier) or {}
            standing = {n: part for n, part in begun.parts.items() if told.get(n) == (part.size, part.etag)}
            if standing:
                place.uploads.take(begun)
                return begun, standing
        abort(place.requests, key, begun.identifier)
        place.uploads.end(begun)
    return None


def known_from(entry: Entry, digest: str | None) -> Known:
    """What is to be kept of a file; its ETag is not known before it has landed."""
    return Known("", entry.size, digest, entry.mtime_ns, entry.mode)
