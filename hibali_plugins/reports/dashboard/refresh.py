"""Query the sites of unfinished runs when the user asks for it, one query at a time."""

from __future__ import annotations

import os
import threading

from hibali.errors import HibaliError
from hibali.subprocesses import run
from hibali_plugins.reports.page import plain_line
from hibali_plugins.schedules.environment import hibali_argv, needed_variables

_MOST_SECONDS = 120.0
_MOST_LINES = 8


class Refresher:
    """Runs `hibali status --update` in a process without a terminal, so that no login can prompt where nobody looks."""

    def __init__(self, config: str | None) -> None:
        """Use this config.toml, None for the usual one."""
        self._config = config
        self._guard = threading.Lock()

    def refresh(self) -> list[str]:
        """Query each site with unfinished runs once; return what the query warned of, which is empty if all answered."""
        if not self._guard.acquire(blocking=False):
            return ["Another query is running; its results will appear here."]
        try:
            environment = {**os.environ, **needed_variables(self._config)}
            done = run([*hibali_argv(), "status", "--update"], environment=environment, timeout=_MOST_SECONDS)
        except HibaliError as problem:
            return [f"{problem.subject}: {problem.message}"]
        finally:
            self._guard.release()
        return [
            plain_line(line) for line in done.stderr.decode("utf-8", "replace").splitlines()[:_MOST_LINES]
        ]
