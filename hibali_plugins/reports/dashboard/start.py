"""Start the dashboard and open it in the browser."""

from __future__ import annotations

import contextlib
import os
import webbrowser

from hibali.errors import UsageError
from hibali.retry import pause
from hibali_cli.options import Common
from hibali_cli.output import flush_results

_NEEDED = frozenset({"starlette", "uvicorn", "anyio", "h11"})


def show_dashboard(common: Common, *, port: int, no_open: bool) -> int | None:
    """Serve the dashboard until an interruption."""
    try:
        from hibali_plugins.reports.dashboard.server import opening_file, serving  # not always installed
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] not in _NEEDED:
            raise
        raise _not_installed(missing) from None
    with serving(common.config, port) as keys, opening_file(keys.url) as page:
        url = keys.url
        if common.json:
            common.output.record("dashboard", {"url": url, "port": keys.port}, flush=True)
        else:
            common.output.text(f"{url}\n")
            flush_results()
            common.output.info("The link works once, in one browser. Ctrl-C ends the dashboard.")
            if os.environ.get("SSH_CONNECTION"):
                common.output.info(f"From your own machine: ssh -L {keys.port}:127.0.0.1:{keys.port} HOST")
        if not no_open and (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
            with contextlib.suppress(webbrowser.Error):
                webbrowser.open(page.as_uri())
        while True:
            pause(_POLL_SECONDS)


_POLL_SECONDS = 0.2


def _not_installed(missing: ModuleNotFoundError) -> UsageError:
    return UsageError(
        "dashboard-not-installed",
        f"the dashboard needs packages that are not installed: {missing.name}",
        subject="hibali dashboard",
        hint="pip install 'hibali[dashboard]'",
    )
