"""Poll the scheduler and the exit records of all runs at one site, and record changes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hibali.documents import read_json
from hibali.errors import HibaliError, NotFoundError, TryLaterError
from hibali.text import printable, write_ranges
from runs.model import Key, Run, State, Sweep
from runs.queue_places import QueuePlaces, holder_of
from runs.rate_limits import rate_limited
from runs.records import part_of, sweep_of
from runs.schedulers.base import UNKNOWN, Phase, Status, memory_reason
from runs.script import EXIT_NOT_RUN
from runs.site_session import SiteSession
from runs.status import (
    CANCEL_REQUESTED,
    NOT_STARTED,
    ExitRecord,
    Observation,
    read_exit_record,
    resolve_status,
)
from runs.store import RunStore
from runs.submit import find_job, remove_proxies
from transfers.remote.host import RemoteHost

# The state of one task in the journal of a pilot, in place of the scheduler's state of the whole job.
_TASK_ENDED, _JOB_OVER, _TASK_KILLED = "ended", "over", "killed"


@dataclass(frozen=True, slots=True)
class PilotProgress:
    """The tasks that began since the allocation last started, those that ended, and those whose script was killed."""

    begun: frozenset[int] = frozenset()
    ended: frozenset[int] = frozenset()
    broken: frozenset[int] = frozenset()


def read_journal(content: bytes) -> PilotProgress:
    """Read the journal of a pilot's program; invalid lines are ignored, because the last one may be incomplete."""
    begun: set[int] = set()
    ended: set[int] = set()
    broken: set[int] = set()
    for line in content.splitlines():
        try:
            record = read_json(line, "journal.jsonl")
        except HibaliError:
            continue
        if not isinstance(record, dict):
            continue
        if record.get("kind") == "pilot":
            begun.clear()
        for known, name in ((begun, "begun"), (ended, "ended"), (broken, "broken")):
            known.update(_numbers(record.get(name)))
    return PilotProgress(frozenset(begun), frozenset(ended), frozenset(broken))


def _numbers(found: Any) -> Iterable[int]:
    return [each for each in found if type(each) is int] if isinstance(found, list) else ()


def task_status(number: int, job: Status, progress: PilotProgress) -> Status:
    """Return the status of a task in an allocation, like a scheduler's for a task of a job array."""
    if number in progress.broken:
        return Status(Phase.ENDED, _TASK_KILLED)
    if number in progress.ended:
        return Status(Phase.ENDED, _TASK_ENDED if job.phase.queued else _JOB_OVER)
    if job.phase is Phase.RUNNING and number not in progress.begun:
        return Status(Phase.WAITING, job.native, "waits in its allocation")
    return job


def resolve_in_allocation(
    seen: Observation,
    status: Status,
    record: ExitRecord | None,
    *,
    cancelled: bool,
    allocation: int,
    more: bool,
) -> Observation:
    """Correct the observation of a task in an allocation; with `more` another allocation may follow.

    A task ends only with an exit record without a signal, or when its script is killed while others continue. A task that was cut off is not
    FAILED but STAGED again, as long as an allocation may follow.
    """
    if record is not None and record.signal in {"", CANCEL_REQUESTED}:
        return seen
    if status.native == _TASK_KILLED and record is None:
        return Observation(State.FAILED, "", "its script was killed and wrote no exit record")
    if status.native == _TASK_ENDED:
        return Observation(State.RUNNING, "", "")  # a shared filesystem may show its record late
    if status.phase.queued:
        return Observation(
            State.WAITING if status.phase is Phase.WAITING else State.RUNNING, status.native, status.reason
        )
    if cancelled:
        return replace(seen, state=State.CANCELLED) if seen.state is State.LOST else seen
    because = f"allocation {allocation} ended before the task" + (f": {seen.native}" if seen.native else "")
    if more:
        return Observation(State.STAGED, seen.native, because)
    return (
        replace(seen, state=State.FAILED, reason=f"{because}; it was the last allocation")
        if seen.state is not State.CANCELLED
        else seen
    )


