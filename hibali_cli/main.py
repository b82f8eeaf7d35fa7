"""Start the command line; `--version` needs no click."""

from __future__ import annotations

# built in: Python looks for `signal` in all folders, and a Ctrl-C meanwhile showed a traceback
import _signal  # type: ignore[import-not-found]
import gc
import os
import sys

# start-up: a Ctrl-C during these imports shows a traceback, so import as little as possible, not even `typing`.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


def main() -> NoReturn:
    """Run the command line of this process and exit with its code."""
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        # until the handlers are installed, Ctrl-C ends the process silently
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    code = _run()
    # Python searches everything that is left for cycles when it ends: a tenth of the time of a small push
    gc.freeze()
    sys.exit(code)


def _run() -> int:
    from hibali_cli.output import prepare_streams

    prepare_streams()
    # entries have no reference cycles; with hundreds of thousands, the search took a tenth of the time. Nor do the modules that
    # a push loads, with less than 200,000 objects.
    gc.set_threshold(200_000, 20, 100)
    if sys.argv[1:] in (["--version"], ["-V"]):
        from hibali_cli.version import show_version

        return show_version()
    from hibali_cli.root import run_command, run_completion

    if "_HIBALI_COMPLETE" in os.environ:
        return run_completion(os.environ["_HIBALI_COMPLETE"])
    return run_command(sys.argv[1:])
