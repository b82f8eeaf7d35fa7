"""Start the command line; `--version` needs no click."""

from __future__ import annotations

import gc
import os
import signal
import sys

# A Ctrl-C while these are imported ends with a traceback of Python's: as little as possible, not even `typing`.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


def main() -> NoReturn:
    """Run the command line of this process and leave with its exit code."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # until the command listens, Ctrl-C just ends it
    sys.exit(_run())


def _run() -> int:
    from hibali_cli.output import prepare_streams

    prepare_streams()
    gc.set_threshold(
        50_000, 20, 100
    )  # hundreds of thousands of entries make no cycles: looking for some took a tenth
    if sys.argv[1:] == ["--version"]:
        from hibali_cli.version import show_version

        return show_version()
    from hibali_cli.root import complete_words, run_command

    if "_HIBALI_COMPLETE" in os.environ:
        return complete_words(os.environ["_HIBALI_COMPLETE"])
    return run_command(sys.argv[1:])