def change_fields(sweep: Sweep, seen: Mapping[int, Observation]) -> dict[str, Any] | None:
    """Return a record of the changes since the last one, with ranges of tasks for each state; None if nothing changed.

    The end of a task is recorded once.
    """
    changes: dict[tuple[State, str, str], list[int]] = {}
    ends: list[list[Any]] = []
    for number, found in sorted(seen.items()):
        task = sweep.tasks[number]
        if task.state.final or (task.state, task.reason) == (found.state, found.reason):
            continue
        changes.setdefault((found.state, found.native, found.reason), []).append(number)
        if found.record is not None and found.state.ended:
            record = found.record
            end = [number, record.code, record.started, record.ended, record.host, record.cpu_seconds]
            ends.append([*end, list(record.missing)] if record.missing else end)
    if not changes:
        return None
    return {
        "changes": [
            {"state": state, "native": native, "reason": reason, "tasks": write_ranges(numbers)}
            for (state, native, reason), numbers in changes.items()
        ],
        "ends": ends,
    }


_RECORD_BYTES = 16384
_PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Subject:
    """A task with a folder and an exit record of its own; a single run is task 0.

    Accounting is queried for `jobs` and may call it any of `accounts`. With `thorough` the exit record is read in any case.
    """

    run: Run
    number: int
    status: Status
    jobs: tuple[str, ...]
    accounts: tuple[str, ...]
    thorough: bool = True

    @property
    def key(self) -> Key:
        """The run's id and the number of the task."""
        return self.run.id, self.number

    @property
    def folder(self) -> bytes:
        """The folder of the task at the site."""
        return self.run.task_folder(self.number)

    @property
    def is_in_queue(self) -> bool:
        """True if the job is in the queue."""
        return self.status.phase in {Phase.WAITING, Phase.RUNNING}

    @property
    def fell_back(self) -> bool:
        """True if the job waits again after it ran."""
        return self.status.phase is Phase.WAITING and self.run.tasks[self.number].state is State.RUNNING


def query_runs(
    session: SiteSession, runs: Sequence[Run], *, thorough: bool = True, others: Sequence[Run] = ()
) -> dict[Key, Observation]:
    """Query the present state of runs of one site and scheduler, each with a job; one query for all, including tasks.

    Exit records are read, all at once, of jobs that left the queue or wait again, with `thorough` of all whose end is not known. The `others`
    are part of the same query. Raises `TryLaterError` if the scheduler does not answer, or refused too often.
    """
    if not runs and not others:
        return {}
    host = session.host
    with rate_limited(session.site.name):
        queried = [*((run, thorough) for run in runs), *((run, False) for run in others)]
        subjects = _find_subjects(session, queried)
    wanted = [each for each in subjects if each.thorough or not each.is_in_queue or each.fell_back]
    records = _read_records(host, [(each.run, each.number) for each in wanted])
    stopped = [
        each
        for each in wanted
        if each.key in records and records[each.key].signal not in {"", CANCEL_REQUESTED}
    ]
    started = host.get_all([each.folder + b"/again" for each in stopped], maximum=1) if stopped else []
    restarted = {each.key for each, content in zip(stopped, started, strict=True) if content is not None}
    unclear = [
        each
        for each in subjects
        if (each.key not in records or each.status.phase is Phase.KILLED) and _is_unclear(each)
    ]
    accounted = _query_accounting(session, unclear)
    accounted |= _killed_for_memory(
        host, [each for each in unclear if each.key not in {*records, *accounted}]
    )
    return {
        each.key: _resolve(
            each, records.get(each.key), accounted.get(each.key), restarted=each.key in restarted
        )
        for each in subjects
    }


def _read_records(host: RemoteHost, tasks: Sequence[tuple[Run, int]]) -> dict[Key, ExitRecord]:
    """Read the exit records of tasks, all at once."""
    paths = [run.task_folder(number) + b"/exit.json" for run, number in tasks]
    contents = host.get_all(paths, maximum=_RECORD_BYTES) if paths else []
    found = {
        (run.id, number): read_exit_record(content, run.record_id(number))
        for (run, number), content in zip(tasks, contents, strict=True)
    }
    return {key: record for key, record in found.items() if record is not None}


