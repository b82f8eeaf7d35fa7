"""What a lock says of its holder: written by whoever takes it, judged by whoever finds it (S6)."""

from __future__ import annotations

import json
import os
import socket
from typing import Any

from hibali.errors import TryLaterError
from hibali.text import printable
from transfers.agent.lease import is_gone, seconds_of, this_process

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


def is_free(holder: dict[str, Any], age: float | None) -> bool:
    """Whether nobody can hold this lock: its lease ran out by the server's clock, its process is provably gone, or it was ours."""
    return (age is not None and age > seconds_of(holder)) or is_gone(holder) or holder.get("token") in _let_go
