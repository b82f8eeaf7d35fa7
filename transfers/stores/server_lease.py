"""Hold a lease on a target at a server without an agent (S6): the rules, which are the same for all such stores.

The lock is a small file or object with a JSON record: who holds it, in which process, and how many seconds it lasts after its last
renewal. A store supplies what its server can do: create that exclusively, read it with its age by the server's clock, put
another record in its place only while it is the one that was read, and remove it. At sites with an agent, transfers.agent.lease has
the same rules for the same file.
"""

from __future__ import annotations

import binascii
import contextlib
import json
import os
import secrets
import socket
import threading
import time
from abc import abstractmethod
from typing import Any, NamedTuple

from hibali.errors import HibaliError, TryLaterError
from hibali.text import printable
from transfers.agent.lease import LEASE_SECONDS, is_gone, seconds_of, this_process
from transfers.stores.base import Lock

_ROUNDS = 5  # so often a lock is tried that was given back, or changed, between two requests
_RENEWALS = 6  # in the life of a lease
_SURE = 0.75  # of a lease without a renewal it is still surely ours, however long the next request takes
_MOST_SEEDS = 800  # fit into one read of any server

_released: set[str] = set()  # the tokens of locks that this process took and holds no more


def this_client() -> str:
    """Who we are, for people: account, host and process."""
    return f"{os.environ.get('USER', os.geteuid())}@{socket.gethostname()} pid {os.getpid()}"


def record_of(content: bytes) -> dict[str, Any]:
    """The record of a lock; nothing where it cannot be understood."""
    try:
        record = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


class Held(NamedTuple):
    """The record of a lock that exists, and the seconds since its last renewal by the server's clock, where it tells."""

    holder: dict[str, Any]
    age: float | None
    tag: str = ""  # what the server calls this version of it, where it does

    @property
    def free(self) -> bool:
        """Whether nobody can hold it: the lease ran out by the server's clock, the process is provably gone, or it was our own."""
        ran_out = self.age is not None and self.age > seconds_of(self.holder)
        return ran_out or is_gone(self.holder) or self.holder.get("token") in _released


def locked(holder: dict[str, Any], subject: str) -> TryLaterError:
    """The error for a target that another call holds: the one that the lock names."""
    operation = printable(str(holder.get("operation") or "an operation")[:50])
    client = printable(str(holder.get("client") or "an unknown client")[:200])
    pid, host = (printable(str(holder.get(word) or "")[:200]) for word in ("pid", "host"))
    return TryLaterError(
        "locked",
        f"the target is held by {operation} from {client}" + (f" (process {pid} on {host})" if pid else ""),
        subject=subject,
        hint=f"Wait for it; the lock of a dead holder ends by itself within {seconds_of(holder):.0f} s.",
        transient=False,
    )


def lost_lease(
    subject: str, message: str = "the lock on the target was lost; nothing more is written"
) -> TryLaterError:
    """The error for a lock that is not, or no longer, surely ours."""
    return TryLaterError(
        "lease-lost", message, subject=subject, hint="Run the same command again to resume.", transient=False
    )


class NoLease(Lock):
    """What `lock` gives where the server cannot hold one."""

    held = False

    def release(self) -> None:
        """See Lock."""

    def check(self, *, now: bool = False) -> None:
        """Nothing is held, nothing can be lost."""


class Lease(Lock):
    """Held from construction to `release`; a thread of its own renews it."""

    check_seconds = 1.0  # `check` asks the server at most this often, unless it is to ask now

    def __init__(self, subject: str, operation: str, seconds: int = LEASE_SECONDS) -> None:
        """Take it; one whose lease ran out by the server's clock, or whose process is provably gone, is taken over.

        Stores set their own attributes before they call this. Raises `TryLaterError("locked")` that names the holder.
        """
        self._subject = subject
        self._seconds = seconds
        self._token = secrets.token_hex(16)
        self._record: dict[str, Any] = {
            "version": 1,
            "operation": operation,
            "client": this_client(),
            "token": self._token,
            "lease": seconds,
            **this_process(),
        }
        self._renewed = time.monotonic()
        self._lost = False
        self._ended = threading.Event()
        self._take()
        self._checked = time.monotonic()
        self._thread = threading.Thread(target=self._keep_renewing, name="lease", daemon=True)
        self._thread.start()

    @abstractmethod
    def _create(self) -> bool:
        """Create the lock with our record; False where one exists, or its folder went meanwhile."""

    @abstractmethod
    def _read(self) -> Held | None:
        """Read the lock; None where there is none."""

    @abstractmethod
    def _replace(self, found: Held) -> bool:
        """Take over the lock that was just found to be free; False where it is another one now, or is to be created."""

    @abstractmethod
    def _renew(self) -> bool:
        """Have the server note that we live; False where the lock is another's now."""

    @abstractmethod
    def _remove(self) -> None:
        """Remove the lock; it was ours a moment ago."""

    def _take(self) -> None:
        holder: dict[str, Any] = {}
        for _ in range(_ROUNDS):
            self._renewed = time.monotonic()  # not later than the server's own time of it
            if self._create():
                return
            found = self._read()
            if found is None:
                continue
            holder = found.holder
            if not found.free:
                break
            if self._replace(found):
                return
        raise self._refusal(holder)

    def _refusal(self, holder: dict[str, Any]) -> HibaliError:
        """The error where it cannot be taken."""
        return locked(holder, self._subject)

    def _is_ours(self) -> bool:
        """Ask whether the lock that exists is ours."""
        found = self._read()
        return found is not None and found.holder.get("token") == self._token

    def _keep_renewing(self) -> None:
        while not self._ended.wait(self._seconds / _RENEWALS):
            began = time.monotonic()
            with contextlib.suppress(HibaliError):  # tried again, until the lease is no longer surely ours
                if not self._renew():
                    self._lost = True
                    return
                self._renewed = began

    @property
    def _sure(self) -> bool:
        return not self._lost and time.monotonic() - self._renewed < self._seconds * _SURE

    @property
    def held(self) -> bool:
        """Whether nobody else works on the target."""
        return not (self._lost or self._ended.is_set())

    def check(self, *, now: bool = False) -> None:
        """Raise `TryLaterError("lease-lost")` where the lease is not, or no longer, surely ours.

        The server is asked `now`, or when it was last asked a while ago.
        """
        if self.held and (now or time.monotonic() - self._checked >= self.check_seconds):
            self._checked = time.monotonic()
            if not self._is_ours():
                self._lost = True
        if not (self.held and self._sure):
            raise lost_lease(self._subject)

    def release(self) -> None:
        """See Lock. Left to run out where it may have become another's."""
        if self._ended.is_set():
            return
        sure = self._sure
        self._ended.set()
        self._thread.join(self._seconds / 4)
        _released.add(self._token)  # a server that cannot be reached now may be reached again by this call
        with contextlib.suppress(HibaliError):
            if sure and self._is_ours():
                self._remove()


def seeds_in(journal: bytes | None) -> list[bytes]:
    """The seeds of partial names that unfinished operations noted in a target's journal, the newest first."""
    try:
        return [binascii.unhexlify(seed) for seed in json.loads(journal or b"")["seeds"]]
    except (ValueError, KeyError, TypeError, RecursionError):
        return []


def journal_of(seeds: list[bytes]) -> bytes:
    """The content of a journal with these seeds, the newest first; of very many the oldest are left out."""
    noted = [seed.hex() for seed in seeds[:_MOST_SEEDS]]
    return json.dumps({"version": 1, "seeds": noted}).encode("ascii") + b"\n"
