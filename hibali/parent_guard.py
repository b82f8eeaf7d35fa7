"""Run a program that ends when its parent dies: `python parent_guard.py PARENT_PID PROGRAM [WORD]...`; imports nothing of hibali."""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # prctl(2)
_NOT_FOUND = 127


def end_with_parent(above: int) -> None:
    """Have the kernel kill this process when the thread that started it ends; at once where process `above` ended already."""
    library = ctypes.CDLL(None, use_errno=True)
    if library.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl failed")
    if os.getppid() != above:
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    end_with_parent(int(sys.argv[1]))
    argv = [os.fsencode(argument) for argument in sys.argv[2:]]
    try:
        os.execvp(argv[0], argv)  # noqa: S606
    except OSError as problem:
        sys.stderr.write(f"{sys.argv[2]}: {problem.strerror}\n")
        sys.exit(_NOT_FOUND)
