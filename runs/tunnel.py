"""Reach a port at the node where a run's job runs, such as that of a notebook or dashboard, until the job ends."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from dataclasses import dataclass

from hibali.errors import RefusedError, TryLaterError, UsageError
from hibali.retry import growing_intervals
from hibali.ssh.sessions import Login
from hibali.ssh.tunnel import LOOPBACK, Tunnel
from runs.model import Run, State
from runs.monitor import TaskIsOverError, look_until, wait_for_end
from runs.records import choose_task
from runs.site_session import SiteOpener
from transfers.remote.host import RemoteHost

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
        raise RefusedError("run-ended", f"the run has ended: {run.state}", subject=run.reference)
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
    with opener() as session:
        node = node_address(session.host, chosen)
    login.ensure()
    tunnel = Tunnel(login, node, ports.remote, local_port=ports.local, on_event=on_event)
    with contextlib.closing(tunnel):
        on_open(OpenTunnel(node, Ports(ports.remote, tunnel.local_port)))
        watch = _JobWatch(chosen.folder, tunnel)
        with contextlib.suppress(TaskIsOverError):
            wait_for_end(opener, [run.id], meanwhile=watch.follow if task is None else watch.follow_task)
    return choose_task(opener.runs.load(run.id), task)


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
