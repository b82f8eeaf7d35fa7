"""Start the agents of local sites as forks of the command that wants them, which has imported their modules already.

A new interpreter takes four fifths of the time of a short transfer's agent. The fork reads and executes the same program
from its standard input, and is a child of the command as it would be otherwise.
"""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from transfers.remote.connection import BOOTSTRAP, local_command

MOST_DESCRIPTORS = 1 << 16
_ALL = signal.valid_signals()


class AgentForker(subprocess.Popen[bytes]):
    """`subprocess.Popen` that forks this process where the command line is that of a local agent."""

    def _execute_child(self, args: Any, executable: Any, preexec_fn: Any, close_fds: Any, *rest: Any) -> None:
        """See Popen: it is called once the pipes exist, and closes the child's ends of them."""
        pass_fds, _, env, _, _, _, *pipes = rest[:12]
        if list(args) != [os.fsencode(word) for word in local_command(sys.executable)] or -1 in pipes:
            super()._execute_child(args, executable, preexec_fn, close_fds, *rest)  # type: ignore[misc]
            return
        # a handler of this process must not run in its fork
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _ALL)
        try:
            self.pid = os.fork()
            if self.pid == 0:
                _become_agent((pipes[0], pipes[3], pipes[5]), pass_fds, env, before)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]


def _become_agent(
    streams: Sequence[int], keep: Sequence[int], environment: Mapping[bytes, bytes], mask: set[signal.Signals]
) -> NoReturn:
    """Execute what an agent's interpreter would; nothing of the command is finalized: see `os._exit` below."""
    try:
        gc.freeze()
        os.setsid()
        for number in _ALL:
            if callable(signal.getsignal(number)):
                signal.signal(number, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for target, number in enumerate(streams):
            os.dup2(number, target)
        _close_all_but(keep)
        os.environ.clear()
        os.environ.update({os.fsdecode(name): os.fsdecode(value) for name, value in environment.items()})
        sys.argv = ["-c"]
        # not `sys.stdout` itself, which may hold output of the command
        sys.stdin, sys.stdout, sys.stderr = map(os.fdopen, range(3), "rww")
        exec(BOOTSTRAP, {"__name__": "__main__"})  # noqa: S102 - the program that hibali sends
    except BaseException:  # noqa: BLE001 - print the traceback as an interpreter does
        traceback.print_exc()
        sys.stderr.flush()
    os._exit(1)


def _close_all_but(keep: Sequence[int]) -> None:
    start = 3
    for number in sorted(keep):
        os.closerange(start, number)
        start = number + 1
    os.closerange(start, MOST_DESCRIPTORS)
