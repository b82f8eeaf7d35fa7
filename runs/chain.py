"""Chains: whether the runs that another one needs have succeeded, or can be waited for by its job."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hibali.errors import NotFoundError, RunFailedError, TryLaterError
from hibali.sites import Site
from hibali.text import printable
from runs.book import Book
from runs.container import Container
from runs.explain import failed_words
from runs.guard import Need
from runs.heard import update
from runs.run import Output, Run, State
from runs.scheduler import Scheduler
from transfers.far import Far


def must_end_before(run: Run, site: Site, container: Container, outputs: Iterable[Output]) -> bool:
    """Whether a run has to have ended before what needs it can be submitted to a site.

    Elsewhere nobody can wait for its job; what a pattern takes is known, and a private copy can be made, only then. A sweep
    has many jobs, some of which may not be submitted yet.
    """
    copies = container.isolates and not container.binds_inputs
    asked = list(outputs)
    if run.sweep is not None:
        return True
    return run.site != site.name or any(each.is_pattern for each in asked) or (copies and bool(asked))


def require_success(run: Run) -> None:
    """Raise `RunFailedError` for a run that failed or was cancelled, `TryLaterError` for one that has not ended or is LOST."""
    if run.state in {State.FAILED, State.CANCELLED}:
        raise RunFailedError(
            "needed-run-failed",
            f"{failed_words(run)}, and this one needs it",
            about=run.id,
            hint=f"hibali runs show {run.id}",
        )
    if run.state is State.LOST:
        raise TryLaterError(
            "run-lost",
            f"nobody knows how the run ended that this one needs: {run.reason}",
            about=run.id,
            hint=f"hibali runs wait {run.id} asks again.",
        )
    if run.state is not State.SUCCEEDED:
        raise TryLaterError(
            "not-ended",
            f"the run that this one needs is {run.state}, and has to have ended before",
            about=run.id,
            hint=f"Add --wait, or type the same line again after: hibali runs wait {run.id}",
            transient=False,
        )


def find_jobs(runs: Sequence[Run], scheduler: str) -> tuple[str, ...]:
    """The jobs to come after; none of a run that has succeeded. Raises as `require_success` does, and for a run without a job."""
    jobs = []
    for run in runs:
        if run.state is State.SUCCEEDED:
            continue
        if run.state.ended or run.scheduler != scheduler:
            require_success(run)
        require_submitted(run)
        jobs.append(run.job)
    return tuple(dict.fromkeys(jobs))


def require_submitted(run: Run) -> None:
    """Raise `TryLaterError` for a run that has no job yet."""
    if not run.job and not run.state.final:
        raise TryLaterError(
            "not-submitted",
            "the run that this one needs was not submitted yet",
            about=run.id,
            hint="Type the `hibali run` line of that one again; it goes on from there.",
            transient=False,
        )


def check_needs(far: Far, scheduler: Scheduler, book: Book, needs: Sequence[Need]) -> None:
    """Raise what `find_jobs` does, and `NotFoundError` where a run that succeeded did not leave what is taken of it."""
    runs = {run.id: run for run in _ask(far, scheduler, book, needs)}
    find_jobs(list(runs.values()), scheduler.name)
    for need in needs:
        if runs[need.run].state is not State.SUCCEEDED:
            continue
        for path in need.paths:
            if far.stat(f"{need.folder}/work/{path}".encode("utf-8", "surrogateescape")) is None:
                raise NotFoundError(
                    "no-such-output",
                    f"the run did not leave it: {printable(path)}",
                    about=need.run,
                    hint=f"hibali runs logs {need.run}",
                )


def jobs_to_come_after(
    far: Far, scheduler: Scheduler, book: Book, run: Run, needs: Sequence[Need]
) -> tuple[str, ...] | Run:
    """The jobs, as `find_jobs` has them now; or the run itself, ended, where one that it needs failed meanwhile."""
    try:
        return find_jobs(_ask(far, scheduler, book, needs), scheduler.name)
    except RunFailedError as failed:
        reason = failed.message.partition(",")[0]
        return book.note(run.id, "seen", {"state": State.CANCELLED, "native": "", "reason": reason})


def _ask(far: Far, scheduler: Scheduler, book: Book, needs: Sequence[Need]) -> list[Run]:
    """The runs that are needed; of those that have not ended the scheduler is asked once."""
    runs = [book.load(need.run) for need in needs]
    asked = [run for run in runs if run.job and not run.state.final and run.scheduler == scheduler.name]
    now = {run.id: run for run in (update(far, scheduler, book, asked) if asked else ())}
    return [now.get(run.id, run) for run in runs]
