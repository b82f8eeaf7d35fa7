"""Cancel runs and sweeps, and release runs that are on hold."""

from __future__ import annotations

from hibali.errors import HibaliError, RefusedError, TryLaterError, UsageError
from hibali.events import Listener, ignore
from hibali.ledger import now
from runs.model import Run, State
from runs.poll import update
from runs.records import sweep_of
from runs.site_session import OpenSession, SiteSession
from runs.store import RunStore
from runs.submit import cancel_begun, cancel_tasks, cancel_unsubmitted, remove_proxy
from transfers.remote.host import RemoteHost

_IN_QUEUE = frozenset({State.SUBMITTED, State.WAITING})


def release_run(session: SiteSession, run: Run) -> Run:
    """Release a run that is on hold, and query it once; a released run stays as it is.

    Raises:
        UsageError: The run was not started with --hold.
        RefusedError: It has ended.
        TryLaterError: It was never submitted, or the scheduler did not accept the request.
    """
    check_releasable(run)
    run = update(session, [run])[0]
    check_releasable(run)
    if run.state not in _IN_QUEUE:
        return session.runs.note(run.id, "released") if not run.submission.released else run
    session.runs.note(run.id, "release")
    try:
        session.system.release(session.host, run.job)
    except TryLaterError as problem:
        if update(session, [run])[0].state in _IN_QUEUE:
            problem.subject = run.id
            raise
    return update(session, [session.runs.note(run.id, "released")])[0]


def check_releasable(run: Run) -> None:
    """Raise if a run cannot be released; see `release_run`."""
    if not run.submission.hold:
        raise UsageError(
            "not-on-hold",
            "this run was not started with --hold",
            subject=run.id,
            hint=f"To see the run: hibali runs show {run.id}",
        )
    if run.state.final:
        raise RefusedError("run-ended", f"the run has ended: it is {run.state}", subject=run.id)
    if not run.job:
        raise TryLaterError(
            "not-submitted",
            "this run was never submitted, so it cannot be released",
            subject=run.id,
            hint="To resume, run the command that created it again.",
            transient=False,
        )


def cancel_unsubmitted_tasks(host: RemoteHost, run_store: RunStore, run: Run) -> Run:
    """Cancel the tasks of a sweep that were not submitted; the request is in the ledger already.

    The caller holds the run's lock (RunStore.lock). Raises `TryLaterError` if the submission of a job was begun and its outcome is
    not known.
    """
    unsent = sweep_of(run).unsubmitted()
    if any(host.stat(run.chunk_folder(chunk) + b"/submit") is not None for chunk in unsent):
        raise TryLaterError(
            "submission-unclear",
            "the submission of a job of this sweep was begun, and its outcome is not recorded",
            subject=run.id,
            hint="To find out, run the command that created it again; then cancel the run.",
            transient=False,
        )
    numbers = [number for chunk in unsent for number in chunk.tasks]
    for number in numbers if run.submission.proxy else ():
        remove_proxy(host, run, number)
    return cancel_tasks(run_store, run, numbers)


def _cancel_jobs(session: SiteSession, run: Run) -> None:
    """Cancel the jobs of a run; raises `TryLaterError` if the scheduler did not accept that."""
    for chunk in run.chunks:
        if all(run.tasks[number].state.final for number in chunk.tasks):
            continue
        for job in chunk.jobs:
            try:
                session.system.cancel(session.host, job)
            except TryLaterError as problem:
                problem.subject = run.id
                raise


def cancel_run(open_session: OpenSession, run_store: RunStore, run: Run, on_event: Listener = ignore) -> Run:
    """Cancel a run, and query it once; a run or task that has ended stays as it is.

    The end counts as reported, because the caller shows it: after that the same command starts a new run. A run that was not submitted is CANCELLED at once, without contacting its site. One that is being launched is cancelled by the process
    that launches it, which is waited for. Raises `TryLaterError` if the scheduler did not accept the request.
    """
    if not run.state.final:
        run = _cancel(open_session, run_store, run, on_event)
    if run.state.final and not run.results.reported:
        run = run_store.note(run.id, "reported")
    return run


def _cancel(open_session: OpenSession, run_store: RunStore, run: Run, on_event: Listener) -> Run:
    run = run_store.note(run.id, "cancel")
    if not run.job or (run.sweep is not None and run.sweep.unsubmitted()):
        with run_store.lock(run.key, on_event=on_event):
            run = _cancel_without_job(open_session, run_store, run_store.load(run.id))
    if run.state.final:
        return run
    with open_session() as session:
        if _mark_cancelled(session.host, run):
            run = run_store.note(run.id, "cancel", {"marked": True})
        _cancel_jobs(session, run)
        run = run_store.note(run.id, "cancel-told")
        return update(session, [run])[0]


def _cancel_without_job(open_session: OpenSession, run_store: RunStore, run: Run) -> Run:
    """Cancel the parts of a run that have no job."""
    if run.state.ended:
        return run
    if not run.submission.begun and not run.job:
        if run.submission.proxy and run.folder:  # stored with a run that waits because the queue is full
            with open_session() as session:
                remove_proxy(session.host, run)
        return cancel_unsubmitted(run_store, run)
    if run.sweep is not None and run.sweep.unsubmitted():
        with open_session() as session:
            return cancel_unsubmitted_tasks(session.host, run_store, run)
    if run.sweep is None and not run.job:
        with open_session() as session:
            return cancel_begun(session, run)
    return run


def _mark_cancelled(host: RemoteHost, run: Run) -> bool:
    """Show the request to the job, so that the job does not report the effect of a signal as an end of its own.

    A full site must not keep a job running: without the mark, the scheduler's state decides.
    """
    try:
        host.put(run.folder + b"/cancel", now().encode("ascii") + b"\n")
    except TryLaterError:
        raise
    except HibaliError:
        return False
    return True
