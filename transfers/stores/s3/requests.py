"""Send signed S3 requests, parse their XML, and translate errors."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote_to_bytes
from xml.sax.saxutils import escape

from hibali import documents
from hibali.errors import (
    AccessError,
    HibaliError,
    IncompleteError,
    NotFoundError,
    RefusedError,
    TryLaterError,
    UsageError,
)
from hibali.events import Listener, ignore
from hibali.http import (
    ANSWER_SECONDS,
    MOST_ANSWER,
    MOST_ERROR,
    Answer,
    Bytes,
    Deadline,
    read_at_most,
    request_timeout,
    too_long,
    watched,
)
from hibali.retry import Result, with_retries
from transfers.stores.base import Problem
from transfers.stores.s3.credentials import Credentials, CredentialSource, Endpoint

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element


parse = documents.parse
_ODD = re.compile("[\\x00-\\x1f\\x7f-\\x9f\\ufffe\\uffff]")


def cut_rows(body: bytes, element: bytes, wanted: Sequence[bytes]) -> tuple[list[tuple[bytes, ...]], bytes]:
    """The texts of the `wanted` children of each `element` that is written as the first one is, and the document without these.

    For what comes in thousands: a search for the very layout that this server writes is many times as fast as
    a parser. Whatever looks otherwise stays in the document, for `parse`. Texts hold no entities.
    """
    first = re.search(rb"<%s>((?:<\w+>[^<]*</\w+>)+)</%s>" % (element, element), body)
    names = tuple(re.findall(rb"<(\w+)>", first.group(1))) if first and b"<!" not in body else ()
    if any(names.count(name) != 1 for name in wanted):
        return [], body
    parts = _layout(element, names, frozenset(wanted)).split(body)
    step = len(wanted) + 1
    order = [name for name in names if name in wanted]
    columns = [parts[order.index(name) + 1 :: step] for name in wanted]
    return list(zip(*columns, strict=True)), b"".join(parts[::step])


@lru_cache(maxsize=8)
def _layout(element: bytes, names: tuple[bytes, ...], wanted: frozenset[bytes]) -> re.Pattern[bytes]:
    """An element with just these children in this order; an ETag is taken without its quotes."""
    quote = rb"""(?:&quot;|&#34;|")"""
    taken = dict.fromkeys(wanted, rb"([^<&]*)")
    if b"ETag" in taken:
        taken[b"ETag"] = quote + rb'([^<&"]*)' + quote
    texts = (rb"<%s>%s</%s>" % (name, taken.get(name, rb"[^<]*"), name) for name in names)
    return re.compile(rb"<%s>%s</%s>" % (element, b"".join(texts), element))


def name_of(element: Element) -> str:
    """The tag without its namespace, which servers differ in."""
    return element.tag.rpartition("}")[2]


def children(element: Element, name: str) -> Iterator[Element]:
    """The direct children of that name."""
    return (child for child in element if name_of(child) == name)


def fields(element: Element) -> dict[str, str]:
    """The texts of all direct children by their names, where there is one of each; for what comes in thousands."""
    return {child.tag[child.tag.find("}") + 1 :]: child.text or "" for child in element}


def text(element: Element, name: str) -> str:
    """The text of the first direct child of that name, or nothing."""
    for child in children(element, name):
        return child.text or ""
    return ""


def key_bytes(word: str, *, encoded: bool) -> bytes:
    """A key as bytes; `encoded` where the server said EncodingType url (a space is then a plus)."""
    return unquote_to_bytes(word.replace("+", " ")) if encoded else word.encode("utf-8", "surrogateescape")


def raw_key(word: bytes, *, encoded: bool) -> bytes:
    """The same for a text in the bytes of the document, which are UTF-8."""
    if not encoded or (b"%" not in word and b"+" not in word):
        return word
    return unquote_to_bytes(word.replace(b"+", b" "))


def is_plain(key: bytes) -> bool:
    """Whether XML 1.0 and obstore can hold this key: UTF-8 without control characters."""
    try:
        return _ODD.search(key.decode()) is None
    except UnicodeDecodeError:
        return False


def delete_document(keys: list[bytes]) -> bytes:
    """The body of DeleteObjects for plain keys; only failures are to be told."""
    objects = "".join(f"<Object><Key>{escape(key.decode())}</Key></Object>" for key in keys)
    return f"<Delete><Quiet>true</Quiet>{objects}</Delete>".encode()


def complete_document(etags: list[str]) -> bytes:
    """The body of CompleteMultipartUpload for parts 1, 2, ... with these ETags."""
    parts = "".join(
        f"<Part><PartNumber>{number}</PartNumber><ETag>&quot;{escape(etag)}&quot;</ETag></Part>"
        for number, etag in enumerate(etags, 1)
    )
    return f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>".encode()


_STATUS = re.compile(r"status code: (\d{3})")
_RANGE_ERROR = re.compile(
    r"\b(NotPartial|(No|Parse|Invalid)ContentRange|(Unexpected|Invalid)Range(Request)?)\b"
)
_CODE = re.compile(r"<Code>([A-Za-z0-9]{1,60})</Code>")

NOT_PARTIAL = "not-the-range-asked"
FAILED = "server-failed"
UNREACHABLE = "unreachable"

_EXPIRED = frozenset({"ExpiredToken", "RequestExpired", "TokenRefreshRequired"})
_WRONG_KEYS = frozenset({"InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "InvalidSecurity"})
_FULL = frozenset(
    {"QuotaExceeded", "XMinioStorageFull", "XMinioAdminBucketQuotaExceeded", "InsufficientStorage"}
)
_CORRUPT = frozenset({"XAmzContentSHA256Mismatch", "BadDigest", "InvalidDigest", "IncompleteBody"})
_BUSY = frozenset({"SlowDown", "RequestTimeout", "ServiceUnavailable", "OperationAborted"})
_ELSEWHERE = frozenset({"PermanentRedirect", "TemporaryRedirect", "AuthorizationHeaderMalformed"})


def error_of(status: int, code: str, subject: str) -> HibaliError:
    """The error that an answer of an S3 server stands for (Amazon S3 API reference, "Error responses").

    Nothing of the answer's text is repeated but its code: it may hold keys, signatures or an attacker's words.
    """
    said = code or f"status {status}"
    if code == "NoSuchBucket":
        return NotFoundError(
            "no-such-bucket",
            "there is no such bucket",
            subject=subject,
            hint="Make it with the server's own tools.",
        )
    if code == "RequestTimeTooSkewed":
        return AccessError(
            "clock-skew",
            "the server says that this machine's clock is wrong",
            subject=subject,
            hint="Set the clock.",
        )
    if code in _FULL or status == 507:
        return IncompleteError("no-space", f"the store is full or over its quota ({said})", subject=subject)
    if code in _CORRUPT:
        return IncompleteError(
            "corrupt", f"the server received other bytes ({said})", subject=subject, transient=True
        )
    if code == "InternalError" or status == 500:
        return TryLaterError(FAILED, f"the server failed at this ({said})", subject=subject)
    if code in _BUSY or status in {408, 429} or status >= 500:
        if status == 501:
            return IncompleteError("not-supported", f"the server cannot do this ({said})", subject=subject)
        return TryLaterError("busy", f"the server cannot answer now ({said})", subject=subject)
    if code in _EXPIRED | _WRONG_KEYS or status in {401, 403}:
        return _denied(code, said, subject)
    if code in _ELSEWHERE or 300 <= status < 400:
        return UsageError(
            "wrong-endpoint",
            f"the server says that the bucket is elsewhere ({said}); redirects are not followed",
            subject=subject,
            hint="Correct endpoint and region of the site in config.toml.",
        )
    if status == 404:
        return NotFoundError("vanished", "there is no such object", subject=subject)
    if status == 412:
        return IncompleteError("source-changed", "it changed meanwhile", subject=subject)
    return IncompleteError("refused-by-server", f"the server refused the request ({said})", subject=subject)


def _denied(code: str, said: str, subject: str) -> AccessError:
    if code in _EXPIRED:
        return AccessError(
            "expired",
            f"the credentials have expired ({said})",
            subject=subject,
            hint="Get new ones, then try again.",
        )
    if code in _WRONG_KEYS:
        return AccessError(
            "bad-credentials",
            f"the server does not accept these keys ({said})",
            subject=subject,
            hint="Check the site's profile, credentials_command, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.",
        )
    return AccessError(
        "denied",
        f"the server does not allow this ({said})",
        subject=subject,
        hint="Ask the bucket's owner for access.",
    )


def unreachable(subject: str) -> TryLaterError:
    """No answer came, or it broke off."""
    return TryLaterError(
        UNREACHABLE,
        "the server cannot be reached",
        subject=subject,
        hint="Check the endpoint and the network.",
    )


def bad_certificate(subject: str) -> AccessError:
    """The server could not prove who it is."""
    return AccessError(
        "bad-certificate",
        "the server's certificate cannot be trusted",
        subject=subject,
        hint="For a private authority set AWS_CA_BUNDLE to its certificate.",
    )


def code_in(body: bytes) -> str:
    """The error code in an answer's XML, or nothing."""
    found = _CODE.search(body[:4096].decode("utf-8", "replace"))
    return found.group(1) if found else ""


def from_obstore(problem: Exception, subject: str) -> HibaliError:
    """What obstore raised; it tells status and code only in its text."""
    text = str(problem)
    status = _STATUS.search(text)
    if status:
        code = _CODE.search(text)
        return error_of(int(status.group(1)), code.group(1) if code else "", subject)
    if isinstance(problem, HibaliError):
        return problem
    if "certificate" in text:
        return bad_certificate(subject)
    if _RANGE_ERROR.search(text):
        return IncompleteError(NOT_PARTIAL, "the server did not answer with the range asked", subject=subject)
    return unreachable(subject)


def problem_of(error: HibaliError, *, denied: bool = False) -> Problem:
    """An error of one entry as its problem; an error of the whole call is raised again.

    With `denied` it is this one entry's business that access to it is.
    """
    if (
        isinstance(error, (IncompleteError, RefusedError))
        or error.code == "vanished"
        or (denied and error.code == "denied")
    ):
        return Problem(error.code, error.message, again=error.transient)
    raise error


CHECKSUM = "x-amz-checksum-sha256"
EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()
CONNECTIONS = 32
IN_FLIGHT_BYTES = 64 * 1024 * 1024  # so much is under way at once: several parts, or two objects put whole
_RANGE = re.compile(r"bytes=([0-9]{1,18})-([0-9]{1,18})")
_CONNECT_SECONDS = 10
_ATTEMPTS = 5  # the one budget of a request, whoever sends it (decision 09),
_PATIENCE_SECONDS = 45.0  # and the last one begins by then
_READ_SECONDS = 120
_LEAST_PATIENCE = ANSWER_SECONDS  # for an answer that is whole, however it comes


class Requests:
    """Signed requests about one bucket, each with its payload's sha256; may be used by many threads."""

    def __init__(
        self,
        endpoint: Endpoint,
        source: CredentialSource,
        bucket: str,
        subject: str,
        on_event: Listener = ignore,
        *,
        patience: float | None = None,
    ) -> None:
        """`subject` names site and bucket in errors; `patience` is how many seconds an answer may be silent."""
        from botocore.httpsession import URLLib3Session
        from botocore.utils import get_environ_proxies

        self.endpoint = endpoint
        self.source = source
        self.bucket = bucket
        self.subject = subject
        self._on_event = on_event
        self._patience = max(_LEAST_PATIENCE, 2.0 * (patience or 0.0))
        patience = patience or _READ_SECONDS
        self._gone = False  # all attempts of a request were in vain, and no answer has come since
        self.proxies: Mapping[str, str] = get_environ_proxies(endpoint.url)
        self._session: Any = URLLib3Session(
            verify=endpoint.authorities or True,
            proxies=self.proxies,
            timeout=(_CONNECT_SECONDS, patience),
            max_pool_connections=CONNECTIONS,
        )
        pools = self._session._pool_classes_by_scheme  # noqa: SLF001  # urllib3's setting, which botocore gives no name
        pools.update({scheme: watched(kind) for scheme, kind in pools.items()})
        self._signer = _signer_class()

    def patient(self, seconds: int) -> Requests:
        """The same for answers that take the server so many seconds; closed by itself."""
        words = (self.endpoint, self.source, self.bucket, self.subject, self._on_event)
        return Requests(*words, patience=seconds)

    def ask(
        self,
        method: str,
        key: bytes = b"",
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: Bytes = b"",
        sha256: str | None = None,
        accept: Collection[int] = (),
        most: int = MOST_ANSWER,
    ) -> Answer:
        """Send one request, again where that may help. Raises what `error_of` says of statuses not in `accept`.

        `sha256` is what is claimed of the body; computed when not given. Redirects are never followed. An answer has at most `most`
        bytes, one to a range no more than that.
        """
        digest = sha256 or (hashlib.sha256(body).hexdigest() if body else EMPTY_SHA256)
        address = self.endpoint.address(self.bucket, key)
        if query:
            words = (
                f"{quote(name, safe='-_.~')}={quote(value, safe='-_.~')}" for name, value in query.items()
            )
            address = f"{address}?{'&'.join(words)}"

        def once() -> Answer:
            answer = self._send(method, address, dict(headers or {}), body, digest, most)
            if answer.status < 300 or answer.status in accept:
                return answer
            code = code_in(answer.body)
            if not code and method == "HEAD" and answer.status == 404 and not key:
                code = "NoSuchBucket"
            raise error_of(answer.status, code, self.subject)

        return self.tried(once)

    def tried(self, attempt: Callable[[], Result]) -> Result:
        """What `attempt` returns, tried again while an error may pass. Whoever has found the server gone has found it for all."""
        try:
            found = with_retries(
                attempt,
                subject=self.subject,
                attempts=1 if self._gone else _ATTEMPTS,
                patience=_PATIENCE_SECONDS,
                on_event=self._on_event,
            )
        except HibaliError as problem:
            self._gone = problem.code == UNREACHABLE
            raise
        self._gone = False
        return found

    def _send(
        self,
        method: str,
        url: str,
        headers: dict[str, str],
        body: Bytes,
        digest: str,
        most: int = MOST_ANSWER,
    ) -> Answer:
        from botocore.awsrequest import AWSRequest
        from botocore.exceptions import BotoCoreError, SSLError
        from urllib3.exceptions import HTTPError  # botocore's own client

        request = AWSRequest(method=method, url=url, headers=headers, data=body, stream_output=True)
        request.context["payload_sha256"] = digest
        wanted = _RANGE.fullmatch(headers.get("Range", ""))
        length = int(wanted[2]) - int(wanted[1]) + 1 if wanted else 0
        credentials = self.source.current()
        if credentials is not None:
            self._sign(request, credentials)
        with Deadline(request_timeout(len(body) + length, self._patience), self.subject):
            try:
                found = self._session.send(request.prepare())
                lowered = {name.lower(): value for name, value in found.headers.items()}
                content = self._read(method, found, lowered, length if found.status_code == 206 else most)
            except SSLError:
                raise bad_certificate(self.subject) from None
            except (BotoCoreError, HTTPError, OSError):
                raise unreachable(self.subject) from None
        told = lowered.get("content-length", "")
        complete = found.status_code < 300 or len(content) < MOST_ERROR
        if method != "HEAD" and complete and told.isdigit() and int(told) != len(content):
            raise unreachable(self.subject)  # botocore does not mind an answer that breaks off
        return Answer(found.status_code, lowered, content)

    def _read(self, method: str, found: Any, headers: Mapping[str, str], most: int) -> bytes:
        """The body as it was sent: a `Content-Encoding` is a property of an object, and is never undone here."""
        raw = found.raw
        if found.status_code >= 300:
            said: bytes = raw.read(MOST_ERROR, decode_content=False)
            if len(said) == MOST_ERROR:
                raw.close()
            else:
                raw.read(1, decode_content=False)  # to its end, so that the connection can be used again
            return said
        told = headers.get("content-length", "")
        try:
            if method != "HEAD" and told.isdigit() and int(told) > most:
                raise too_long(self.subject, most)
            return read_at_most(lambda size: raw.read(size, decode_content=False), most, self.subject)
        except HibaliError:
            raw.close()
            raise

    def _sign(self, request: Any, credentials: Credentials) -> None:
        from botocore.credentials import Credentials as Keys

        keys = Keys(credentials.access_key, credentials.secret_key, credentials.token)
        self._signer(keys, "s3", self.endpoint.region).add_auth(request)

    def close(self) -> None:
        """Let go of the connections."""
        self._session.close()


def checksum_of(sha256: str) -> str:
    """A sha256 in hexadecimal as the header `CHECKSUM` wants it."""
    return base64.b64encode(bytes.fromhex(sha256)).decode("ascii")


def _signer_class() -> Callable[..., Any]:
    """Botocore's signer for S3, with the payload's sha256 that we computed, or one that is wrong on purpose."""
    from botocore.auth import S3SigV4Auth

    class Signer(S3SigV4Auth):  # type: ignore[misc]  # botocore has no types
        def payload(self, request: Any) -> str:
            return str(request.context["payload_sha256"])

    return Signer
