"""Single signed requests to an object store: what obstore does not offer, or cannot name."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import quote

from hibali.answers import (
    ANSWER_SECONDS,
    MOST_ANSWER,
    MOST_ERROR,
    Deadline,
    patience_for,
    read_at_most,
    too_long,
    watched,
)
from hibali.errors import HibaliError
from hibali.events import Listener, ignore
from hibali.retry import Result, with_retries
from transfers.stores.s3_credentials import Credentials, CredentialSource
from transfers.stores.s3_endpoint import Endpoint
from transfers.stores.s3_errors import UNREACHABLE, bad_certificate, code_in, error_of, unreachable

CHECKSUM = "x-amz-checksum-sha256"
Bytes = bytes | bytearray | memoryview
EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()
CONNECTIONS = 32
IN_FLIGHT_BYTES = 64 * 1024 * 1024  # so much is under way at once: several parts, or two objects put whole
_RANGE = re.compile(r"bytes=([0-9]{1,18})-([0-9]{1,18})")
_CONNECT_SECONDS = 10
_ATTEMPTS = 5  # the one budget of a request, whoever sends it (decision 0131),
_PATIENCE_SECONDS = 45.0  # and the last one begins by then
_READ_SECONDS = 120
_LEAST_PATIENCE = ANSWER_SECONDS  # for an answer that is whole, however it comes


@dataclass(frozen=True, slots=True)
class Answer:
    """Status, headers (any case) and body of an answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def etag(self) -> str:
        """The ETag without its quotes."""
        return self.headers.get("etag", "").strip('"')

    @property
    def seconds(self) -> float | None:
        """The server's clock in seconds since the epoch (RFC 9110, Date)."""
        try:
            return parsedate_to_datetime(self.headers["date"]).timestamp()
        except (KeyError, ValueError, TypeError):
            return None


class Requests:
    """Signed requests about one bucket, each with its payload's sha256; may be used by many threads."""

    def __init__(
        self,
        endpoint: Endpoint,
        source: CredentialSource,
        bucket: str,
        about: str,
        tell: Listener = ignore,
        *,
        patience: float | None = None,
    ) -> None:
        """`about` names site and bucket in errors; `patience` is how many seconds an answer may be silent."""
        from botocore.httpsession import URLLib3Session
        from botocore.utils import get_environ_proxies

        self.endpoint = endpoint
        self.source = source
        self.bucket = bucket
        self.about = about
        self._tell = tell
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
        words = (self.endpoint, self.source, self.bucket, self.about, self._tell)
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
            raise error_of(answer.status, code, self.about)

        return self.tried(once)

    def tried(self, attempt: Callable[[], Result]) -> Result:
        """What `attempt` returns, tried again while an error may pass. Whoever has found the server gone has found it for all."""
        try:
            found = with_retries(
                attempt,
                about=self.about,
                attempts=1 if self._gone else _ATTEMPTS,
                patience=_PATIENCE_SECONDS,
                tell=self._tell,
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
        with Deadline(patience_for(len(body) + length, self._patience), self.about):
            try:
                found = self._session.send(request.prepare())
                lowered = {name.lower(): value for name, value in found.headers.items()}
                content = self._read(method, found, lowered, length if found.status_code == 206 else most)
            except SSLError:
                raise bad_certificate(self.about) from None
            except (BotoCoreError, HTTPError, OSError):
                raise unreachable(self.about) from None
        told = lowered.get("content-length", "")
        complete = found.status_code < 300 or len(content) < MOST_ERROR
        if method != "HEAD" and complete and told.isdigit() and int(told) != len(content):
            raise unreachable(self.about)  # botocore does not mind an answer that breaks off
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
                raise too_long(self.about, most)
            return read_at_most(lambda size: raw.read(size, decode_content=False), most, self.about)
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
