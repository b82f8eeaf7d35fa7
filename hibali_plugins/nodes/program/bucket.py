"""Read and write the objects of a bucket at a compute node."""

import hashlib
import http.client
import re
import ssl
import threading
import time
from typing import Any, Dict, Iterator, List, Mapping, Optional, Tuple
from urllib.parse import quote, urlsplit

from hibali_plugins.nodes.program.signing import Signer, encode_query
from transfers.agent import protocol
from transfers.agent.lease import LostLeaseError
from transfers.agent.protocol import ChangedError, Problem, RefusedError

_ATTEMPTS = 6
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 20.0  # seconds between attempts
_TIMEOUT = 120.0
_ERROR_BYTES = 64 * 1024
_CHUNK = 1024 * 1024
_SENT = 256 * 1024  # bytes that are sent within the timeout
_LOCK_SECONDS = 20.0  # between two looks at the lock
_CODE = re.compile(rb"<Code>([A-Za-z0-9]{1,60})</Code>")
_LATER = frozenset({408, 425, 429, 500, 502, 503, 504})


class UnreachableError(Exception):
    """The object store does not answer this node, or not with these keys: nothing else of the shard would succeed."""

    def __init__(self, code: str, message: str) -> None:
        super(UnreachableError, self).__init__(message)
        self.code = code


class Answer(object):
    """The status, headers (names in lower case) and error document of a response."""

    def __init__(self, status: int, headers: Mapping[str, str], document: bytes = b"") -> None:
        self.status = status
        self.headers = headers
        self.document = document

    @property
    def etag(self) -> str:
        """The ETag without its quotes."""
        return self.headers.get("etag", "").strip('"')


class Pace(object):
    """Limits how much of something a shard does a second, on average; for several threads. What is not used is not saved up."""

    def __init__(self, rate: float) -> None:
        """`rate` is the most a second, 0 for no limit."""
        self._rate = rate
        self._guard = threading.Lock()
        self._free_at = 0.0

    def acquire(self, amount: float) -> None:
        """Wait until so much more may be done."""
        if not self._rate:
            return
        with self._guard:
            now = time.monotonic()
            start = max(now, self._free_at)
            self._free_at = start + amount / self._rate
        time.sleep(max(0.0, start - now))


