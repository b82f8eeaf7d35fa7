"""Remove objects, empty a prefix, and end incomplete uploads."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from itertools import islice

from hibali.errors import HibaliError, IncompleteError, NotFoundError
from hibali.ledger import now as moment
from transfers.model.entry import Entry, Kind
from transfers.model.facts import is_own_name
from transfers.model.store import problem_of
from transfers.model.units import CleanupResult, Leftover, Problem
from transfers.stores.s3.errors import Said, error_of
from transfers.stores.s3.listing import pages
from transfers.stores.s3.multipart import BegunUpload, Pending, abort, begun_at, forget, pending_uploads
from transfers.stores.s3.requests import Requests, children, delete_document, is_plain, key_bytes, parse, text
from transfers.stores.server.keys import is_folder_marker, time_of
from transfers.stores.server.locks import find_lock, is_lock

_BATCH = 256  # of at most 1000 (Amazon S3 API reference, DeleteObjects)

_Problems = dict[bytes, Problem | None]


class ObjectRemover:
    """The remover of a store's objects."""

    def __init__(self, requests: Requests, pool: Executor, key_of: Callable[[bytes], bytes]) -> None:
        """Set the fields; `key_of` returns the full key of a path below the root."""
        self._requests = requests
        self._pool = pool
        self._key_of = key_of
        self._in_batches = True

    def remove(
        self, entries: Iterable[Entry], check: Callable[[], None] = lambda: None
    ) -> Iterator[tuple[Entry, Problem | None]]:
        """See Store.remove; of folders, markers are removed. `check` raises if the lock was lost."""
        coming = iter(entries)
        while batch := list(islice(coming, _BATCH)):
            check()
            existence = list(self._pool.map(self._check_existence, batch))
            keys = [self._entry_key(entry) for entry in batch]
            results = self.remove_keys(
                [key for key, found in zip(keys, existence, strict=True) if found is True]
            )
            for entry, key, found in zip(batch, keys, existence, strict=True):
                problem = results.get(key) if found is True else found
                yield entry, problem if isinstance(problem, Problem) else None

    def _entry_key(self, entry: Entry) -> bytes:
        return self._key_of(entry.path) + (b"/" if entry.kind is Kind.FOLDER else b"")

    def _check_existence(self, entry: Entry) -> bool | Problem:
        """Return whether the object exists; a problem if it changed since the listing."""
        try:
            head = self._requests.request("HEAD", self._entry_key(entry), accept=(404,))
        except HibaliError as problem:
            return problem_of(problem, denied=True)
        if head.status == 404:
            return False
        same = (
            head.etag == entry.etag if entry.etag else head.headers.get("content-length") == str(entry.size)
        )
        return (
            True
            if same
            else Problem("target-changed", "it changed after it was listed, so it was not removed")
        )

    def remove_keys(self, keys: list[bytes]) -> _Problems:
        """Remove full keys; return a problem for each key that could not be removed."""
        plain = [key for key in keys if is_plain(key)] if self._in_batches else []
        results: _Problems = {}
        for start in range(0, len(plain), _BATCH):
            results.update(self._remove_batch(plain[start : start + _BATCH]))
        one_by_one = [key for key in keys if key not in results]
        results.update(zip(one_by_one, self._pool.map(self._remove_one, one_by_one), strict=True))
        return results

    def _remove_batch(self, keys: list[bytes]) -> _Problems:
        """Remove a batch with DeleteObjects; return the keys for which that is final, none if the server does not support it."""
        body = delete_document(keys)
        checksum = base64.b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode()
        headers = {"Content-MD5": checksum, "Content-Type": "application/xml"}
        try:
            response = self._requests.request("POST", query={"delete": ""}, headers=headers, body=body)
        except IncompleteError:
            self._in_batches = False
            return {}
        results: _Problems = dict.fromkeys(keys)
        for error in children(parse(response.body, self._requests.subject), "Error"):
            key = key_bytes(text(error, "Key"), encoded=False)
            problem = error_of(400, Said(text(error, "Code")), self._requests.subject)
            if problem.transient:
                results.pop(key, None)  # removed alone, with retries
            elif key in results:
                results[key] = Problem(problem.code, problem.message)
        return results

    def _remove_one(self, key: bytes) -> Problem | None:
        try:
            self._requests.request("DELETE", key, accept=(404,))
        except HibaliError as problem:
            return problem_of(problem, denied=True)
        return None


