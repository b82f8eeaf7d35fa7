"""Follow runs, or query them once: poll each site once for all of its runs, record changes, and read accounting."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

from hibali.config.model import Site
from hibali.config.settings import Settings, site_for_runs
from hibali.errors import HibaliError, TryLaterError
from hibali.events import Listener, Noted, Retried
from hibali.retry import Intervals, growing_intervals, pause
from runs.model import Key, Run, State, ignore_run
from runs.poll import (
    add_reasons,
    observations_of,
    query_runs,
    read_ends,
    record_observations,
    update,
)
from runs.queue_limits import can_submit, submit_more
from runs.rate_limits import SharedPolling
from runs.schedulers.base import JobSystem, NotSubmitted, Phase, Status, Unclear, check_job_id
from runs.services.base import load_job_system
from runs.site_session import SiteOpener, SiteSession
from runs.status import Observation
from runs.store import RunStore
from runs.submit import find_run_submission, remove_proxies
from transfers.remote.host import RemoteHost
from transfers.remote.lending import lending

_PATIENCE_SECONDS = 20.0  # missing accounting must not delay the report of an end for longer
_UNDER_WAY = frozenset({Phase.WAITING, Phase.RUNNING})


def note_usage(session: SiteSession, runs: Iterable[Run]) -> None:
    """Record the accounting of ended runs that was not recorded yet; errors of the site are ignored.

    A job that accounting does not report as ended yet is queried again later. If the site has no accounting, this is recorded.
    """
    system = session.system
    queried = [run for run in runs if run.state.final and run.job and not run.results.accounted]
    jobs = sorted({job for run in queried for job in run.jobs()})
    since = min((run.created for run in queried), default="")[:10]
    if not jobs or not system.has_accounting(jobs, since):
        return
    with contextlib.suppress(HibaliError):
        known = system.account(session.host, jobs, since, timeout=_PATIENCE_SECONDS)
        for run in queried:
            names = _task_names(run, system)
            wanted = (*run.jobs(), *(name for some in names.values() for name in some))
            tasks = {name: known[name] for name in wanted if known and name in known}
            if known is None or (tasks and not any(task.phase in _UNDER_WAY for task in tasks.values())):
                usage = {**_combine_usage(list(tasks.values())), **_each_task(names, tasks)}
                session.runs.note(run.id, "usage", usage)


def _task_names(run: Run, scheduler: JobSystem) -> dict[int, list[str]]:
    """Return the names that accounting may use for each task of a sweep, by its number; {} for a single run."""
    positions = {} if run.sweep is None else run.positions()
    return {
        number: [name for job in chunk.jobs for name in scheduler.task_names(job, index)]
        for number, (chunk, index) in positions.items()
    }


def _each_task(
    names: Mapping[int, Sequence[str]], known: Mapping[str, Status]
) -> dict[str, list[list[float | int | None]]]:
    """Return the usage of each task as number, seconds and bytes; if several jobs had a task, the largest usage is its own."""
    found: dict[int, tuple[float | None, int | None]] = {}
    for number, each_names in names.items():
        accounted = [known[name] for name in each_names if name in known]
        if accounted:
            best = max(accounted, key=lambda each: each.cpu_seconds or 0.0)
            found[number] = (best.cpu_seconds, best.memory_bytes)
    used = [[number, *each] for number, each in found.items() if each != (None, None)]
    return {"tasks": used} if used else {}


def _combine_usage(tasks: Sequence[Status]) -> dict[str, float | int | None]:
    """Return the sum of the times, and the largest memory."""
    seconds = [task.cpu_seconds for task in tasks if task.cpu_seconds is not None]
    memory = [task.memory_bytes for task in tasks if task.memory_bytes is not None]
    return {
        "cpu_seconds": round(sum(seconds), 3) if seconds else None,
        "memory_bytes": max(memory, default=None),
    }


_GRACE_SECONDS = 20.0  # a shared filesystem may show the exit record this much later than the job ended
PATIENCE_SECONDS = 3600.0  # give up after a site did not respond for so long
_FIRST_SECONDS = 0.5
# A sweep changes all the time: its pauses also grow after changes, so that following it for hours needs few queries.
_SWEEP_FIRST_SECONDS = 5.0
_SWEEP_GROWTH = 1.3
_SWEEP_BEYOND = 6
_SWEEP_LONGEST_SECONDS = 100.0
_NOT_SUBMITTED = "not-submitted"


def pause_only(host: RemoteHost, seconds: float) -> None:
    """Wait between two queries and do nothing else."""
    del host
    pause(seconds)


def look_until(seconds: float, look: Callable[[], bool], intervals: Intervals) -> bool:
    """Look repeatedly for so many seconds, at least once; return whether `look` returned True, which ends it."""
    until = time.monotonic() + seconds
    while not look():
        left = until - time.monotonic()
        if left <= 0:
            return False
        pause(min(left, intervals.next_pause()))
    return True


def wait_for_end(
    opener: SiteOpener,
    run_ids: Sequence[str],
    *,
    changed: Callable[[Run], None] = ignore_run,
    meanwhile: Callable[[RemoteHost, float], None] = pause_only,
    session: SiteSession | None = None,
) -> list[Run]:
    """Follow the runs of one site until all have ended, at first by an open `session`, which is closed.

    Runs that wait for a place in the queue are submitted when there is one. A site or scheduler that does not respond is queried again for
    `PATIENCE_SECONDS`; then its error is raised. `changed` is called with each new state. Between two queries `meanwhile` waits for at most
    so many seconds, with a connection to the site; it is called with 0 when all runs have ended.
    """

    def report(run: Run) -> None:
        with lending(None if session is None else session.host):  # outputs may be collected
            changed(run)

    watch = _Watch(report)
    load = partial(map, opener.runs.load, run_ids)
    intervals = pauses([*load()], opener.site.limits.poll_seconds)
    silent, attempt = 0.0, 0
    try:
        while True:
            try:
                session = session or opener()
                waiting = watch.poll(session, [*load()], intervals)
                if waiting is None:
                    note_usage(session, load())
                meanwhile(session.host, waiting or 0.0)
                silent, attempt = 0.0, 0
                if waiting is None:
                    return [*load()]
            except TryLaterError as problem:
                if silent >= PATIENCE_SECONDS or problem.code == _NOT_SUBMITTED:
                    raise
                if session is not None:
                    session.host.close()
                    session = None
                waiting = intervals.next_pause()
                silent += waiting
                attempt += 1
                opener.on_event(Retried(problem.subject, attempt, waiting, problem.message))
                pause(waiting)
    finally:
        if session is not None:
            session.host.close()


def pauses(runs: Sequence[Run], poll_seconds: float) -> Intervals:
    """Return the pauses between two queries: up to `poll_seconds`, and longer for sweeps, but never so long that the end of a task is not known
    within two minutes.
    """
    if all(run.sweep is None for run in runs):
        return growing_intervals(_FIRST_SECONDS, poll_seconds)
    longest = max(poll_seconds, min(_SWEEP_LONGEST_SECONDS, _SWEEP_BEYOND * poll_seconds))
    return growing_intervals(min(_SWEEP_FIRST_SECONDS, poll_seconds), longest, _SWEEP_GROWTH)


class _Watch:
    """The state between two queries: the time since which tasks seem lost, and the runs that have ended."""

    def __init__(self, changed: Callable[[Run], None]) -> None:
        self._changed = changed
        self._reasons: dict[str, frozenset[str]] = {}
        self._doubts: dict[Key, float] = {}
        self._over: set[str] = set()
        self._last: dict[str, Run] = {}
        self._polled = False

    def poll(self, session: SiteSession, runs: Sequence[Run], intervals: Intervals) -> float | None:
        """Query once; return the pause until the next query, None when all runs have ended."""
        runs = [self._find(session, run) for run in runs]
        open_runs = [run for run in runs if not run.state.final and run.id not in self._over]
        step = intervals.next_pause()
        changed_state = False
        if open_runs:
            polling = SharedPolling(open_runs[0].site, session.scheduler)
            if self._polled and polling.seconds_ago() < step / 2:
                changed_state = self._read(open_runs)  # another process has queried all runs
            else:
                changed_state = self._poll(session, polling, open_runs, step)
                polling.note()
            for run in open_runs:
                now = session.runs.load(run.id)
                if can_submit(now):
                    after = submit_more(session, now, query_site=False)
                    if run.sweep is None:
                        changed_state = self._report(now, after) or changed_state
        runs = [session.runs.load(run.id) for run in runs]
        for run in runs:
            self._note_reason(session, run)
        self._last = {run.id: run for run in runs}
        if all(run.state.final or run.id in self._over for run in runs):
            return None
        if changed_state and all(run.sweep is None for run in runs):
            intervals.restart()
        return self._pause_after(step)

    def _note_reason(self, session: SiteSession, run: Run) -> None:
        """Note once why a job waits that may never start, and again when the scheduler's reason changes."""
        waiting = {each.reason for each in run.tasks.values() if each.state is State.WAITING and each.reason}
        before = self._reasons.get(run.id, frozenset())
        blocking = session.system.blocking
        if waiting == before or not blocking or not (before or any(map(blocking.fullmatch, waiting))):
            return
        self._reasons[run.id] = frozenset(waiting)
        if waiting:
            reasons = ", ".join(sorted(waiting))
            session.on_event(
                Noted(
                    f"{run.id} waits in the queue: {reasons}. If it can never start, end it: hibali runs cancel {run.id}"
                )
            )

    def _pause_after(self, step: float) -> float:
        """Return the pause before the next query: short while a single run may reappear."""
        return min(step, 2.0) if any(not number for _, number in self._doubts) else step

    def _find(self, session: SiteSession, run: Run) -> Run:
        """Return the run, with its job if a process submitted it and died before it recorded that.

        Raises `TryLaterError` for a run that only its own command can continue.
        """
        if run.job or run.state.final or run.waits or (run.sweep is not None and run.sweep.chunks):
            return run
        if not run.submission.begun:
            raise _not_submitted(run)
        found = find_run_submission(session, run)
        if isinstance(found, Unclear):
            raise _unclear(run, found)
        if isinstance(found, NotSubmitted):
            raise _not_submitted(run)
        return session.runs.note_job(run.id, found.job)

    def _poll(
        self, session: SiteSession, polling: SharedPolling, open_runs: Sequence[Run], step: float
    ) -> bool:
        """Query these runs together with all others at the site that have jobs; return whether one of these changed its state."""
        queried = [run for run in open_runs if run.job]
        others = polling.others(session.runs, {run.id for run in open_runs})
        try:
            seen = query_runs(session, queried, thorough=not self._polled, others=others)
        except TryLaterError:
            seen = read_ends(session.host, queried)
            if not seen:
                raise
        seen |= add_reasons(session, [*queried, *others], seen)
        remove_proxies(session.host, [*queried, *others], seen)
        self._polled = True
        for run in others:
            # only a process that waits for a run decides whether it is LOST
            sure = {
                number: found
                for number, found in observations_of(run, seen).items()
                if found.state is not State.LOST or found.record is not None
            }
            record_observations(session.runs, run, sure)
        changed_state = False
        for run in open_runs:
            found = observations_of(run, seen)
            doubtful = self._doubtful(session, run, found, step)
            sure = {number: each for number, each in found.items() if number not in doubtful}
            changed_state = self._report(run, record_observations(session.runs, run, sure)) or changed_state
        return changed_state

    def _report(self, before: Run, after: Run) -> bool:
        """Report a change, of a single run only that of its state; return whether the state changed."""
        changed_state = after.state is not before.state
        if changed_state or (after.sweep is not None and after is not before):
            self._changed(after)
        if after.state.ended:
            self._over.add(after.id)
        return changed_state

    def _read(self, open_runs: Sequence[Run]) -> bool:
        """Read what another process recorded; return whether a run changed its state."""
        changed_state = False
        for run in open_runs:
            before = self._last.get(run.id)
            if before is not None and before != run:
                self._changed(run)
                changed_state = changed_state or before.state is not run.state
            if run.state.ended:
                self._over.add(run.id)
        return changed_state

    def _doubtful(
        self, session: SiteSession, run: Run, found: Mapping[int, Observation], step: float
    ) -> set[int]:
        """Return the tasks that seem lost and may reappear: their record may be late, or another job of the chunk may execute them."""
        tasks = run.tasks  # a single run that is LOST is waited for again
        lost = {
            number
            for number, each in found.items()
            if each.state is State.LOST and each.record is None and not (number and tasks[number].state.ended)
        }
        for number in found.keys() - lost:
            self._doubts.pop((run.id, number), None)
        for number in lost:
            self._doubts.setdefault((run.id, number), 0.0)
        young = {number for number in lost if self._doubts[run.id, number] < _GRACE_SECONDS}
        waited = self._pause_after(step)
        for number in lost:
            self._doubts[run.id, number] += waited
        return young | self._run_by_others(session, run, sorted(lost - young))

    def _run_by_others(self, session: SiteSession, run: Run, numbers: Sequence[int]) -> set[int]:
        """Return those of the tasks that a job started which the ledger does not know."""
        places = run.positions()
        contents = session.host.get_all(
            [run.task_folder(number) + b"/started/job" for number in numbers], maximum=256
        )
        found = set()
        for number, content in zip(numbers, contents, strict=True):
            chunk = places[number][0]
            job = check_job_id((content or b"").decode("ascii", "replace").strip())
            if job is not None and job not in chunk.jobs:
                session.runs.note_job(run.id, job, chunk.number)
                found.add(number)
        return found


