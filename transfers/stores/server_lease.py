"""Hold and renew a lease at a server without an agent (S6)."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import threading
import time
from abc import abstractmethod
from typing import Any

from hibali.errors import HibaliError, TryLaterError
from hibali.text import printable
from transfers.agent.lease import LEASE_SECONDS, is_gone, seconds_of, this_process
from transfers.stores.base import Lock

_let_go: set[str] = set()  # the tokens of locks that this process took and holds no more


def let_go(token: str) -> None:
    """Note that this process no longer holds its lock with that token, whether or not the server was told."""
    _let_go.add(token)


def this_client() -> str:
    """Who we are, for people: account, host and process."""
    return f"{os.environ.get('USER', os.geteuid())}@{socket.gethostname()} pid {os.getpid()}"


def own_record(operation: str, token: str, seconds: int) -> dict[str, Any]:
    """The record of a lock that this process holds for `operation`; its lease lasts so many seconds."""
    return {
        "version": 1,
        "operation": operation,
        "client": this_client(),
        "token": token,
        "lease": seconds,
        **this_process(),
    }


def record_of(content: bytes) -> dict[str, Any]:
    """What a lock says; nothing where it cannot be understood."""
    try:
        record = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


def locked(holder: dict[str, Any], subject: str) -> TryLaterError:
    """Somebody is at work there: whoever the lock names."""
    who = printable(str(holder.get("client", "somebody else"))[:200])
    doing = printable(str(holder.get("operation", "an operation"))[:50])
    return TryLaterError(
        "locked",
        f"{who} holds the target for {doing}",
        subject=subject,
        hint=f"Wait for it. If it is gone, the lock ends {seconds_of(holder):.0f} s after its last sign of life.",
        transient=False,
    )


def is_free(holder: dict[str, Any], age: float | None) -> bool:
    """Whether nobody can hold this lock: its lease ran out by the server's clock, its process is provably gone, or it was ours."""
    return (age is not None and age > seconds_of(holder)) or is_gone(holder) or holder.get("token") in _let_go


_ASK_SECONDS = 1.0


class NoLock(Lock):
    """What `lock` gives where the server cannot hold one."""

    held = False

    def release(self) -> None:
        """See Lock."""

    def check(self, *, now: bool = False) -> None:
        """Nothing is held, nothing can be lost."""


class KeptLease(Lock):
    """Held from construction to `release`. Whoever says how it is taken, renewed and given back ends `__init__` with `_keep`."""

    def __init__(self, subject: str, operation: str, seconds: int = LEASE_SECONDS) -> None:
        self._subject = subject
        self._seconds = seconds
        self._token = secrets.token_hex(16)
        self._record: dict[str, Any] = own_record(operation, self._token, seconds)
        self._renewed = time.monotonic()
        self._asked = self._renewed
        self._lost = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._go_on, name="lease", daemon=True)

    @abstractmethod
    def _renew(self) -> bool:
        """Say that we live; False where the lock is another's now."""

    @abstractmethod
    def _is_ours(self) -> bool:
        """Ask whether the lock that stands there is ours."""

    @abstractmethod
    def _give_back(self) -> None:
        """Take it away; it was ours a moment ago."""

    def _keep(self) -> None:
        """It is taken: renew it from now on."""
        self._asked = time.monotonic()
        self._thread.start()

    def _go_on(self) -> None:
        while not self._ended.wait(self._seconds / 4):
            began = time.monotonic()
            with contextlib.suppress(HibaliError):
                if not self._renew():
                    self._lost = True
                    return
                self._renewed = began

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
                subject=self._subject,
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
        let_go(self._token)  # a server that cannot be reached now may be reached again by this call
        with contextlib.suppress(HibaliError):
            if sure and self._is_ours():
                self._give_back()
