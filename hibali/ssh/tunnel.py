"""Forward connections from a loopback port of this machine to a port that a login's host can reach."""

from __future__ import annotations

import contextlib
import errno
import socket
import threading

from hibali.errors import HibaliError, RefusedError, UsageError
from hibali.events import Listener, Noted
from hibali.ssh.sessions import Login
from hibali.subprocesses import SocketProcess
from hibali.system_errors import reason_of

LOOPBACK = "127.0.0.1"
_BACKLOG = 32


class Tunnel:
    """A listening loopback port; each connection to it is a channel of the shared login, and never a login by itself.

    The programs that carry the connections end with `close`, and with this process even if it is killed: nothing stays
    behind in the shared login.
    """

    def __init__(self, login: Login, node: str, port: int, *, local_port: int, on_event: Listener) -> None:
        """Listen, and forward to `port` at `node`, a name or address that the login's host resolves.

        Args:
            login: a login that is shared; `ensure` was called.
            node: checked by the caller, because it becomes an argument of ssh.
            port: the port there.
            local_port: the port here; 0 for any free one.
            on_event: receives a note for each new reason for which a connection failed.

        Raises:
            RefusedError: each connection would be a login.
            UsageError: the port here is in use, or not allowed to this account.
        """
        if not login.shared:
            raise RefusedError(
                "no-shared-login",
                "logins to this site are not shared, so that each connection would be a login",
                subject=login.host,
                hint="Set `persist` in the site's [ssh] table to a time such as 8h.",
            )
        self._argv = login.forward_argv(node, port)
        self._on_event = on_event
        self._reasons: set[str] = set()
        self._open: set[SocketProcess] = set()
        self._guard = threading.Lock()
        self._closed = False
        self._listener = _listen(local_port)
        self.local_port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, name="tunnel", daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError as problem:
                if self._closed or problem.errno not in {errno.ECONNABORTED, errno.EMFILE, errno.EINTR}:
                    return
                continue
            threading.Thread(target=self._carry, args=(connection,), name="tunnel", daemon=True).start()

    def _carry(self, connection: socket.socket) -> None:
        """Carry one connection until either side closes it."""
        try:
            with connection:
                process = SocketProcess(self._argv, connection)
        except HibaliError as problem:
            self._note(problem.message)
            return
        with self._guard:
            self._open.add(process)
            closed = self._closed
        if closed:
            process.kill()
        code, errors = process.wait()
        with self._guard:
            self._open.discard(process)
        if code != 0 and not self._closed:
            lines = errors.decode("utf-8", "replace").strip().splitlines()
            self._note(lines[-1] if lines else f"ssh ended with {code}")

    def _note(self, reason: str) -> None:
        with self._guard:
            known = reason in self._reasons
            self._reasons.add(reason)
        if not known:
            self._on_event(Noted(f"A connection failed: {reason}"))

    def close(self) -> None:
        """Close the port and all connections."""
        with self._guard:
            self._closed = True
            processes = list(self._open)
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes up `accept`
        self._listener.close()
        for process in processes:
            process.kill()


def _listen(port: int) -> socket.socket:
    try:
        return socket.create_server((LOOPBACK, port), backlog=_BACKLOG)
    except OSError as problem:
        raise UsageError(
            "port-unavailable",
            f"the port cannot be used: {reason_of(problem)}",
            subject=str(port),
            hint="Omit --local for any free one.",
        ) from None
