"""Read objects ahead in order within a bounded window, and in bulk with obstore."""

from __future__ import annotations

import hashlib
import re
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar
from urllib.parse import urlsplit

from hibali.errors import HibaliError, IncompleteError
from hibali.http import MOST_ANSWER, Bytes
from transfers.entry import Entry, Kind, Proof
from transfers.pipeline.batches import fill_gaps
from transfers.stores.base import Item, Payload, Problem, Unit
from transfers.stores.s3.requests import (
    CHECKSUM,
    CONNECTIONS,
    FAILED,
    IN_FLIGHT_BYTES,
    NOT_PARTIAL,
    Requests,
    checksum_of,
    from_obstore,
    is_plain,
    problem_of,
)

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig


# Each layer that tries again multiplies what those above it do.
_RETRIES: RetryConfig = {"max_retries": 0}
_RANGE = re.compile(r"bytes ([0-9]+)-[0-9]+/([0-9]+)")
_NOWHERE = "http://127.0.0.1:1"  # a port that no account but root can listen on
_LARGE_BYTES = 1024 * 1024
_Result = TypeVar("_Result")


def changed(subject: str) -> IncompleteError:
    """The error for a file that has not the size any more that it was listed with."""
    return IncompleteError("source-changed", "it changed while it was read", subject=subject)


class Got(NamedTuple):
    """Bytes of an object, its ETag without quotes, and its size in whole."""

    content: Bytes
    etag: str
    size: int


class Getter(Protocol):
    """Gets a file by its whole key or path, or `length` > 0 bytes of it from `offset`; see `Bulk.get`."""

    def __call__(self, key: bytes, /, *, etag: str | None, offset: int, length: int | None, most: int) -> Got:
        """Raises `IncompleteError("source-changed")` where more than `most` bytes come."""


