"""Reach a port at the node where a run's job runs, such as that of a notebook or dashboard, until the job ends."""

from __future__ import annotations

import contextlib
import errno
import re
import shlex
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass

from hibali.config.model import SshSettings
from hibali.errors import HibaliError, RefusedError, TryLaterError, UsageError
from hibali.events import Listener, Noted
from hibali.retry import growing_intervals
from hibali.ssh.sessions import Login
from hibali.subprocesses import ProcessStreams, SocketProcess
from hibali.system_errors import reason_of
from runs.model import Run, State
from runs.monitor import TaskIsOverError, look_until, wait_for_end
from runs.records import choose_task
from runs.site_session import SiteOpener
from transfers.remote.host import RemoteHost
from transfers.remote.one_session import kept_session, start_in_session

_NODE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")
_FIRST_SECONDS, _LONGEST_SECONDS = 0.5, 5.0  # between two looks whether the job has ended


@dataclass(frozen=True, slots=True)
class Ports:
    """The port at the node, and the one of this machine; 0 for any free one."""

    remote: int
    local: int = 0


@dataclass(frozen=True, slots=True)
class OpenTunnel:
    """A tunnel that is open: the node, as the login's host names it, and the ports."""

    node: str
    ports: Ports


def require_running(run: Run) -> None:
    """Raise `RefusedError` for a run that has ended, `TryLaterError` for one whose job has not started."""
    if run.state.ended:
        raise RefusedError(
            "run-ended",
            f"the run has ended: {run.state}",
            subject=run.reference,
            hint=f"To start it again: hibali runs rerun {run.id}",
        )
    if run.state is not State.RUNNING:
        raise TryLaterError(
            "not-running",
            f"the job of the run has not started: {run.state}",
            subject=run.reference,
            hint=f"To follow it: hibali runs watch {run.id}",
            transient=False,
        )


def node_address(host: RemoteHost, run: Run) -> str:
    """Return the address of the run's node for the login's host: loopback if it is that host itself.

    Raises:
        TryLaterError: the job has not recorded its node.
        RefusedError: the record is no name of a machine; others could have written it.
    """
    content = host.get(run.folder + b"/started/host", maximum=512)
    if not content:
        raise TryLaterError(
            "no-node",
            "the job has not recorded the node at which it runs",
            subject=run.reference,
            hint="If the job was started by an older hibali, start a new run.",
            transient=False,
        )
    node = content.decode("ascii", "replace").strip()
    if not _NODE.fullmatch(node):
        raise RefusedError("no-node", "the recorded node is not the name of a machine", subject=run.reference)
    return LOOPBACK if node == host.facts().get("host") else node


def open_tunnel(
    opener: SiteOpener,
    run: Run,
    ports: Ports,
    *,
    task: int | None = None,
    on_open: Callable[[OpenTunnel], None],
) -> Run:
    """Forward a port until the run has ended, and return the run as it is then.

    Args:
        opener: connects to the site of the run.
        run: a run, as it was just observed; a sweep with the number of a `task`.
        ports: see Ports.
        task: the task of a sweep.
        on_open: called once connections are accepted.
    """
    site, on_event = opener.site, opener.on_event
    chosen = choose_task(run, task)
    require_running(chosen)
    if site.ssh is None:
        raise UsageError(
            "not-an-ssh-site",
            "the run is not at an ssh site, so its port is reached without a tunnel",
            subject=site.name,
            hint=f"Open http://{LOOPBACK}:{ports.remote} or the same port at its node.",
        )
    login = Login(site.ssh, site.limits, on_event=on_event)
    with contextlib.ExitStack() as stack:
        stack.enter_context(kept_session(site))
        with opener() as session:
            node = node_address(session.host, chosen)
        forward = _forwarding(login, site.ssh, node, ports.remote)
        tunnel = Tunnel(forward, local_port=ports.local, on_event=on_event)
        stack.enter_context(contextlib.closing(tunnel))
        on_open(OpenTunnel(node, Ports(ports.remote, tunnel.local_port)))
        watch = _JobWatch(chosen.folder, tunnel)
        with contextlib.suppress(TaskIsOverError):
            wait_for_end(opener, [run.id], meanwhile=watch.follow if task is None else watch.follow_task)
    return choose_task(opener.runs.load(run.id), task)


