"""Let compute nodes read and write the objects of a prefix: they get signing keys of some days, this machine does the rest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from hibali.errors import RefusedError
from hibali_plugins.nodes.program.signing import derive_key
from transfers.agent import protocol
from transfers.model.entry import Verification
from transfers.model.units import Committed, Item, Problem
from transfers.stores.s3.manifest import to_metadata
from transfers.stores.s3.multipart import BegunUpload, Part, Upload, abort, begin
from transfers.stores.s3.requests import Requests
from transfers.stores.s3.store import S3Store
from transfers.stores.s3.writing import WriteTarget, known_from
from transfers.stores.server.locks import ConditionalLock
from transfers.stores.server.manifest import ManifestLines, line_of

_DAYS = 8  # so long may jobs wait and run before their keys end


def bucket_place(requests: Requests, prefix: bytes) -> dict[str, Any]:
    """Return what a node needs to send requests to a prefix; it is secret, because it has keys.

    The secret key itself stays here: a derived key is valid for the requests of one day in one region (AWS Signature Version 4).
    """
    endpoint, credentials = requests.endpoint, requests.source.current()
    place: dict[str, Any] = {
        "kind": "bucket",
        "url": endpoint.url,
        "bucket": requests.bucket,
        "prefix": protocol.text_of(prefix),
        "region": endpoint.region,
        "authorities": None,
        "pays": requests.pays,
    }
    if endpoint.authorities is not None:
        place["authorities_text"] = Path(endpoint.authorities).read_text("ascii", "replace")
    if credentials is not None:
        today = datetime.now(UTC) - timedelta(days=1)  # clocks differ
        days = [f"{today + timedelta(days=number):%Y%m%d}" for number in range(_DAYS + 1)]
        place["access_key"] = credentials.access_key
        place["token"] = credentials.token
        place["keys"] = {day: derive_key(credentials.secret_key, day, endpoint.region) for day in days}
    return place


@contextmanager
def node_objects(store: S3Store) -> Iterator[NodeObjects]:
    """Let compute nodes write objects; at the end, update the manifest. The prefix must be locked if that is possible."""
    with store.written_elsewhere() as (write_target, lines):
        yield NodeObjects(write_target, store.prefix, lines)


class NodeObjects:
    """The objects that nodes write below a prefix: the uploads of large ones, and the records of all."""

    def __init__(self, write_target: WriteTarget, prefix: bytes, lines: ManifestLines) -> None:
        """`lines` get the records."""
        self._target = write_target
        self._prefix = prefix
        self._lines = lines
        if not write_target.support.verifies_hashes:
            raise RefusedError(
                "nodes-need-checksums",
                "this server does not verify checksums, and compute nodes do not read back what they wrote",
                subject=write_target.requests.subject,
                hint="Leave out --nodes.",
            )

    def place(self) -> dict[str, Any]:
        """Return what a node needs to write."""
        holder = self._target.holder  # nodes recognise the lock by its token
        token = holder.token if isinstance(holder, ConditionalLock) else ""
        more = {"checksum": self._target.checksum, "lock": token}
        return {**bucket_place(self._target.requests, self._prefix), **more}

    def metadata(self, item: Item) -> dict[str, str]:
        """Return what is stored with an object, without its digest."""
        return to_metadata(known_from(item.entry, None))

    def begin(self, item: Item, piece_bytes: int) -> str:
        """Begin the upload of a large file; return its id."""
        key = self._target.key_of(item.entry.path)
        entry = item.entry
        source = {
            "size": entry.size,
            "mtime_ns": entry.mtime_ns,
            "mode": entry.mode,
            "etag": entry.etag,
            "digest": entry.digest,
            "part": piece_bytes,
        }
        for earlier in self._target.uploads.of_key(key):
            if earlier.left:
                abort(self._target.requests, key, earlier.identifier)
                self._target.uploads.end(earlier)
        metadata = to_metadata(known_from(entry, entry.digest))
        made = BegunUpload(
            self._target.requests.bucket, key, begin(self._target.requests, key, metadata), source
        )
        self._target.uploads.begin(made)
        return made.identifier

    def complete(self, item: Item, upload: str, parts: Mapping[int, Part], digest: str | None) -> Committed:
        """Complete an upload of which nodes sent all parts. Raises the errors of its requests."""
        key = self._target.key_of(item.entry.path)
        sent = Upload(
            self._target.requests, key, upload, checksum=False, verifies_hashes=True, existing=parts
        )
        sent.keep_existing()
        etag = sent.complete()
        self._end(key, upload)
        return self.record(item, digest, etag)

    def abort(self, item: Item, upload: str) -> None:
        """Abort an upload whose file failed."""
        key = self._target.key_of(item.entry.path)
        abort(self._target.requests, key, upload)
        self._end(key, upload)

    def _end(self, key: bytes, upload: str) -> None:
        for begun in self._target.uploads.of_key(key):
            if begun.identifier == upload:
                self._target.uploads.end(begun)

    def record(self, item: Item, digest: str | None, etag: str) -> Committed:
        """Record an object that was written, and return its result."""
        if not etag:
            problem = Problem("refused-by-server", "the server sent no ETag")
            return Committed(item, None, Verification.NONE, problem=problem)
        known = known_from(item.entry, digest)._replace(etag=etag)
        self._lines.add(item.entry.path, line_of(item.entry.path, known))
        return Committed(item, digest, Verification.DIGEST, etag)
