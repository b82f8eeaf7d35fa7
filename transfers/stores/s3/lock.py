"""Hold the lease of an S3 target by conditional writes."""

from __future__ import annotations

import time
from email.utils import parsedate_to_datetime
from typing import Any

from hibali.documents import line_of_json
from transfers.agent.lease import LEASE_SECONDS
from transfers.stores.s3.requests import Answer, Requests
from transfers.stores.server_lease import KeptLease, is_free, locked, record_of

NAME = b".hibali/lock"
_TAKEN = frozenset({404, 409, 412})
_ROUNDS = 3


class S3Lock(KeptLease):
    """Held from construction to `release`; renewed by a thread of its own."""

    def __init__(self, requests: Requests, key: bytes, operation: str, seconds: int = LEASE_SECONDS) -> None:
        """Take it; one whose holder is provably gone, or whose lease ran out by the server's clock, is taken over.

        Raises `TryLaterError("locked")` that names the holder.
        """
        super().__init__(requests.subject, operation, seconds)
        self._requests = requests
        self._key = key
        self._beats = 0
        self._etag = self._take()
        self._keep()

    def _take(self) -> str:
        holder: dict[str, Any] = {}
        for _ in range(_ROUNDS):
            self._renewed = time.monotonic()
            made = self._put({"If-None-Match": "*"})
            if made.status < 300:
                return made.etag
            standing = self._requests.ask("GET", self._key, accept=_TAKEN)
            if standing.status >= 300:
                continue
            holder = record_of(standing.body)
            if holder.get("token") == self._token:  # our own, whose answer was lost on the way
                return standing.etag
            if not is_free(holder, _age(standing)):
                break
            taken = self._put({"If-Match": f'"{standing.etag}"'})
            if taken.status < 300:
                return taken.etag
        raise locked(holder, self._requests.subject)

    def _put(self, headers: dict[str, str]) -> Answer:
        # No two writes are alike: an ETag that a renewal left as it was would let another take over a living lock.
        self._beats += 1
        body = line_of_json({**self._record, "beat": self._beats}).encode("ascii") + b"\n"
        return self._requests.ask("PUT", self._key, body=body, headers=headers, accept=_TAKEN)

    def _renew(self) -> bool:
        answer = self._put({"If-Match": f'"{self._etag}"'})
        if answer.status >= 300:
            return self._is_ours()
        self._etag = answer.etag
        return True

    def _is_ours(self) -> bool:
        standing = self._requests.ask("GET", self._key, accept=_TAKEN)
        if standing.status >= 300 or record_of(standing.body).get("token") != self._token:
            return False
        self._etag = standing.etag
        return True

    def _give_back(self) -> None:
        self._requests.ask("DELETE", self._key, accept=_TAKEN)


def living_holder(requests: Requests, key: bytes) -> dict[str, Any] | None:
    """Who holds the lock of that key; None where nobody can be at work, or nobody may look."""
    standing = requests.ask("GET", key, accept=(403, 404))
    if standing.status >= 300:
        return None
    holder = record_of(standing.body)
    return None if is_free(holder, _age(standing)) else holder


def _age(answer: Answer) -> float | None:
    """Seconds since the lock was written, by the server's own clock."""
    now = answer.seconds
    try:
        return (
            None if now is None else now - parsedate_to_datetime(answer.headers["last-modified"]).timestamp()
        )
    except (KeyError, ValueError, TypeError):
        return None
