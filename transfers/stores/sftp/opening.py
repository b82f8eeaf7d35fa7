"""Open and check ssh sites that offer SFTP only (`transport = "sftp"`)."""

from __future__ import annotations

from functools import partial

from hibali.config.model import Site
from hibali.errors import TryLaterError, UsageError
from hibali.events import Listener, ignore
from hibali.locations import Location, guarded_roots
from hibali.ssh.sessions import Login, open_session
from transfers.model.entry import Verification
from transfers.model.facts import Facts
from transfers.remote.lending import borrow, lend
from transfers.stores.sftp.channel import Channel
from transfers.stores.sftp.client import Client, expand
from transfers.stores.sftp.paths import Guard
from transfers.stores.sftp.store import SftpStore
from transfers.stores.ssh import lost_after_login

_SECOND = 1_000_000_000


def facts_of(*, read_back: bool) -> Facts:
    """Return the facts: times are whole seconds; only with `read_back` are files hashed at both ends."""
    return Facts(
        kind="sftp",
        read_verification=Verification.DIGEST,
        write_verification=Verification.DIGEST if read_back else Verification.SIZE,
        mtime_unit_ns=_SECOND,
        adjusts=True,
        globus=True,
    )


def connect(site: Site, *, bulk: bool = False, on_event: Listener = ignore) -> tuple[Client, int]:
    """Connect to the site's SFTP server; return the client and the number of logins."""
    settings = site.ssh
    if settings is None:
        raise UsageError("not-an-ssh-site", "this site has no ssh table", subject=site.name)
    lent = borrow(site, Client, bulk=bulk)
    if lent is not None:
        return lent, 0
    login = Login(settings, site.limits, host=settings.bulk_hosts[0] if bulk else None, on_event=on_event)
    client = open_session(login, lambda tried: _start_client(tried, site))
    return client, login.logins


def _start_client(login: Login, site: Site) -> Client:
    start = partial(Channel, subject=site.name, login=login, stall=site.limits.stall_seconds)
    login.ensure()
    try:
        client = Client(start(subsystem(login)))
    except TryLaterError as problem:
        if not problem.transient or not login.shared:
            raise
        # A shared login may have ended between two commands: try once more with a new one.
        try:
            login.ensure()
            client = Client(start(subsystem(login)))
        except TryLaterError as problem:
            raise lost_after_login(problem) from None
    login.answered()
    return client


def subsystem(login: Login) -> list[str]:
    """Return the ssh arguments that start the SFTP server over the shared login."""
    argv = login.argv("sftp")
    return [*argv[:-3], "-s", *argv[-3:]]  # before `-- HOST sftp`


def store_over(client: Client, logins: int, location: Location) -> SftpStore:
    """Return the store of a folder over an open client, which the store closes; `~` is the server's start folder."""
    try:
        path = expand(client, location.raw)
    except BaseException:
        client.close()
        raise
    settings = location.site.ssh
    read_back = settings is None or settings.read_back
    return SftpStore(
        client,
        path,
        facts_of(read_back=read_back),
        read_back=read_back,
        logins=logins,
        lease=location.site.limits.lease_seconds,
        guard=Guard(client, guarded_roots(location.site)),
        confined=location.confined,
        lend=partial(lend, location.site, client, bulk=True),
    )
