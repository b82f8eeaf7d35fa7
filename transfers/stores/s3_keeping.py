"""Keeping objects that are about to be replaced or deleted, by a copy that the server makes itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from itertools import islice
from urllib.parse import quote_from_bytes

from hibali.errors import HibaliError
from transfers.entry import Entry
from transfers.store import Problem
from transfers.stores import s3_xml
from transfers.stores.s3_errors import problem_of
from transfers.stores.s3_requests import Answer, Requests

_BATCH = 256
MOST_BYTES = 5 * 1024**3  # of one copy request (Amazon S3 API reference, CopyObject)
_TOO_LARGE = Problem("too-large", "the server copies no more than 5 GiB in one piece, so it stays as it is")
_IN_THE_WAY = Problem("in-the-way", "another file of this name is kept there already")
_CHANGED = Problem("target-changed", "it changed after it was listed and was left alone")


def copy_source(bucket: str, key: bytes, etag: str | None) -> dict[str, str]:
    """The headers that name what is to be copied, while its ETag is that one."""
    headers = {"x-amz-copy-source": f"/{bucket}/{quote_from_bytes(key, safe='/-_.~')}"}
    if etag:
        headers["x-amz-copy-source-if-match"] = f'"{etag}"'
    return headers


class Keeping:
    """Copies below another prefix of the same bucket."""

    def __init__(
        self, requests: Requests, pool: Executor, key_of: Callable[[bytes], bytes], prefix: bytes
    ) -> None:
        """`key_of` gives the whole key of a path below the root; `prefix` is where copies go, without a slash behind it."""
        self._requests = requests
        self._pool = pool
        self._key_of = key_of
        self._prefix = prefix

    def keep(
        self, entries: Iterable[Entry], check: Callable[[], None]
    ) -> Iterator[tuple[Entry, Problem | None]]:
        """One answer an entry; `check` raises where the target is no longer ours."""
        coming = iter(entries)
        while batch := list(islice(coming, _BATCH)):
            check()
            yield from zip(batch, self._pool.map(self._copy, batch), strict=True)

    def _copy(self, entry: Entry) -> Problem | None:
        if entry.size > MOST_BYTES:
            return _TOO_LARGE
        headers = copy_source(self._requests.bucket, self._key_of(entry.path), entry.etag)
        key = self._prefix + b"/" + entry.path
        try:
            kept = self._requests.ask("HEAD", key, accept=(404,))
            if kept.status != 404:
                return None if self._is_copy(kept, entry) else _IN_THE_WAY
            answer = self._requests.ask("PUT", key, headers=headers, accept=(404, 412))
            if answer.status == 404:
                return None
            if answer.status == 412:
                return _CHANGED
            made = s3_xml.name_of(s3_xml.parse(answer.body, self._requests.about))
        except HibaliError as problem:
            return problem_of(problem, denied=True)
        # An answer of status 200 may say that it failed.
        return (
            None if made.endswith("CopyObjectResult") else Problem("not-kept", "the server did not copy it")
        )

    def _is_copy(self, kept: Answer, entry: Entry) -> bool:
        """Whether an earlier call copied this very object; a copy of one that came in parts has another ETag."""
        if kept.etag == entry.etag:
            return True
        head = self._requests.ask("HEAD", self._key_of(entry.path), accept=(404,))
        names = ("content-length", "x-amz-meta-sha256")
        return all(head.headers.get(name) == kept.headers.get(name) is not None for name in names)
