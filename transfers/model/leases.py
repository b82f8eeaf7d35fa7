"""Describe the clients that hold the lock of a target, and the errors of a lock that is held or lost."""

from __future__ import annotations

import json
import os
import socket
from typing import Any

from hibali.errors import TryLaterError
from hibali.files import account_names
from hibali.text import printable
from transfers.agent.protocol import seconds_of


def this_client() -> str:
    """Describe this client for people: account, host and process."""
    return f"the account {account_names()[0]} at {socket.gethostname()}, process {os.getpid()}"


def record_of(content: bytes) -> dict[str, Any]:
    """Parse the record of a lock; return an empty one if it is malformed."""
    try:
        record = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


def locked(holder: dict[str, Any], subject: str) -> TryLaterError:
    """Return the error for a target that is locked by another call."""
    operation = printable(str(holder.get("operation") or "an operation")[:50])
    client = printable(str(holder.get("client") or "an unknown client")[:200])
    pid, host = (printable(str(holder.get(field) or "")[:200]) for field in ("pid", "host"))
    return TryLaterError(
        "locked",
        f"the target is locked by {operation} from {client}"
        + (f"; its agent is process {pid} on {host}" if pid else ""),
        subject=subject,
        hint=f"Wait until it ends; the lock of a process that died expires after {seconds_of(holder):.0f} s.",
        transient=False,
    )


def lost_lease(
    subject: str,
    message: str = "the lock on the target was lost, or the target was renamed or replaced, so hibali stopped writing",
) -> TryLaterError:
    """Return the error for a lock that may no longer be ours."""
    return TryLaterError(
        "lease-lost", message, subject=subject, hint="Run the same command again to resume.", transient=False
    )
