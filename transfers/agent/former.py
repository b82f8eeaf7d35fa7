"""Ending agents whose lines were lost: each only where it provably is that process, and known to be gone afterwards."""

import contextlib
import os
import signal
import time
from typing import Any, Dict, List

from transfers.agent.lease import is_seen_here, process_start

GONE = "gone"
THERE = "there"  # and it cannot be ended
ELSEWHERE = "elsewhere"  # on another machine, or where its processes cannot be seen

_BY_ITSELF_SECONDS = 1.0  # one that knows that its client is gone finishes what it is at
_ENDED_SECONDS = 10.0
_LOOK_SECONDS = 0.02


def end_formers(formers: List[Dict[str, Any]]) -> List[str]:
    """What is known of each afterwards. They are told as they named themselves: host, boot, namespace, pid, start.

    A process of the same pid that began at another time is not touched.
    """
    here = [former for former in formers if is_seen_here(former)]
    _wait(here, _BY_ITSELF_SECONDS)
    for former in here:
        _kill(former)
    _wait(here, _ENDED_SECONDS)
    return [(THERE if _runs(former) else GONE) if is_seen_here(former) else ELSEWHERE for former in formers]


def _wait(formers: List[Dict[str, Any]], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while any(_runs(former) for former in formers) and time.monotonic() < deadline:
        time.sleep(_LOOK_SECONDS)


def _runs(former: Dict[str, Any]) -> bool:
    """Whether that very process is there and can still do anything; a zombie cannot (proc(5), state)."""
    pid, start = former["pid"], former["start"]
    if process_start(pid) != start:
        return False
    try:
        with open("/proc/{}/stat".format(pid), "rb") as stream:
            return stream.read().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except (OSError, IndexError):
        return False


def _kill(former: Dict[str, Any]) -> None:
    """By a descriptor of the process where this python has them: a pid may be another's a moment later (pidfd_open(2))."""
    pid = former["pid"]
    if pid == os.getpid():
        return
    open_process = getattr(os, "pidfd_open", None)
    send = getattr(signal, "pidfd_send_signal", None)
    with contextlib.suppress(OSError):
        if open_process is None or send is None:
            if _runs(former):
                os.kill(pid, signal.SIGKILL)
            return
        descriptor = open_process(pid)
        try:
            if _runs(former):
                send(descriptor, signal.SIGKILL)
        finally:
            os.close(descriptor)
