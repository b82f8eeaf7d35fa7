"""Be the process that rewrites paths, within limits of time and memory (`transfers.model.renaming` starts it)."""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import sys
import warnings
from collections.abc import Sequence
from typing import NamedTuple

MOST_BYTES = 4096  # of a new path, as of one in Linux
CPU_SECONDS = 2  # for one batch; ordinary rules need some milliseconds
TOO_MUCH = 3  # the exit code after the limit of memory
_MEMORY = 1024**3


class Renaming(NamedTuple):
    """One rule: what matches the pattern gets the replacement, everywhere or only at the first place."""

    pattern: str
    replacement: str
    everywhere: bool
    ignore_case: bool

    def compiled(self) -> re.Pattern[str]:
        """Return the pattern. Raises the errors of `re.compile`."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # "[[" may mean something else in a later Python
            return re.compile(self.pattern, re.IGNORECASE if self.ignore_case else 0)


def main() -> None:
    """Be the process: rules come by standard input, then paths, a batch on each line."""
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGPROF})
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY if hard < 0 else min(_MEMORY, hard), hard))
    try:
        rules = [Renaming(*fields) for fields in json.loads(sys.stdin.buffer.readline() or b"[]")]
        compiled = [(each.compiled(), each.replacement, 0 if each.everywhere else 1) for each in rules]
        for line in sys.stdin.buffer:
            signal.setitimer(signal.ITIMER_PROF, CPU_SECONDS)
            answer = [rewritten(path, compiled) for path in json.loads(line)]
            signal.setitimer(signal.ITIMER_PROF, 0)
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()
    except MemoryError:
        os._exit(TOO_MUCH)
    except BrokenPipeError:
        os._exit(0)


def rewritten(path: str, rules: Sequence[tuple[re.Pattern[str], str, int]]) -> str:
    """Return the path after all rules; once it is too long, the others are left out."""
    for pattern, replacement, count in rules:
        path = pattern.sub(replacement, path, count=count)
        if len(path) > MOST_BYTES:
            return path[: MOST_BYTES + 1]
    return path
