"""The lease on a target in an object store: an object made and renewed by conditional writes."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import threading
import time
from email.utils import parsedate_to_datetime
from typing import Any

from hibali.errors import HibaliError, TryLaterError
from hibali.strict_json import line_of_json
from hibali.text import printable
from transfers.agent.lease import LEASE_SECONDS, is_gone, seconds_of, this_process
from transfers.stores.s3_requests import Answer, Requests

NAME = b".hibali/lock"
_TAKEN = frozenset({404, 409, 412})
_ROUNDS = 3
_ASK_SECONDS = 1.0


class NoLock:
    """What `lock` gives where the server cannot hold one."""

    held = False

    def release(self) -> None:
        """See Lock."""

    def check(self, *, now: bool = False) -> None:
        """Nothing is held, nothing can be lost."""


class S3Lock:
    """Held from construction to `release`; renewed by a thread of its own."""

    def __init__(self, requests: Requests, key: bytes, operation: str, seconds: int = LEASE_SECONDS) -> None:
        """Take it; one whose holder is provably gone, or whose lease ran out by the server's clock, is taken over.

        Raises `TryLaterError("locked")` that names the holder.
        """
        self._requests = requests
        self._key = key
        self._seconds = seconds
        self._token = secrets.token_hex(16)
        self._record: dict[str, Any] = {
            "version": 1,
            "operation": operation,
            "client": f"{os.environ.get('USER', os.geteuid())}@{socket.gethostname()} pid {os.getpid()}",
            "token": self._token,
            "lease": seconds,
            **this_process(),
        }
        self._beats = 0
        self._renewed = time.monotonic()
        self._etag = self._take()
        self._lost = False
        self._asked = time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)
        self._thread.start()

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
            holder = _holder(standing.body)
            if holder.get("token") == self._token:  # our own, whose answer was lost on the way
                return standing.etag
            if not is_free(holder, _age(standing)):
                break
            taken = self._put({"If-Match": f'"{standing.etag}"'})
            if taken.status < 300:
                return taken.etag
        raise locked(holder, self._requests.about)

    def _put(self, headers: dict[str, str]) -> Answer:
        # No two writes are alike: an ETag that a renewal left as it was would let another take over a living lock.
        self._beats += 1
        body = line_of_json({**self._record, "beat": self._beats}).encode("ascii") + b"\n"
        return self._requests.ask("PUT", self._key, body=body, headers=headers, accept=_TAKEN)

    def _renew(self) -> None:
        while not self._ended.wait(self._seconds / 4):
            began = time.monotonic()
            with contextlib.suppress(HibaliError):
                answer = self._put({"If-Match": f'"{self._etag}"'})
                if answer.status >= 300:
                    self._lost = not self._is_ours()
                    if self._lost:
                        return
                else:
                    self._etag = answer.etag
                self._renewed = began

    def _is_ours(self) -> bool:
        standing = self._requests.ask("GET", self._key, accept=_TAKEN)
        if standing.status >= 300 or _holder(standing.body).get("token") != self._token:
            return False
        self._etag = standing.etag
        return True

    @property
    def held(self) -> bool:
        """Whether nobody else works on the target."""
        return not (self._lost or self._ended.is_set())

    def check(self, *, now: bool = False) -> None:
        """Raise `TryLaterError("lock-lost")` where the lease is no longer surely ours (S6).

        The server is asked `now`, or when it was last asked a while ago.
        """
        if self._ended.is_set():
            return
        if now or time.monotonic() - self._asked > _ASK_SECONDS:
            self._asked = time.monotonic()
            self._lost = self._lost or not self._is_ours()
        if self._lost or time.monotonic() - self._renewed > self._seconds * 0.8:
            raise TryLaterError(
                "lock-lost",
                "the lock on the target was lost; nothing more is written",
                about=self._requests.about,
                hint="Type the same line again.",
                transient=False,
            )

    def release(self) -> None:
        """See Lock. Left to run out where it may have become another's."""
        if self._ended.is_set():
            return
        sure = not self._lost and time.monotonic() - self._renewed < self._seconds * 0.8
        self._ended.set()
        self._thread.join(self._seconds / 4)
        with contextlib.suppress(HibaliError):
            if sure and self._is_ours():
                self._requests.ask("DELETE", self._key, accept=_TAKEN)


def locked(holder: dict[str, Any], about: str) -> TryLaterError:
    """Somebody is at work there: whoever the lock names."""
    who = printable(str(holder.get("client", "somebody else"))[:200])
    doing = printable(str(holder.get("operation", "an operation"))[:50])
    return TryLaterError(
        "locked",
        f"{who} holds the target for {doing}",
        about=about,
        hint=f"Wait for it. If it is gone, the lock ends {seconds_of(holder):.0f} s after its last sign of life.",
        transient=False,
    )


def living_holder(requests: Requests, key: bytes) -> dict[str, Any] | None:
    """Who holds the lock of that key; None where nobody can be at work, or nobody may look."""
    standing = requests.ask("GET", key, accept=(403, 404))
    if standing.status >= 300:
        return None
    holder = _holder(standing.body)
    return None if is_free(holder, _age(standing)) else holder


def is_free(holder: dict[str, Any], age: float | None) -> bool:
    """Whether nobody can hold this lock: its lease ran out by the server's clock, or its process is provably gone."""
    return (age is not None and age > seconds_of(holder)) or is_gone(holder)


def _age(answer: Answer) -> float | None:
    """Seconds since the lock was written, by the server's own clock."""
    now = answer.seconds
    try:
        return (
            None if now is None else now - parsedate_to_datetime(answer.headers["last-modified"]).timestamp()
        )
    except (KeyError, ValueError, TypeError):
        return None


def _holder(content: bytes) -> dict[str, Any]:
    try:
        record = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}
