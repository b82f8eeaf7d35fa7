"""Submit a run when the queue limits of its site allow it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import partial

from hibali.config.model import Limits
from hibali.errors import NotFoundError, TryLaterError
from hibali.events import Listener, ignore
from runs.model import Run
from runs.poll import update
from runs.rate_limits import rate_limited
from runs.schedulers.base import NotSubmitted, Scheduler, Submitted
from runs.store import Queued, RunStore, count_queued, format_queue_full, holder_of
from runs.submit import SubmitRequest, cancel_begun, cancel_unsubmitted, find_submission, submit_once
from transfers.remote.host import RemoteHost


def reserve_queue_places(
    host: RemoteHost,
    scheduler: Scheduler,
    run_store: RunStore,
    run: Run,
    limit: int,
    *,
    chunk: int = 0,
    places: int = 1,
    note: Callable[[], object],
    look: bool = True,
) -> bool:
    """Whether a run, or the job array of a chunk, has its places in the queue now.

    `note` puts into the ledger that it is going to be submitted, before anybody else counts. Without room, and unless `look` says
    that this was done just now, the site is asked once how far the others are: nobody may have looked since they ended.
    """
    queued = Queued(run.site)
    holder = holder_of(run.id, chunk)
    if queued.take(holder, places, limit, taken=note):
        return True
    holders = _load(run_store, queued)
    if look:
        asked = [each for each in holders if each.job and each.placement.scheduler == scheduler.name]
        update(host, scheduler, run_store, [each for each in asked if not each.state.ended])
    for each in holders:
        if each.sweep is None and not each.job and each.submission.begun:
            _settle_begun(host, scheduler, run_store, queued, each.id)
    # a place is taken and the submission noted in one turn: who holds one without the other died between
    queued.forget_dead(lambda run_id: _holds(run_store, run_id))
    return queued.take(holder, places, limit, taken=note)


def _load(run_store: RunStore, queued: Queued) -> list[Run]:
    holders = []
    for run_id in queued.runs():
        with contextlib.suppress(NotFoundError):
            holders.append(run_store.load(run_id))
    return holders


def _holds(run_store: RunStore, run_id: str) -> bool:
    try:
        run = run_store.load(run_id)
    except NotFoundError:
        return False
    return not run.state.ended and (bool(run.job) or run.submission.begun)


def _settle_begun(
    host: RemoteHost, scheduler: Scheduler, run_store: RunStore, queued: Queued, run_id: str
) -> None:
    """Find out what became of a submission whose process is gone; one that is at work keeps its place."""
    with contextlib.suppress(TryLaterError), run_store.claim(run_store.load(run_id).key, longest_wait=0.0):
        run = run_store.load(run_id)
        if run.job or run.state.ended:
            return
        found = find_submission(host, scheduler, run.id, run.folder, run.created[:10])
        if isinstance(found, Submitted):
            run_store.note(run.id, "submitted", {"job": found.job})
        elif isinstance(found, NotSubmitted):
            queued.release(run.id)


def send(
    host: RemoteHost,
    scheduler: Scheduler,
    run_store: RunStore,
    run: Run,
    *,
    words: Sequence[str],
    put: Callable[[], None],
    limits: Limits,
    on_event: Listener = ignore,
    look: bool = True,
) -> Run:
    """The run with its job; or still waiting where there is no room (`Run.waits`), or CANCELLED where that was wished.

    `words` submit it, `put` lays everything ready; `look` as `take_room` has it. Whoever calls has the run's turn
    (Book.claim). Raises what the scheduler refuses with.
    """
    run = run_store.load(run.id)
    if run.job or run.state.ended:
        return run
    if run.submission.cancelled:
        return (
            cancel_begun(host, scheduler, run_store, run)
            if run.submission.begun
            else cancel_unsubmitted(run_store, run)
        )
    begin = partial(run_store.note, run.id, "submitting")
    if not reserve_queue_places(host, scheduler, run_store, run, limits.queued_jobs, note=begin, look=look):
        put()
        return _wait(run_store, run, words, limits.queued_jobs)
    submission = SubmitRequest(
        run.id, run.folder, tuple(words), run.created[:10], put, begun=run.submission.begun
    )
    with rate_limited(run.site):
        answer = submit_once(host, scheduler, submission, settling=limits.settling_seconds, on_event=on_event)
        if isinstance(answer, NotSubmitted):
            Queued(run.site).release(run.id)
            raise answer.error
    return run_store.note(run.id, "submitted", {"job": answer.job})


def _wait(run_store: RunStore, run: Run, words: Sequence[str], limit: int) -> Run:
    reason = format_queue_full(limit, count_queued(Queued(run.site).held()))
    if run.waits and run.status.reason == reason:
        return run
    return run_store.note(run.id, "waits", {"reason": reason, "words": list(words)})


def send_waiting(
    host: RemoteHost,
    scheduler: Scheduler,
    run_store: RunStore,
    run: Run,
    limits: Limits,
    on_event: Listener = ignore,
    *,
    look: bool = True,
) -> Run:
    """The same for a run that waited for room: everything lies ready at the site."""
    with run_store.claim(run.key, on_event=on_event):
        run = run_store.load(run.id)
        if not run.waits:
            return run
        return send(
            host,
            scheduler,
            run_store,
            run,
            words=run.submission.argv,
            put=_nothing,
            limits=limits,
            on_event=on_event,
            look=look,
        )


def _nothing() -> None:
    """It lies ready."""


def queue_full_error(run: Run) -> TryLaterError:
    """What a caller is told who does not wait."""
    return TryLaterError(
        "no-room",
        run.status.reason,
        subject=run.id,
        hint=f"The same line again, or `hibali runs wait {run.id}`, sends it when there is room.",
    )
