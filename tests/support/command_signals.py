"""Send signals to commands; measure how long they take to end, and check their messages."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from dataclasses import dataclass
from typing import Any

LIMIT_SECONDS = 2.0  # the promised limit (S24), which `make soak` checks
TOLERATED_SECONDS = 9.0  # in tests, on busy machines; commands that hung took ten seconds and more
NUMBERS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# The valid exit codes after each; -N is the signal itself, before hibali handles it.
ENDS = {signal.SIGTERM: {143, -15}, signal.SIGINT: {130, -2}, signal.SIGHUP: {143, -1}}
_TRACE = re.compile(rb"Traceback|Exception ignored")


@dataclass(frozen=True)
class End:
    """The exit code of a command, and the seconds from the first signal to its end; None if it ended before."""

    code: int
    seconds: float | None


def signal_after(process: subprocess.Popen[bytes], seconds: float, *numbers: int, gap: float = 0.05) -> End:
    """Send the signals, the first after so many seconds; wait for the end up to ten times the promised
    limit."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        return End(process.wait(seconds), None)
    began = time.monotonic()
    for position, number in enumerate(numbers):
        if position:
            time.sleep(gap)
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)
    try:
        return End(process.wait(10 * LIMIT_SECONDS), time.monotonic() - began)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return End(-signal.SIGKILL, time.monotonic() - began)


def check_end(hibali: Any, process: subprocess.Popen[bytes], end: End, number: int) -> None:
    """Check that the signal ended the command in time, or that it completed, and that it printed no traceback."""
    position = next(at for at, one in enumerate(hibali._running) if one is process)
    said = (hibali.home.folder / f"{position}.err").read_bytes()
    # Python itself prints one if it is interrupted before it reads a line of hibali
    assert not _TRACE.search(said) or (b"<frozen runpy>" in said and b"hibali_cli" not in said), said.decode(
        errors="replace"
    )
    assert end.code in ENDS[signal.Signals(number)] | {0}, (end, said.decode(errors="replace"))
    assert end.seconds is None or end.seconds <= TOLERATED_SECONDS, (end, said.decode(errors="replace"))
