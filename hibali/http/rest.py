"""Send requests to one service: within its limits, with a login, and again where a repetition changes nothing."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar
from urllib.parse import quote, quote_from_bytes, unquote_to_bytes, urlencode, urljoin, urlsplit

from hibali.errors import HibaliError, TryLaterError
from hibali.events import Listener, ignore
from hibali.http.client import Bytes, HttpClient, Receive, Response
from hibali.http.deadline import RESPONSE_SECONDS, request_timeout
from hibali.http.errors import BUSY, elsewhere, error_of, explanation
from hibali.http.login import Authorization
from hibali.request_limits import RequestLimit
from hibali.retry import with_retries

MOST_ANSWER = 4 * 1024 * 1024
REQUESTS = (
    10.0  # a second, by all processes of this account on this machine, if the site's settings have no limit
)
SAFE = "/-_.~"  # characters of paths that are not quoted
_RESPONSE_SECONDS = RESPONSE_SECONDS
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Call:
    """One request to a service.

    Attributes:
        method: As in RFC 9110.
        path: Below the URL of the service, quoted, with a leading slash.
        query: The parameters; those whose value is None are left out.
        body: What is sent.
        headers: Sent beside the login.
        accept: Statuses from 300 on that are answers, not errors.
        most: How many bytes of an answer are read.
        seconds: In which the answer must be complete; None for the default.
        receive: Gets the body of a success in pieces.
        begin: Gets the head of such an answer before its first piece, and returns True if the body is not needed.
        public: Whether it is sent without the login.
        urgent: Whether it is sent at once, though others wait; see `RequestLimit.turn`.
        subject: What it is about, for errors; "" for the site.
    """

    method: str
    path: str
    query: Mapping[str, str | bytes | int | None] = field(default_factory=dict)
    body: Bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    accept: Collection[int] = ()
    most: int = MOST_ANSWER
    seconds: float | None = None
    receive: Receive | None = None
    begin: Callable[[Response], bool | None] | None = None
    public: bool = False
    urgent: bool = False
    subject: str = ""

    @classmethod
    def with_json(cls, method: str, path: str, content: Any, **more: Any) -> Call:
        """Return a request with a JSON body."""
        body = json.dumps(content).encode("ascii")
        return cls(method, path, body=body, headers={"Content-Type": "application/json"}, **more)


@dataclass(frozen=True, slots=True)
class Policy:
    """How patient hibali is with a kind of service.

    Attributes:
        attempts: Of a request that may be executed several times.
        longest_pause: The most seconds of Retry-After that are waited.
        ends: Whether a longer one ends the command; otherwise it is cut.
        renewals: New logins for one request.
        redirects: Those on the same host that are followed for one request (S15).
        unexecuted: Statuses that say that a request was certainly not executed.
    """

    attempts: int = 5
    longest_pause: float = 120.0
    ends: bool = True
    renewals: int = 1
    redirects: int = 0
    unexecuted: frozenset[int] = frozenset({429, 503})


class UncertainError(TryLaterError):
    """The service failed while it processed a request that must not be executed twice; `refusal` is what it says about that."""

    def __init__(self, status: int, subject: str, refusal: HibaliError | None) -> None:
        message = f"the service failed while it processed the request (status {status})"
        super().__init__("answer-lost", message, subject=subject, transient=False)
        self.refusal = refusal


class RestClient:
    """One service; thread-safe. The login reaches no other server (S15). Errors show what the service explains.

    A subclass has the policy and the errors of its service.
    """

    policy: ClassVar[Policy] = Policy()
    headers: ClassVar[Mapping[str, str]] = {"Accept": "application/json"}
    login_header = "Authorization"

    def __init__(
        self,
        url: str,
        subject: str,
        *,
        login: Authorization | None = None,
        limit: RequestLimit | None = None,
        judge: Callable[[Call, Response], HibaliError | None] = lambda call, response: None,  # noqa: ARG005
        on_event: Listener = ignore,
    ) -> None:
        """Connect at the first request.

        Args:
            url: The URL of the service.
            subject: The site, as errors name it.
            login: Of the site, None without one.
            limit: The limits of the site (`hibali.request_limits.request_limit`).
            judge: Returns the error of an answer, None for the general one of its status.
            on_event: Called with each event.
        """
        parts = urlsplit(url)
        self.subject = subject
        self.origin = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        path = quote_from_bytes(unquote_to_bytes(parts.path).strip(b"/"), safe=SAFE)
        self.base = f"/{path}" if path else ""
        self._login = login
        self._limit = limit or RequestLimit(subject, 0, 0)
        self._judge = judge
        self._on_event = on_event
        self._client = HttpClient(self.origin, subject, headers=self.headers)

    def send(self, call: Call) -> Response:
        """Send a request without retries."""
        return self._judged(call, self._exchange(call))

    def repeat(self, call: Call, *, attempts: int = 0) -> Response:
        """Send a request that may be executed several times, with retries."""
        return self.tried(lambda: self.send(call), call.subject, attempts)

    def tried(self, attempt: Callable[[], Result], subject: str = "", attempts: int = 0) -> Result:
        """Call `attempt`, which sends requests, with retries."""
        return with_retries(
            attempt,
            subject=subject or self.subject,
            attempts=attempts or self.policy.attempts,
            on_event=self._on_event,
        )

    def ask(self, call: Call) -> Any:
        """Return the JSON with which the service answers to a request that may be executed several times."""
        return self.json_of(self.repeat(call))

    def ask_record(self, call: Call) -> dict[str, Any]:
        """Return the JSON object with which the service answers to such a request."""
        return self.record_of(self.repeat(call))

    def create(self, call: Call) -> Response:
        """Send a request that must not be executed twice. It is sent again only after an answer that says that it was not executed.

        Raises:
            TryLaterError: Transient if it was certainly not executed; otherwise the caller must find that out.
        """
        # over a connection of its own: a kept one may have ended, and then the request would be sent twice
        return self.tried(
            lambda: self._judged(call, self._once(call, lambda: self._exchange(call, kept=False))),
            call.subject,
        )

    def _once(self, call: Call, send: Callable[[], Response]) -> Response:
        """Send a request that must not be executed twice; it is transient only if it was certainly not executed."""
        try:
            response = send()
        except TryLaterError as problem:
            problem.transient = False
            raise
        if response.status in BUSY - self.policy.unexecuted:
            raise self._uncertain(call, response)
        return response

    def upload(self, call: Call, pieces: Iterable[Bytes], size: int, *, once: bool = False) -> Response:
        """Send a body of `size` bytes that come in pieces, without retries, because sent pieces are not kept.

        An error of `pieces` is raised, and the upload ends incomplete. With `once`, an error is transient only after an answer
        that says that the request was not executed.
        """
        login = self._login_of(call)
        headers = {**call.headers, **login}

        def send() -> Response:
            with self._limit.turn():
                return self._client.upload(
                    self._target(call), pieces, size, headers, method=call.method, limit=call.most
                )

        response = self._once(call, send) if once else send()
        if self._renewed(response, login):
            raise self._expired(call.subject or self.subject)
        return self._judged(call, response)

    def json_of(self, response: Response) -> Any:
        """Return the JSON of an answer. Raise `TryLaterError("bad-answer")`."""
        try:
            return json.loads(response.body)
        except (ValueError, RecursionError):
            raise self.bad_answer("it is not JSON") from None

    def record_of(self, response: Response) -> dict[str, Any]:
        """Return the JSON object of an answer. Raise as `json_of` does."""
        found = self.json_of(response)
        if not isinstance(found, dict):
            raise self.bad_answer("it is no JSON object")
        return found

    def bad_answer(self, reason: str) -> HibaliError:
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
        if not call.query:
            return self.base + call.path
        query = {name: value for name, value in call.query.items() if value is not None}
        return f"{self.base}{call.path}" + (f"?{urlencode(query, quote_via=quote)}" if query else "")

    # What services do differently

    def _error_of(self, call: Call, response: Response) -> HibaliError:
        """Return the error of an answer."""
        return self._judge(call, response) or error_of(
            response.status, self.subject, explanation(response.body)
        )

    def _uncertain(self, call: Call, response: Response) -> HibaliError:
        """Return the error of an answer that does not say whether the request was executed."""
        return UncertainError(response.status, self.subject, self._judge(call, response))

    def _expired(self, subject: str) -> HibaliError:
        """Return the error of an upload with a login that the service refused, and that was renewed."""
        return TryLaterError("token-expired", "the login expired during the upload", subject=subject)

    def _refused(self, response: Response) -> bool:
        """Return whether the service refused the login of a request, which it did not execute."""
        return response.status == 401

    # Layers: login, redirects, limits

    def _exchange(self, call: Call, *, kept: bool = True) -> Response:
        """Return the answer, whatever its status; a request with a refused login is sent with another one."""
        login = self._login_of(call)
        response = self._redirected(call, login, kept=kept)
        for _ in range(self.policy.renewals):
            if not self._renewed(response, login):
                break
            login = self._login_of(call)
            response = self._redirected(call, login, kept=kept)
        return response

    def _login_of(self, call: Call) -> dict[str, str]:
        return {} if self._login is None or call.public else {self.login_header: self._login.header()}

    def _renewed(self, response: Response, login: Mapping[str, str]) -> bool:
        """Return whether the service refused this login, and there is another one now."""
        if self._login is None or not login or not self._refused(response):
            return False
        return self._login.renew(login[self.login_header])

    def _redirected(self, call: Call, login: Mapping[str, str], *, kept: bool) -> Response:
        target = self._target(call)
        for _ in range(self.policy.redirects + 1):
            response = self._transmit(call, target, login, kept=kept)
            if not self.policy.redirects or response.status not in _REDIRECTS:
                return response
            target = self._follow(call, target, response)
        raise elsewhere(self.subject)

    def _follow(self, call: Call, target: str, response: Response) -> str:
        """Return the target of a redirect on this host. Raise `UsageError` for another host, and for another kind of request."""
        location = urlsplit(urljoin(self.origin + target, response.headers.get("location", "")))
        is_other = (location.query or response.status == 303) and call.method not in {"GET", "HEAD"}
        if f"{location.scheme}://{location.netloc}" != self.origin or is_other or not location.path:
            raise elsewhere(self.subject)
        query = f"?{location.query}" if location.query else ""
        return quote_from_bytes(unquote_to_bytes(location.path), safe=SAFE) + query

    def _transmit(self, call: Call, target: str, login: Mapping[str, str], *, kept: bool) -> Response:
        headers = {**call.headers, **login}
        with self._limit.turn(urgent=call.urgent):
            if not kept:  # over a connection of its own
                return self._client.upload(
                    target, [call.body], len(call.body), headers, method=call.method, limit=call.most
                )
            return self._client.request(
                call.method,
                target,
                headers=headers,
                body=call.body,
                limit=call.most,
                seconds=call.seconds or request_timeout(len(call.body) + call.most, _RESPONSE_SECONDS),
                receive=call.receive,
                begin=call.begin,
            )

    def _judged(self, call: Call, response: Response) -> Response:
        if response.status < 300 or response.status in call.accept:
            return response
        problem = self._error_of(call, response)
        if response.status in BUSY:
            self.slow_down(response)
        raise problem

    def slow_down(self, response: Response) -> None:
        """Let all requests wait as long as the service asks for. Raise `TryLaterError("busy")` if that is too long."""
        seconds, most = response.retry_after, self.policy.longest_pause
        if seconds > most and self.policy.ends:
            raise TryLaterError(
                "busy",
                f"the service asks for a pause of {seconds:.0f} s",
                subject=self.subject,
                hint="Run the same command again after that time.",
                transient=False,
            )
        self._limit.postpone(min(seconds, most))
