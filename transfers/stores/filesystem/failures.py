"""Understand the messages of commands that a service runs at a machine."""

from __future__ import annotations

from hibali.errors import AccessError, HibaliError, IncompleteError, NotFoundError

_REASONS: tuple[tuple[str, type[HibaliError], str, str], ...] = (
    ("no space left", IncompleteError, "no-space", "the filesystem has no free space"),
    ("quota exceeded", IncompleteError, "no-space", "the quota is exceeded"),
    ("permission denied", AccessError, "denied", "the site denied access"),
    ("access is denied", AccessError, "denied", "the site denied access"),
    ("not permitted", AccessError, "denied", "the site denied access"),
    ("no such file", NotFoundError, "vanished", "it does not exist"),
    ("file exists", IncompleteError, "not-a-folder", "a part of its path is a file"),
    ("not a directory", IncompleteError, "not-a-folder", "a part of its path is a file"),
    ("is a directory", IncompleteError, "not-a-file", "it is a folder"),
)


def failure_of(reason: str, subject: str) -> HibaliError | None:
    """Return the error that the message of a failed command names (strerror(3), in the C locale), None for an unknown one."""
    lowered = reason.lower()
    for text, kind, code, message in _REASONS:
        if text in lowered:
            return kind(code, message, subject=subject)
    return None


def name_of_folder_is_taken(subject: str) -> IncompleteError:
    """Return the error for a folder that cannot be created."""
    return IncompleteError(
        "not-a-folder", "a file with the name of the folder already exists", subject=subject
    )
