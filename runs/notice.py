"""Telling somebody of a run's end: a command of the user's, or a URL, gets the run as JSON."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

from hibali import shell
from hibali.errors import IncompleteError, UsageError
from registry.web import check_post_url, post_json

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_COMMAND_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Target:
    """Who is told: the words of a command, or a URL. Neither is ever shown: both may hold a secret (S16)."""

    words: tuple[str, ...] = ()
    url: str = ""


def read_target(text: str) -> Target:
    """Who is meant by `COMMAND|URL`. Raises `UsageError` for a URL that nothing is sent to, and for no command."""
    if _URL.match(text):
        check_post_url(text)
        return Target(url=text)
    try:
        words = tuple(shlex.split(text))
    except ValueError as problem:
        raise UsageError("bad-command", f"this is no command: {problem}", about="--notify") from None
    if not words:
        raise UsageError("bad-command", "this is no command", about="--notify")
    return Target(words)


def give_notice(target: Target, run_id: str, state: str, content: bytes) -> None:
    """Run `COMMAND ID STATE` with `content` on its standard input, or POST that. Raises what keeps it from being done."""
    if target.url:
        post_json(target.url, content)
        return
    finished = shell.run([*target.words, run_id, state], stdin=content, timeout=_COMMAND_SECONDS)
    if finished.exit_code != 0:
        raise IncompleteError("not-notified", f"it ended with {finished.exit_code}", about=target.words[0])
