"""Reading lines from whoever sits at the terminal, with editing and TAB, wherever stdout goes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from hibali.errors import UsageError
from hibali_cli.output import write_aside

Complete = Callable[[str], list[str]]


@contextmanager
def terminal_as_stdout() -> Iterator[None]:
    """Let the terminal that stderr is be stdout for a while: readline(3) draws there, and results may go to a file."""
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
    """A line without its end; TAB offers what `complete` makes of the whole line. Raises `KeyboardInterrupt` at its end (Ctrl-D), too."""
    import readline

    offered: list[str] = []

    def completer(text: str, state: int) -> str | None:
        if state == 0:
            offered[:] = complete(text)
        return offered[state] if state < len(offered) else None

    readline.set_completer_delims("")
    readline.set_completer(completer)
    readline.parse_and_bind("tab: complete")
    readline.set_auto_history(False)  # answers are nobody's history
    try:
        return input(prompt)
    except (EOFError, KeyboardInterrupt):
        write_aside("")  # the cursor stands behind the question
        raise KeyboardInterrupt from None
    except UnicodeDecodeError:
        raise UsageError("not-text", "this is not UTF-8, and cannot stand in an invocation") from None
    finally:
        readline.set_completer(None)
