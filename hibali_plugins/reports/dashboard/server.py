"""Serve the dashboard on loopback until it is interrupted."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from hibali.errors import HibaliError, UsageError
from hibali.system_errors import reason_of
from hibali_plugins.reports.dashboard.access import ADDRESS, Keys
from hibali_plugins.reports.dashboard.app import make_application
from hibali_plugins.reports.dashboard.data import LedgerReader

_END_SECONDS = 1.2
_MOST_CONNECTIONS = 64
_HEAD_SECONDS = 5.0  # in which the head of a request must arrive


class _HeadDeadline(H11Protocol):
    """A connection that ends when the head of a request is not complete in time, so that idle ones take no place of others."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Wait for the first request."""
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        """Read a part of a request."""
        super().data_received(data)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the deadline."""
        self._stop_timer()
        super().connection_lost(exc)

    def _await_head(self) -> None:
        cycle: Any = self.cycle  # None before the first request
        if cycle is not None and not cycle.response_complete:
            self._stop_timer()  # it is being answered
        elif self._timer is None:
            self._timer = self.loop.call_later(_HEAD_SECONDS, self.transport.abort)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


@contextlib.contextmanager
def serving(config: str | None, port: int) -> Iterator[Keys]:
    """Serve the dashboard in a thread, and yield its keys; it ends with the context. Raises `UsageError` for a port in use.

    Args:
        config: the config.toml given.
        port: 0 for any free one.
    """
    reader = LedgerReader(config)
    with _listening_socket(port) as listener:
        keys = Keys(listener.getsockname()[1])
        settings = uvicorn.Config(
            make_application(reader, keys),
            log_config=None,
            log_level="critical",  # errors are pages
            access_log=False,
            lifespan="off",
            loop="asyncio",
            http=_HeadDeadline,
            ws="none",
            server_header=False,
            proxy_headers=False,
            limit_concurrency=_MOST_CONNECTIONS,
            timeout_keep_alive=5,
            timeout_graceful_shutdown=1,
        )
        # not in the thread: too many open files are an error of the command
        settings.load()
        server, loop = uvicorn.Server(settings), asyncio.new_event_loop()
        loop.set_exception_handler(_ignore_problem)
        # in a thread: the main thread handles signals as in every command
        thread = threading.Thread(
            target=lambda: loop.run_until_complete(server.serve(sockets=[listener])), daemon=True
        )
        thread.start()
        try:
            yield keys
        finally:
            server.should_exit = True
            thread.join(_END_SECONDS)
            if not thread.is_alive():
                loop.close()


def _ignore_problem(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Pass over the problem of one connection, such as too many open files."""
    del loop, context


def _listening_socket(port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((ADDRESS, port))
        listener.listen(_MOST_CONNECTIONS)
    except OSError as problem:
        listener.close()
        raise _unavailable(port, problem) from None
    return listener


def _unavailable(port: int, problem: OSError) -> HibaliError:
    return UsageError(
        "port-unavailable",
        f"the port cannot be used: {reason_of(problem)}",
        subject=str(port),
        hint="To use any free port: hibali dashboard",
    )


@contextlib.contextmanager
def opening_file(url: str) -> Iterator[Path]:
    """Write a private page that leads to the link, for the browser's command line, which other accounts can read (S16)."""
    page = f'<!DOCTYPE html><meta http-equiv="refresh" content="0; url={url}"><a href="{url}">hibali dashboard</a>\n'
    with tempfile.TemporaryDirectory(prefix="hibali-dashboard-") as folder:
        path = Path(folder) / "open.html"
        path.write_text(page, "ascii")
        yield path
