"""Run a command on a pseudo-terminal, and compute the visible screen."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO

_CONTROL = re.compile(r"\x1b\[(\??[0-9;]*)([A-Za-z])")


class Terminal:
    """A command whose standard streams are the terminal, except a given `stdout`; `written` is all output."""

    def __init__(
        self,
        command: list[str | bytes],
        env: Mapping[str, str],
        *,
        columns: int = 100,
        rows: int = 24,
        stdout: IO[bytes] | None = None,
        cwd: Path | None = None,
    ) -> None:
        self.columns = columns
        self.rows = rows
        self.written = b""
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.process = subprocess.Popen(
            # its own session with this controlling terminal: Ctrl-C comes from there
            ["setsid", "--ctty", "--wait", *command],
            stdin=theirs,
            stdout=stdout or theirs,
            stderr=theirs,
            # the size is that of the terminal, not from the environment of the tests
            env={"TERM": "xterm", **{name: env[name] for name in env if name not in {"COLUMNS", "LINES"}}},
            cwd=cwd,
        )
        os.close(theirs)

    def press(self, keys: bytes) -> None:
        """Send keys."""
        os.write(self._ours, keys)

    def until(self, seen: Callable[[str], bool], seconds: float = 60) -> str:
        """Read until `seen` accepts the screen; return it."""
        deadline = time.monotonic() + seconds
        while not seen(self.screen()):
            assert time.monotonic() < deadline, f"not seen:\n{self.screen()}\n{self.written[-2000:]!r}"
            assert self.read(0.2) or self.process.poll() is None, f"ended before:\n{self.screen()}"
        return self.screen()

    def end(self, seconds: float = 60) -> int:
        """Read to the end; return the exit code."""
        deadline = time.monotonic() + seconds
        while self.process.poll() is None:
            assert time.monotonic() < deadline, f"does not end:\n{self.screen()}"
            self.read(0.05)
        while self.read(0.05):
            pass
        os.close(self._ours)
        return self.process.returncode

    def read(self, seconds: float) -> bool:
        """Read what it writes within a time; return whether it wrote anything."""
        ready, _, _ = select.select([self._ours], [], [], seconds)
        try:
            came = os.read(self._ours, 65536) if ready else b""
        except OSError:  # no process has it open any more
            return False
        self.written += came
        return bool(came)

    def screen(self) -> str:
        """Return the visible text."""
        return screen_text(self.written, self.columns, self.rows)


def screen_text(written: bytes, columns: int, row_count: int) -> str:
    """Return the visible text of a screen; supports only the escape sequences that hibali and rich write."""
    rows, y, x, at = [[" "] * columns for _ in range(row_count)], 0, 0, 0
    text = written.decode("utf-8", "replace")
    while at < len(text):
        control = _CONTROL.match(text, at)
        at = control.end() if control else at + 1
        if control:
            if control[2] == "A":
                y = max(0, y - int(control[1] or 1))
            elif control[2] == "K":
                rows[y] = [" "] * columns
            continue
        letter = text[at - 1]
        if letter == "\r":
            x = 0
            continue
        if letter == "\n" or x >= columns:
            y, x = y + 1, 0 if letter != "\n" else x
        if y >= row_count:
            y = row_count - 1
            rows = [*rows[1:], [" "] * columns]
        if letter != "\n":
            rows[y][x] = letter
            x += 1
    return "\n".join("".join(row).rstrip() for row in rows).rstrip()
