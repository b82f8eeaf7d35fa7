"""Query the sites of unfinished runs when the user asks for it, one query at a time."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence

from hibali.errors import HibaliError
from hibali.subprocesses import run
from hibali.text import counted
from hibali_plugins.reports.page import clock, plain_line
from hibali_plugins.schedules.environment import hibali_argv, needed_variables

_MOST_SECONDS = 120.0
_MOST_LINES = 8
_COMMAND = "hibali status --update"


class Refresher:
    """Runs `hibali status --update` in a process without a terminal, so that no login can prompt where nobody looks."""

    def __init__(self, config: str | None) -> None:
        """Use this config.toml, None for the usual one."""
        self._config = config
        self._guard = threading.Lock()

    def refresh(self) -> list[str]:
        """Query each site with unfinished runs once; return lines for the user: the outcome, and what the query warned of."""
        if not self._guard.acquire(blocking=False):
            return ["Another query is running; its results will appear here."]
        try:
            environment = {**os.environ, **needed_variables(self._config)}
            done = run([*hibali_argv(), "status", "--update"], environment=environment, timeout=_MOST_SECONDS)
        except HibaliError as problem:
            return [f"{problem.subject}: {problem.message}"]
        finally:
            self._guard.release()
        return [_outcome(done.exit_code), *_warnings(done.stderr.decode("utf-8", "replace").splitlines())]


def _outcome(exit_code: int) -> str:
    at = clock(time.time())
    if exit_code == 0:
        return f"Queried at {at}."
    how = f"ended with exit code {exit_code}" if exit_code > 0 else f"was killed by signal {-exit_code}"
    return f"The query {how} at {at}, so states may be old. To see more: {_COMMAND}"


def _warnings(lines: Sequence[str]) -> Iterator[str]:
    yield from map(plain_line, lines[:_MOST_LINES])
    if len(lines) > _MOST_LINES:
        yield f"… {counted(len(lines) - _MOST_LINES, 'more line')}; all: {_COMMAND}"