class Bucket(object):
    """Signed requests to one bucket over one connection; for one thread."""

    def __init__(self, place: Mapping[str, Any], pace: Pace) -> None:
        """Set the fields; `pace` limits the requests of all threads.

        `place` has `url`, `bucket`, `prefix`, `region`, `authorities`, and `access_key`, `keys` and `token` unless anonymous.
        """
        parts = urlsplit(place["url"])
        self._secure = parts.scheme == "https"
        self._host = parts.netloc
        self._bucket = place["bucket"]
        self.prefix = protocol.bytes_of(place["prefix"])
        self._authorities = place.get("authorities")
        self._pace = pace
        self._payer = {"x-amz-request-payer": "requester"} if place.get("pays") else {}
        self._signer = None
        if place.get("access_key"):
            self._signer = Signer(place["access_key"], place["keys"], place["region"], place.get("token"))
        self._connection: Optional[http.client.HTTPConnection] = None

    def _connect(self) -> http.client.HTTPConnection:
        if self._connection is None:
            if self._secure:
                context = ssl.create_default_context(cafile=self._authorities)
                self._connection = http.client.HTTPSConnection(self._host, timeout=_TIMEOUT, context=context)
            else:
                self._connection = http.client.HTTPConnection(self._host, timeout=_TIMEOUT)
        return self._connection

    def close(self) -> None:
        """Close the connection; the next request opens another one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _open(
        self,
        method: str,
        key: bytes,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        body: protocol.Body,
    ) -> http.client.HTTPResponse:
        """Send one request, in its turn; return the head of the answer."""
        self._pace.acquire(1)
        path = "/" + quote(self._bucket, safe="") + "/" + quote(self.prefix + key, safe="/~")
        text = encode_query(query)
        whole = {"host": self._host, "content-length": str(len(body)), **self._payer, **headers}
        if self._signer is not None:
            digest = headers.get("x-amz-content-sha256") or hashlib.sha256(body).hexdigest()
            stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
            try:
                whole = self._signer.sign((method, path, text), whole, digest, stamp)
            except KeyError:
                raise UnreachableError(
                    "keys-ended", "the keys of this transfer are a week old and no longer valid"
                ) from None
        connection = self._connect()
        connection.putrequest(
            method, path + ("?" + text if text else ""), skip_host=True, skip_accept_encoding=True
        )
        for name, value in whole.items():
            connection.putheader(name, value)
        connection.endheaders()
        view = memoryview(body)
        for start in range(0, len(view), _SENT):
            # the timeout of a socket is for a whole `sendall`, and a part may take longer on a slow link
            connection.send(view[start : start + _SENT])
        return connection.getresponse()

    def request(
        self,
        method: str,
        key: bytes,
        query: Optional[Mapping[str, str]] = None,
        headers: Optional[Mapping[str, str]] = None,
        body: protocol.Body = b"",
    ) -> Answer:
        """Send one request, with retries; any status but 5xx is returned. Raises `UnreachableError`, `RefusedError`."""
        failure: Exception = OSError()
        for attempt in range(_ATTEMPTS):
            _pause_before(attempt)
            try:
                response = self._open(method, key, query or {}, headers or {}, body)
                answer = _answer_of(response, response.read(_ERROR_BYTES + 1))
            except (OSError, http.client.HTTPException) as problem:
                self.close()
                failure = problem
                continue
            if len(answer.document) > _ERROR_BYTES:
                self.close()
            if answer.status not in _LATER:
                return answer
            failure = _refused(answer)
        raise _as_error(failure)

    def read(self, key: bytes, offset: int, length: int, etag: str) -> Iterator[bytes]:
        """Yield `length` bytes of an object from `offset` on, resuming after lost connections.

        Raises:
            ChangedError: it no longer has this ETag, or is shorter.
            UnreachableError, RefusedError: the server did not answer, or refused.
        """
        failed = 0
        while length:
            began = offset
            _pause_before(failed)
            try:
                for chunk in self._read_once(key, offset, length, etag):
                    offset, length = offset + len(chunk), length - len(chunk)
                    yield chunk
            except (OSError, http.client.HTTPException) as problem:
                self.close()
                failed = 1 if offset > began else failed + 1
                if failed >= _ATTEMPTS:
                    raise _as_error(problem) from None

    def _read_once(self, key: bytes, offset: int, length: int, etag: str) -> Iterator[bytes]:
        headers = {"range": f"bytes={offset}-{offset + length - 1}"}
        if etag:
            headers["if-match"] = f'"{etag}"'
        response = self._open("GET", key, {}, headers, b"")
        if response.status in (404, 412, 416):
            response.read(_ERROR_BYTES)
            raise ChangedError("the object changed after it was listed")
        whole = response.status == 200 and not offset
        if response.status != 206 and not whole:
            answer = _answer_of(response, response.read(_ERROR_BYTES))
            self.close()
            if answer.status in _LATER:
                raise http.client.HTTPException(f"status {answer.status}")
            raise _refused(answer)
        while length:
            chunk = response.read(min(_CHUNK, length))
            if not chunk:
                raise http.client.IncompleteRead(b"")
            length -= len(chunk)
            yield chunk
        if response.read(1):
            self.close()
            raise ChangedError("the object became longer after it was listed")


def _pause_before(attempt: int) -> None:
    if attempt:
        time.sleep(min(_FIRST_PAUSE * 2 ** (attempt - 1), _LONGEST_PAUSE))


def _answer_of(response: http.client.HTTPResponse, document: bytes) -> Answer:
    return Answer(response.status, {name.lower(): value for name, value in response.getheaders()}, document)


def _refused(answer: Answer) -> RefusedError:
    found = _CODE.search(answer.document)
    text = found.group(1).decode("ascii") if found else f"status {answer.status}"
    return RefusedError("refused-by-server", f"the server refused the request ({text})")


def _as_error(failure: Exception) -> Exception:
    """Return an error that names no address of the server's answer."""
    if isinstance(failure, RefusedError):
        return failure
    number = failure.errno if isinstance(failure, OSError) else None
    text = type(failure).__name__ if number is None else f"{type(failure).__name__}, errno {number}"
    return UnreachableError("unreachable", f"this node cannot reach the object store ({text})")


def _md5_of(content: bytes) -> str:
    """Return the MD5 in hexadecimal, which many servers send as ETag; "" where a security policy forbids it."""
    try:
        return hashlib.new("md5", content).hexdigest()  # noqa: S324  # compared with the server's own, not trusted
    except ValueError:
        return ""