def read_ends(host: RemoteHost, runs: Sequence[Run]) -> dict[Key, Observation]:
    """Return the runs and tasks that ended by themselves, by their exit records alone, because the scheduler does not answer.

    A record of a tool that a signal ended, or whose run was cancelled, needs the scheduler's answer, too.
    """
    wanted = [
        (run, number)
        for run in runs
        if not run.submission.cancelled
        for number in run.positions()
        if _is_open(run, number, thorough=True)
    ]
    return {
        key: resolve_status(UNKNOWN, record, None)
        for key, record in _read_records(host, wanted).items()
        if not record.signal
    }


def _resolve(
    subject: Subject, record: ExitRecord | None, accounted: Status | None, *, restarted: bool
) -> Observation:
    run = subject.run
    seen = resolve_status(
        subject.status,
        record,
        accounted,
        cancelled=run.submission.cancelled,
        cancel_marked=run.submission.cancel_marked,
        cancel_accepted=run.submission.cancel_accepted,
        restarted=restarted,
    )
    if run.sweep is None or run.sweep.pilot is None:
        return seen
    return resolve_in_allocation(
        seen,
        subject.status,
        record,
        cancelled=run.submission.cancelled,
        allocation=len(run.sweep.chunks),
        more=run.sweep.may_continue,
    )


def _find_subjects(session: SiteSession, queried: Sequence[tuple[Run, bool]]) -> list[Subject]:
    """Query the jobs of runs; each run is with whether to query it thoroughly."""
    system = session.system
    jobs: dict[bool, set[str]] = {True: set(), False: set()}  # by whether they are job arrays
    for run, closely in queried:
        jobs[_has_arrays(run)].update(_open_jobs(run, thorough=closely))
    if not jobs[True] and not jobs[False]:
        return []
    found = system.query(session.host, sorted(jobs[False]), sorted(jobs[True]))
    by_index = {**{job: {1: status} for job, status in found.jobs.items()}, **found.tasks}
    subjects = []
    for run, closely in queried:
        statuses = by_index
        if run.sweep is not None and run.sweep.pilot is not None:
            statuses = by_index | _query_pilot(session.host, run, run.sweep, found.jobs)
        for number, (chunk, index) in run.positions().items():
            if not chunk.jobs or not _is_open(run, number, thorough=closely):
                continue
            status = _best([statuses.get(job, {}).get(index, UNKNOWN) for job in chunk.jobs])
            accounts = chunk.jobs
            if _has_arrays(run):
                accounts = tuple(name for job in chunk.jobs for name in system.task_names(job, index))
            subjects.append(Subject(run, number, status, chunk.jobs, accounts, closely))
    return subjects


def _has_arrays(run: Run) -> bool:
    """Return whether the jobs of a run are job arrays, with an index for each task."""
    return run.sweep is not None and run.sweep.pilot is None


def _is_open(run: Run, number: int, *, thorough: bool) -> bool:
    """Return whether a task is queried: a LOST one of a sweep only with `thorough`, a single run always."""
    if run.sweep is None:
        return True
    state = run.sweep.tasks[number].state
    return not (state.final if thorough else state.ended)


def _query_pilot(
    host: RemoteHost, run: Run, sweep: Sweep, statuses: Mapping[str, Status]
) -> dict[str, dict[int, Status]]:
    """Return the tasks of the last allocation, from its journal, in the form of `JobStates.tasks`."""
    chunk = sweep.chunks[-1]
    jobs = [job for job in chunk.jobs if job in statuses]
    if not jobs:
        return {}
    progress = read_journal(_read_whole(host, run.chunk_folder(chunk) + b"/journal.jsonl"))
    return {
        job: {
            index: task_status(number, statuses[job], progress)
            for index, number in enumerate(chunk.tasks, start=1)
        }
        for job in jobs
    }


