"""Single signed requests to an object store: what obstore does not offer, or cannot name."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import quote

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
_CONNECT_SECONDS = 10
_ATTEMPTS = 5  # the one budget of a request, whoever sends it (decision 0131),
_PATIENCE_SECONDS = 45.0  # and the last one begins by then
_READ_SECONDS = 120


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
        patience: int = _READ_SECONDS,
    ) -> None:
        """`about` names site and bucket in errors; `patience` is how many seconds an answer may be silent."""
        from botocore.httpsession import URLLib3Session
        from botocore.utils import get_environ_proxies

        self.endpoint = endpoint
        self.source = source
        self.bucket = bucket
        self.about = about
        self._tell = tell
        self._gone = False  # all attempts of a request were in vain, and no answer has come since
        self._session: Any = URLLib3Session(
            verify=endpoint.authorities or True,
            proxies=get_environ_proxies(endpoint.url),
            timeout=(_CONNECT_SECONDS, patience),
            max_pool_connections=CONNECTIONS,
        )
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
    ) -> Answer:
        """Send one request, again where that may help. Raises what `error_of` says of statuses not in `accept`.

        `sha256` is what is claimed of the body; computed when not given. Redirects are never followed.
        """
        digest = sha256 or (hashlib.sha256(body).hexdigest() if body else EMPTY_SHA256)
        address = self.endpoint.address(self.bucket, key)
        if query:
            words = (
                f"{quote(name, safe='-_.~')}={quote(value, safe='-_.~')}" for name, value in query.items()
            )
            address = f"{address}?{'&'.join(words)}"

        def once() -> Answer:
            answer = self._send(method, address, dict(headers or {}), body, digest)
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

    def _send(self, method: str, url: str, headers: dict[str, str], body: Bytes, digest: str) -> Answer:
        from botocore.awsrequest import AWSRequest
        from botocore.exceptions import BotoCoreError, SSLError

        request = AWSRequest(method=method, url=url, headers=headers, data=body)
        request.context["payload_sha256"] = digest
        credentials = self.source.current()
        if credentials is not None:
            self._sign(request, credentials)
        try:
            found = self._session.send(request.prepare())
        except SSLError:
            raise bad_certificate(self.about) from None
        except BotoCoreError:
            raise unreachable(self.about) from None
        lowered = {name.lower(): value for name, value in found.headers.items()}
        length = lowered.get("content-length", "")
        if method != "HEAD" and length.isdigit() and int(length) != len(found.content):
            raise unreachable(self.about)  # botocore does not mind an answer that breaks off
        return Answer(found.status_code, lowered, found.content)

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