_CLEAR_BATCH = 1000


def clear(requests: Requests, removing: ObjectRemover, prefix: bytes) -> Problem | None:
    """Remove the remaining own files below a prefix, unless other objects exist there."""
    for batch in _in_batches(_list_remaining(requests, prefix)):
        foreign = [key for key, own in batch if not own]
        if foreign:
            return Problem("folder-not-empty", "new objects were added meanwhile, and were not removed")
    for batch in _in_batches(_list_remaining(requests, prefix)):
        keys = [key for key, own in batch if own]
        for key in [key for key in keys if is_lock(key)]:
            found = find_lock(requests, key)
            if found is not None and not found.free:
                return Problem("locked", "another operation holds the lock")
        problems = [problem for problem in removing.remove_keys(keys).values() if problem is not None]
        if problems:
            return problems[0]
    return None


def _list_remaining(requests: Requests, prefix: bytes) -> Iterator[tuple[bytes, bool]]:
    """Yield the remaining full keys, and whether each is hibali's own or a folder marker."""
    for page in pages(requests, prefix):
        for listed in page:
            yield prefix + listed.path, is_own_name(listed.path) or is_folder_marker(listed)


def _in_batches(coming: Iterator[tuple[bytes, bool]]) -> Iterator[list[tuple[bytes, bool]]]:
    while batch := list(islice(coming, _CLEAR_BATCH)):
        yield batch


_ELSEWHERE_SECONDS = 86400.0  # an upload of another host may be active for this long
_SLACK_SECONDS = 60.0  # uploads that began during the request are not in the response


def clean(
    requests: Requests, site: str, prefix: bytes, *, older_than: float, everybody: bool, dry: bool
) -> Iterator[Leftover]:
    """See transfers.check.clean_site; cleans one bucket below `prefix`."""
    recorded_uploads = {
        begun.identifier: begun
        for begun in begun_at(site)
        if begun.bucket == requests.bucket and begun.key.startswith(prefix)
    }
    clock = requests.request("HEAD", accept=range(400, 500)).seconds
    try:
        pending = list(pending_uploads(requests, prefix))
    except (IncompleteError, NotFoundError):
        # This server cannot list uploads: only those recorded here are known.
        pending = [Pending(begun.key, begun.identifier, begun.at) for begun in recorded_uploads.values()]
    ended = {identifier for identifier, begun in recorded_uploads.items() if _is_old(begun.at, clock)}
    ended -= {upload.identifier for upload in pending}
    try:
        for upload in pending:
            recorded = recorded_uploads.get(upload.identifier)
            age = _age(upload.begun or (recorded.at if recorded else ""), clock)
            because = _reason_to_keep(recorded, age, older_than, everybody=everybody)
            result = CleanupResult.KEPT if because else CleanupResult.PLANNED
            if result is CleanupResult.PLANNED and not dry:
                because = _abort(requests, upload)
                result = CleanupResult.FAILED if because else CleanupResult.ENDED
                ended |= set() if because else {upload.identifier}
            yield Leftover(
                requests.bucket, upload.key, upload.begun, age, recorded is not None, result, because
            )
    finally:
        if not dry:
            forget(site, ended)


def _reason_to_keep(
    recorded: BegunUpload | None, age: float | None, older_than: float, *, everybody: bool
) -> str:
    if recorded is not None and not recorded.left and not recorded.elsewhere:
        return "in progress"
    if recorded is None and not everybody:
        return "started by another user or machine"
    if age is None or age < older_than:
        return "too recent"
    if recorded is not None and recorded.elsewhere and age < _ELSEWHERE_SECONDS:
        return "started on another host, and too recent"
    return ""


def _abort(requests: Requests, upload: Pending) -> str:
    try:
        abort(requests, upload.key, upload.identifier)
    except IncompleteError as problem:
        return problem.message
    except HibaliError as problem:
        if problem.code != "denied":
            raise
        return problem.message
    return ""


def _age(begun: str, clock: float | None) -> float | None:
    since = time_of(begun) / 1e9
    return max(0.0, (clock or time_of(moment()) / 1e9) - since) if since else None


def _is_old(begun: str, clock: float | None) -> bool:
    age = _age(begun, clock)
    return age is None or age > _SLACK_SECONDS
