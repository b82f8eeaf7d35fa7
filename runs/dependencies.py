"""Check and wait for the runs that another run depends on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from hibali.config.model import Site
from hibali.errors import NotFoundError, RunFailedError, TryLaterError
from hibali.text import printable
from runs.containers.base import Container
from runs.model import UNSUCCESSFUL_STATES, Run, State
from runs.poll import format_failure, update
from runs.records import sweep_of, tasks_as_runs
from runs.schedulers.base import Scheduler
from runs.script import Need
from runs.store import Reference, RunStore, find_output, parts_meant
from transfers.remote.host import RemoteHost


def must_end_before(
    run: Run,
    references: Sequence[Reference],
    parts: Sequence[Run],
    site: Site,
    container: Container,
    scheduler: Scheduler,
) -> bool:
    """Whether a run has to have ended before what needs it can be submitted to a site.

    `references` are those that take of it, `parts` is what is needed of it (`needed_parts`).

    Elsewhere nobody can wait for its job; what a pattern takes is known, and a private copy can be made, only then. Of a sweep
    the tasks that are needed have to be submitted, where the scheduler can wait for tasks at all.
    """
    copies = container.isolates and not container.binds_inputs
    if run.site != site.name or (copies and references):
        return True
    if any(find_output(part, each).is_pattern for each in references for part in parts_meant(run, each)):
        return True
    if run.sweep is None:
        return False
    return find_task_jobs(run, [part.task for part in parts], scheduler) is None


def needed_parts(run: Run, references: Iterable[Reference]) -> list[Run]:
    """What has to succeed of a run of which these references take, or which only comes first: itself, or tasks of a sweep."""
    if run.sweep is None:
        return [run]
    tasks = {each.task for each in references}
    return tasks_as_runs(run, run.sweep.tasks if not tasks or 0 in tasks else sorted(tasks))


def require_success(run: Run) -> None:
    """Raise `RunFailedError` for a run that failed or was cancelled, `TryLaterError` for one that has not ended or is LOST."""
    if run.state in {State.FAILED, State.CANCELLED}:
        raise RunFailedError(
            "needed-run-failed",
            f"{format_failure(run)}, and this one needs it",
            subject=run.id,
            hint=f"hibali runs show {run.id}",
        )
    if run.state is State.LOST:
        raise TryLaterError(
            "run-lost",
            f"nobody knows how the run ended that this one needs: {run.status.reason}",
            subject=run.id,
            hint=f"`hibali runs wait {run.id}` asks again.",
        )
    if run.state is not State.SUCCEEDED:
        raise TryLaterError(
            "not-ended",
            f"the run that this one needs is {run.state}, and has to have ended before",
            subject=run.id,
            hint=f"Add --wait, or type the same line again after: hibali runs wait {run.id}",
            transient=False,
        )


def find_jobs(runs: Sequence[Run], scheduler: str) -> tuple[str, ...]:
    """The jobs to come after; none of a run that has succeeded. Raises as `require_success` does, and for a run without a job."""
    jobs = []
    for run in runs:
        if run.state is State.SUCCEEDED:
            continue
        if run.state.ended or run.placement.scheduler != scheduler:
            require_success(run)
        require_submitted(run)
        jobs.append(run.job)
    return tuple(dict.fromkeys(jobs))


def find_task_jobs(run: Run, numbers: Sequence[int], scheduler: Scheduler) -> tuple[str, ...] | None:
    """The jobs to come after for these tasks of a sweep; none for those that have succeeded.

    None where nobody can wait for one: the scheduler, or its job, is none that can be named, or it did not end well. Where only whole
    arrays can be waited for, nor can they once another task of theirs did not end well. The job of a pilot may end before its tasks, and
    another one go on with them.
    """
    sweep = sweep_of(run)
    wanted = set(numbers)
    still_open = {number for number in wanted if sweep.tasks[number].state is not State.SUCCEEDED}
    if not still_open:
        return ()
    if run.placement.scheduler != scheduler.name:
        return None
    if sweep.pilot is not None:  # what its job leaves goes on in another one
        return None
    jobs: dict[str, None] = {}
    for chunk in sweep.chunks:
        indices = [index for index, number in enumerate(chunk.tasks, start=1) if number in still_open]
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
        still_open.difference_update(chunk.tasks)
    return None if still_open else tuple(jobs)


def require_submitted(run: Run) -> None:
    """Raise `TryLaterError` for a run that has no job yet."""
    if not run.job and not run.state.final:
        raise TryLaterError(
            "not-submitted",
            "the run that this one needs was not submitted yet",
            subject=run.id,
            hint="Type the `hibali run` line of that one again; it goes on from there.",
            transient=False,
        )


def check_needs(host: RemoteHost, scheduler: Scheduler, run_store: RunStore, needs: Sequence[Need]) -> None:
    """Raise `NotFoundError` where a run that succeeded did not leave what is taken of it, and for what nobody can wait for."""
    runs = _ask(host, scheduler, run_store, needs)
    _jobs_of(needs, runs, scheduler)
    left = [need for need in needs if _state_of(runs[need.run], need) is State.SUCCEEDED]
    paths = [
        (need, path, f"{need.folder}/work/{path}".encode("utf-8", "surrogateescape"))
        for need in left
        for path in need.paths
    ]
    found = (
        host.get_all([where for _, _, where in paths], maximum=1) if len(paths) > 1 else [None] * len(paths)
    )
    for (need, path, where), content in zip(paths, found, strict=True):
        if content is None and host.stat(where) is None:
            raise NotFoundError(
                "no-such-output",
                f"the run did not leave it: {printable(path)}",
                subject=need.word,
                hint=f"hibali runs logs {need.run}{f' --task {need.task}' if need.task else ''}",
            )


def _state_of(run: Run, need: Need) -> State:
    return run.state if run.sweep is None or not need.task else run.sweep.tasks[need.task].state


def jobs_to_come_after(
    host: RemoteHost, scheduler: Scheduler, run_store: RunStore, run: Run, needs: Sequence[Need]
) -> tuple[str, ...] | Run:
    """The jobs to come after, as they are now; or the run itself, ended, where one that it needs failed meanwhile."""
    try:
        return _jobs_of(needs, _ask(host, scheduler, run_store, needs), scheduler)
    except RunFailedError as failed:
        reason = failed.message.partition(",")[0]
        return run_store.note(run.id, "seen", {"state": State.CANCELLED, "native": "", "reason": reason})


def _jobs_of(needs: Sequence[Need], runs: Mapping[str, Run], scheduler: Scheduler) -> tuple[str, ...]:
    """Raises as `find_jobs` does."""
    jobs = list(find_jobs([run for run in runs.values() if run.sweep is None], scheduler.name))
    for run in runs.values():
        if run.sweep is None:
            continue
        tasks = {need.task for need in needs if need.run == run.id}
        numbers = tuple(run.sweep.tasks) if 0 in tasks else sorted(tasks)
        found = find_task_jobs(run, numbers, scheduler)
        if found is None:
            for part in tasks_as_runs(run, numbers):
                require_success(part)
        jobs += found or ()
    return tuple(dict.fromkeys(jobs))


def _ask(
    host: RemoteHost, scheduler: Scheduler, run_store: RunStore, needs: Sequence[Need]
) -> dict[str, Run]:
    """The runs that are needed, by id; of those that have not ended the scheduler is asked once."""
    runs = [run_store.load(each) for each in dict.fromkeys(need.run for need in needs)]
    asked = [
        run for run in runs if run.job and not run.state.final and run.placement.scheduler == scheduler.name
    ]
    now = {run.id: run for run in (update(host, scheduler, run_store, asked) if asked else ())}
    return {run.id: now.get(run.id, run) for run in runs}
