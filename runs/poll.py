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
from runs.schedulers.base import UNKNOWN, JobSystem, Phase, Status, memory_reason
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
    """Read the journal of `runs/pilot/program.py`; invalid lines are ignored, because the last one may be incomplete."""
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
    """A run, or one task of a sweep, with a folder and an exit record of its own.

    `record_id` is its name in the exit record; accounting is queried for `jobs` and may call it any of `accounts`. `state` is the recorded state.
    With `thorough` the exit record is read in any case.
    """

    key: Key
    run: Run
    folder: bytes
    record_id: str
    state: State
    status: Status
    jobs: tuple[str, ...]
    accounts: tuple[str, ...]
    thorough: bool = True

    @property
    def is_in_queue(self) -> bool:
        """True if the job is in the queue."""
        return self.status.phase in {Phase.WAITING, Phase.RUNNING}

    @property
    def fell_back(self) -> bool:
        """True if the job waits again after it ran."""
        return self.status.phase is Phase.WAITING and self.state is State.RUNNING


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
        subjects = _find_subjects(session, runs, others, thorough=thorough)
    wanted = [each for each in subjects if each.thorough or not each.is_in_queue or each.fell_back]
    contents = host.get_all([each.folder + b"/exit.json" for each in wanted], maximum=_RECORD_BYTES)
    records: dict[Key, ExitRecord] = {}
    for each, content in zip(wanted, contents, strict=True):
        record = read_exit_record(content, each.record_id)
        if record is not None:
            records[each.key] = record
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


def read_ends(host: RemoteHost, runs: Sequence[Run]) -> dict[Key, Observation]:
    """Return the runs and tasks that ended by themselves, by their exit records alone, because the scheduler does not answer.

    A record of a tool that a signal ended, or whose run was cancelled, needs the scheduler's answer, too.
    """
    wanted: dict[Key, tuple[Run, bytes, str]] = {}
    for run in runs:
        if run.sweep is None:
            wanted[run.id, 0] = run, run.folder, run.id
            continue
        for number in run.positions():
            if not run.sweep.tasks[number].state.final:
                wanted[run.id, number] = run, run.task_folder(number), run.record_id(number)
    paths = [folder + b"/exit.json" for _, folder, _ in wanted.values()]
    contents = host.get_all(paths, maximum=_RECORD_BYTES) if paths else []
    found = {}
    for (key, (run, _, record_id)), content in zip(wanted.items(), contents, strict=True):
        record = read_exit_record(content, record_id)
        if record is not None and not record.signal and not run.submission.cancelled:
            found[key] = resolve_status(UNKNOWN, record, None)
    return found


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


def _find_subjects(
    session: SiteSession, runs: Sequence[Run], others: Sequence[Run], *, thorough: bool
) -> list[Subject]:
    host, scheduler = session.host, session.system
    queried = [(run, thorough) for run in runs] + [(run, False) for run in others]
    single = [(run, closely) for run, closely in queried if run.sweep is None]
    sweeps = [(run, run.sweep, closely) for run, closely in queried if run.sweep is not None]
    jobs = {run.job for run, _ in single}
    wanted: dict[bool, set[str]] = {True: set(), False: set()}  # by whether they are jobs of pilots
    for _, sweep, closely in sweeps:
        wanted[sweep.pilot is not None].update(_open_jobs(sweep, thorough=closely))
    pilots, arrays = wanted[True], wanted[False]
    if not jobs and not arrays and not pilots:
        return []
    found = scheduler.query(host, sorted(jobs | pilots), sorted(arrays))
    statuses, task_statuses = found.jobs, dict(found.tasks)
    for run, sweep, _ in sweeps:
        if sweep.pilot is not None:
            task_statuses |= _query_pilot(host, run, sweep, statuses)
    subjects = [
        Subject(
            (run.id, 0),
            run,
            run.folder,
            run.id,
            run.state,
            statuses[run.job],
            (run.job,),
            (run.job,),
            closely,
        )
        for run, closely in single
    ]
    for run, sweep, closely in sweeps:
        subjects += _tasks_of(run, sweep, scheduler, task_statuses, thorough=closely)
    return subjects


def _is_open(sweep: Sweep, number: int, *, thorough: bool) -> bool:
    """Return whether a task is queried: a LOST one only with `thorough`."""
    state = sweep.tasks[number].state
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


