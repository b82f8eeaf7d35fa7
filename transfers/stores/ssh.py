"""Store files at a site with sshd and python3, through the agent."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from dataclasses import replace

from hibali.cancellation import in_this_context
from hibali.config.model import Site
from hibali.errors import HibaliError, TryLaterError, UsageError
from hibali.events import Listener, ignore
from hibali.locations import Location, guarded_roots
from hibali.ssh.sessions import Login, open_session, worker_login
from hibali.text import printable
from transfers.agent import protocol
from transfers.agent.identity import check_identity, sees_folder
from transfers.pipeline.channel_pool import ChannelPool
from transfers.remote.connection import Connection, remote_command
from transfers.remote.lending import borrow, lend
from transfers.remote.one_session import start_agent
from transfers.stores.agent_store import AGENT_FACTS, PosixStore

FACTS = replace(AGENT_FACTS, kind="ssh")

COHERENT = frozenset({"lustre", "gpfs", "ceph"})  # kinds of filesystems in /proc/self/mountinfo

_PYTHON = re.compile(r"[A-Za-z0-9_./+-]+")


def connect(
    site: Site,
    *,
    bulk: bool = False,
    inspect_path: bytes | None = None,
    on_event: Listener = ignore,
    reconnecting: bool = False,
    since: float | None = None,
) -> tuple[Connection, int]:
    """Start an agent at the site; return its connection and the number of logins made.

    `bulk` connects to the first host for bulk data. `inspect_path`: see Connection. `since`: see Login.
    `reconnecting` reconnects in one try, with at most one login and no prompt.
    """
    settings = site.ssh
    if settings is None:
        raise UsageError("not-an-ssh-site", "this site has no ssh table", subject=site.name)
    if not _PYTHON.fullmatch(settings.python):
        raise UsageError(
            "unsafe-python", "`python` may contain only letters, digits and _./+-", subject=site.name
        )
    host = settings.bulk_hosts[0] if bulk else None
    attempts = 1 if reconnecting else 3
    login = Login(
        settings,
        site.limits,
        host=host,
        on_event=on_event,
        number=worker_login(settings.logins) or 0,
        may_prompt=not reconnecting and worker_login(settings.logins) is None,
        attempts=attempts,
        since=since,
    )
    connection = open_session(
        login, lambda tried: _start_agent(tried, site, inspect_path, reconnecting=reconnecting)
    )
    return connection, login.logins


def _start_agent(
    login: Login,
    site: Site,
    inspect_path: bytes | None = None,
    *,
    reconnecting: bool = False,
    alone: bool = False,
) -> Connection:
    assert site.ssh is not None
    command = remote_command(site.ssh.python)

    def start() -> Connection:
        return Connection(
            start_agent(login, command, alone=alone),
            site.name,
            login,
            inspect_path=inspect_path,
            roots=guarded_roots(site),
            stall=site.limits.stall_seconds,
        )

    if login.shared:  # the others log in with their session
        login.ensure()
    try:
        connection = start()
    except TryLaterError as problem:
        if not problem.transient or not login.shared or (reconnecting and login.logins):
            raise
        # A shared login may have ended between two commands: retry once with a new one.
        try:
            login.ensure()
            connection = start()
        except TryLaterError as problem:
            raise lost_after_login(problem) from None
    login.answered()
    return connection


def lost_after_login(problem: TryLaterError) -> TryLaterError:
    """Return the error for a connection lost after an accepted login: a later call may succeed."""
    if problem.code != "unreachable":
        return problem
    return TryLaterError(
        problem.code,
        f"the connection was lost just after the login: {problem.message}",
        subject=problem.subject,
        hint=problem.hint,
    )


def _numbered_logins(site: Site, on_event: Listener) -> list[Login]:
    """Return the site's logins, which its hosts for bulk data take in turn; of a worker only its own at each.

    The logins to all but the first host are further ones: they are not retried, and none follows a refusal.
    """
    settings = site.ssh
    if settings is None:
        raise UsageError("not-an-ssh-site", "this site has no ssh table", subject=site.name)
    own = worker_login(settings.logins)
    return [
        Login(
            settings, site.limits, host=host, on_event=on_event, number=number + bool(place), may_prompt=False
        )
        for number in (range(settings.logins) if own is None else (own,))
        for place, host in enumerate(settings.bulk_hosts)
    ]


def _to_first_host(logins: list[Login]) -> list[Login]:
    """Return the logins that need no other host for bulk data; those to others are made when a transfer needs them."""
    return [login for login in logins if login.host == logins[0].host]


def _begin(site: Site, logins: list[Login]) -> None:
    """Start further logins in the background, if no login has to wait for another.

    With a bandwidth limit they start later: the needed number depends on the round-trip time.
    """
    if _logs_in_early(site, logins) and not logins[0].waits_for_the_first:
        for login in logins[1:]:
            threading.Thread(target=in_this_context(_log_in_quietly), args=(login,), daemon=True).start()


def _logs_in_early(site: Site, logins: list[Login]) -> bool:
    """Return whether to start further logins with the first one, before the transfer size is known."""
    unhindered = not site.limits.login_interval_seconds and not site.limits.bandwidth
    return len(logins) > 1 and logins[0].shared and unhindered


def _log_in_quietly(login: Login) -> None:
    """Log in without raising errors; the user of this login detects the failure."""
    with contextlib.suppress(HibaliError):
        login.ensure()


def _connect_over_any(
    further: list[Login], site: Site, inspect_path: bytes, problem: TryLaterError
) -> Connection:
    """Start an agent over one of these logins; raise `problem` if all failed."""
    for login in further:
        if login.shared:
            with contextlib.suppress(HibaliError):
                return _start_agent(login, site, inspect_path)
    raise problem


def open_store(location: Location, *, on_event: Listener = ignore) -> PosixStore:
    """Open the folder; `~` and a leading `$NAME` are expanded at the site."""
    site = location.site
    site_logins = _SiteLogins(site, on_event)
    connection, channels = site_logins.open(location.raw)
    limits = site.limits
    try:
        return PosixStore(
            connection,
            FACTS,
            channels,
            lease=limits.lease_seconds,
            reopen=site_logins.open_again,
            patience=limits.reconnect_seconds,
            confined=location.confined,
            lend=lambda lent: lend(site, lent, bulk=True),
        )
    except BaseException:
        channels.close(0.0)
        if connection.borrowed and connection.idle:
            connection.borrowed = False
        else:
            connection.close(0.0)
        raise


class _SiteLogins:
    """The logins of one store at a site, and the channels over them."""

    def __init__(self, site: Site, on_event: Listener) -> None:
        self._site = site
        self._on_event = on_event
        self._logins = 0  # made, without those of `_further`
        self._further = _numbered_logins(site, on_event)

    def open(self, inspect_path: bytes) -> tuple[Connection, ChannelPool]:
        """Open the first connection; return it and the pool of further channels."""
        site, settings = self._site, self._site.ssh
        assert settings is not None
        since = time.time()
        _begin(site, _to_first_host(self._further))
        lent = borrow(site, Connection, bulk=True)
        if lent is not None:
            lent.post("inspect", path=protocol.text_of(inspect_path))
            return lent, self._channels(lent)
        try:
            connection, self._logins = connect(
                site, bulk=True, inspect_path=inspect_path, on_event=self._on_event, since=since
            )
            if self._logins:
                for login in self._further:
                    login.forget_further_refusal()
        except TryLaterError as problem:
            # A further login may have used the last connection that the site allows.
            connection = _connect_over_any(_to_first_host(self._further)[1:], site, inspect_path, problem)
        return connection, self._channels(connection)

    def open_again(self, inspect_path: bytes) -> tuple[Connection, ChannelPool]:
        """Do the same in one try after all channels were lost; failed further logins are tried again."""
        self._logins += sum(login.logins for login in self._further)
        self._further = _numbered_logins(self._site, self._on_event)
        connection, logins = connect(
            self._site, bulk=True, inspect_path=inspect_path, on_event=self._on_event, reconnecting=True
        )
        self._logins += logins
        return connection, self._channels(connection)

    def _count(self) -> int:
        return self._logins + sum(login.logins for login in self._further)

    def _channels(self, connection: Connection) -> ChannelPool:
        site, further, settings = self._site, self._further, self._site.ssh
        assert settings is not None

        # A connection carries more than the window of one channel, and a second one costs no login; each host has a link of its own.
        first = 1 if len(settings.bulk_hosts) == 1 and further[0].shared else 0

        def open_channel(number: int) -> Connection:
            line = _start_agent(further[(number - first) % len(further)], site, alone=True)
            if line.greeting.get("boot") != connection.greeting.get("boot"):
                try:
                    _check_same_files(line, pool, several=len(settings.bulk_hosts) > 1)
                except BaseException:
                    line.close()
                    raise
            return line

        # Without shared logins (ControlMaster) each channel is a login, and the first one is in use.
        most = settings.channels if further[0].shared else len(further) - 1
        pool = ChannelPool(
            open_channel,
            most,
            on_event=self._on_event,
            logins=self._count,
            most_logins=settings.logins,
            rate=site.limits.bandwidth,
            early=len(settings.bulk_hosts) == 1 and _logs_in_early(site, further),
            hosts=len(settings.bulk_hosts),
        )
        return pool


def _check_same_files(line: Connection, channels: ChannelPool, *, several: bool) -> None:
    """Raise `TryLaterError` unless the channel leads to a host for bulk data that sees the files of the first one.

    Bytes that one host writes are read, hashed and synced by another: only some filesystems show them there at once.
    """
    if channels.root is None or not several:
        raise TryLaterError("another-host", "a further login reached another machine", subject=line.subject)
    path, identity = channels.root
    text = protocol.text_of(path)
    with line.understanding():
        (seen,) = line.request("identify", paths=[text]).header["identities"]
        if not sees_folder(check_identity(seen), identity):
            reason = "it does not see the same files as the first one"
        elif channels.written and str(line.request("filesystem", path=text).header["kind"]) not in COHERENT:
            reason = "only on Lustre, Spectrum Scale and CephFS several hosts write the same files"
        else:
            return
    host = printable(str(line.greeting.get("host", "")))
    raise TryLaterError("another-host", f"the data host {host} is not used: {reason}", subject=line.subject)
