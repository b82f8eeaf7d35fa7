"""Send requests to the EBRAINS data proxy, and to the presigned addresses of objects that it answers with.

The data proxy gets the site's token; the object store behind it gets none, because the address itself grants
access (S15, S16). No message contains an address.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping
from email.utils import parsedate_to_datetime
from enum import Enum
from typing import Any
from urllib.parse import quote, quote_from_bytes, urlencode, urlsplit

from hibali.config.model import is_loopback_host
from hibali.errors import AccessError, HibaliError, IncompleteError, NotFoundError, TryLaterError
from hibali.events import Listener, ignore
from hibali.http.client import Bytes, HttpClient, Receive, Response
from hibali.http.deadline import RESPONSE_SECONDS, request_timeout
from hibali.http.errors import BUSY, MAX_ERROR_BYTES, error_of, failed_request
from hibali.retry import pause, with_retries
from transfers.stores.bearer.tokens import Tokens
from transfers.stores.ebrains.consent import Consent
from transfers.stores.ebrains.settings import EbrainsSettings

CONNECTIONS = 8  # requests at a time: the service is shared by many
_SAFE = "/-_.~"
_RESPONSE_SECONDS = RESPONSE_SECONDS
_ATTEMPTS = 5
_RENEWALS = 2  # other threads may use up a token that is valid for few requests
_MOST_ANSWER = 256 * 1024  # of an answer that is not a listing
_DENIED = frozenset({401, 403})
_NO_CONSENT = frozenset({401, 403, 422})  # with can_request_access in the body
_LONGEST_ADDRESS = 16 * 1024
_KEPT_ADDRESSES = 64  # of large objects that are being read
_KEPT_CLIENTS = 4  # of hosts with objects
_LONGEST_PAUSE = 120.0  # upper bound for Retry-After; longer ones end the command
_PLAIN_ADDRESS = re.compile(r"[!-~]+")


class _Sender(Enum):
    """The server that answered, and what about."""

    BUCKET = "the service, about the bucket or dataset"
    OBJECT = "the service, about an object"
    STORE = "the object store"


class Pace:
    """The pause that the service asked for, which all threads keep."""

    def __init__(self, subject: str) -> None:
        self._subject = subject
        self._until = 0.0

    def wait(self) -> None:
        """Wait until requests are welcome again. Raise `TryLaterError` if the command is interrupted."""
        pause(self._until - time.monotonic())

    def slow_down(self, response: Response) -> None:
        """Note what a busy server asks for. Raise `TryLaterError("busy")` if that is too long to wait."""
        seconds = _retry_after(response)
        if seconds > _LONGEST_PAUSE:
            raise TryLaterError(
                "busy",
                f"the service asks for a pause of {seconds:.0f} s",
                subject=self._subject,
                hint="Run the same command again after that time.",
                transient=False,
            )
        self._until = max(self._until, time.monotonic() + seconds)


def _retry_after(response: Response) -> float:
    """Return the seconds of the header Retry-After (RFC 9110: seconds or a date), 0 without it."""
    value = response.headers.get("retry-after", "").strip()
    if value.isascii() and value.isdigit():
        return float(value[:9])
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - (response.seconds or time.time()))
    except (ValueError, TypeError, OverflowError):
        return 0.0


class DataProxy:
    """One bucket or dataset of the service; thread-safe. Keys are unquoted bytes."""

    def __init__(self, settings: EbrainsSettings, subject: str, on_event: Listener = ignore) -> None:
        """Set the fields; `subject` names the site in errors."""
        parts = urlsplit(settings.url)
        self.subject = subject
        self.settings = settings
        self.address = f"{settings.url}/v1/{settings.resource}"
        self._path = f"{quote_from_bytes(parts.path.encode(), safe=_SAFE)}/v1/{settings.resource}"
        self._origin = f"{parts.scheme}://{parts.netloc}"
        self._is_local = parts.scheme == "http" and is_loopback_host(parts.hostname or "")
        self._on_event = on_event
        self._api = HttpClient(self._origin, subject)
        self._tokens = Tokens(settings.login, subject)
        self._accepted = False  # the service accepted the token in this process
        self._consent = Consent(self.address, subject)
        self._pace = Pace(subject)
        self._guard = threading.Lock()
        self._addresses: OrderedDict[bytes, str] = OrderedDict()
        self._clients: OrderedDict[str, HttpClient] = OrderedDict()

    def api(
        self,
        method: str,
        path: str = "",
        *,
        query: Mapping[str, str | bytes] | None = None,
        accept: Collection[int] = (),
        most: int = _MOST_ANSWER,
    ) -> Response:
        """Send one request to the service itself, with retries; `path` is quoted, and begins with a slash.

        Raises `AccessError`, `NotFoundError`, `TryLaterError` (also `consent-pending`), `IncompleteError`.
        """
        target = f"{self._path}{path}" + (f"?{urlencode(query, quote_via=quote)}" if query else "")

        def attempt_once() -> Response:
            response = self._authorized(self._api, method, target, most)
            return self._judged(response, accept, _Sender.OBJECT if path else _Sender.BUCKET)

        return self.tried(attempt_once)

    def ask(
        self, path: str = "", *, query: Mapping[str, str | bytes] | None = None, most: int = _MOST_ANSWER
    ) -> dict[str, Any]:
        """Return the JSON object with which the service answers to GET."""
        return self._read_json(self.api("GET", path, query=query, most=most))

    def send_object(
        self,
        method: str,
        key: bytes,
        *,
        headers: Mapping[str, str] | None = None,
        body: Bytes = b"",
        accept: Collection[int] = (),
        most: int = MAX_ERROR_BYTES,
        receive: Receive | None = None,
        begin: Callable[[Response], None] | None = None,
        keep: bool = False,
    ) -> Response:
        """Send one request for an object to its presigned address, without retries.

        An address that has expired is replaced once. With `keep` it is used again for this key. `receive` gets
        a successful body in pieces, up to `most` bytes, after `begin` got the head.
        """
        seconds = request_timeout(len(body) + most, _RESPONSE_SECONDS)
        try:
            for address in self._two_addresses(method, key, keep=keep):
                client, target = self._client_of(address)
                self._pace.wait()
                response = client.request(
                    method,
                    target,
                    headers=headers,
                    body=body,
                    limit=most,
                    seconds=seconds,
                    receive=receive,
                    begin=begin,
                )
                if response.status not in _DENIED:
                    if keep:
                        self._keep_address(key, address)
                    break
        except HibaliError as problem:
            with self._guard:
                self._addresses.pop(key, None)
            if problem.code == "vanished" and 404 in accept:  # the service itself knows that it is missing
                return Response(404, {}, b"")
            raise
        return self._judged(response, accept, _Sender.STORE)

    def request_object(
        self,
        method: str,
        key: bytes,
        *,
        headers: Mapping[str, str] | None = None,
        body: Bytes = b"",
        accept: Collection[int] = (),
    ) -> Response:
        """Call `send_object` with retries, and return its short answer."""
        return self.tried(lambda: self.send_object(method, key, headers=headers, body=body, accept=accept))

    def upload(self, key: bytes, pieces: Iterator[Bytes], size: int) -> Response:
        """PUT an object whose `size` bytes come in pieces, without retries, because sent pieces are not kept.

        An error of `pieces` is raised, and the object is not created.
        """
        client, target = self._client_of(self._presigned("PUT", key))
        self._pace.wait()
        return self._judged(client.upload(target, pieces, size), (), _Sender.STORE)

    def delete(self, key: bytes) -> None:
        """Remove an object; a missing one is no error."""
        response = self.api("DELETE", self.path_of(key), accept=(404,))
        found = _json_in(response.body)
        if response.status < 300 and isinstance(found, dict) and found.get("failures"):
            raise IncompleteError(
                "refused-by-server", "the service did not remove the object", subject=self.subject
            )

    def tried(self, attempt: Callable[[], Response], *, attempts: int = _ATTEMPTS) -> Response:
        """Call `attempt`, which sends one request, with retries."""
        return with_retries(attempt, subject=self.subject, attempts=attempts, on_event=self._on_event)

    def close(self) -> None:
        """Close all connections."""
        with self._guard:
            clients = [self._api, *self._clients.values()]
            self._clients.clear()
        for client in clients:
            client.close()

    @staticmethod
    def path_of(key: bytes) -> str:
        """Return the path of an object below its bucket or dataset."""
        return "/" + quote_from_bytes(key, safe=_SAFE)

    def _authorized(self, client: HttpClient, method: str, target: str, most: int) -> Response:
        """Send a request with the token; renew that if the service rejects it, and send the request again."""
        token = self._tokens.current()
        for renewals_left in reversed(range(_RENEWALS + 1)):
            self._pace.wait()
            headers = {"Accept": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
            response = client.request(method, target, headers=headers, limit=most, seconds=_RESPONSE_SECONDS)
            if response.status < 300:
                self._accepted = self._accepted or token != ""
            rejected = response.status == 401 and token != ""
            # Without consent a valid token is rejected, too.
            if not rejected or not renewals_left or (_access_request(response) and not self._accepted):
                break
            token = self._tokens.renew(token)
        return response

    def _judged(self, response: Response, accept: Collection[int], sender: _Sender) -> Response:
        """Return a good response; raise the error of another one."""
        by_service = sender is not _Sender.STORE
        if response.status < 300:
            if by_service and self.settings.dataset is not None:
                self._consent.note_granted()
            return response
        if response.status in accept:
            return response
        if response.status in BUSY:
            self._pace.slow_down(response)
        guarded = by_service and self.settings.dataset is not None and self.settings.has_login
        if guarded and response.status in _NO_CONSENT and _access_request(response):
            raise self._consent.require(self._request_access)
        raise self._error_of(response.status, sender)

    def _request_access(self) -> None:
        """Ask for access to the dataset, once: each request sends the user an e-mail."""
        client = HttpClient(self._origin, self.subject)  # over a new connection, it is never sent twice
        try:
            response = self._authorized(client, "POST", self._path, _MOST_ANSWER)
            if response.status >= 300:
                raise self._error_of(response.status, _Sender.BUCKET)
        except HibaliError as problem:
            problem.transient = False
            raise
        finally:
            client.close()

    def _error_of(self, status: int, sender: _Sender) -> HibaliError:
        """Return the error for a status; it repeats no text of the response."""
        if status in _DENIED and sender is not _Sender.STORE and not self.settings.has_login:
            return AccessError(
                "no-credentials",
                f"the service asks for a login (status {status}), but the site has none",
                subject=self.subject,
                hint="Set the site's token_command: hibali config edit",
            )
        if status in _DENIED:
            who = "the object store" if sender is _Sender.STORE else "the service"
            return AccessError(
                "denied",
                f"{who} denied access (status {status})",
                subject=self.subject,
                hint="Check the permissions of your EBRAINS account, and the scopes of its token.",
            )
        if status == 404 and sender is _Sender.BUCKET:
            return NotFoundError(
                "no-such-bucket",
                "the bucket or dataset does not exist",
                subject=self.subject,
                hint=f"Check the settings of the site: hibali sites show {self.subject}",
            )
        if status == 500 and sender is _Sender.STORE:
            return failed_request(f"status {status}", self.subject)
        return error_of(status, self.subject)

    def _two_addresses(self, method: str, key: bytes, *, keep: bool) -> Iterator[str]:
        """Yield a presigned address, which may be a kept one, and then a new one."""
        with self._guard:
            known = self._addresses.get(key) if keep else None
        yield known or self._presigned(method, key)
        yield self._presigned(method, key)

    def _keep_address(self, key: bytes, address: str) -> None:
        with self._guard:
            self._addresses[key] = address
            while len(self._addresses) > _KEPT_ADDRESSES:
                self._addresses.popitem(last=False)

    def _presigned(self, method: str, key: bytes) -> str:
        """Ask for an address to GET or PUT an object; the service redirects there if it ignores the query."""
        query: dict[str, str | bytes] = {"redirect": "false"} if method == "GET" else {}
        response = self.api(method, self.path_of(key), query=query, accept=(307,) if query else ())
        if response.status == 307:
            return self._checked(response.headers.get("location"))
        return self._checked(self._read_json(response).get("url"))

    def _checked(self, address: Any) -> str:
        """Return an address that may be contacted: https, or http to this machine if the service is here.

        Raises `IncompleteError("unsafe-address")`.
        """
        if (
            isinstance(address, str)
            and len(address) <= _LONGEST_ADDRESS
            and _PLAIN_ADDRESS.fullmatch(address)
        ):
            try:
                parts = urlsplit(address)
                plain = parts.scheme == "http" and self._is_local and is_loopback_host(parts.hostname or "")
                if (parts.scheme == "https" or plain) and parts.hostname and "@" not in parts.netloc:
                    _ = parts.port
                    return address
            except ValueError:
                pass
        raise IncompleteError(
            "unsafe-address",
            "the service named an address of the object that hibali does not contact: only https is allowed",
            subject=self.subject,
            hint="Report it to EBRAINS support.",
        )

    def _client_of(self, address: str) -> tuple[HttpClient, str]:
        """Return the client of the host of a checked address, and the path and query there."""
        parts = urlsplit(address)
        origin = f"{parts.scheme}://{parts.netloc}"
        with self._guard:
            client = self._clients.pop(origin, None) or HttpClient(origin, self.subject)
            self._clients[origin] = client
            while len(self._clients) > _KEPT_CLIENTS:
                self._clients.popitem(last=False)[1].close()
        return client, (parts.path or "/") + (f"?{parts.query}" if parts.query else "")

    def _read_json(self, response: Response) -> dict[str, Any]:
        found = _json_in(response.body)
        if isinstance(found, dict):
            return found
        raise TryLaterError(
            "bad-answer",
            "the service's answer is not the JSON object that its documentation describes",
            subject=self.subject,
            hint="Check the url of the site, then run the same command again later.",
            transient=False,
        )


def _json_in(body: bytes) -> Any:
    """Return the JSON of a body, None if it is none."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _access_request(response: Response) -> bool:
    """Return whether the body says that access to a guarded dataset can be requested."""
    found = _json_in(response.body)
    details = [found, found.get("detail")] if isinstance(found, dict) else []
    return any(isinstance(each, dict) and each.get("can_request_access") is True for each in details)
