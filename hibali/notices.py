"""Tell people what happened: run a command of theirs with the message, or POST it to a URL of theirs."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from hibali import subprocesses
from hibali.errors import IncompleteError, UsageError
from hibali.http.fetch import check_post_url, post_json
from hibali.subprocesses import remember_secret

_COMMAND_SECONDS = 60.0
_SECRET_LENGTH = 6  # shorter parts are words, such as "hooks"


def run_command(argv: Sequence[str], content: bytes) -> None:
    """Run a command with `content` on its standard input; raises `IncompleteError` if it fails. Logs show only its name."""
    finished = subprocesses.run(argv, stdin=content, timeout=_COMMAND_SECONDS, shown=1)
    if finished.exit_code != 0:
        raise IncompleteError("not-notified", f"it exited with {finished.exit_code}", subject=argv[0])


_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


@dataclass(frozen=True, slots=True)
class Target:
    """The receiver of notifications: a command, or a URL. Neither is ever shown, because both may contain a secret (S16)."""

    command: tuple[str, ...] = ()
    url: str = ""


def read_target(text: str) -> Target:
    """Read `COMMAND|URL`. Raises `UsageError` for a URL of another scheme, and for an empty command."""
    if _URL.match(text):
        remember_url(text)
        return Target(url=text)
    try:
        argv = tuple(shlex.split(text))
    except ValueError as problem:
        raise UsageError("bad-command", f"this is not a command: {problem}", subject="--notify") from None
    if not argv:
        raise UsageError("bad-command", "this is not a command", subject="--notify")
    return Target(argv)


def remember_url(url: str) -> None:
    """Hide what follows the host of a URL from logs and messages: whoever knows it can send. Raises as `check_post_url` does."""
    parts = check_post_url(url)
    values = [each.partition("=")[2] or each for each in parts.query.split("&")]
    secrets = (each for each in [*parts.path.split("/"), *values] if len(each) >= _SECRET_LENGTH)
    remember_secret(parts.path, parts.query, *secrets)


def send_run_notice(target: Target, run_id: str, state: str, content: bytes) -> None:
    """Run `COMMAND ID STATE` with `content` on its standard input, or POST that. Raises why it failed."""
    if target.url:
        post_json(target.url, content)
        return
    run_command([*target.command, run_id, state], content)
