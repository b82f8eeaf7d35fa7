"""Check and wait for the runs that another run depends on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from hibali.config.model import Site
from hibali.errors import NotFoundError, RunFailedError, TryLaterError
from hibali.text import printable
from runs.containers.base import Container
from runs.model import UNSUCCESSFUL_STATES, Run, State
from runs.outputs import Reference, find_output, referenced_runs
from runs.poll import format_failure, update
from runs.records import sweep_of, tasks_as_runs
from runs.schedulers.base import BatchSystem, JobSystem
from runs.script import Dependency
from runs.site_session import SiteSession


def must_end_before(
    run: Run,
    references: Sequence[Reference],
    parts: Sequence[Run],
    site: Site,
    container: Container,
    scheduler: JobSystem,
) -> bool:
    """Return whether a run must have ended before the run that depends on it can be submitted to a site.

    A scheduler cannot wait for a job at another site. The files of a pattern are only known, and private copies can only be made,
    after the end. The needed tasks of a sweep must be submitted, if the scheduler can wait for tasks.

    Args:
        run: The run that comes first.
        references: The references to its outputs.
        parts: The run, or the tasks of it that are needed (`needed_parts`).
        site: The site of the run that depends on it.
        container: The container there.
        scheduler: The scheduler there.
    """
    if not (isinstance(scheduler, BatchSystem) and scheduler.has_dependencies):
        return True
    copies = container.isolates and not container.binds_inputs
    if run.site != site.name or (copies and references):
        return True
    if any(find_output(part, each).is_pattern for each in references for part in referenced_runs(run, each)):
        return True
    if run.sweep is None:
        return False
    return find_task_jobs(run, [part.task for part in parts], scheduler) is None


def needed_parts(run: Run, references: Iterable[Reference]) -> list[Run]:
    """Return the parts of a run that must succeed for a dependent run: the run itself, or the referenced tasks of a sweep."""
    if run.sweep is None:
        return [run]
    tasks = {each.task for each in references}
    return tasks_as_runs(run, run.tasks if not tasks or 0 in tasks else sorted(tasks))


def require_success(run: Run) -> None:
    """Raise `RunFailedError` for a run that failed or was cancelled, `TryLaterError` for one that has not ended or is LOST."""
    if run.state in {State.FAILED, State.CANCELLED}:
        raise RunFailedError(
            "needed-run-failed",
            f"{format_failure(run)}, and the new run depends on it",
            subject=run.id,
            hint=f"To see the run: hibali runs show {run.id}",
        )
    if run.state is State.LOST:
        raise TryLaterError(
            "run-lost",
            f"the end of the run that this one depends on is not known: {run.status.reason}",
            subject=run.id,
            hint=f"To query the scheduler again: hibali runs wait {run.id}",
        )
    if run.state is not State.SUCCEEDED:
        raise TryLaterError(
            "not-ended",
            f"the run that this one depends on is {run.state} and has not ended yet",
            subject=run.id,
            hint=f"Add --wait, or run the same command again after: hibali runs wait {run.id}",
            transient=False,
        )


def find_jobs(runs: Sequence[Run], scheduler: str) -> tuple[str, ...]:
    """Return the jobs of runs that have not succeeded yet. Raises as `require_success` does, and for a run without a job."""
    jobs = []
    for run in runs:
        if run.state is State.SUCCEEDED:
            continue
        if run.state.ended or run.placement.scheduler != scheduler:
            require_success(run)
        require_submitted(run)
        jobs.append(run.job)
    return tuple(dict.fromkeys(jobs))


def find_task_jobs(run: Run, numbers: Sequence[int], scheduler: JobSystem) -> tuple[str, ...] | None:
    """Return the jobs of tasks of a sweep that have not succeeded yet.

    None if the scheduler cannot wait for one: it waits for whole jobs only, the job has no name, or a task was not successful. If
    only whole arrays can be waited for, one unsuccessful task of an array is enough. The job of a pilot may end before its tasks, which another
    one continues.
    """
    sweep = sweep_of(run)
    wanted = set(numbers)
    unfinished = {number for number in wanted if sweep.tasks[number].state is not State.SUCCEEDED}
    if not unfinished:
        return ()
    if run.placement.scheduler != scheduler.name:
        return None
    if sweep.pilot is not None:  # another job may continue its unfinished tasks
        return None
    jobs: dict[str, None] = {}
    for chunk in sweep.chunks:
        indices = [index for index, number in enumerate(chunk.tasks, start=1) if number in unfinished]
        if not indices:
            continue
        if len(chunk.jobs) != 1:
            return None
        [job] = chunk.jobs
        tasks = [scheduler.task_job(job, index) for index in indices]
        if None in tasks:
            return None
        if wanted.issuperset(chunk.tasks):
            jobs[job] = None
        else:
            jobs |= {task: None for task in tasks if task is not None}
        waited = chunk.tasks if job in jobs else [chunk.tasks[index - 1] for index in indices]
        if any(sweep.tasks[number].state in UNSUCCESSFUL_STATES for number in waited):
            return None
        unfinished.difference_update(chunk.tasks)
    return None if unfinished else tuple(jobs)


def require_submitted(run: Run) -> None:
    """Raise `TryLaterError` for a run that has no job yet."""
    if not run.job and not run.state.final:
        raise TryLaterError(
            "not-submitted",
            "the run that this one depends on is not submitted yet",
            subject=run.id,
            hint="To resume that run, run the command that created it again.",
            transient=False,
        )


def check_needs(session: SiteSession, needs: Sequence[Dependency]) -> None:
    """Raise `NotFoundError` if a successful run does not have the needed output, and as `find_jobs` does."""
    host, runs = session.host, _query_needed(session, needs)
    _jobs_of(needs, runs, session.system)
    succeeded = [need for need in needs if _state_of(runs[need.run], need) is State.SUCCEEDED]
    paths = [
        (need, path, f"{need.folder}/work/{path}".encode("utf-8", "surrogateescape"))
        for need in succeeded
        for path in need.paths
    ]
    found = (
        host.get_all([path_at_site for _, _, path_at_site in paths], maximum=1)
        if len(paths) > 1
        else [None] * len(paths)
    )
    for (need, path, path_at_site), content in zip(paths, found, strict=True):
        if content is None and host.stat(path_at_site) is None:
            raise NotFoundError(
                "no-such-output",
                f"the run did not create this output: {printable(path)}",
                subject=need.reference,
                hint=f"To see why: hibali runs logs {need.run}{f' --task {need.task}' if need.task else ''}",
            )


def _state_of(run: Run, need: Dependency) -> State:
    return run.tasks[need.task].state if need.task else run.state


def dependency_jobs(session: SiteSession, run: Run, needs: Sequence[Dependency]) -> tuple[str, ...] | Run:
    """Return the jobs to wait for, as they are now; or the run itself, CANCELLED, if one that it depends on failed meanwhile."""
    try:
        return _jobs_of(needs, _query_needed(session, needs), session.system)
    except RunFailedError as failed:
        reason = failed.message.partition(",")[0]
        return session.runs.note(run.id, "seen", {"state": State.CANCELLED, "native": "", "reason": reason})


def _jobs_of(needs: Sequence[Dependency], runs: Mapping[str, Run], scheduler: JobSystem) -> tuple[str, ...]:
    """Return the jobs of needed runs. Raises as `find_jobs` does."""
    jobs = list(find_jobs([run for run in runs.values() if run.sweep is None], scheduler.name))
    for run in runs.values():
        if run.sweep is None:
            continue
        tasks = {need.task for need in needs if need.run == run.id}
        numbers = tuple(run.tasks) if 0 in tasks else sorted(tasks)
        found = find_task_jobs(run, numbers, scheduler)
        if found is None:
            for part in tasks_as_runs(run, numbers):
                require_success(part)
        jobs += found or ()
    return tuple(dict.fromkeys(jobs))


def _query_needed(session: SiteSession, needs: Sequence[Dependency]) -> dict[str, Run]:
    """Return the needed runs by id; the scheduler is queried once for those that have not ended."""
    runs = [session.runs.load(each) for each in dict.fromkeys(need.run for need in needs)]
    queried = [
        run
        for run in runs
        if run.job and not run.state.final and run.placement.scheduler == session.scheduler
    ]
    now = {run.id: run for run in (update(session, queried) if queried else ())}
    return {run.id: now.get(run.id, run) for run in runs}
