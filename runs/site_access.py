"""Query the state and resource usage of runs at their sites."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from hibali.config.model import Site
from hibali.config.settings import Settings, site_for_runs
from hibali.errors import HibaliError
from hibali.events import Listener
from runs.model import Run, ignore_run
from runs.monitor import note_usage, pause_only, wait_for_end
from runs.poll import update
from runs.queue_limits import can_submit, submit_more
from runs.services.base import load_job_system
from runs.site_session import SiteOpener, SiteSession
from runs.store import RunStore
from transfers.remote.host import RemoteHost


def wait_at_site(
    site: Site,
    run_store: RunStore,
    run: Run,
    on_event: Listener,
    *,
    changed: Callable[[Run], None] = ignore_run,
    meanwhile: Callable[[RemoteHost, float], None] = pause_only,
) -> Run:
    """Follow one run until it has ended, as `wait_for_end` does; return it as it is then."""
    opener = SiteOpener(site, run.placement.scheduler, run_store, on_event)
    [ended] = wait_for_end(opener, [run.id], changed=changed, meanwhile=meanwhile)
    return ended


def fetch_usage(settings: Settings, run_store: RunStore, run: Run, on_event: Listener) -> Run:
    """Record the accounting data of a run that has ended, unless it is known; return the updated run."""
    name = run.placement.scheduler
    if (
        not run.state.final
        or run.results.accounted
        or not load_job_system(name).has_accounting((run.job,), run.created[:10])
    ):
        return run
    with (
        contextlib.suppress(HibaliError),
        SiteOpener(site_for_runs(settings, run.site), name, run_store, on_event)() as session,
    ):
        note_usage(session, [run])
    return run_store.load(run.id)


def update_runs(
    settings: Settings,
    run_store: RunStore,
    runs: list[Run],
    on_event: Listener,
    warn: Callable[[str], None],
    *,
    submit_next: bool = False,
) -> list[Run]:
    """Query each site once; a run keeps its recorded state if its site cannot be reached, and `warn` is called with the reason.

    With `submit_next` a pilot whose allocation has ended gets the next one, and runs that wait for a place in the
    queue are submitted.
    """
    fresh = {run.id: run for run in runs}
    active = [run for run in runs if (run.job or (submit_next and run.waits)) and not run.state.final]
    for name, scheduler in sorted({(run.site, run.placement.scheduler) for run in active}):
        group = [run for run in active if (run.site, run.placement.scheduler) == (name, scheduler)]
        try:
            with SiteOpener(site_for_runs(settings, name), scheduler, run_store, on_event)() as session:
                now = update(session, group)
                fresh |= {run.id: run for run in now}
                if submit_next:
                    fresh |= {run.id: run for run in _submit_next(session, now)}
        except HibaliError as problem:
            fresh |= {run.id: run_store.load(run.id) for run in group}  # exit records may have proven ends
            warn(f"{name} could not be queried: {problem.message}")
    return [fresh[run.id] for run in runs]


def _submit_next(session: SiteSession, runs: list[Run]) -> Iterator[Run]:
    """Continue pilots, submit waiting runs as far as the queue has places, and yield the runs that changed."""
    full = False
    for run in runs:
        is_pilot = run.sweep is not None and run.sweep.pilot is not None
        if can_submit(run) and (is_pilot or (run.waits and not full)):
            submitted = submit_more(session, run)
            full = full or submitted.waits
            yield submitted
