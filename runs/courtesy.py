"""Being a good guest: what is asked of a site is counted, and a scheduler that refuses is left alone for a while."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, cast

from hibali.errors import TryLaterError
from hibali.events import Listener, ignore
from hibali.login import login_refusals
from hibali.refusals import Refusals
from hibali.sites import Site
from hibali.usage import note_use
from transfers.far import Far, Finished, Once

# The codes with which schedulers refuse (runs.schedulers).
_REFUSALS = frozenset({"scheduler-busy", "scheduler-silent"})


def reach(site: Site, tell: Listener = ignore) -> Far:
    """The machine at a site, with each command there counted; close it."""
    from transfers.places import open_far

    return counted(open_far(site, tell=tell), site.name)


def counted(far: Far, site: str) -> Far:
    """The same machine, with each command there counted."""
    return cast("Far", _Counted(far, site))


@contextlib.contextmanager
def courteous(site: str) -> Iterator[None]:
    """While a site's scheduler is asked. Raises `TryLaterError` where it refused too often, and remembers what comes."""
    refusals = scheduler_refusals(site)
    refusals.check()
    try:
        yield
    except TryLaterError as problem:
        if problem.code in _REFUSALS:
            refusals.refused(problem.message)
        raise
    refusals.answered()


def scheduler_refusals(site: str) -> Refusals:
    """What is remembered of a site's scheduler."""
    return Refusals("sites", site, about=f"the scheduler of {site}")


def start_afresh(site: Site) -> None:
    """Forget all refusals of a site: somebody wants to see for himself."""
    scheduler_refusals(site.name).answered()
    if site.ssh is not None:
        for host in {site.ssh.host, site.ssh.data_host or site.ssh.host}:
            login_refusals(site.ssh, host).answered()


class _Counted:
    """A Far whose commands are counted by the program's name."""

    def __init__(self, far: Far, site: str) -> None:
        self._far = far
        self._site = site

    def __getattr__(self, name: str) -> Any:
        return getattr(self._far, name)

    def run(self, argv: Sequence[bytes | str], **how: Any) -> Finished:
        """See Far."""
        self._count(argv)
        return self._far.run(argv, **how)

    def run_once(self, marker: bytes, argv: Sequence[bytes | str], *, folder: bytes | None = None) -> Once:
        """See Far; only who really ran it has asked for anything."""
        once = self._far.run_once(marker, argv, folder=folder)
        if once.fresh:
            self._count(argv)
        return once

    def _count(self, argv: Sequence[bytes | str]) -> None:
        word = argv[0] if isinstance(argv[0], str) else argv[0].decode("utf-8", "replace")
        note_use("sites", self._site, what=f"command {word.rpartition('/')[2][:64]}")
