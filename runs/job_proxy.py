"""A job's own proxy for GSI: made before the site is asked anything, in the run's folder only, and gone with the job."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from hibali.errors import HibaliError, TryLaterError, UsageError
from hibali.sites import ProxySettings
from runs.container import Bind, Container, Task
from runs.inside import Inside
from runs.run import Run
from runs.sweeps.sweep import folder_of
from runs.verdict import Seen
from transfers.far import Far

if TYPE_CHECKING:
    from runs.launch import Request
    from runs.look import Key

PROXY = b"/proxy"  # in the run's folder; the job script knows it, too
_VARIABLE = "X509_USER_PROXY"


def with_job_proxy(request: Request) -> Request:
    """The same, with the proxy of its job, where it is to have one: whoever calls has not gone to the site yet.

    It lasts as long as the job may take and its time in the queue, and as long as the user's own at most. Raises `AccessError`
    where that is shorter than the job may take, and `UsageError` for the tasks of a pilot.
    """
    if not request.proxy:
        return request
    if request.allocations:
        raise UsageError(
            "not-in-a-pilot",
            "the tasks of a pilot, which go from one job to the next, cannot have a proxy",
            about="--pilot",
            hint="Leave out --pilot: job arrays give each task its own. --no-proxy goes without.",
        )
    return replace(request, proxy_content=_make(request))


def job_proxy(request: Request) -> bytes:
    """The content of a job's proxy; b"" for none. A run that was begun with one has one, however its line was typed again."""
    return (request.proxy_content or _make(request)) if request.proxy else b""


def _make(request: Request) -> bytes:
    from hibali.proxy import ready_proxy
    from hibali.proxy_making import derive_proxy, make_proxy

    settings = request.site.proxy or ProxySettings()
    asked = request.ask().resources.seconds
    needed = settings.least_seconds if asked is None else float(asked)
    life = max(needed, settings.life_seconds) + settings.queue_seconds
    about = request.site.name
    if settings.make != "no":
        return make_proxy(settings, life, needed, about=about)
    users = ready_proxy(settings, about=about, seconds=needed)
    return derive_proxy(users.path, life, needed, about=about)


def with_proxy(task: Task, inside: Inside, container: Container) -> Task:
    """The task, whose tool sees the proxy in the run's folder. Raises `UsageError` where its container can show it no single file."""
    if container.isolates and not container.binds_inputs:
        raise UsageError(
            "no-proxy-inside",
            f"{container.name} cannot show a tool a proxy",
            about=container.name,
            hint="Run it at a site with another [container], or without it: --no-proxy.",
        )
    binds = (*task.binds, Bind(inside.proxy, inside.sees_proxy)) if container.isolates else task.binds
    return replace(task, binds=binds, environment={**task.environment, _VARIABLE: inside.sees_proxy})


def remove_proxies(far: Far, runs: Iterable[Run], seen: Mapping[Key, Seen]) -> None:
    """Remove what a job left that was killed: before its end is noted, so that a lost line does not forget it."""
    known = {run.id: run for run in runs if run.proxy and not run.state.final}
    for (run_id, number), found in seen.items():
        run = known.get(run_id)
        # a task that told of its end has removed it
        if run is not None and found.state.final and (not number or _is_news(run, number, found)):
            remove_proxy(far, run, number)


def _is_news(run: Run, number: int, found: Seen) -> bool:
    return found.record is None and run.sweep is not None and not run.sweep.tasks[number].state.final


def remove_proxy(far: Far, run: Run, number: int = 0) -> None:
    """Remove the proxy of a run or task that is over, if it is there still. Raises `TryLaterError`; other problems are left to `runs clean`."""
    if not (run.proxy and run.folder):
        return
    try:
        far.remove_tree((folder_of(run, number) if number else run.folder) + PROXY)
    except TryLaterError:
        raise
    except HibaliError:
        return
