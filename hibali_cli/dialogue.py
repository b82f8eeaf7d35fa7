"""Read answers on the terminal, with completion, also where stdout is a file."""

from __future__ import annotations

import os
import readline
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hibali.errors import UsageError
from hibali_cli.output import write_message

Complete = Callable[[str], list[str]]


@contextmanager
def terminal_as_stdout() -> Iterator[None]:
    """Use the terminal of stderr as stdout for a while: readline(3) draws on stdout, which may be a file."""
    assert sys.stdout is not None
    sys.stdout.flush()
    results = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(results, 1)
        os.close(results)


def read_line(prompt: str, complete: Complete) -> str:
    """Read a line without its end; TAB offers the completions of `complete`. Raises `KeyboardInterrupt` also at Ctrl-D."""
    offered: list[str] = []

    def completer(text: str, state: int) -> str | None:
        if state == 0:
            offered[:] = complete(text)
        return offered[state] if state < len(offered) else None

    readline.set_completer_delims("")
    readline.set_completer(completer)
    readline.parse_and_bind("tab: complete")
    readline.set_auto_history(False)  # answers must not be stored in a history
    try:
        return input(prompt)
    except (EOFError, KeyboardInterrupt):
        write_message("")  # the cursor is still on the line of the prompt
        raise KeyboardInterrupt from None
    except UnicodeDecodeError:
        raise UsageError("not-text", "the text is not UTF-8, which an invocation must be") from None
    finally:
        readline.set_completer(None)
