"""Open the sites of runs with the common options of a command; warn of sites that cannot be queried."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from hibali.config.model import Site
from hibali.config.settings import site_for_runs
from hibali.events import Listener
from hibali_cli.options import Common
from runs.model import Run
from runs.store import RunStore

# `hibali runs list` imports this module: what contacts a site is imported when a site is contacted.
if TYPE_CHECKING:
    from runs.site_session import SiteOpener
    from transfers.remote.host import RemoteHost


def run_site(common: Common, name: str) -> Site:
    """Return the site of a run, if runs are possible there; raises `UsageError`."""
    return site_for_runs(common.settings(), name)


def opener(site: Site, on_event: Listener) -> Callable[[], RemoteHost]:
    """Return a function that connects to the machine at a site."""
    from runs.rate_limits import open_limited_host  # start-up: only where a site is contacted

    return lambda: open_limited_host(site, on_event)


def session_opener(common: Common, run_store: RunStore, run: Run, on_event: Listener) -> SiteOpener:
    """Return a function that connects to the site of a run. Raises `UsageError` if that is not configured any more."""
    from runs.site_session import SiteOpener  # start-up: only where a site is contacted

    return SiteOpener(run_site(common, run.site), run.placement.scheduler, run_store, on_event)


def fetch_usage(common: Common, run_store: RunStore, run: Run, on_event: Listener) -> Run:
    """Record the accounting data of a run that has ended, unless it is known; return the updated run."""
    from runs import monitor  # start-up: only where a site is contacted

    return monitor.fetch_usage(common.settings(), run_store, run, on_event)


def update_runs(
    common: Common, run_store: RunStore, runs: list[Run], on_event: Listener, *, submit_next: bool = False
) -> list[Run]:
    """Query each site once; a run keeps its recorded state if its site cannot be reached, with a warning.

    With `submit_next` a pilot whose allocation has ended gets the next one.
    """
    from runs import monitor  # start-up: only where a site is contacted

    return monitor.update_runs(
        common.settings(), run_store, runs, on_event, common.output.warn, submit_next=submit_next
    )
