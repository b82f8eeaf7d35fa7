"""What the words mean that Globus has for what goes wrong in a task (event codes of the Transfer API)."""

from __future__ import annotations

from dataclasses import dataclass

from hibali.errors import AccessError, HibaliError, IncompleteError, TryLaterError
from hibali.text import printable

_DETAILS = 300  # characters of what an endpoint says


@dataclass(frozen=True, slots=True)
class Fault:
    """One word of Globus: our code and words for it.

    `hopeless` says that trying again does not help while nobody does anything about it, `of_item` that it is about a name and
    not about the whole task.
    """

    code: str
    words: str
    hopeless: bool = False
    of_item: bool = False
    hint: str = ""


_ITEM = {
    "PERMISSION_DENIED": ("denied", "Globus is not allowed to read or write it (PERMISSION_DENIED)"),
    "FILE_ACCESS": ("denied", "Globus cannot open it (FILE_ACCESS)"),
    "FILE_NOT_FOUND": ("vanished", "Globus does not find it (FILE_NOT_FOUND)"),
    "QUOTA_EXCEEDED": ("no-quota", "the quota at the target is used up (QUOTA_EXCEEDED)"),
    "NO_SPACE_LEFT": ("no-space", "the target is full (NO_SPACE_LEFT)"),
    "VERIFY_CHECKSUM": ("corrupt", "what arrived has another checksum than what was read (VERIFY_CHECKSUM)"),
    "EXTERNAL_CHECKSUM_MISMATCH": (
        "source-changed",
        "it is not what is on record of it (EXTERNAL_CHECKSUM_MISMATCH)",
    ),
    "FILE_SIZE_CHANGED": ("source-changed", "it changed while Globus read it (FILE_SIZE_CHANGED)"),
    "INVALID_PATH_NAME": ("name-not-allowed", "the collection does not take this name (INVALID_PATH_NAME)"),
    "INVALID_SYMLINK": ("invalid-symlink", "it is a symlink that leads nowhere (INVALID_SYMLINK)"),
    "IS_A_DIRECTORY": ("folder-in-the-way", "a folder has its name (IS_A_DIRECTORY)"),
    "NOT_A_DIRECTORY": ("not-a-folder", "a file stands where its folder should be (NOT_A_DIRECTORY)"),
    "NOT_A_FILE": ("special-file", "it is no file (NOT_A_FILE)"),
}
_WHOLE = {
    "GC_NOT_CONNECTED": Fault(
        "collection-offline",
        "a collection is not connected (GC_NOT_CONNECTED)",
        hint="Start Globus Connect Personal there.",
    ),
    "GC_PAUSED": Fault(
        "collection-paused",
        "a collection is paused (GC_PAUSED)",
        hint="Resume Globus Connect Personal there.",
    ),
    "PAUSED": Fault("task-paused", "the task is paused by who runs a collection (PAUSED)"),
    "CONNECT_FAILED": Fault("collection-offline", "a collection is not reached (CONNECT_FAILED)"),
    "CONNECTION_BROKEN": Fault("connection-lost", "a connection broke (CONNECTION_BROKEN)"),
    "CONNECTION_RESET": Fault("connection-lost", "a connection was reset (CONNECTION_RESET)"),
    "TIMEOUT": Fault("timed-out", "a collection does not answer in time (TIMEOUT)"),
    "ENDPOINT_ERROR": Fault("collection-error", "a collection reports an error (ENDPOINT_ERROR)"),
    "ENDPOINT_TOO_BUSY": Fault("throttled", "a collection is too busy (ENDPOINT_TOO_BUSY)"),
    "EXPIRED": Fault("task-expired", "the task's time has run out (EXPIRED)"),
    "CANCELED": Fault("task-cancelled", "somebody cancelled the task (CANCELED)"),
    "AUTH": Fault("denied", "a collection does not accept the login (AUTH)", hopeless=True),
    "NO_CREDENTIALS": Fault("login-expired", "a login has expired (NO_CREDENTIALS)", hopeless=True),
    "ACL_CHANGED": Fault(
        "denied", "the right to use a collection was taken away (ACL_CHANGED)", hopeless=True
    ),
}
_DENIED = frozenset({"AUTH", "NO_CREDENTIALS", "ACL_CHANGED"})
_NO_FAULTS = frozenset({"", "OK", "Queued", "STARTED", "PROGRESS", "SUCCEEDED", "UNPAUSED"})


def is_fault(code: str) -> bool:
    """Whether a task's `nice_status` says that something is wrong."""
    return code not in _NO_FAULTS


def fault_of(code: str) -> Fault:
    """What a word means; one that nobody listed here is told as it is, and tried again as Globus does."""
    if code in _ITEM:
        return Fault(*_ITEM[code], hopeless=True, of_item=True)
    return _WHOLE.get(code) or Fault("globus-fault", f"Globus reports {printable(code)[:60] or 'a failure'}")


def error_of(code: str, about: str, details: str = "", *, hint: str = "") -> HibaliError:
    """What stops a call whose task came to this end."""
    fault = fault_of(code)
    message = with_details(fault.words, details)
    hint = fault.hint or hint or "The same line again goes on from here."
    if code in _DENIED:
        return AccessError(fault.code, message, about=about, hint=hint)
    if fault.of_item:
        return IncompleteError(fault.code, message, about=about, hint=hint)
    return TryLaterError(fault.code, message, about=about, hint=hint, transient=False)


def with_details(words: str, details: str) -> str:
    """The same with what the endpoint itself said, on one line and not too long."""
    said = " ".join(printable(details.replace("\n", " ")).split())[:_DETAILS]
    return f"{words}: {said}" if said else words
