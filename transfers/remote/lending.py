"""Lend the session of a command to the hosts and stores that it opens meanwhile.

A site may allow one session at a time, or take codes that count once. The lender is a host or a store, and makes no
request until the borrower is closed.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, Protocol, TypeVar

from hibali.config.model import Site


class Session(Protocol):
    """A connection to a host."""

    borrowed: bool  # from when another takes it until that gives it back

    @property
    def idle(self) -> bool:
        """Whether it can be used by another: nothing that was asked is left unanswered, and it has not ended."""

    def close(self) -> None:
        """End it."""


_Taken = TypeVar("_Taken", bound=Session)
_BORROWING = threading.Lock()
_LENT: ContextVar[tuple[tuple[str, Session], ...]] = ContextVar("sessions that are lent", default=())


@contextmanager
def lend(site: Site, session: Session, *, bulk: bool) -> Iterator[None]:
    """Lend a session; `bulk` tells whether it leads to the `data_host`. It is closed if its borrower did not end well."""
    token = _LENT.set((*_LENT.get(), (_destination(site, bulk=bulk), session)))
    is_itself_borrowed, session.borrowed = session.borrowed, False
    try:
        yield
    finally:
        _LENT.reset(token)
        if session.borrowed:
            session.close()
        session.borrowed = is_itself_borrowed


def borrow(site: Site, kind: type[_Taken], *, bulk: bool) -> _Taken | None:
    """Return a lent session to the site's host, for one borrower at a time; None if there is none."""
    wanted = _destination(site, bulk=bulk)
    with _BORROWING:
        for destination, session in _LENT.get():
            if destination == wanted and isinstance(session, kind) and session.idle and not session.borrowed:
                session.borrowed = True
                return session
    return None


def lending(owner: Any) -> AbstractContextManager[None]:
    """Return a context in which a host or a store lends its session, if its class can."""
    lends = getattr(type(owner), "lending", None)  # the host of a service passes other names on to a machine
    return nullcontext() if lends is None else lends(owner)


def _destination(site: Site, *, bulk: bool) -> str:
    ssh = site.ssh
    host = "" if ssh is None else ssh.bulk_hosts[0] if bulk else ssh.host
    return f"{site.name}\n{host}"