def _open_jobs(sweep: Sweep, *, thorough: bool) -> list[str]:
    chunks = sweep.chunks if sweep.pilot is None else sweep.chunks[-1:]
    return [
        job
        for chunk in chunks
        if any(_is_open(sweep, number, thorough=thorough) for number in chunk.tasks)
        for job in chunk.jobs
    ]


def _tasks_of(
    run: Run,
    sweep: Sweep,
    scheduler: JobSystem,
    task_statuses: Mapping[str, Mapping[int, Status]],
    *,
    thorough: bool,
) -> list[Subject]:
    found = []
    for number, (chunk, index) in run.positions().items():
        if not chunk.jobs or not _is_open(sweep, number, thorough=thorough):
            continue
        status = _best([task_statuses.get(job, {}).get(index, UNKNOWN) for job in chunk.jobs])
        accounts = tuple(name for job in chunk.jobs for name in scheduler.task_names(job, index))
        accounts = accounts if sweep.pilot is None else chunk.jobs
        state = sweep.tasks[number].state
        record_id = run.record_id(number)
        folder = run.task_folder(number)
        found.append(
            Subject((run.id, number), run, folder, record_id, state, status, chunk.jobs, accounts, thorough)
        )
    return found


def _best(statuses: Sequence[Status]) -> Status:
    """Return the status of the job that can still run a task, or that existed at all."""
    queued = [status for status in statuses if status.phase.queued]
    known = [status for status in statuses if status.phase is not Phase.UNKNOWN]
    return (queued or known or list(statuses))[0]


def _is_unclear(subject: Subject) -> bool:
    """Return whether to query accounting; not for cancelled tasks, because there are many."""
    return not subject.is_in_queue and not (subject.key[1] and subject.status.phase is Phase.CANCELLED)


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
        each for each in unclear if not each.key[1] and each.status.phase in {Phase.ENDED, Phase.UNKNOWN}
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
    """Add reasons that help the user to the observations of these runs; to those of tasks only why the tool was not started."""
    known = {run.id: run for run in runs}
    single = {(run.id, 0): run for run in runs if run.sweep is None}
    tasks = [
        key
        for key, each in seen.items()
        if key[1] and key[0] in known and _not_started(each) and not each.reason
    ]
    folders = [known[run_id].task_folder(number) for run_id, number in tasks]
    unmet = session.host.get_all([folder + _UNMET for folder in folders], maximum=1000) if tasks else []
    return {
        **{key: _add_reason(session, run, seen[key]) for key, run in single.items() if key in seen},
        **{key: _with_unmet(seen[key], text) for key, text in zip(tasks, unmet, strict=True)},
    }


def _add_reason(session: SiteSession, run: Run, seen: Observation) -> Observation:
    """Add a reason that helps the user; other runs that have not ended according to the ledger are queried.

    A job that can never start because of another one leaves the queue without a trace: the run is then CANCELLED, not LOST.
    """
    if seen.state is State.WAITING and run.on_hold:
        return replace(seen, reason=f"on hold: hibali runs release {run.id}")
    if not run.needs and not _not_started(seen):
        return seen
    if seen.record is not None:
        started = not _not_started(seen)
    else:
        disappeared = seen.state in {State.LOST, State.CANCELLED} and not run.submission.cancelled
        started = not disappeared or find_job(session.host, run.folder) is not None
    failed = None if started else _find_failed(session, run)
    if failed is not None:
        return replace(seen, state=State.CANCELLED, reason=format_failure(failed))
    return seen if started else _with_unmet(seen, session.host.get(run.folder + _UNMET, maximum=1000))


def _not_started(seen: Observation) -> bool:
    """Return whether the job script, or the start of the tool, ended before the tool."""
    return seen.record is not None and seen.record.code == EXIT_NOT_RUN


def _with_unmet(seen: Observation, unmet: bytes | None) -> Observation:
    """Add what the job wrote to its file `unmet`."""
    text = printable((unmet or b"").strip())
    return replace(seen, reason=f"{NOT_STARTED}: {text}") if text else seen


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
    now = {
        run.id: record_observations(session.runs, run, found)
        for run in queried
        if (found := observations_of(run, seen))
    }
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
    seen = found[0]
    if (run.state, run.status.native, run.status.reason) == (seen.state, seen.native, seen.reason):
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
