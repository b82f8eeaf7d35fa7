"""Send requests to the EBRAINS data proxy, and to the presigned addresses of objects that it answers with.

The data proxy gets the site's token; the object store behind it gets none, because the address itself grants
access (S15, S16). No message contains an address.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any
from urllib.parse import quote, quote_from_bytes

from hibali.errors import AccessError, HibaliError, IncompleteError, NotFoundError, TryLaterError
from hibali.events import Listener, ignore
from hibali.http.addresses import Addresses
from hibali.http.client import Bytes, Receive, Response
from hibali.http.deadline import RESPONSE_SECONDS, request_timeout
from hibali.http.errors import BUSY, MAX_ERROR_BYTES, error_of, failed_request
from hibali.http.rest import SAFE, Call, Policy, RestClient
from hibali_plugins.ebrains.consent import Consent
from hibali_plugins.ebrains.settings import EbrainsSettings
from transfers.stores.bearer.tokens import Tokens

CONNECTIONS = 8  # requests at a time: the service is shared by many
_RESPONSE_SECONDS = RESPONSE_SECONDS
_MOST_ANSWER = 256 * 1024  # of an answer that is not a listing
_COMPLETE_SECONDS = 600.0  # object stores join large objects slowly
_LONGEST_ID = 1024
_DENIED = frozenset({401, 403})
_NO_CONSENT = frozenset({401, 403, 422})  # with can_request_access in the body
_KEPT_ADDRESSES = 64  # of large objects that are being read


class _Sender(Enum):
    """The server that answered, and what about."""

    BUCKET = "the service, about the bucket or dataset"
    OBJECT = "the service, about an object"
    STORE = "the object store"


class DataProxy(RestClient):
    """One bucket or dataset of the service; thread-safe. Keys are unquoted bytes."""

    policy = Policy(renewals=2)  # other threads may use up a token that is valid for few requests

    def __init__(self, settings: EbrainsSettings, subject: str, on_event: Listener = ignore) -> None:
        """Set the fields; `subject` names the site in errors."""
        self.settings = settings
        self.address = f"{settings.url}/v1/{settings.resource}"
        super().__init__(
            self.address, subject, login=Tokens(settings.login, subject).authorization(), on_event=on_event
        )
        self._takes_parts = True  # as far as is known
        self._accepted = False  # the service accepted the token in this process
        self._consent = Consent(self.address, subject)
        self._guard = threading.Lock()
        self._kept: OrderedDict[bytes, str] = OrderedDict()
        self._addresses = Addresses(settings.url, subject)

    def api(
        self,
        method: str,
        path: str = "",
        *,
        query: Mapping[str, str | bytes | int | None] | None = None,
        accept: Collection[int] = (),
        most: int = _MOST_ANSWER,
    ) -> Response:
        """Send one request to the service itself, with retries; `path` is quoted, and begins with a slash.

        Raises `AccessError`, `NotFoundError`, `TryLaterError` (also `consent-pending`), `IncompleteError`.
        """
        call = Call(method, path, query=query or {}, accept=accept, most=most, seconds=_RESPONSE_SECONDS)
        return self.repeat(call)

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
                client, target = self._addresses.client_of(address)
                with self._limit.turn():
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
                self._kept.pop(key, None)
            if problem.code == "vanished" and 404 in accept:  # the service itself knows that it is missing
                return Response(404, {}, b"")
            raise
        return self._judged_object(response, accept)

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

    def upload_object(self, key: bytes, pieces: Iterator[Bytes], size: int) -> Response:
        """PUT an object whose `size` bytes come in pieces, without retries, because sent pieces are not kept.

        An error of `pieces` is raised, and the object is not created.
        """
        client, target = self._addresses.client_of(self._presigned("PUT", key))
        with self._limit.turn():
            response = client.upload(target, pieces, size)
        return self._judged_object(response)

    # Uploads in parts: no document describes them; the client ebrains-drive 0.7.0 of 2026 sends these requests

    def begin_parts(self, key: bytes) -> str | None:
        """Begin an upload in parts, and return its id; None from a service that takes no parts.

        Such a one knows no such path or method, or reads the path as the key of an object and returns the address to upload that. It
        is asked once in a process.

        Raises:
            NotFoundError: The bucket does not exist.
        """
        if not self._takes_parts:
            return None
        response = self.api("PUT", f"{self.path_of(key)}/multipart", accept=(404, 405))
        if response.status == 404:
            self.api("GET", query={"limit": 1})  # a missing bucket raises its own error
        answer = self.record_of(response) if response.status < 300 else {"url": ""}
        upload = answer.get("uploadId")
        if upload is None and "url" in answer:
            self._takes_parts = False
            return None
        if not isinstance(upload, str) or not 0 < len(upload) <= _LONGEST_ID:
            raise self.bad_answer("it has no uploadId")
        return upload

    def send_part(self, key: bytes, upload: str, number: int, content: Bytes) -> str:
        """Store a part, with retries, and return its ETag. Raise `NotFoundError` if the service does not have the upload."""
        path = f"{self._path_of_parts(key, upload)}/{number}"

        def attempt() -> Response:
            response = self.api("PUT", path, query={"redirect": "false"})
            client, target = self._addresses.client_of(
                self._addresses.checked(self.record_of(response).get("url"))
            )
            seconds = request_timeout(len(content), _RESPONSE_SECONDS)
            with self._limit.turn():
                response = client.request("PUT", target, body=content, limit=MAX_ERROR_BYTES, seconds=seconds)
            return self._judged_object(response)

        tag = self.tried(attempt).etag.strip('"')
        if not tag:
            raise self.bad_answer("a part has no ETag")
        return tag

    def complete_parts(self, key: bytes, upload: str, tags: Sequence[str]) -> None:
        """Make the object of its parts. Raise `NotFoundError` if the service no longer has the upload."""
        content = {str(number): tag for number, tag in enumerate(tags, 1)}
        path, query = self._path_of_parts(key, upload), {"redirect": "false"}
        self.repeat(Call.with_json("PUT", path, content, query=query, seconds=_COMPLETE_SECONDS))

    def _path_of_parts(self, key: bytes, upload: str) -> str:
        return f"{self.path_of(key)}/multipart/{quote(upload, safe='')}"

    def delete(self, key: bytes) -> None:
        """Remove an object; a missing one is no error."""
        response = self.api("DELETE", self.path_of(key), accept=(404,))
        found = _json_in(response.body)
        if response.status < 300 and isinstance(found, dict) and found.get("failures"):
            raise IncompleteError(
                "refused-by-server", "the service did not remove the object", subject=self.subject
            )

    def close(self) -> None:
        """Close all connections."""
        super().close()
        self._addresses.close()

    @staticmethod
    def path_of(key: bytes) -> str:
        """Return the path of an object below its bucket or dataset."""
        return "/" + quote_from_bytes(key, safe=SAFE)

    def _refused(self, response: Response) -> bool:
        """See RestClient. Without consent a valid token is rejected, too."""
        return response.status == 401 and (self._accepted or not _access_request(response))

    def _judged(self, call: Call, response: Response) -> Response:
        if response.status < 300:
            self._accepted = self._accepted or self._login is not None
            if self.settings.dataset is not None:
                self._consent.note_granted()
        return super()._judged(call, response)

    def _error_of(self, call: Call, response: Response) -> HibaliError:
        guarded = self.settings.dataset is not None and self.settings.has_login
        if guarded and response.status in _NO_CONSENT and _access_request(response):
            return self._consent.require(self._request_access)
        return self._error(response.status, _Sender.OBJECT if call.path else _Sender.BUCKET)

    def _judged_object(self, response: Response, accept: Collection[int] = ()) -> Response:
        """Return a good answer of the object store; raise the error of another one."""
        if response.status < 300 or response.status in accept:
            return response
        if response.status in BUSY:
            self.slow_down(response)
        raise self._error(response.status, _Sender.STORE)

    def _request_access(self) -> None:
        """Ask for access to the dataset, once: each request sends the user an e-mail."""
        try:
            response = self._exchange(Call("POST", ""), kept=False)
            if response.status >= 300:
                raise self._error(response.status, _Sender.BUCKET)
        except HibaliError as problem:
            problem.transient = False
            raise

    def _error(self, status: int, sender: _Sender) -> HibaliError:
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
            known = self._kept.get(key) if keep else None
        yield known or self._presigned(method, key)
        yield self._presigned(method, key)

    def _keep_address(self, key: bytes, address: str) -> None:
        with self._guard:
            self._kept[key] = address
            while len(self._kept) > _KEPT_ADDRESSES:
                self._kept.popitem(last=False)

    def _presigned(self, method: str, key: bytes) -> str:
        """Ask for an address to GET or PUT an object; the service redirects there if it ignores the query."""
        query = {"redirect": "false"} if method == "GET" else {}
        response = self.api(method, self.path_of(key), query=query, accept=(307,) if query else ())
        if response.status == 307:
            return self._addresses.checked(response.headers.get("location"))
        return self._addresses.checked(self.record_of(response).get("url"))

    def bad_answer(self, reason: str) -> TryLaterError:
        """See RestClient."""
        del reason
        return TryLaterError(
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
