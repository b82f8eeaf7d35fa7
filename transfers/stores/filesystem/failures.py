"""Understand the messages of commands that a service runs at a machine."""

from __future__ import annotations

from hibali.errors import AccessError, HibaliError, IncompleteError, NotFoundError

_REASONS: tuple[tuple[str, type[HibaliError], str, str], ...] = (
    ("no space left", IncompleteError, "no-space", "the filesystem has no free space"),
    ("quota exceeded", IncompleteError, "no-space", "the quota is exceeded"),
    ("permission denied", AccessError, "denied", "the site denied access"),
    ("access is denied", AccessError, "denied", "the site denied access"),
    ("not permitted", AccessError, "denied", "the site denied access"),
    # FirecREST and IRI, of paths above what they give access to
    ("any of the defined filesystem paths", AccessError, "denied", "the service has no filesystem there"),
    ("path outside sandbox", AccessError, "denied", "the service has no filesystem there"),
    ("already completing or completed", NotFoundError, "vanished", "the job has ended"),  # scancel
    ("invalid job id", NotFoundError, "vanished", "there is no such job"),
    ("no such file", NotFoundError, "vanished", "it does not exist"),
    ("file exists", IncompleteError, "not-a-folder", "a part of its path is a file"),
    ("not a directory", IncompleteError, "not-a-folder", "a part of its path is a file"),
    ("is a directory", IncompleteError, "not-a-file", "it is a folder"),
)

_GENERAL = frozenset({401, 403, 404, 405, 408, 412, 413, 423, 425, 429})  # their status says enough


def failure_of(reason: str, subject: str) -> HibaliError | None:
    """Return the error that the message of a failed command names (strerror(3), in the C locale), None for an unknown one."""
    lowered = reason.lower()
    for text, kind, code, message in _REASONS:
        if text in lowered:
            return kind(code, message, subject=subject)
    return None


def refusal_of(status: int, reason: str, subject: str) -> HibaliError | None:
    """Return the error for a request that a service refuses with a reason of its own; None for other failures, or without a reason."""
    if not reason or status in _GENERAL or not 400 <= status < 500:
        return None
    message = f"the service refuses the request: {reason} (status {status})"
    return IncompleteError("refused-by-server", message, subject=subject)


def name_of_folder_is_taken(subject: str) -> IncompleteError:
    """Return the error for a folder that cannot be created."""
    return IncompleteError(
        "not-a-folder", "a file with the name of the folder already exists", subject=subject
    )
