"""Hold the lease of a target in a bucket by conditional writes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Protocol

from hibali.documents import line_of_json
from hibali.http import Bytes, Response
from transfers.agent.lease import LEASE_SECONDS
from transfers.model.entry import enclosing
from transfers.model.leases import locked, record_of
from transfers.stores.server_lease import Held, Lease

NAME = b".hibali/lock"
_HELD = frozenset({404, 409, 412})


class ObjectRequests(Protocol):
    """Requests for the objects of one bucket, with the errors and conditions of S3."""

    @property
    def subject(self) -> str:
        """The bucket, as errors name it."""

    def request(
        self,
        method: str,
        key: bytes,
        *,
        headers: Mapping[str, str] | None = None,
        body: Bytes = b"",
        accept: Collection[int] = (),
        urgent: bool = False,
    ) -> Response:
        """Send one request. Raise an error for statuses that are not in `accept`. An urgent one overtakes those that wait for a limit."""


class ConditionalLock(Lease):
    """The lock object of one prefix."""

    def __init__(
        self,
        requests: ObjectRequests,
        key: bytes,
        operation: str,
        seconds: int = LEASE_SECONDS,
        *,
        token: str = "",
    ) -> None:
        """`token` is that of a lock which an earlier call of this operation left to compute nodes."""
        self._requests = requests
        self._key = key
        self._puts = 0
        self._etag = ""  # of our own lock, from the last PUT or GET
        super().__init__(requests.subject, operation, seconds, token)

    @property
    def renewable(self) -> bool:
        """Whether the server told a version of the lock, without which it can be neither renewed nor taken over."""
        return bool(self._etag) or (self._is_held() and bool(self._etag))

    def _create(self) -> bool:
        # After a lost response, our own lock appears to be another client's.
        return self._put({"If-None-Match": "*"}) or self._is_held()

    def _read(self) -> Held | None:
        response = self._requests.request("GET", self._key, accept=_HELD, urgent=True)
        return _held(response) if response.status < 300 else None

    def _is_held(self) -> bool:
        found = self._read()
        if found is None or found.holder.get("token") != self._token:
            return False
        self._etag = found.tag  # never the ETag of another client's lock: `_renew` would overwrite it
        return True

    def _replace(self, found: Held) -> bool:
        if not found.tag:
            self._remove()
            return self._create()
        return self._put({"If-Match": f'"{found.tag}"'})

    def _renew(self) -> bool:
        # `check` may have read the lock just before the last PUT, or a response was lost.
        return self._put_if_unchanged() or (self._is_held() and self._put_if_unchanged())

    def _put_if_unchanged(self) -> bool:
        return self._put({"If-Match": f'"{self._etag}"'})

    def _put(self, headers: dict[str, str]) -> bool:
        # Each write differs: an unchanged ETag would let another client take over a live lock.
        self._puts += 1
        body = line_of_json({**self._record, "beat": self._puts}).encode("ascii") + b"\n"
        response = self._requests.request(
            "PUT", self._key, body=body, headers=headers, accept=_HELD, urgent=True
        )
        if response.status < 300:
            self._etag = response.etag
        return response.status < 300

    def _remove(self) -> None:
        self._requests.request("DELETE", self._key, accept=_HELD, urgent=True)


def find_lock(requests: ObjectRequests, key: bytes) -> Held | None:
    """Return the lock at a key; None if there is none or access is denied."""
    response = requests.request("GET", key, accept=(403, 404))
    return _held(response) if response.status < 300 else None


def _held(response: Response) -> Held:
    return Held(record_of(response.body), response.age, response.etag)


_LOCK = b"/" + NAME


def is_lock(path: bytes) -> bool:
    """Return whether the path is the lock of another root below this one."""
    return path.endswith(_LOCK)


def check_unheld(requests: ObjectRequests, root: bytes, locks: Iterable[bytes]) -> None:
    """Raise `TryLaterError("locked")` if a lock above the root, or one of the keys `locks`, is held."""
    above = [folder + _LOCK if folder else NAME for folder in enclosing(root)] if root else []
    for key in (*above, *locks):
        found = find_lock(requests, key)
        if found is not None and not found.free:
            raise locked(found.holder, requests.subject)