class Bulk:
    """Puts and gets of one bucket; may be used by many threads. Signs every payload's sha256."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests
        self._odd_ranges = False
        self._stores: dict[bool, Any] = {}
        self._opening = threading.Lock()

    def put(
        self, key: bytes, content: Bytes, metadata: dict[str, str], *, sha256: str, checksum: bool
    ) -> str:
        """Put an object whole, with `checksum` one that the server checks; its ETag. Raises what `error_of` says, `TryLaterError`.

        `sha256` is the content's. obstore would hash it once more for the signature, which takes longer than its
        quicker requests save where the content is large.
        """
        if not is_plain(key) or len(content) > _LARGE_BYTES:
            headers = {f"x-amz-meta-{name}": value for name, value in metadata.items()}
            if checksum:
                headers[CHECKSUM] = checksum_of(sha256)
            return self._requests.ask("PUT", key, headers=headers, body=content, sha256=sha256).etag
        import obstore

        store = self._open(checksum=checksum)
        found = self._tried(
            lambda: obstore.put(store, key.decode(), content, attributes=dict(metadata), use_multipart=False)
        )
        return (found["e_tag"] or "").strip('"')

    def get(
        self,
        key: bytes,
        *,
        etag: str | None = None,
        offset: int = 0,
        length: int | None = None,
        most: int = MOST_ANSWER,
    ) -> Got:
        """Read an object of at most `most` bytes, or `length` > 0 bytes of it from `offset`; with `etag` only while it is that one.

        Raises `IncompleteError("source-changed")` where more comes.
        """
        if not is_plain(key) or (length is not None and self._odd_ranges) or self._requests.proxies:
            return self._get_odd(key, etag, offset, length, most)
        try:
            return self._get_plain(key, etag, offset, length, most)
        except HibaliError as problem:
            if problem.code != NOT_PARTIAL:
                raise
        # Some servers (rclone) answer a range with status 200, which obstore does not take.
        self._odd_ranges = True
        return self._get_odd(key, etag, offset, length, most)

    def _get_plain(self, key: bytes, etag: str | None, offset: int, length: int | None, most: int) -> Got:
        import obstore

        store = self._open(checksum=False)
        options: dict[str, Any] = {"if_match": f'"{etag}"'} if etag else {}
        if length is not None:
            options["range"] = (offset, offset + length)

        def read() -> Got:
            found = obstore.get(store, key.decode(), options=options)  # type: ignore[arg-type]  # built by hand
            meta = found.meta
            wanted = most if length is None else length
            # One piece where the server sends what was asked for, and no second one where it never ends.
            content = next(iter(found.stream(min_chunk_size=wanted + 1)), b"")
            if len(content) > wanted:
                raise changed(self._requests.subject)
            return Got(memoryview(content), (meta["e_tag"] or "").strip('"'), meta["size"])

        return self._tried(read)

    def _get_odd(self, key: bytes, etag: str | None, offset: int, length: int | None, most: int) -> Got:
        headers = {"If-Match": f'"{etag}"'} if etag else {}
        if length is not None:
            headers["Range"] = f"bytes={offset}-{offset + length - 1}"
        try:
            answer = self._requests.ask(
                "GET", key, headers=headers, most=most if length is None else MOST_ANSWER
            )
        except IncompleteError as problem:
            raise changed(self._requests.subject) if problem.code == "answer-too-long" else problem from None
        if length is None:
            return Got(answer.body, answer.etag, len(answer.body))
        found = _RANGE.fullmatch(answer.headers.get("content-range", ""))
        if found is None or int(found.group(1)) != offset:
            raise IncompleteError(
                NOT_PARTIAL, "the server did not answer with the range asked", subject=self._requests.subject
            )
        return Got(answer.body, answer.etag, int(found.group(2)))

    def _tried(self, attempt: Callable[[], _Result]) -> _Result:
        """As the single requests are tried: what may have been done (a lost PUT) can be done again."""

        def once() -> _Result:
            try:
                return attempt()
            except HibaliError:
                raise
            except Exception as problem:  # noqa: BLE001  # obstore raises its own, and several of Python's
                raise from_obstore(problem, self._requests.subject) from None

        return self._requests.tried(once)

    def _open(self, *, checksum: bool) -> Any:
        found = self._stores.get(checksum)
        if found is None:
            with self._opening:
                found = self._stores.get(checksum) or self._make(checksum=checksum)
                self._stores[checksum] = found
        return found

    def _make(self, *, checksum: bool) -> Any:
        from obstore.store import S3Store

        endpoint = self._requests.endpoint
        client: ClientConfig = {
            "allow_http": not endpoint.secure,
            "connect_timeout": "10s",
            "timeout": "24h",  # a large piece over a slow line takes what it takes;
            "read_timeout": "120s",  # a server that sends nothing for so long does not answer any more
            "pool_max_idle_per_host": str(CONNECTIONS),
        }
        if not self._requests.proxies:
            # obstore follows redirects to wherever they lead, and has no setting for that: every other host is behind a proxy
            # that is not there. Behind a real proxy objects are read by single requests.
            client["proxy_url"] = _NOWHERE
            client["proxy_excludes"] = (urlsplit(endpoint.url).hostname or "").strip("[]")
        if endpoint.authorities:
            client["root_certificate"] = Path(endpoint.authorities).read_bytes()
        more: dict[str, Any] = {"checksum_algorithm": "SHA256"} if checksum else {}
        if self._requests.source.current() is None:
            more["skip_signature"] = True
        else:
            more |= {"skip_signature": False, "credential_provider": self._credentials}
        return S3Store(
            self._requests.bucket,
            endpoint=endpoint.url,
            region=endpoint.region,
            virtual_hosted_style_request=False,
            unsigned_payload=False,
            client_options=client,
            retry_config=_RETRIES,
            **more,
        )

    def _credentials(self) -> Any:
        """The same keys, as obstore asks for them."""
        found = self._requests.source.current()
        assert found is not None
        return {
            "access_key_id": found.access_key,
            "secret_access_key": found.secret_key,
            "token": found.token,
            "expires_at": found.expires,
        }


_UNITS_AHEAD = 64
_FAILURES = 3  # objects in a row at which the server itself may fail before it is the server that is at fault
_ETAG_MD5 = re.compile(r"[0-9a-f]{32}")
_CHANGED = Problem("source-changed", "it changed while it was read")

_Pieces = list["Future[Got | Problem] | None"]


class _Frontier:
    """One file up to where it was read without a gap, hashed where nobody knows its digest."""

    def __init__(self, etag: str, digest: str | None) -> None:
        self.etag = etag
        self._known = digest
        self._sha256: Any = None if digest else hashlib.sha256()
        md5 = digest is None and _ETAG_MD5.fullmatch(etag)
        self._md5: Any = hashlib.md5(usedforsecurity=False) if md5 else None

    def update(self, content: Bytes) -> None:
        if self._sha256 is not None:
            self._sha256.update(content)
        if self._md5 is not None:
            self._md5.update(content)

    def end(self) -> tuple[str, Proof]:
        """The digest; one on record is compared by whoever lands the bytes, who hashes them anyhow."""
        if self._known is not None:
            return self._known, Proof.RECORDED
        claimed = self._md5 is not None and self._md5.hexdigest() == self.etag
        return self._sha256.hexdigest(), Proof.CLAIMED if claimed else Proof.SIZE


class Reading:
    """The reading half of a store; one `read` at a time."""

    def __init__(self, get: Getter, pool: Executor, key_of: Callable[[bytes], bytes]) -> None:
        """`key_of` gives the whole key of a path below the root."""
        self._getter = get
        self._pool = pool
        self._key_of = key_of
        self._files: dict[int, _Frontier | Problem] = {}
        self._failures = 0
        self.bytes = 0

    def read(self, units: Iterable[Unit]) -> Iterator[Payload]:
        """See Store.read."""
        self._files = {}
        coming = fill_gaps(units, lambda item: item.entry.digest is not None)
        asked: deque[tuple[Unit, bool, _Pieces, int]] = deque()
        ahead = 0
        try:
            while True:
                while ahead < IN_FLIGHT_BYTES and len(asked) < _UNITS_AHEAD:
                    unit, wanted = next(coming, (None, False))
                    if unit is None:
                        break
                    size = _bytes_of(unit)
                    asked.append((unit, wanted, [self._ask(unit, item) for item in unit.items], size))
                    ahead += size
                if not asked:
                    return
                unit, wanted, pieces, size = asked.popleft()
                ahead -= size
                payload = self._payload(unit, pieces)
                if wanted:
                    yield payload
        finally:
            for _, _, pieces, _ in asked:
                for piece in pieces:
                    if piece is not None:
                        piece.cancel()

    def _ask(self, unit: Unit, item: Item) -> Future[Got | Problem] | None:
        if item.entry.kind is not Kind.FILE:
            return None
        offset, length = (unit.offset, unit.length) if unit.segment else (0, None)
        return self._pool.submit(self._get, item.entry, offset, length)

    def _get(self, entry: Entry, offset: int, length: int | None) -> Got | Problem:
        try:
            key = self._key_of(entry.path)
            got = self._getter(key, etag=entry.etag, offset=offset, length=length, most=entry.size)
        except HibaliError as problem:
            self._failures += 1
            if problem.code == FAILED and self._failures <= _FAILURES:
                # One whose bytes the server lost: it has been asked often enough, and the others may be whole.
                return Problem(problem.code, problem.message)
            return problem_of(problem, denied=True)
        self._failures = 0
        wanted = entry.size if length is None else length
        if got.size != entry.size or len(got.content) != wanted or (entry.etag and got.etag != entry.etag):
            return _CHANGED
        return got

    def _payload(self, unit: Unit, pieces: _Pieces) -> Payload:
        contents: list[Bytes] = []
        payload = Payload(unit, b"", [], [], [])
        for position, (item, piece) in enumerate(zip(unit.items, pieces, strict=True)):
            content: Bytes = b""
            digest, proof = None, Proof.DIGEST
            if piece is not None:
                found = self._advance(unit, item, piece.result())
                if isinstance(found, Problem):
                    payload.problems[position] = found
                else:
                    content, digest, proof = found
            contents.append(content)
            payload.sizes.append(len(content))
            payload.digests.append(digest)
            payload.proofs.append(proof)
        payload.data = contents[0] if len(contents) == 1 else b"".join(contents)
        self.bytes += len(payload.data)
        return payload

    def _advance(
        self, unit: Unit, item: Item, got: Got | Problem
    ) -> tuple[Bytes, str | None, Proof] | Problem:
        """One more piece of a file; once it failed, all of its pieces have."""
        known = self._files.pop(item.number, None)
        if isinstance(known, Problem):
            got = known
        if unit.piece:
            return got if isinstance(got, Problem) else (got.content, None, Proof.NONE)
        if isinstance(got, Problem):
            return self._remember(unit, item, got)
        if not isinstance(known, _Frontier):
            known = _Frontier(got.etag, item.entry.digest)
        if got.etag != known.etag:
            return self._remember(unit, item, _CHANGED)
        known.update(got.content)
        if not unit.last:
            self._files[item.number] = known
            return got.content, None, Proof.NONE
        return got.content, *known.end()

    def _remember(self, unit: Unit, item: Item, problem: Problem) -> Problem:
        if not unit.last:
            self._files[item.number] = problem
        return problem

    def digest(
        self, entries: Iterable[Entry], size_now: Callable[[Entry], int | None], piece: int
    ) -> Iterator[tuple[Entry, str | None, Problem | None]]:
        """See Store.digest; `size_now` asks again for the size of one that is not as it was listed."""
        asked: deque[Entry] = deque()

        def units() -> Iterator[Unit]:
            for number, entry in enumerate(entries):
                asked.append(entry)
                yield from _units_of(number, entry, piece)

        for payload in self.read(units()):
            if not payload.unit.last:
                continue
            entry = asked.popleft()
            problem = payload.problems.get(0)
            if problem is None or problem.code != _CHANGED.code:
                yield entry, payload.digests[0], problem
                continue
            size = size_now(entry)
            if size is None:
                yield entry, None, Problem("vanished", "there is no such object")
                continue
            again = Reading(self._getter, self._pool, self._key_of)
            *_, last = again.read(_units_of(0, entry._replace(size=size), piece))
            self.bytes += again.bytes
            yield entry, last.digests[0], last.problems.get(0)


def _units_of(number: int, entry: Entry, piece: int) -> Iterator[Unit]:
    """One file by itself, in pieces where it is large, whatever it was when it was listed."""
    item = Item(number, entry._replace(etag=None, digest=None))
    if entry.size <= piece:
        yield Unit((item,))
        return
    for offset in range(0, entry.size, piece):
        yield Unit((item,), offset, min(piece, entry.size - offset), segment=True)


def _bytes_of(unit: Unit) -> int:
    if unit.segment:
        return unit.length
    return sum(item.entry.size for item in unit.items if item.entry.kind is Kind.FILE)