def _read_whole(host: RemoteHost, path: bytes) -> bytes:
    """Read a file that another process appends to; b"" if it does not exist."""
    found = b""
    while piece := host.get(path, maximum=_PIECE_BYTES, offset=len(found)):
        found += piece
    return found


def _open_jobs(run: Run, *, thorough: bool) -> list[str]:
    chunks = run.chunks if run.sweep is None or run.sweep.pilot is None else run.chunks[-1:]
    return [
        job
        for chunk in chunks
        if any(_is_open(run, number, thorough=thorough) for number in chunk.tasks)
        for job in chunk.jobs
    ]


def _best(statuses: Sequence[Status]) -> Status:
    """Return the status of the job that can still run a task, or that existed at all."""
    queued = [status for status in statuses if status.phase.queued]
    known = [status for status in statuses if status.phase is not Phase.UNKNOWN]
    return (queued or known or list(statuses))[0]


def _is_unclear(subject: Subject) -> bool:
    """Return whether to query accounting; not for cancelled tasks, because there are many."""
    return not subject.is_in_queue and not (subject.number and subject.status.phase is Phase.CANCELLED)


def _query_accounting(session: SiteSession, unclear: Sequence[Subject]) -> dict[Key, Status]:
    if not unclear:
        return {}
    since = min(each.run.created for each in unclear)[:10]
    jobs = {job for each in unclear for job in each.jobs}
    reported = session.system.account(session.host, sorted(jobs), since) or {}
    return {each.key: reported[name] for each in unclear for name in each.accounts if name in reported}


_UNMET = b"/unmet"  # in the folder of a run or task: why its tool was not started
# what Slurm, PBS and the kernel's messages in them write to the log of a job that they kill for its memory
_MEMORY = re.compile(
    rb"exceeded (?:job |step )?memory limit(?: \((\d{1,18}) > (\d{1,18})\))?|oom[-_]kill|job killed: \S*mem\b",
    re.IGNORECASE,
)


def _killed_for_memory(host: RemoteHost, unclear: Sequence[Subject]) -> dict[Key, Status]:
    """Return the single runs whose job left the reason in its log, which is all there is without accounting."""
    ended = [
        each for each in unclear if not each.number and each.status.phase in {Phase.ENDED, Phase.UNKNOWN}
    ]
    logs = host.get_all([each.folder + b"/scheduler.log" for each in ended]) if ended else []
    found = {}
    for each, log in zip(ended, logs, strict=True):
        match = _MEMORY.search(log or b"")
        if match is not None:
            used, limit = (int(group) if group else None for group in match.groups())
            reason = memory_reason(used, limit)
            found[each.key] = Status(Phase.KILLED, each.status.native or "killed", reason, memory_bytes=used)
    return found


_FAILED = {State.FAILED: "failed", State.CANCELLED: "was cancelled"}


def add_reasons(
    session: SiteSession, runs: Sequence[Run], seen: Mapping[Key, Observation]
) -> dict[Key, Observation]:
    """Return those of the observations of these runs to which a reason that helps the user can be added.

    A job that can never start because of another one leaves the queue without a trace: a single run is then CANCELLED, not LOST.
    Other runs that have not ended according to the ledger are queried for that.
    """
    known = {run.id: run for run in runs}
    found, unstarted = {}, []
    for key, each in seen.items():
        run = known.get(key[0])
        if run is None:
            continue
        if each.state is State.WAITING and run.on_hold:
            found[key] = replace(each, reason=f"on hold: hibali runs release {run.id}")
        elif _never_started(session.host, run, key[1], each):
            unstarted.append(key)
    paths = [known[run_id].task_folder(number) + _UNMET for run_id, number in unstarted]
    contents = session.host.get_all(paths, maximum=1000) if paths else []
    for key, content in zip(unstarted, contents, strict=True):
        failed = None if key[1] else _find_failed(session, known[key[0]])
        text = printable((content or b"").strip())
        if failed is not None:
            found[key] = replace(seen[key], state=State.CANCELLED, reason=format_failure(failed))
        elif text:
            found[key] = replace(seen[key], reason=f"{NOT_STARTED}: {text}")
    return found


