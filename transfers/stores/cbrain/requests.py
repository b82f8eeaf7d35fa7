"""Send authorized requests to a CBRAIN portal, with retries where a repetition changes nothing."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlencode, urlsplit

from hibali.config.model import Site
from hibali.errors import TryLaterError
from hibali.events import Listener, ignore
from hibali.http.client import Bytes, HttpClient, Receive, Response
from hibali.http.deadline import RESPONSE_SECONDS, request_timeout
from hibali.http.errors import BUSY
from hibali.retry import pause, with_retries
from transfers.stores.cbrain.errors import error_of
from transfers.stores.cbrain.session import JSON, Session, bearer

_RENEWALS = 4  # of the login for one request: the new one may end, too, when the portal restarts
_MOST_ANSWER = 16 * 1024 * 1024  # of a page of records, and of any other answer that is held in memory
_LONGEST_PAUSE = 30.0  # upper bound for Retry-After
_THROTTLED = 429  # the only failure after which a request was certainly not executed
_RESPONSE_SECONDS = RESPONSE_SECONDS
Query = Sequence[tuple[str, str | int]]


class PortalRequests:
    """Requests to one portal; thread-safe. It sends exactly the parameters it is given (see `client`)."""

    def __init__(self, site: Site, session: Session, on_event: Listener = ignore) -> None:
        parts = urlsplit(site.own.url)
        self.subject = site.name
        self._base: str = parts.path.rstrip("/")
        self._session = session
        self._on_event = on_event
        self._client = HttpClient(f"{parts.scheme}://{parts.netloc}", site.name, headers=JSON)

    def get(
        self,
        path: str,
        query: Query = (),
        *,
        subject: str = "",
        limit: int = _MOST_ANSWER,
        public: bool = False,
    ) -> Response:
        """Return the answer to a question. Raise the errors of `error_of`; `subject` names the record."""

        def send(headers: Mapping[str, str]) -> Response:
            target = self._target(path, query)
            return self._client.request("GET", target, headers=headers, limit=limit)

        return self._repeated(send, subject, public=public)

    def receive(
        self,
        path: str,
        receive: Receive,
        *,
        limit: int,
        subject: str = "",
        content: Any = None,
        restart: Callable[[], None] = lambda: None,
    ) -> Response:
        """Receive content in chunks, of at most `limit` bytes; POST the JSON `content`, else GET.

        `restart` is called before each attempt, because a failed one may have delivered chunks.
        """
        body = b"" if content is None else json.dumps(content).encode()

        def send(headers: Mapping[str, str]) -> Response:
            restart()
            return self._client.request(
                "GET" if content is None else "POST",
                self._target(path),
                headers={**headers, "Accept": "*/*"} if content is None else {**headers, **_JSON_BODY},
                body=body,
                limit=limit,
                seconds=request_timeout(limit, _RESPONSE_SECONDS),
                receive=receive,
            )

        return self._repeated(send, subject)

    def change(
        self,
        method: str,
        path: str,
        content: Any,
        *,
        subject: str = "",
        accept: Collection[int] = (),
    ) -> Response:
        """Send JSON whose repetition changes nothing, such as an update or a deletion, with retries.

        Statuses in `accept` are successes, too.
        """
        body = json.dumps(content).encode()

        def send(headers: Mapping[str, str]) -> Response:
            return self._client.request(
                method, self._target(path), headers={**headers, **_JSON_BODY}, body=body, limit=_MOST_ANSWER
            )

        return self._repeated(send, subject, accept=accept)

    def create(self, path: str, content: Any, query: Query = (), *, subject: str = "") -> Response:
        """Send JSON once. After a `TryLaterError` it is unknown whether the portal executed the request."""
        body = json.dumps(content).encode()

        def send(headers: Mapping[str, str]) -> Response:
            return self._send_once(self._target(path, query), [body], len(body), {**headers, **_JSON_BODY})

        return self._once(send, subject)

    def upload(
        self,
        path: str,
        fields: Query,
        file: tuple[str, str],
        pieces: Iterable[Bytes],
        size: int,
        *,
        subject: str = "",
    ) -> Response:
        """Send a form with a file (its field and name) once, whose `size` bytes come in pieces.

        The pieces are consumed once, so nothing is sent again: not even after a renewed login. After a
        `TryLaterError` it is unknown whether the portal has the file.
        """
        boundary = f"hibali-{secrets.token_hex(16)}"
        head, tail = _form(boundary, fields, file)

        def body() -> Iterator[Bytes]:
            yield head
            yield from pieces
            yield tail

        def send(headers: Mapping[str, str]) -> Response:
            kind = {"Content-Type": f"multipart/form-data; boundary={boundary}"}
            return self._send_once(
                self._target(path), body(), len(head) + size + len(tail), {**headers, **kind}
            )

        token = self._session.token()
        with _uncertain():
            response = send(bearer(token))
        if response.status == 401:
            self._session.renew(token)
            raise TryLaterError(
                "login-renewed",
                "the portal rejected the login during the upload; hibali has logged in again",
                subject=subject or self.subject,
            )
        return self._judged(response, subject, repeatable=False)

    def close(self) -> None:
        """Close all connections."""
        self._client.close()

    def _target(self, path: str, query: Query = ()) -> str:
        return self._base + path + (f"?{urlencode(query)}" if query else "")

    def _send_once(
        self, target: str, pieces: Iterable[Bytes], size: int, headers: Mapping[str, str]
    ) -> Response:
        # A connection of its own: a kept one may have ended, and then the request would be sent twice.
        return self._client.upload(target, pieces, size, headers, method="POST", limit=_MOST_ANSWER)

    def _repeated(
        self,
        send: Callable[[Mapping[str, str]], Response],
        subject: str,
        *,
        public: bool = False,
        accept: Collection[int] = (),
    ) -> Response:
        def attempt() -> Response:
            response = send({}) if public else self._authorized(send)
            if response.status in accept:
                return response
            return self._judged(response, subject, repeatable=True)

        return with_retries(attempt, subject=subject or self.subject, on_event=self._on_event)

    def _once(self, send: Callable[[Mapping[str, str]], Response], subject: str) -> Response:
        def attempt() -> Response:
            with _uncertain():
                response = self._authorized(send)
            return self._judged(response, subject, repeatable=False)

        return with_retries(attempt, subject=subject or self.subject, on_event=self._on_event)

    def _authorized(self, send: Callable[[Mapping[str, str]], Response]) -> Response:
        """Send with the token, and with new ones while the portal rejects it, which executes nothing."""
        token = self._session.token()
        response = send(bearer(token))
        for _ in range(_RENEWALS):
            if response.status != 401:
                break
            token = self._session.renew(token)
            response = send(bearer(token))
        return response

    def _judged(self, response: Response, subject: str, *, repeatable: bool) -> Response:
        if 200 <= response.status < 300:
            return response
        problem = error_of(response, subject or self.subject, self.subject)
        if response.status in BUSY:
            problem.transient = repeatable or response.status == _THROTTLED
            retry_after = response.headers.get("retry-after", "")
            if problem.transient and retry_after.isdigit():
                pause(min(float(retry_after), _LONGEST_PAUSE))
        raise problem


_JSON_BODY = {"Content-Type": "application/json"}


@contextmanager
def _uncertain() -> Iterator[None]:
    """Mark connection errors as not to be retried: the portal may have executed the request."""
    try:
        yield
    except TryLaterError as problem:
        problem.transient = False
        raise


def _form(boundary: str, fields: Query, file: tuple[str, str]) -> tuple[bytes, bytes]:
    """Return what is sent before and after a file's content (RFC 7578); names and values are plain text."""
    lines = []
    for name, value in fields:
        lines += [f"--{boundary}", f'Content-Disposition: form-data; name="{name}"', "", str(value)]
    field, name = file
    lines += [
        f"--{boundary}",
        f'Content-Disposition: form-data; name="{field}"; filename="{name}"',
        "Content-Type: application/octet-stream",
        "",
        "",
    ]
    return "\r\n".join(lines).encode(), f"\r\n--{boundary}--\r\n".encode()
