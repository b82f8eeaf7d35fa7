"""Send requests to a service that takes bearer tokens: in turns, with retries, and with a new token when one has expired."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import quote_from_bytes, urlencode, urlsplit

from hibali.errors import HibaliError, TryLaterError
from hibali.events import Listener, ignore
from hibali.http.client import Bytes, HttpClient, Receive, Response
from hibali.http.deadline import RESPONSE_SECONDS, request_timeout
from hibali.http.errors import BUSY, error_of, explanation
from hibali.request_limits import RequestLimit
from hibali.retry import with_retries
from transfers.stores.bearer.tokens import Tokens

ATTEMPTS = 5
MOST_ANSWER = 4 * 1024 * 1024
REQUESTS = (
    10.0  # a second, by all processes of this account on this machine, if the site's settings have no limit
)
_LONGEST_PAUSE = 120.0  # upper bound for Retry-After; longer ones end the command
_REFUSING = frozenset({429, 503})  # which execute nothing
_RESPONSE_SECONDS = RESPONSE_SECONDS


@dataclass(frozen=True, slots=True)
class Call:
    """One request to a service.

    Attributes:
        method: As in RFC 9110.
        path: Below the URL of the service, quoted, with a leading slash.
        query: The parameters; those whose value is None are left out.
        body: What is sent.
        headers: Sent beside the token.
        accept: Statuses from 300 on that are answers, not errors.
        most: How many bytes of an answer are read.
        seconds: In which the answer must be complete; None for the default.
    """

    method: str
    path: str
    query: Mapping[str, str | bytes | int | None] = field(default_factory=dict)
    body: Bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    accept: Collection[int] = ()
    most: int = MOST_ANSWER
    seconds: float | None = None

    @classmethod
    def with_json(cls, method: str, path: str, content: Any, **more: Any) -> Call:
        """Return a request with a JSON body."""
        body = json.dumps(content).encode("ascii")
        return cls(method, path, body=body, headers={"Content-Type": "application/json"}, **more)


class UncertainError(TryLaterError):
    """The service failed while it processed a request that must not be executed twice; `refusal` is what it says about that."""

    def __init__(self, status: int, subject: str, refusal: HibaliError | None) -> None:
        message = f"the service failed while it processed the request (status {status})"
        super().__init__("answer-lost", message, subject=subject, transient=False)
        self.refusal = refusal


class RestClient:
    """One service; thread-safe. Redirects are not followed, so that the token reaches no other server (S15).

    Errors show what the service explains; `judge` may say more.
    """

    def __init__(
        self,
        url: str,
        tokens: Tokens,
        subject: str,
        limit: RequestLimit,
        *,
        judge: Callable[[Call, Response], HibaliError | None] = lambda call, response: None,  # noqa: ARG005
        on_event: Listener = ignore,
    ) -> None:
        """Connect at the first request.

        Args:
            url: The URL of the service, without a slash at its end.
            tokens: The tokens of the site.
            subject: The site, as errors name it.
            limit: The limits of the site (`hibali.request_limits.request_limit` with `requests=REQUESTS`).
            judge: Returns the error of an answer, None for the general one of its status.
            on_event: Called with each event.
        """
        parts = urlsplit(url)
        self.subject = subject
        self._origin = f"{parts.scheme}://{parts.netloc}"
        self._path = quote_from_bytes(parts.path.rstrip("/").encode(), safe="/-_.~")
        self._tokens = tokens
        self._limit = limit
        self._judge = judge
        self._on_event = on_event
        self._client = HttpClient(self._origin, subject)

    def send(self, call: Call, *, receive: Receive | None = None) -> Response:
        """Send a request without retries; `receive` gets the body of a success in pieces."""
        return self._judged(call, self._exchange(self._client, call, receive))

    def repeat(self, call: Call) -> Response:
        """Send a request that may be executed several times, with retries."""
        return with_retries(
            lambda: self.send(call), subject=self.subject, attempts=ATTEMPTS, on_event=self._on_event
        )

    def ask(self, call: Call) -> Any:
        """Return the JSON with which the service answers to a request that may be executed several times."""
        return self.json_of(self.repeat(call))

    def create(self, call: Call) -> Response:
        """Send a request that must not be executed twice. It is sent again only after an answer that says that it was not executed.

        Raises:
            TryLaterError: Transient if it was certainly not executed; otherwise the caller must find that out.
        """
        return with_retries(
            lambda: self._create(call), subject=self.subject, attempts=ATTEMPTS, on_event=self._on_event
        )

    def _create(self, call: Call) -> Response:
        client = HttpClient(
            self._origin, self.subject
        )  # a kept connection may have ended; then it would be sent twice
        try:
            response = self._exchange(client, call, None)
        except TryLaterError as problem:
            problem.transient = False
            raise
        finally:
            client.close()
        if response.status in BUSY - _REFUSING:
            raise UncertainError(response.status, self.subject, self._judge(call, response))
        return self._judged(call, response)

    def upload(
        self,
        call: Call,
        pieces: Iterable[Bytes],
        size: int,
    ) -> Response:
        """Send a body of `size` bytes that come in pieces, without retries, because sent pieces are not kept."""
        token = self._tokens.current()
        target, headers = self._target(call), {**call.headers, **self._authorization(token)}
        with self._limit.turn():
            response = self._client.upload(target, pieces, size, headers, method=call.method, limit=call.most)
        if response.status == 401 and token:
            self._tokens.renew(token)
            raise TryLaterError(
                "token-expired", "the token expired during the upload", subject=self.subject, transient=True
            )
        return self._judged(call, response)

    def json_of(self, response: Response) -> Any:
        """Return the JSON of an answer. Raise `TryLaterError("bad-answer")`."""
        try:
            return json.loads(response.body)
        except (ValueError, RecursionError):
            raise self.bad_answer("it is not JSON") from None

    def bad_answer(self, reason: str) -> TryLaterError:
        """Return the error for an answer that the service's documentation does not allow."""
        return TryLaterError(
            "bad-answer",
            f"the service's answer is not what its documentation describes: {reason}",
            subject=self.subject,
            hint="Check the url of the site, then run the same command again later.",
            transient=False,
        )

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _target(self, call: Call) -> str:
        query = {name: value for name, value in call.query.items() if value is not None}
        return f"{self._path}{call.path}" + (f"?{urlencode(query)}" if query else "")

    @staticmethod
    def _authorization(token: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {token}"} if token else {}

    def _exchange(self, client: HttpClient, call: Call, receive: Receive | None) -> Response:
        """Return the answer, whatever its status; a request with a rejected token is not executed, so it is sent with another one."""
        target = self._target(call)
        seconds = call.seconds or request_timeout(len(call.body) + call.most, _RESPONSE_SECONDS)
        token = self._tokens.current()
        for renew in (True, False):
            with self._limit.turn():
                response = client.request(
                    call.method,
                    target,
                    headers={"Accept": "application/json", **call.headers, **self._authorization(token)},
                    body=call.body,
                    limit=call.most,
                    seconds=seconds,
                    receive=receive,
                )
            if response.status != 401 or not token or not renew:
                break
            token = self._tokens.renew(token)
        return response

    def _judged(self, call: Call, response: Response) -> Response:
        if response.status < 300 or response.status in call.accept:
            return response
        problem = self._judge(call, response) or error_of(
            response.status, self.subject, explanation(response.body)
        )
        if response.status in BUSY:
            self._slow_down(response)
        raise problem

    def _slow_down(self, response: Response) -> None:
        """Let all processes wait as long as the service asks for. Raise `TryLaterError("busy")` if that is too long."""
        seconds = _retry_after(response)
        if seconds > _LONGEST_PAUSE:
            raise TryLaterError(
                "busy",
                f"the service asks for a pause of {seconds:.0f} s",
                subject=self.subject,
                hint="Run the same command again after that time.",
                transient=False,
            )
        self._limit.postpone(seconds)


def _retry_after(response: Response) -> float:
    """Return the seconds of the header Retry-After (RFC 9110: seconds or a date), 0 without it."""
    value = response.headers.get("retry-after", "").strip()
    if value.isascii() and value.isdigit():
        return float(value[:9])
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - (response.seconds or time.time()))
    except (ValueError, TypeError, OverflowError):
        return 0.0