class BucketSource(object):
    """The objects that are read."""

    def __init__(self, place: Mapping[str, Any], pace: Pace) -> None:
        """See Bucket."""
        self._bucket = Bucket(place, pace)

    def read_pack(self, unit: Dict[str, Any]) -> Tuple[Dict[str, Any], protocol.Body]:
        """Read every item of a pack: what an agent replies to a unit, and the contents."""
        body = bytearray()
        sizes: List[int] = []
        digests: List[Optional[str]] = []
        problems: Dict[str, Problem] = {}
        claimed: List[int] = []
        for position, item in enumerate(unit["items"]):
            try:
                content = b"".join(self.read_range(item, 0, item["size"]))
                digest = hashlib.sha256(content).hexdigest()
                if item.get("sha256") and item["sha256"] != digest:
                    raise RefusedError("corrupt", "the object differs from its recorded sha256")
                if _md5_of(content) == item["tag"]:
                    claimed.append(position)
            except (RefusedError, ChangedError) as problem:
                problems[str(position)] = protocol.problem_of(problem)
                content, digest = b"", ""
            body += content
            sizes.append(len(content))
            digests.append(digest or None)
        header = {"unit": unit["unit"], "sizes": sizes, "digests": digests, "problems": problems}
        return {**header, "claimed": claimed}, body

    def read_range(self, item: Mapping[str, Any], offset: int, length: int) -> Iterator[bytes]:
        """Yield the bytes of a range."""
        return self._bucket.read(protocol.bytes_of(item["read"]), offset, length, item["tag"])

    def close(self) -> None:
        """Close the connection."""
        self._bucket.close()


class BucketTarget(object):
    """The objects that are written: small ones whole, large ones as parts of uploads that the client completes."""

    finishes = False

    def __init__(self, place: Mapping[str, Any], pace: Pace) -> None:
        """See Bucket; in `place`, `checksum` asks for a checksum header, and `lock` is the token of the client's lock."""
        self._bucket = Bucket(place, pace)
        self._checksum = bool(place.get("checksum"))
        self._lock = place.get("lock")
        self._looked = float("-inf")

    def write_pack(
        self, unit: Dict[str, Any], header: Mapping[str, Any], body: protocol.Body
    ) -> List[Dict[str, Any]]:
        """Put every item of a pack; return its results."""
        self._check_lock()
        results = []
        view, done = memoryview(body), 0
        for position, item in enumerate(unit["items"]):
            content = view[done : done + header["sizes"][position]]
            done += len(content)
            problem = header["problems"].get(str(position))
            etag = ""
            digest = header["digests"][position]
            if problem is None:
                try:
                    etag = self._put(item, content, digest)
                except RefusedError as failure:
                    problem = protocol.problem_of(failure)
            results.append({"number": item["number"], "digest": digest, "etag": etag, "problem": problem})
        return results

    def _put(self, item: Mapping[str, Any], content: memoryview, digest: str) -> str:
        headers = {"x-amz-meta-" + name: value for name, value in item["metadata"].items()}
        headers["x-amz-meta-sha256"] = digest
        return self._send(protocol.bytes_of(item["path"]), {}, headers, content, digest)

    def _send(
        self,
        key: bytes,
        query: Mapping[str, str],
        headers: Mapping[str, str],
        content: memoryview,
        digest: str,
    ) -> str:
        whole = {**headers, "x-amz-content-sha256": digest}
        if self._checksum:
            import base64  # start-up: only where the server needs it

            whole["x-amz-checksum-sha256"] = base64.b64encode(bytes.fromhex(digest)).decode("ascii")
        answer = self._bucket.request("PUT", key, query, whole, content)
        if answer.status >= 300:
            raise _refused(answer)
        return answer.etag

    def write_piece(self, unit: Mapping[str, Any], chunks: Iterator[protocol.Body]) -> Dict[str, Any]:
        """Put one part of an upload; return its sha256 and ETag."""
        self._check_lock()
        content = bytearray()
        for chunk in chunks:  # each is valid only until the next one
            content += chunk
        digest = hashlib.sha256(content).hexdigest()
        query = {"partNumber": str(unit["part"]), "uploadId": unit["upload"]}
        key = protocol.bytes_of(unit["items"][0]["path"])
        etag = self._send(key, query, {}, memoryview(content), digest)
        return {"sha256": digest, "etag": etag}

    def _check_lock(self) -> None:
        """Stop when another client holds the lock of the target; raises `LostLeaseError`."""
        if not self._lock or time.monotonic() - self._looked < _LOCK_SECONDS:
            return
        answer = self._bucket.request("GET", b".hibali/lock")
        if answer.status < 300 and self._lock.encode("ascii") not in answer.document:
            raise LostLeaseError("another client holds the lock")
        self._looked = time.monotonic()

    def close(self) -> None:
        """Close the connection."""
        self._bucket.close()
