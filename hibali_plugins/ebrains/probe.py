"""Probe what a bucket supports, once, and remember it."""

from __future__ import annotations

import contextlib
import re
import secrets
import threading
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from hibali.errors import AccessError, HibaliError, IncompleteError
from hibali_plugins.ebrains.objects import Objects, time_of
from hibali_plugins.ebrains.requests import CONNECTIONS
from transfers.model.entry import Verification
from transfers.model.facts import Facts
from transfers.stores.server import probe as server_probe
from transfers.stores.server.files import Put
from transfers.stores.server.keys import Listed
from transfers.stores.server.own_files import below
from transfers.stores.server.probe import LONG_NAME, refused_characters, run_probe

SEGMENT_BYTES = 8 * 1024 * 1024
PROBE = b".hibali/probe"
# A PUT to these paths below an object copies it, or begins, continues or completes an upload in parts.
_OPERATIONS = frozenset({b"copy", b"multipart"})
_NO_OPERATION = re.compile(rb"(?s)(?!(?:.*/)?(?:copy|multipart)\Z).*")
_PARTS = b"/multipart/"
_TABLE = "ebrains"  # of the stored probe results
_FIRST, _OTHER = b"hibali tests this service\n", b"and tests it again there.\n"  # of the same length
_REFUSALS = frozenset({*range(400, 500), 501})
_ODD = (b"\\", b"\n", b"\r", b"\t", b"\x01", b"\x7f", b"?", b"#", b"%", b"+", b";", b" ")
_KEY_BYTES = 1024


@dataclass(frozen=True, slots=True)
class BucketSupport:
    """What a bucket supports, as probed; the default is nothing.

    Attributes:
        versions: A listing shows a new object at once, and another tag when it is replaced.
        conditional_create: Its host honours If-None-Match on PUT.
        conditional_replace: Its host honours If-Match on PUT.
        file_and_folder: The keys `a` and `a/b` can exist at the same time.
        name_bytes: 255 if a longer component was rejected, else 0.
        refuses: Characters that keys cannot contain.
    """

    writable: bool = False
    versions: bool = False
    conditional_create: bool = False
    conditional_replace: bool = False
    file_and_folder: bool = False
    name_bytes: int = 0
    refuses: tuple[str, ...] = ()

    @property
    def locks(self) -> bool:
        """Whether lock objects work here."""
        return self.conditional_create and self.conditional_replace

    @property
    def put(self) -> str:
        """See Support."""
        return Put.WHOLE

    replaces = True
    folders = False


def facts_of(
    support: BucketSupport | None,
    root: bytes,
    read_verification: Verification,
    *,
    writable: bool,
    read_back: bool,
) -> Facts:
    """Return the store's facts; for a bucket that was not probed, assume that all works.

    `writable` is false for datasets, and for sites without a login.
    """
    seen = support or BucketSupport(
        writable=True,
        versions=True,
        conditional_create=True,
        conditional_replace=True,
        file_and_folder=True,
    )
    return Facts(
        kind="ebrains",
        read_verification=read_verification,
        write_verification=Verification.DIGEST if read_back else Verification.SIZE,
        folders=False,
        file_and_folder=seen.file_and_folder,
        links=False,
        modes=seen.versions,
        mtimes=seen.versions,
        locks=seen.locks and writable,
        name_bytes=seen.name_bytes,
        path_bytes=max(_KEY_BYTES - len(root) - 1, 1) if root else _KEY_BYTES,
        utf8_names=True,
        segment_bytes=SEGMENT_BYTES,
        least_segment_bytes=SEGMENT_BYTES,
        refuses=(_PARTS, *(character.encode() for character in seen.refuses)),
        accepts=(_NO_OPERATION, "the service takes its last component for an operation"),
        writable=writable and seen.writable,
        known=support is not None or not writable,
    )


def is_operation(key: bytes) -> bool:
    """Return whether the service would take a PUT of this key for an operation on another object."""
    parts = key.split(b"/")[1:]
    return bool(parts) and (parts[-1] in _OPERATIONS or b"multipart" in parts[-3:])


