"""Choose how to talk to an ssh site: its own agent, or SFTP where no agent can start."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from hibali.config.model import Site
from hibali.errors import HibaliError
from hibali.events import Listener, Noted, ignore
from hibali.files import private_folder, state_folder, write_atomic
from hibali.ledger import now
from hibali.locations import guarded_roots
from transfers.remote.host import RemoteHost
from transfers.stores.sftp import kind
from transfers.stores.sftp.client import Client
from transfers.stores.sftp.paths import Guard
from transfers.stores.sftp.remote_host import SftpHost

Opened = TypeVar("Opened")

# How an agent fails that was never started: by a server that gives only SFTP, by a wrapper that refuses in words
# on its standard output and exits 0, or for want of python3. A lost or refused login is neither.
_NOT_STARTED = frozenset(
    {"no-python", "agent-not-started", "connection-lost", "no-answer", "chatter", "protocol"}
)


def open_either(
    site: Site,
    *,
    bulk: bool,
    with_agent: Callable[[], Opened],
    with_sftp: Callable[[Client, int], Opened],
    on_event: Listener = ignore,
) -> Opened:
    """What the one or the other opens, as the site's `transport` says; `auto` remembers where only SFTP works."""
    way = _settled(site, bulk=bulk)
    if way == "agent":
        return with_agent()
    if way == "sftp":
        return with_sftp(*kind.connect(site, bulk=bulk, on_event=on_event))
    try:
        return with_agent()
    except HibaliError as problem:
        if problem.code not in _NOT_STARTED:
            raise
        found = _instead(site, problem, bulk=bulk, on_event=on_event)
    return with_sftp(*found)


def _settled(site: Site, *, bulk: bool) -> str:
    """`agent`, `sftp`, or `auto` where nothing is known yet."""
    if site.ssh is None:
        return "agent"
    if site.ssh.transport != "auto":
        return site.ssh.transport
    known = _read(_file(site)).get("transports", {}).get(_host(site, bulk=bulk))
    return "sftp" if isinstance(known, dict) and known.get("transport") == "sftp" else "auto"


def _instead(site: Site, problem: HibaliError, *, bulk: bool, on_event: Listener) -> tuple[Client, int]:
    """SFTP where the agent could not start; the agent's own problem is raised where there is none either."""
    try:
        found = kind.connect(site, bulk=bulk, on_event=on_event)
    except HibaliError:
        raise problem from None
    _remember(site, problem.message, bulk=bulk)
    on_event(
        Noted(
            f"{site.name}: hibali's agent cannot start there ({problem.message}); SFTP is used from now on. "
            f"`hibali sites check {site.name}` tries the agent again."
        )
    )
    return found


def _remember(site: Site, because: str, *, bulk: bool) -> None:
    path = _file(site)
    record = _read(path)
    transports = record.setdefault("transports", {})
    transports[_host(site, bulk=bulk)] = {"transport": "sftp", "because": because, "at": now()}
    _write(path, record)


def sftp_host(site: Site, client: Client) -> RemoteHost:
    """The machine at a site over a conversation that is closed with it."""
    assert site.ssh is not None
    assert client.channel.login is not None
    return SftpHost(client, client.channel.login, site.ssh.command, Guard(client, guarded_roots(site)))


def forget(site: Site) -> None:
    """Let the next call try the agent again."""
    path = _file(site)
    record = _read(path)
    if record.pop("transports", None):
        _write(path, record)


def _host(site: Site, *, bulk: bool) -> str:
    assert site.ssh is not None
    return (site.ssh.data_host or site.ssh.host) if bulk else site.ssh.host


def _file(site: Site) -> Path:
    return private_folder(state_folder() / "sites") / f"{site.name}.json"


def _write(path: Path, record: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):  # it is tried again then
        write_atomic(path, json.dumps({**record, "schema": 1}, indent=1).encode("ascii") + b"\n")


def _read(path: Path) -> dict[str, Any]:
    try:
        record = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) and isinstance(record.get("transports", {}), dict) else {}