def _unclear(run: Run, found: Unclear) -> TryLaterError:
    return TryLaterError(
        "submission-unclear",
        f"hibali does not know yet whether the scheduler accepted the job: {found.reason}",
        subject=run.id,
        hint="To find out, run the command that created it again.",
    )


def _not_submitted(run: Run) -> TryLaterError:
    return TryLaterError(
        _NOT_SUBMITTED,
        "this run was never submitted: the process that launched it ended too early",
        subject=run.id,
        hint="To resume, run the command that created it again.",
        transient=False,
    )


class TaskIsOverError(Exception):
    """What is followed is over, even if the run, or other tasks of it, continue."""


Follow = Callable[[], object]


class Watching:
    """Runs that are followed in background threads, and their present states.

    Records of other processes are noticed, too, such as those of `runs wait` in another window.
    """

    def __init__(self, run_store: RunStore, run_ids: Sequence[str], follow: Iterable[Follow]) -> None:
        """Start all functions in `follow`, each of which returns when the runs of one site have ended."""
        self._run_store = run_store
        self._lengths = dict.fromkeys(run_ids, -1)
        self._problems: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._run, args=(each,), name="follow", daemon=True) for each in follow
        ]
        for thread in self._threads:
            thread.start()

    def _run(self, follow: Follow) -> None:
        try:
            follow()
        except BaseException as problem:  # noqa: BLE001  # raised again by `problems`
            self._problems.append(problem)

    @property
    def is_over(self) -> bool:
        """True if no run is followed any more."""
        return not any(thread.is_alive() for thread in self._threads)

    @property
    def problems(self) -> list[HibaliError]:
        """The errors that ended the following of some runs early; raises errors that are bugs."""
        for problem in list(self._problems):
            if not isinstance(problem, HibaliError):
                raise problem
        return [problem for problem in self._problems if isinstance(problem, HibaliError)]

    def changed(self) -> list[Run]:
        """Return the runs with new records since the last call, all of them at first."""
        found = []
        for run_id, before in self._lengths.items():
            length = self._run_store.length(run_id)
            if length != before:
                self._lengths[run_id] = length
                found.append(self._run_store.load(run_id))
        return found


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