def recall(site: str, address: str) -> BucketSupport | None:
    """Return the stored probe result of the bucket at this address, if any."""
    return server_probe.recall(BucketSupport, site, _TABLE, "bucket", address)


def remember(site: str, address: str, support: BucketSupport) -> None:
    """Store the probe result for the next call."""
    server_probe.remember(support, site, _TABLE, "bucket", address)


def probe_bucket(objects: Objects, root: bytes) -> BucketSupport:
    """Probe the bucket below `root`. Raise connection errors.

    If writing is denied, nothing else can be probed.
    """
    probe = _Probe(objects, root)
    return run_probe(probe.run_and_clean, probe.stopped)


class _Probe:
    """One probe; listings skip its names, so leftovers of a crash do not appear in them."""

    def __init__(self, objects: Objects, root: bytes) -> None:
        self._objects = objects
        self._base = below(root, PROBE + b"/" + secrets.token_hex(8).encode("ascii"))
        self.stopped = threading.Event()

    def run_and_clean(self) -> BucketSupport:
        """Run the probe and remove its objects. Raise `CancelledError` once `stopped` is set."""
        try:
            return self._run()
        except AccessError as problem:
            if problem.code != "denied":
                raise
            return BucketSupport()
        finally:
            with contextlib.suppress(HibaliError):
                for name in self._listed():
                    self._objects.delete(self._base + name)

    def _run(self) -> BucketSupport:
        a = self._base + b"a"
        self._put(a, _FIRST)
        before = self._objects.find(a)
        tag = self._objects.request("GET", a).etag
        create = (
            not self._put(a, _OTHER, **{"If-None-Match": "*"})
            and self._put(self._base + b"n", _OTHER, **{"If-None-Match": "*"})
            and self._content(a) == _FIRST
        )
        replace = (
            tag != ""
            and not self._put(a, _OTHER, **{"If-Match": f'"{"0" * 32}"'})
            and self._put(a, _OTHER, **{"If-Match": f'"{tag}"'})
            and self._content(a) == _OTHER
        )
        self._put(a, _OTHER[::-1])
        return BucketSupport(
            writable=True,
            versions=self._tells_apart(before, self._objects.find(a)),
            conditional_create=create,
            conditional_replace=replace,
            **self._names(),
        )

    @staticmethod
    def _tells_apart(before: Listed | None, after: Listed | None) -> bool:
        """Return whether listings showed both versions; their times may be the same within a second."""
        if before is None or after is None or before.size != len(_FIRST) or after.size != len(_OTHER):
            return False
        return before.etag != after.etag or time_of(after.modified) != 0

    def _put(self, key: bytes, content: bytes, **headers: str) -> bool:
        """Write an object; return whether its host accepted that, under the conditions of the headers."""
        if self.stopped.is_set():
            raise CancelledError
        accept = _REFUSALS if headers else ()
        return self._objects.request("PUT", key, body=content, headers=headers, accept=accept).status < 300

    def _content(self, key: bytes) -> bytes | None:
        return self._objects.read_small(key, 1024)

    def _listed(self) -> set[bytes]:
        return {row.path for page in self._objects.pages(self._base) for row in page}

    def _names(self) -> dict[str, Any]:
        tried = {b"x" + odd + (b"41x" if odd == b"%" else b"x"): odd for odd in _ODD}
        long, both = b"l" * LONG_NAME, b"a/x"
        names = [*tried, long, both]
        with ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="probe") as pool:
            kept = {
                name for name, is_kept in zip(names, pool.map(self._keeps, names), strict=True) if is_kept
            }
        kept &= self._listed()
        return {
            "refuses": refused_characters(tried, kept),
            "name_bytes": 0 if long in kept else 255,
            "file_and_folder": both in kept and self._content(self._base + b"a") is not None,
        }

    def _keeps(self, name: bytes) -> bool:
        """Return whether an object can have this name."""
        try:
            self._put(self._base + name, _FIRST)
            return self._content(self._base + name) == _FIRST
        except (AccessError, IncompleteError):
            return False
        except HibaliError as problem:
            if problem.code in {"vanished", "server-failed"}:
                return False
            raise