def _never_started(host: RemoteHost, run: Run, number: int, seen: Observation) -> bool:
    """Return whether the tool was not started, for a reason that is not known yet: the job script, or the start of the tool, ended
    before the tool, or the job of a run that needs others disappeared.
    """
    if seen.record is not None:
        return seen.record.code == EXIT_NOT_RUN and not (number and seen.reason)
    if number or not run.needs or run.submission.cancelled:
        return False
    return seen.state in {State.LOST, State.CANCELLED} and find_job(host, run.folder) is None


def format_failure(run: Run) -> str:
    """Describe the end of a run, as the reason for a dependent run; for a sweep that of the first unsuccessful task."""
    failed = _failed_part(run) or run
    return f"run {failed.reference} {_FAILED.get(failed.state, f'is {failed.state}')}"


def _failed_part(run: Run) -> Run | None:
    """Return the run, or its first task, that failed or was cancelled; None if there is none."""
    return next((part_of(run, number) for number in run.in_state(*_FAILED)), None)


def _find_failed(session: SiteSession, run: Run) -> Run | None:
    needed = []
    for each in run.needs:
        try:
            needed.append(session.runs.load(each))
        except NotFoundError:
            continue
    same = [
        each
        for each in needed
        if (each.site, each.placement.scheduler) == (run.site, run.placement.scheduler)
    ]
    open_runs = [each for each in same if each.job and not each.state.final]
    queried = {each.id: each for each in (update(session, open_runs) if open_runs else ())}
    parts = (_failed_part(queried.get(each.id, each)) for each in needed)
    return next((part for part in parts if part is not None), None)


def update(session: SiteSession, runs: Sequence[Run]) -> list[Run]:
    """Query runs once and record changes; return the runs as they are now. LOST is recorded without waiting.

    If the scheduler does not answer, the ends that exit records prove are recorded before its error is raised for the other runs.
    """
    queried = [run for run in runs if run.job]
    if not queried:
        return list(runs)
    silent = None
    try:
        seen = query_runs(session, queried)
    except TryLaterError as problem:
        seen, silent = read_ends(session.host, queried), problem
    seen |= add_reasons(session, queried, seen)
    remove_proxies(session.host, queried, seen)
    now = {run.id: record_observations(session.runs, run, observations_of(run, seen)) for run in queried}
    updated = [now.get(run.id, run) for run in runs]
    if silent is not None and not all(run.state.final for run in updated if run.job):
        raise silent
    return updated


def observations_of(run: Run, seen: Mapping[Key, Observation]) -> dict[int, Observation]:
    """Return the observations of one run, by task."""
    return {number: found for (run_id, number), found in seen.items() if run_id == run.id}


def record_observations(run_store: RunStore, run: Run, found: Mapping[int, Observation]) -> Run:
    """Record the observations of a run, if they are new."""
    if run.sweep is not None:
        fields = change_fields(run.sweep, found)
        return run if fields is None else _release_queue_places(run_store.note(run.id, "tasks", fields))
    seen, status = found.get(0), run.status
    if seen is None or (status.state, status.native, status.reason) == (seen.state, seen.native, seen.reason):
        return run
    return run_store.note(run.id, "seen", seen.to_fields())


def _release_queue_places(run: Run) -> Run:
    """Reduce the places of a sweep in the queue to those for tasks that have not ended."""
    queued = QueuePlaces(run.site)
    held = queued.held()
    sweep = sweep_of(run)
    for chunk in sweep.chunks:
        holder = holder_of(run.id, chunk.number)
        left = sum(not sweep.tasks[number].state.ended for number in chunk.tasks)
        if sweep.pilot is not None:
            left = int(bool(left) and chunk is sweep.chunks[-1] and not sweep.unfinished())
        if left < held.get(holder, 0):
            queued.set_places(holder, left)
    return run
