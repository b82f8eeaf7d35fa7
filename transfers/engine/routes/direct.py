"""Move files directly from one ssh site to another over the first site's own ssh, or within a site that sees both places."""

from __future__ import annotations

import secrets
import shlex
from base64 import b64encode
from collections.abc import Generator, Iterable, Iterator
from contextlib import ExitStack, closing
from typing import Any

from hibali.config.model import Reached, Site
from hibali.errors import AccessError, HibaliError, NotFoundError, TryLaterError, UsageError
from hibali.events import Event, Listener, Noted
from hibali.locations import Location, guarded_roots
from hibali.plugins import if_offered
from hibali.ssh.explain import ended_session, explain_ssh
from hibali.ssh.sessions import unattended_options
from hibali.text import printable
from transfers.agent import protocol
from transfers.agent.identity import SAME, Identity, common_folder, mounts_below, relation
from transfers.engine.endpoints import Endpoints
from transfers.engine.routes.stream import ProgressReport, StreamRoute
from transfers.history.journal import Recorder
from transfers.model.store import Source, Store
from transfers.model.units import Committed, Item, Unit
from transfers.pipeline.batches import group_units, unit_bytes
from transfers.pipeline.third_party import DirectReceiver
from transfers.planning.planner import TransferPlan
from transfers.remote.connection import Connection, opening, remote_command
from transfers.stores import ssh
from transfers.stores.agent_store import PosixStore
from transfers.stores.renamed_source import RenamedSource
from transfers.stores.single_file import ChosenStore, GatheredSource, SingleSource


class DirectRoute(StreamRoute):
    """A route with the retries and rate limit of StreamRoute, from an agent at one site to an agent at the other.

    Where nobody asked for it, the files pass through this machine if the agents cannot be connected.
    """

    early = False

    def __init__(
        self,
        ends: tuple[Site, Site],
        folder: bytes,
        target: PosixStore,
        stack: ExitStack,
        rate: int,
        on_event: Listener,
        *,
        known: Identity | None = None,
    ) -> None:
        """Args:
        ends: The sites that read and write.
        folder: The source's root as the first of them knows it.
        target: The store that is written.
        stack: Closes the connection.
        rate: The limit in bytes per second; 0 for none.
        on_event: Receives progress and notes.
        known: The folder that must be there, where nobody asked for this route; else the files pass through this machine.
        """
        super().__init__(rate, on_event)
        self._ends = ends
        self._folder = folder
        self._target = target
        self._stack = stack
        self._known = known
        self._required = known is None
        self._connection: Connection | None = None

    @property
    def name(self) -> str:  # type: ignore[override]
        """See Route."""
        return "stream" if self.expects else "direct"

    @property
    def expects(self) -> bool:  # type: ignore[override]
        """See Route: whether the files pass through this machine."""
        return self._connection is None and not self._required

    def open(self, plan: TransferPlan) -> None:
        """Connect the source's agent to the target's. Raises the errors of `connect`, if the route is required."""
        del plan
        try:
            self._connection, self.logins = connect(
                self._ends, self._folder, self._target, self._on_event, self._known
            )
        except HibaliError as problem:
            if self._required:
                raise
            self._on_event(
                Noted(f"{problem.subject}: {problem.message}; the files pass through this machine")
            )
            return
        self._stack.callback(self._connection.close)

    def _transfer(
        self, source: Source, target: Store, items: Iterable[Item]
    ) -> Generator[Event | Committed, None, None]:
        if self._connection is None:  # the plan has no files to move, or they pass through this machine
            yield from super()._transfer(source, target, items)
            return
        piece = max(source.facts.segment_bytes, target.facts.segment_bytes)
        progress = ProgressReport(self._on_event)
        receiver = DirectReceiver(
            self._connection,
            self._target.root_path,
            self._target.token,
            required=self._required,
            read_as=source.name_in_store
            if isinstance(source, SingleSource | ChosenStore | GatheredSource | RenamedSource)
            else None,
            passed=lambda unit: progress.report_progress(unit, unit_bytes(unit)),
        )
        units = group_units(self._full.until(items), lambda: piece, receiver.begun, together=self._together)
        self._target.write_with(receiver)
        with closing(receiver.run(self._paced(units))) as results:
            for committed in results:
                self._full.note(committed.problem)
                yield committed

    def _paced(self, units: Iterable[Unit]) -> Iterator[Unit]:
        for unit in units:
            self._pace.acquire(unit_bytes(unit))
            yield unit


