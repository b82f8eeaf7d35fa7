"""Connect to the host of an ssh site: through the agent, or through SFTP if no agent can start."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from hibali.config.model import Site
from hibali.errors import HibaliError
from hibali.events import Listener, Noted, ignore
from hibali.files import private_folder, read_regular, state_folder, write_atomic
from hibali.ledger import now
from hibali.locations import guarded_roots
from transfers.remote.host import RemoteHost

if TYPE_CHECKING:  # start-up: most sites have an agent
    from transfers.stores.sftp.client import Client

Opened = TypeVar("Opened")

# Errors of an agent that never started: the server offers only SFTP, a wrapper refuses with a message
# on its standard output and exits 0, or python3 is missing. A lost or refused login is not among them.
_NOT_STARTED = frozenset(
    {"no-python", "agent-not-started", "session-refused", "no-answer", "startup-output", "protocol"}
)


def open_either(
    site: Site,
    *,
    bulk: bool,
    with_agent: Callable[[], Opened],
    with_sftp: Callable[[Client, int], Opened],
    on_event: Listener = ignore,
) -> Opened:
    """Open the agent or SFTP, by the site's `transport`; `auto` remembers that only SFTP works."""
    way = _known_transport(site, bulk=bulk)
    if way == "agent":
        return with_agent()
    if way == "sftp":
        from transfers.stores.sftp.opening import connect  # start-up: most sites have an agent

        return with_sftp(*connect(site, bulk=bulk, on_event=on_event))
    try:
        return with_agent()
    except HibaliError as problem:
        if problem.code not in _NOT_STARTED:
            raise
        found = _open_sftp_instead(site, problem, bulk=bulk, on_event=on_event)
    return with_sftp(*found)


def _known_transport(site: Site, *, bulk: bool) -> str:
    """Return `agent`, `sftp`, or `auto` if it is not known yet."""
    if site.ssh is None:
        return "agent"
    if site.ssh.transport != "auto":
        return site.ssh.transport
    known = _read(_file(site)).get("transports", {}).get(_host(site, bulk=bulk))
    return "sftp" if isinstance(known, dict) and known.get("transport") == "sftp" else "auto"


def _open_sftp_instead(
    site: Site, problem: HibaliError, *, bulk: bool, on_event: Listener
) -> tuple[Client, int]:
    """Open SFTP because the agent could not start; raise the agent's error if SFTP fails, too."""
    from transfers.stores.sftp.opening import connect  # start-up: most sites have an agent

    try:
        found = connect(site, bulk=bulk, on_event=on_event)
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
    """Return a remote host over SFTP, which closes the client with it."""
    from transfers.stores.sftp.paths import Guard  # start-up: most sites have an agent
    from transfers.stores.sftp.remote_host import SftpHost  # start-up: most sites have an agent

    assert site.ssh is not None
    assert client.channel.login is not None
    return SftpHost(client, client.channel.login, site.ssh.command, Guard(client, guarded_roots(site)))


def forget(site: Site) -> None:
    """Forget the remembered transport, so that the agent is tried again."""
    path = _file(site)
    record = _read(path)
    if record.pop("transports", None):
        _write(path, record)


def _host(site: Site, *, bulk: bool) -> str:
    assert site.ssh is not None
    return site.ssh.bulk_hosts[0] if bulk else site.ssh.host


def _file(site: Site) -> Path:
    return private_folder(state_folder() / "sites") / f"{site.name}.json"


def _write(path: Path, record: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):  # the next call tries again
        write_atomic(path, json.dumps({**record, "schema": 1}, indent=1).encode("ascii") + b"\n")


def _read(path: Path) -> dict[str, Any]:
    try:
        record = json.loads(read_regular(path))
    except (OSError, ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) and isinstance(record.get("transports", {}), dict) else {}
