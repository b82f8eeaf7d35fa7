"""Connect to the site of runs: its host, what runs jobs there, and the ledger, as one object that every step takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from hibali.config.model import Limits, Site
from hibali.events import Listener, ignore
from runs.rate_limits import open_limited_host
from runs.schedulers.base import JobSystem
from runs.services.base import load_job_system
from runs.store import RunStore
from transfers.remote.host import RemoteHost


@dataclass(frozen=True, slots=True)
class SiteSession:
    """One connection to a site, for the runs there that recorded this scheduler or service; for one thread."""

    site: Site
    host: RemoteHost
    scheduler: str
    runs: RunStore
    on_event: Listener = ignore

    @property
    def system(self) -> JobSystem:
        """The scheduler or service. Raises `UsageError` if it is not installed."""
        return load_job_system(self.scheduler)

    @property
    def limits(self) -> Limits:
        """The site's limits."""
        return self.site.limits

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.host.close()


OpenSession = Callable[[], SiteSession]


@dataclass(frozen=True, slots=True)
class SiteOpener:
    """Connects to a site when it is called."""

    site: Site
    scheduler: str
    runs: RunStore
    on_event: Listener = ignore

    def __call__(self) -> SiteSession:
        """Return a session, which the caller closes."""
        host = open_limited_host(self.site, self.on_event)
        return SiteSession(self.site, host, self.scheduler, self.runs, self.on_event)
