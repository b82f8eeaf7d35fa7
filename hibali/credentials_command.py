"""Commands of the user's own that print credentials: run, and nothing of what they print is ever shown (S16)."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TypeVar

from hibali.errors import AccessError
from hibali.hidden import remember_secret
from hibali.shell import run

Found = TypeVar("Found")
_STRING = re.compile(r':\s*"([^"\\]{8,})"')
_PATIENCE_SECONDS = 120.0
_MOST_OUTPUT = 1024 * 1024


def credentials_from(
    command: Sequence[str], read: Callable[[bytes], Found], *, key: str, what: str, about: str, hint: str
) -> Found:
    """What `read` makes of the command's output; it raises ValueError with words that repeat nothing of that output.

    `key` is the setting that names the command, `what` it should have given. Raises `AccessError("no-credentials")`,
    `NotFoundError` where there is no such program, `TryLaterError("timed-out")`.
    """
    finished = run(command, timeout=_PATIENCE_SECONDS, most=_MOST_OUTPUT)
    try:
        if finished.exit_code != 0:
            raise ValueError(f"it ended with exit code {finished.exit_code}")
        remember_secret(finished.stdout, *_STRING.findall(finished.stdout.decode("utf-8", "replace")))
        return read(finished.stdout)
    except ValueError as problem:
        raise AccessError(
            "no-credentials", f"the {key} gave no {what}: {problem}", about=about, hint=hint
        ) from None