_WITHOUT = "leave out --direct: the data then passes through this machine"


def open_route(endpoints: Endpoints, recorder: Recorder) -> DirectRoute:
    """Return the route, not yet connected. Raises `UsageError` unless agents reach both endpoints."""
    request = endpoints.request
    source = _agent_store(endpoints.origin.store, request.source)
    target = _agent_store(endpoints.target, request.target)
    return _route(endpoints, recorder, endpoints.sites, source.root_path, target, None)


def open_at_site(endpoints: Endpoints, recorder: Recorder) -> DirectRoute | None:
    """Return the route of two places that the target's site sees, not yet connected."""
    here, there = endpoints.sites
    source, target = endpoints.origin.store, endpoints.target
    store = source.store if isinstance(source, ChosenStore) else source
    if not isinstance(store, PosixStore) or not isinstance(target, PosixStore):
        return None
    if there.ssh is None:
        return None
    if here.name == there.name:
        folder, known = store.root_path, store.identities()[0]
    else:
        seen = _seen_by_target(store, target)
        if seen is None:
            return None
        folder, known = protocol.bytes_of(seen["path"]), seen
    return _route(endpoints, recorder, (there, there), folder, target, known)


def _seen_by_target(source: PosixStore, target: PosixStore) -> Identity | None:
    """Return the source's root as the target's host sees it; None unless both accounts see the same folder there.

    Other files could be mounted below it at only one of the hosts.
    """
    (here,), (there,) = source.identities(), target.identities()
    if source.account != target.account or mounts_below(here):
        return None
    shared = common_folder(here, there)
    if shared is None:
        return None
    # no request to the source, which may be listing already
    names, names_there = (protocol.bytes_of(each["path"]).rstrip(b"/").split(b"/") for each in (here, there))
    path = b"/".join([*names_there[: shared[1] + 1], *names[shared[0] + 1 :]]) or b"/"
    (found,) = target.identify([path])
    if found is None or mounts_below(found) or relation(found, here) != SAME:
        return None
    return found


def _route(
    endpoints: Endpoints,
    recorder: Recorder,
    ends: tuple[Site, Site],
    folder: bytes,
    target: PosixStore,
    known: Identity | None,
) -> DirectRoute:
    stack, rate = endpoints.stack, endpoints.request.lowest_rate
    return DirectRoute(ends, folder, target, stack, rate, recorder.on_event, known=known)


def _agent_store(store: Store, location: Location) -> PosixStore:
    """Return the store as an agent store; raise `UsageError` for other stores."""
    if isinstance(store, PosixStore):
        return store
    raise UsageError(
        "direct-transport",
        "--direct needs hibali's agent and plain files at both endpoints; this one is reached by SFTP or contains packs",
        subject=location.text,
        hint=f"Name sites with python3{if_offered('push.packs', ' and leave out --pack')}, or {_WITHOUT}.",
    )


