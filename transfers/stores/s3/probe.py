"""Probe what an S3 server supports, once per bucket, and remember it."""

from __future__ import annotations

import contextlib
import hashlib
import secrets
import threading
from collections.abc import Collection, Iterable
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import compress
from typing import Any

from hibali.errors import AccessError, HibaliError
from hibali.http.client import Response
from transfers.model.entry import Verification
from transfers.model.facts import Facts
from transfers.stores.s3.errors import Said, code_in, error_of
from transfers.stores.s3.listing import pages
from transfers.stores.s3.requests import CHECKSUM, Requests, checksum_of
from transfers.stores.server import probe as server_probe
from transfers.stores.server.keys import Listed, time_of
from transfers.stores.server.probe import LONG_NAME, refused_characters, run_probe

_CONTENT = b"hibali tests what this server checks\n"
_WRONG = hashlib.sha256(b"something else").hexdigest()
# 408 and 429 say nothing about the request: they are retried, and may not count as a check of the server
_REFUSALS = frozenset({*range(400, 500), 501} - {408, 429})
_ODD = b"\\", b"\n\r\t\x01\x7f"  # one name each; characters of one that is refused are tried one by one
_NO_ANSWERS = frozenset({"RequestTimeout", "SlowDown", "Throttling", "RequestTimeTooSkewed"})
_TABLE = "buckets"
_KEY_BYTES = 1024  # Amazon S3 user guide, "Naming Amazon S3 objects"
_STALE_SECONDS = 3600  # a probe this old has ended
_AT_A_TIME = 10  # requests: as many as have no need to wait for another one
SEGMENT_BYTES = 16 * 1024 * 1024  # each costs the server as much as a small object does
WHOLE_BYTES = 32 * 1024 * 1024  # up to this size, one request is faster than a multipart upload


@dataclass(frozen=True, slots=True)
class ServerSupport:
    """What a server supports, as probed; the default is nothing."""

    writable: bool = False
    checks_sha256: bool = False  # rejects a payload that does not match its x-amz-content-sha256
    checks_checksum: bool = False  # the same for x-amz-checksum-sha256
    md5_etags: bool = False  # the ETag of an object from a single PUT is its MD5
    conditional_create: bool = False  # If-None-Match: * on PUT
    conditional_replace: bool = False  # If-Match on PUT
    metadata: bool = False  # stores user metadata
    file_and_folder: bool = False  # stores the keys `a` and `a/b` at the same time
    name_bytes: int = 0  # 255 if the server rejected a longer component
    refuses: tuple[str, ...] = ()  # characters that keys cannot contain

    @property
    def verifies_hashes(self) -> bool:
        """Whether the server verifies the hash of what it receives."""
        return self.checks_sha256 or self.checks_checksum

    @property
    def locks(self) -> bool:
        """Whether lock objects work at this server."""
        return self.conditional_create and self.conditional_replace


def facts_of(support: ServerSupport | None, root: bytes, read_verification: Verification) -> Facts:
    """Return the store's facts; for an unknown server, assume that locks work."""
    seen = support or ServerSupport(
        conditional_create=True, conditional_replace=True, metadata=True, file_and_folder=True
    )
    write = (
        Verification.DIGEST
        if seen.verifies_hashes
        else Verification.CLAIMED
        if seen.md5_etags
        else Verification.SIZE
    )
    return Facts(
        kind="s3",
        read_verification=read_verification,
        write_verification=write,
        folders=False,
        folder_markers=True,
        file_and_folder=seen.file_and_folder,
        links=False,
        modes=seen.metadata,
        mtimes=seen.metadata,
        locks=seen.locks,
        name_bytes=seen.name_bytes,
        path_bytes=_KEY_BYTES - len(root) - 1 if root else _KEY_BYTES,
        utf8_names=True,
        segment_bytes=SEGMENT_BYTES,
        least_segment_bytes=SEGMENT_BYTES,
        segment_digests=WHOLE_BYTES if seen.verifies_hashes else 0,
        refuses=tuple(character.encode() for character in seen.refuses),
        known=support is not None,
    )


def probe_server(requests: Requests, prefix: bytes) -> ServerSupport:
    """Probe the server below `prefix` (empty, or with a final slash). Raise connection errors.

    If writing is denied, nothing else can be probed.
    """
    # some servers (SeaweedFS) create a missing bucket
    now = requests.request("HEAD", accept=(400, 403, 405)).seconds
    folder = prefix + b".hibali/probe/"
    base = folder + secrets.token_hex(8).encode()
    probe = _Probe(requests, base)
    return run_probe(lambda: _run_and_clean(probe, folder, now), probe.stopped)


def _run_and_clean(probe: _Probe, folder: bytes, now: float | None) -> ServerSupport:
    try:
        return probe.run()
    except AccessError as problem:
        if problem.code != "denied":
            raise
        return ServerSupport()
    finally:
        with contextlib.suppress(HibaliError):
            probe.clean(folder, now)


