"""Find out whether this process is the kernel of a notebook, and teach it to show receipts."""

from __future__ import annotations

import sys
from typing import Any

from transfers.history.journal import Receipt


def notebook_shell() -> Any:
    """Return the shell of IPython if this process is the kernel of a notebook, else None. Never imports IPython."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell if getattr(shell, "kernel", None) is not None else None


def show_receipts() -> None:
    """Register the HTML of receipts with the notebook, if this is one: their class is below the API."""
    shell = notebook_shell()
    if shell is not None:
        shell.display_formatter.formatters["text/html"].for_type(Receipt, _receipt_html)


def _receipt_html(receipt: Receipt) -> str | None:
    return html_of("receipt", receipt)


def html_of(name: str, *values: Any) -> str | None:
    """Return what a plugin makes of a receipt, plan or run; None for the text alone."""
    from hibali.plugins import find  # start-up: only in a notebook

    make = find("hibali.html", name)
    return None if make is None else str(make(*values))