def _forwarding(login: Login, settings: SshSettings, node: str, port: int) -> Forward:
    """Return what carries a connection to a port at a node, which the login's host resolves; it never logs in.

    `node` is checked by the caller, because it becomes an argument.
    """
    if login.shared:
        login.ensure()
        argv = login.forward_argv(node, port)
        return lambda connection: SocketProcess(argv, connection)
    command = f"exec {settings.python} -I -S -c {shlex.quote(_CONNECT)} {shlex.quote(node)} {port:d}"

    def carry(connection: socket.socket) -> _Copying:
        process = start_in_session(login, command)
        if process is None:
            raise TryLaterError("connection-lost", "the login has ended", subject=login.host)
        return _Copying(process, connection)

    return carry


class _JobWatch:
    """Close the tunnel as soon as the job has written its exit record: another account may get the port then."""

    def __init__(self, folder: bytes, tunnel: Tunnel) -> None:
        self._record = folder + b"/exit.json"
        self._tunnel = tunnel
        self._intervals = growing_intervals(_FIRST_SECONDS, _LONGEST_SECONDS)

    def follow(self, host: RemoteHost, seconds: float) -> None:
        """Look for the record for so many seconds; return when it exists."""
        if look_until(seconds, lambda: host.stat(self._record) is not None, self._intervals):
            self._tunnel.close()

    def follow_task(self, host: RemoteHost, seconds: float) -> None:
        """The same for a task of a sweep, whose end does not end the run. Raises `TaskIsOverError`."""
        self.follow(host, seconds)
        if host.stat(self._record) is not None:
            raise TaskIsOverError


LOOPBACK = "127.0.0.1"
_BACKLOG = 32
_PIECE_BYTES = 64 * 1024

# Connects its input and output to a port, as `ssh -W` does, with Python 3.6; the other side may go on after one has ended.
_CONNECT = """
import os, socket, sys, threading
try:
    link = socket.create_connection((sys.argv[1], int(sys.argv[2])), 30)
except OSError as problem:
    sys.exit("connect to {}: {}".format(sys.argv[1], problem.strerror or problem))
link.settimeout(None)
def send():
    try:
        part = os.read(0, 65536)
        while part:
            link.sendall(part)
            part = os.read(0, 65536)
        link.shutdown(socket.SHUT_WR)
    except OSError:
        pass
sender = threading.Thread(target=send, daemon=True)
sender.start()
with open(1, "wb", 0) as out:
    part = link.recv(65536)
    while part:
        while part:
            part = part[out.write(part):]
        part = link.recv(65536)
sender.join()
os._exit(0)
"""


class _Copying:
    """What SocketProcess is, for a program at a host: two threads copy between it and the connection."""

    def __init__(self, process: ProcessStreams, connection: socket.socket) -> None:
        """Connect them; the caller closes its own end of the connection."""
        self._process = process
        self._connection = connection.dup()
        self._is_closed = False  # by who connected here, before all output was sent
        self._threads = [
            threading.Thread(target=copy, name="tunnel", daemon=True)
            for copy in (self._send_output, self._pass_input)
        ]
        for thread in self._threads:
            thread.start()

    def _pass_input(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            while content := self._connection.recv(_PIECE_BYTES):
                view = memoryview(content)
                while view:
                    view = view[self._process.stdin.write(view) :]
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def _send_output(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            while content := self._process.stdout.read(_PIECE_BYTES):
                try:
                    self._connection.sendall(content)
                except OSError:
                    self._is_closed = True
                    self._process.kill()
                    break
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_WR)  # there may be more input

    def wait(self) -> tuple[int, bytes]:
        """See SocketProcess."""
        for thread in self._threads:
            thread.join()
        self._connection.close()
        code = self._process.end()
        return (0, b"") if self._is_closed else (code, self._process.errors)

    def kill(self) -> None:
        """See SocketProcess."""
        self._process.kill()
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)  # which ends the threads


Forward = Callable[[socket.socket], SocketProcess | _Copying]


class Tunnel:
    """A listening loopback port; each connection to it is carried over the login to the site, and never a login by itself.

    The programs that carry the connections end with `close`, and with this process even if it is killed: nothing stays
    behind in the login.
    """

    def __init__(self, forward: Forward, *, local_port: int, on_event: Listener) -> None:
        """Listen, and carry each connection with `forward`.

        Args:
            forward: carries a connection.
            local_port: the port here; 0 for any free one.
            on_event: receives a note for each new reason for which a connection failed.

        Raises `UsageError` if the port here is in use, or not allowed to this account.
        """
        self._forward = forward
        self._on_event = on_event
        self._reasons: set[str] = set()
        self._open: set[SocketProcess | _Copying] = set()
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
                process = self._forward(connection)
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
