"""Put and get objects in bulk with obstore."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from hibali.errors import HibaliError, IncompleteError
from hibali.http.client import MAX_RESPONSE_BYTES, Bytes, Response
from hibali.http.errors import not_partial
from transfers.remote.shared_memory import allocate_buffer
from transfers.stores.s3.credentials import Credentials
from transfers.stores.s3.errors import from_obstore
from transfers.stores.s3.requests import CHECKSUM, Pieces, Requests, checksum_of, is_plain
from transfers.stores.server.reading import Got, changed

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig


# Retries in several layers multiply.
_RETRIES: RetryConfig = {"max_retries": 0}
_RANGE = re.compile(r"bytes ([0-9]+)-[0-9]+/([0-9]+)")
_NOWHERE = "http://127.0.0.1:1"  # a port that only root can listen on
_LARGE_BYTES = 1024 * 1024
_Result = TypeVar("_Result")


def _only(etag: str | None) -> dict[str, str]:
    """Return the headers of a request for this version."""
    return {"If-Match": f'"{etag}"'} if etag else {}


_NO_ETAG = "ETag Header missing"  # obstore's words


class Bulk:
    """The puts and gets of one bucket; thread-safe. Signs every payload's sha256."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests
        self._stores: dict[tuple[bool, Credentials | None], Any] = {}
        self._opening = threading.Lock()

    def sends_digest(self, key: bytes, content: Bytes | Pieces) -> bool:
        """Return whether `put` signs the digest that it gets; obstore signs the one of what it sends.

        For large content that second hash costs more than obstore's faster requests save.
        """
        return isinstance(content, Pieces) or len(content) > _LARGE_BYTES or not is_plain(key)

    def put(
        self, key: bytes, content: Bytes | Pieces, metadata: dict[str, str], *, sha256: str, checksum: bool
    ) -> str:
        """Put a whole object and return its ETag. Raise the errors of `error_of`, or `TryLaterError`.

        `sha256` is what the content should have; see `sends_digest`. `checksum` adds one that the server checks.
        """
        if isinstance(content, Pieces) or self.sends_digest(key, content):
            headers = {f"x-amz-meta-{name}": value for name, value in metadata.items()}
            if checksum:
                headers[CHECKSUM] = checksum_of(sha256)
            return self._requests.request("PUT", key, headers=headers, body=content, sha256=sha256).etag
        import obstore

        def send() -> Any:
            store = self._open(checksum=checksum)  # with the keys of now
            attributes = dict(metadata)
            try:
                return obstore.put(store, key.decode(), content, attributes=attributes, use_multipart=False)
            except Exception as problem:
                if _NO_ETAG in str(problem):  # only read from a successful answer
                    return {"e_tag": None}
                raise

        found = self._tried(send)
        return (found["e_tag"] or "").strip('"')

    def get(
        self,
        key: bytes,
        *,
        etag: str | None = None,
        offset: int = 0,
        length: int | None = None,
        most: int = MAX_RESPONSE_BYTES,
    ) -> Got:
        """Read an object of at most `most` bytes, or `length` > 0 bytes from `offset`.

        With `etag`, only that version. Raises `IncompleteError("source-changed")` if the server sends more.
        """
        if length is not None:
            return self._get_range(key, etag, offset, length)
        if not is_plain(key) or self._requests.proxies:
            return self._get_odd(key, etag, most)
        return self._get_plain(key, etag, most)

    def _get_plain(self, key: bytes, etag: str | None, most: int) -> Got:
        import obstore

        options: dict[str, Any] = {"if_match": f'"{etag}"'} if etag else {}

        def read() -> Got:
            store = self._open(checksum=False)
            found = obstore.get(store, key.decode(), options=options)  # type: ignore[arg-type]  # not built by obstore
            meta = found.meta
            # One piece if the server sends what was listed; an endless response gets no second one.
            content = next(iter(found.stream(min_chunk_size=most + 1)), b"")
            if len(content) > most:
                raise changed(self._requests.subject)
            return Got(memoryview(content), (meta["e_tag"] or "").strip('"'), meta["size"])

        return self._tried(read)

    def _get_odd(self, key: bytes, etag: str | None, most: int) -> Got:
        response = self._requested(key, _only(etag), most=most)
        return Got(response.body, response.etag, len(response.body))

    def _get_range(self, key: bytes, etag: str | None, offset: int, length: int) -> Got:
        """Receive a range where a local agent reads it; obstore would copy it twice before."""
        buffer = memoryview(allocate_buffer(length))
        headers = {**_only(etag), "Range": f"bytes={offset}-{offset + length - 1}"}
        response = self._requested(key, headers, into=buffer)
        found = _RANGE.fullmatch(response.headers.get("content-range", ""))
        if found is None or int(found.group(1)) != offset:
            raise not_partial(self._requests.subject)
        return Got(buffer[: response.received], response.etag, int(found.group(2)))

    def _requested(self, key: bytes, headers: dict[str, str], **more: Any) -> Response:
        try:
            return self._requests.request("GET", key, headers=headers, **more)
        except IncompleteError as problem:
            raise changed(self._requests.subject) if problem.code == "answer-too-long" else problem from None

    def _tried(self, attempt: Callable[[], _Result]) -> _Result:
        """Retry like single requests; a lost PUT can be repeated safely."""

        def attempt_once() -> _Result:
            try:
                return attempt()
            except HibaliError:
                raise
            except Exception as problem:  # noqa: BLE001  # obstore raises its own, and several of Python's
                raise from_obstore(problem, self._requests.subject) from None

        return self._requests.tried(attempt_once)

    def _open(self, *, checksum: bool) -> Any:
        credentials = self._requests.source.current()
        kind = checksum, credentials
        found = self._stores.get(kind)
        if found is None:
            with self._opening:
                found = self._stores.get(kind) or self._make(credentials, checksum=checksum)
                self._stores[kind] = found
        return found

    def _make(self, credentials: Credentials | None, *, checksum: bool) -> Any:
        from obstore.store import S3Store

        endpoint = self._requests.endpoint
        client: ClientConfig = {
            "allow_http": not endpoint.secure,
            "connect_timeout": "10s",
            "timeout": "24h",  # a large piece over a slow link may take long;
            "read_timeout": "120s",  # a server that sends nothing for this long has failed
            "pool_max_idle_per_host": str(self._requests.connections),
        }
        if not self._requests.proxies:
            # obstore follows redirects to any host and has no setting for it, so all other hosts get a proxy
            # that does not exist. Behind a real proxy, single requests read the objects.
            client["proxy_url"] = _NOWHERE
            client["proxy_excludes"] = (urlsplit(endpoint.url).hostname or "").strip("[]")
        if endpoint.authorities:
            client["root_certificate"] = Path(endpoint.authorities).read_bytes()
        more: dict[str, Any] = {"request_payer": self._requests.pays}
        if checksum:
            more["checksum_algorithm"] = "SHA256"
        if credentials is None:
            more["skip_signature"] = True
        else:
            # no time at which they expire: then other keys have another client
            keys = {
                "access_key_id": credentials.access_key,
                "secret_access_key": credentials.secret_key,
                "token": credentials.token,
                "expires_at": None,
            }
            more |= {"skip_signature": False, "credential_provider": lambda: keys}
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