class _Probe:
    """One probe; listings skip its names, so leftovers of a crash do not appear in them."""

    def __init__(self, requests: Requests, base: bytes) -> None:
        self._requests = requests
        self._base = base
        self.stopped = threading.Event()

    def run(self) -> ServerSupport:
        """Run the probe, with requests for different keys at a time. Raise `CancelledError` once `stopped` is set."""
        etag = self._put(self._base, headers={"x-amz-meta-sha256": "known"}).etag
        with _threads() as pool:
            conditions = pool.submit(self._conditions, etag)
            checks_sha256 = pool.submit(self._checks_sha256)
            checks_checksum = pool.submit(self._checks_checksum)
            refuses_new = pool.submit(self._refused, self._base + b"n", **{"If-None-Match": "*"})
            odd = self._odd_names(_ODD)
            committed = set(compress(odd, pool.map(self._holds, odd)))
            metadata, refuses_existing, conditional_replace = conditions.result()
        return ServerSupport(
            writable=True,
            checks_sha256=checks_sha256.result(),
            checks_checksum=checks_checksum.result(),
            md5_etags=etag == hashlib.md5(_CONTENT, usedforsecurity=False).hexdigest(),
            conditional_create=refuses_existing and not refuses_new.result(),
            conditional_replace=conditional_replace,
            metadata=metadata,
            **self._names(odd, committed),
        )

    def clean(self, folder: bytes, now: float | None) -> None:
        """Remove this probe's objects, and those of killed probes that are old `now`, by the server's clock."""

        def remove(listed: Listed) -> None:
            key = folder + listed.path
            is_stale = now is not None and now - time_of(listed.modified) / 1e9 > _STALE_SECONDS
            if key.startswith(self._base) or is_stale:
                self._requests.request("DELETE", key, accept=_REFUSALS | {500})

        with _threads() as pool:
            list(pool.map(remove, [listed for page in pages(self._requests, folder) for listed in page]))

    def _conditions(self, etag: str) -> tuple[bool, bool, bool]:
        """Return whether the first object has its metadata, is protected from a second one, and is replaced by ETag."""
        head = self._requests.request("HEAD", self._base)
        refuses_existing = self._refused(self._base, **{"If-None-Match": "*"})
        replaces = self._refused(self._base, **{"If-Match": f'"{"0" * 32}"'})
        replaces = replaces and not self._refused(self._base, **{"If-Match": f'"{etag}"'})
        return head.headers.get("x-amz-meta-sha256") == "known", refuses_existing, replaces

    def _checks_sha256(self) -> bool:
        """Return whether the wrong hash is refused, and the right one at once after it is not."""
        return self._refused(self._base + b"w", sha256=_WRONG) and not self._refused(self._base + b"w")

    def _checks_checksum(self) -> bool:
        refused = self._refused(self._base + b"c", **{CHECKSUM: _checksum(b"")})
        return refused and not self._refused(self._base + b"c", **{CHECKSUM: _checksum(_CONTENT)})

    def _refused(self, key: bytes, *, sha256: str | None = None, **headers: str) -> bool:
        response = self._put(key, headers=headers, sha256=sha256, accept=_REFUSALS)
        if code_in(response.body) in _NO_ANSWERS:
            raise error_of(response.status, Said(code_in(response.body)), self._requests.subject)
        return response.status >= 300

    def _holds(self, key: bytes) -> bool:
        """Return whether the server accepts a name; some servers fail on names they cannot store."""
        return self._put(key, accept=_REFUSALS | {500}).status < 300

    def _put(
        self,
        key: bytes,
        *,
        headers: dict[str, str] | None = None,
        sha256: str | None = None,
        accept: Collection[int] = (),
    ) -> Response:
        if self.stopped.is_set():
            raise CancelledError
        return self._requests.request(
            "PUT", key, body=_CONTENT, headers=headers, sha256=sha256, accept=accept
        )

    def _names(self, odd: dict[bytes, bytes], committed: set[bytes]) -> dict[str, Any]:
        """Probe further names, after all requests for the first object, and return what all names say.

        Args:
            odd: the characters in the names tried so far.
            committed: those of these names that the server accepted.
        """
        both = {self._base, self._base + b"/x"}  # the first one exists already
        committed.add(self._base)
        if self._holds(self._base + b"/x"):
            committed.add(self._base + b"/x")
        long = self._base + b"l" * LONG_NAME
        # A server that stores files of these names has their limit. rclone lists the long name although it cannot
        # be written, and would keep its folder, which would show as a prefix after a refused push.
        if both <= committed and self._holds(long):
            committed.add(long)
        found = self._listed() & committed
        several = [name for name, characters in odd.items() if len(characters) > 1 and name not in found]
        if several:
            each = self._odd_names(bytes([one]) for name in several for one in odd.pop(name))
            with _threads() as pool:
                committed = set(compress(each, pool.map(self._holds, each)))
            found |= self._listed() & committed
            odd |= each
        return {
            "refuses": refused_characters(odd, found),
            "name_bytes": 0 if long in found else 255,
            "file_and_folder": both <= found,
        }

    def _odd_names(self, characters: Iterable[bytes]) -> dict[bytes, bytes]:
        return {self._base + b"x" + each + b"x": each for each in characters}

    def _listed(self) -> set[bytes]:
        return {self._base + listed.path for page in pages(self._requests, self._base) for listed in page}


def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_AT_A_TIME, thread_name_prefix="probe")


def _checksum(content: bytes) -> str:
    return checksum_of(hashlib.sha256(content).hexdigest())


def recall(site: str, bucket: str, endpoint: str) -> ServerSupport | None:
    """Return the stored probe result of this bucket and endpoint, if any."""
    return server_probe.recall(ServerSupport, site, _TABLE, bucket, endpoint)


def remember(site: str, bucket: str, endpoint: str, support: ServerSupport) -> None:
    """Store the probe result for the next call."""
    server_probe.remember(support, site, _TABLE, bucket, endpoint)