def connect(
    ends: tuple[Site, Site],
    folder: bytes,
    target_store: PosixStore,
    on_event: Listener,
    known: Identity | None = None,
) -> tuple[Connection, int]:
    """Connect the source's site to the target's, without changes at either; within a site to a second agent.

    `folder` is the source's root, which must be `known` if that is given. Returns the connection to the source's agent, which reaches the target's, and the number of logins.

    Raises `AccessError` for a refused login, `TryLaterError` if the target is unreachable.
    """
    here, there = ends
    assert there.ssh is not None
    reached = there.reached_from.get(here.name) or Reached()
    host = reached.host or there.ssh.bulk_hosts[0]
    within = here.name == there.name
    subject = here.name if within else f"{here.name} -> {there.name}"
    connection, logins = ssh.connect(here, bulk=True, on_event=on_event)
    try:
        connection.subject = subject
        connection.request("open", path=protocol.text_of(folder), make=False)
        if known is not None:
            _check_folder(connection, known)
        if not within:
            on_event(Noted(f"{here.name} logs in to {host}; the data does not pass through this machine."))
        start = remote_command(there.ssh.python)
        nonce = secrets.token_hex(16)
        reply = connection.request(
            "start_relay",
            words=["sh", "-c", start] if within else [*_ssh_argv(reached, host), start],
            opening=b64encode(opening(nonce, guarded_roots(there), connection.reports)).decode("ascii"),
            nonce=nonce,
        ).header
        with connection.understanding():
            if reply["reached"] is not True:
                raise _not_started(reply, here) if within else _unreached(reply, reached, host, here, there)
            _check_agent(reply["greeting"], target_store, connection, host)
    except BaseException:
        connection.close()
        raise
    return connection, logins if within else logins + 1


def _check_folder(connection: Connection, known: Identity) -> None:
    """Raise `TryLaterError` if the opened folder is another one: on another machine, or since its path was replaced."""
    reply = connection.request("identity")
    with connection.understanding():
        opened = [int(reply.header["device"]), int(reply.header["inode"])]
        same = bool(known["folders"]) and opened == [*known["folders"][-1][:2]]
    if not same:
        raise TryLaterError(
            "another-host", "another session reached another folder", subject=connection.subject
        )


def _ssh_argv(reached: Reached, host: str) -> list[str]:
    port = ["-p", str(reached.port)] if reached.port else []
    return [*reached.command, *unattended_options(), *port, "--", host]


def _check_agent(
    greeting: dict[str, Any], target_store: PosixStore, connection: Connection, host: str
) -> None:
    """Check the account at the target: files written as another account would not belong to the user."""
    if greeting["protocol"] != protocol.PROTOCOL:
        raise connection.broken("uses another protocol version")
    if greeting["user"] != target_store.account:
        raise AccessError(
            "another-account",
            f"the login to {host} uses another account (uid {int(greeting['user'])}) than hibali uses there",
            subject=connection.subject,
            hint=f'Name the account in `reached_from` (host = "USER@HOST"), or {_WITHOUT}.',
        )


def _not_started(reply: dict[str, Any], site: Site) -> HibaliError:
    """Return the error for a second agent that does not start."""
    message = f"a second agent cannot start: {printable(str(reply['errors']))[-300:] or reply['status']}"
    return TryLaterError("no-agent", message, subject=site.name, hint="Run the same command again.")


def _unreached(reply: dict[str, Any], reached: Reached, host: str, here: Site, there: Site) -> HibaliError:
    """Return the error with a hint: without --direct it works, because this machine reaches both sites."""
    subject = f"{here.name} -> {there.name}"
    setting = f"[sites.{there.name}.reached_from.{here.name}]"
    login_command = shlex.join([*reached.command, *(["-p", str(reached.port)] if reached.port else []), host])
    hint = f"At {here.name}, log in once yourself: {login_command} (another way: {setting}); or {_WITHOUT}."
    status, output = reply["status"], str(reply["errors"])
    if status is None:
        return AccessError(
            "no-ssh", f"{reached.command[0]} cannot be run there: {output}", subject=subject, hint=hint
        )
    if status == 255:  # ssh's exit code
        found = explain_ssh(output.encode("utf-8", "replace"), reached.command, host)
        kind = type(found)
        if found.code == "host-key-changed":
            hint = f"At {here.name}: {found.hint}"
        return kind(
            found.code, f"{here.name} cannot reach {host}: {found.message}", subject=subject, hint=hint
        )
    if status == 127:  # the shell's exit codes
        return NotFoundError("no-python", f"python3 cannot be started at {host}", subject=subject, hint=hint)
    if refused := ended_session(status, output.encode("utf-8", "replace"), login_command, subject):
        return refused
    reason = output.splitlines()[-1][-300:] if output else f"status {status}"
    return TryLaterError(
        "no-agent", f"the agent cannot start at {host}: {reason}", subject=subject, hint=hint
    )
