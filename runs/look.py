"""What is known now of runs and tasks at one site: one question to the scheduler, and their exit records read together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from runs.courtesy import courteous
from runs.pilot.journal import judge_in_allocation, read_journal, status_of
from runs.run import Run, State
from runs.scheduler import GONE, Phase, Scheduler, Status
from runs.sweeps.sweep import Sweep, chunk_folder, folder_of, task_word
from runs.verdict import ASKED, ExitRecord, Seen, judge, read_exit_record
from transfers.far import Far

_RECORD_BYTES = 16384
_PIECE_BYTES = 1 << 20

Key = tuple[str, int]  # a run's id, and the number of its task; 0 for a run that is no sweep


@dataclass(frozen=True, slots=True)
class Subject:
    """What has a folder and an exit record of its own: a run, or one task of a sweep.

    `word` is how the record calls it; accounting is asked for `jobs` and may call it any of `accounts`. `state` is what was known
    of it before. Of what is looked at `thorough`ly the record is read in any case.
    """

    key: Key
    run: Run
    folder: bytes
    word: str
    state: State
    status: Status
    jobs: tuple[str, ...]
    accounts: tuple[str, ...]
    thorough: bool = True

    @property
    def queued(self) -> bool:
        """Whether the scheduler still has it where it can be seen."""
        return self.status.phase in {Phase.WAITING, Phase.RUNNING}

    @property
    def fell_back(self) -> bool:
        """Whether it waits after it was running."""
        return self.status.phase is Phase.WAITING and self.state is State.RUNNING


def ask(
    far: Far,
    scheduler: Scheduler,
    runs: Sequence[Run],
    *,
    thorough: bool = True,
    others: Sequence[Run] = (),
) -> dict[Key, Seen]:
    """What is known now of these runs of one site and scheduler, each with a job; one question for all, tasks included.

    Exit records are read, all together, of what has left the queue or fell back in it, with `thorough` of everything whose end
    is not known. The `others` go along in the same question. Raises `TryLaterError` where the scheduler does not answer, or
    refused too often to be asked now.
    """
    if not runs and not others:
        return {}
    with courteous(next(iter((*runs, *others))).site):
        subjects = _find_subjects(far, scheduler, runs, others, thorough=thorough)
    wanted = [each for each in subjects if each.thorough or not each.queued or each.fell_back]
    contents = far.get_all([each.folder + b"/exit.json" for each in wanted], maximum=_RECORD_BYTES)
    records: dict[Key, ExitRecord] = {}
    for each, content in zip(wanted, contents, strict=True):
        record = read_exit_record(content, each.word)
        if record is not None:
            records[each.key] = record
    stopped = [each for each in wanted if each.key in records and records[each.key].signal not in {"", ASKED}]
    started = far.get_all([each.folder + b"/again" for each in stopped], maximum=1) if stopped else []
    again = {each.key for each, content in zip(stopped, started, strict=True) if content is not None}
    unclear = [each for each in subjects if each.key not in records and _is_unclear(each)]
    accounted = _ask_accounts(far, scheduler, unclear)
    return {
        each.key: _judge(each, records.get(each.key), accounted.get(each.key), again=each.key in again)
        for each in subjects
    }


def _judge(subject: Subject, record: ExitRecord | None, accounted: Status | None, *, again: bool) -> Seen:
    run = subject.run
    seen = judge(
        subject.status,
        record,
        accounted,
        cancelled=run.cancelled,
        marked=run.marked,
        told=run.told,
        again=again,
    )
    if run.sweep is None or run.sweep.pilot is None:
        return seen
    return judge_in_allocation(
        seen,
        subject.status,
        record,
        cancelled=run.cancelled,
        allocation=len(run.sweep.chunks),
        more=run.sweep.may_continue,
    )


def _find_subjects(
    far: Far, scheduler: Scheduler, runs: Sequence[Run], others: Sequence[Run], *, thorough: bool
) -> list[Subject]:
    asked = [(run, thorough) for run in runs] + [(run, False) for run in others]
    single = [(run, closely) for run, closely in asked if run.sweep is None]
    sweeps = [(run, run.sweep, closely) for run, closely in asked if run.sweep is not None]
    jobs = {run.job for run, _ in single}
    wanted: dict[bool, set[str]] = {True: set(), False: set()}  # whether they are those of pilots
    for _, sweep, closely in sweeps:
        wanted[sweep.pilot is not None].update(_open_jobs(sweep, thorough=closely))
    pilots, arrays = wanted[True], wanted[False]
    if not jobs and not arrays and not pilots:
        return []
    finished = far.run(scheduler.status_words(sorted(jobs | arrays | pilots)))
    statuses = scheduler.read_status(finished, sorted(jobs | pilots)) if jobs or pilots else {}
    told = dict(scheduler.read_tasks(finished, sorted(arrays))) if arrays else {}
    for run, sweep, _ in sweeps:
        if sweep.pilot is not None:
            told |= _told_by_pilot(far, run, sweep, statuses)
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
        subjects += _tasks_of(run, sweep, told, thorough=closely)
    return subjects


def _is_open(sweep: Sweep, number: int, *, thorough: bool) -> bool:
    """Whether a task is asked about: one that is LOST only now and then."""
    state = sweep.tasks[number].state
    return not (state.final if thorough else state.ended)


def _told_by_pilot(
    far: Far, run: Run, sweep: Sweep, statuses: Mapping[str, Status]
) -> dict[str, dict[int, Status]]:
    """The tasks of the last allocation, from its own journal, in the form of `Scheduler.read_tasks`."""
    chunk = sweep.chunks[-1]
    jobs = [job for job in chunk.jobs if job in statuses]
    if not jobs:
        return {}
    told = read_journal(_read_whole(far, chunk_folder(run, chunk) + b"/journal.jsonl"))
    return {
        job: {
            index: status_of(number, statuses[job], told) for index, number in enumerate(chunk.tasks, start=1)
        }
        for job in jobs
    }


def _read_whole(far: Far, path: bytes) -> bytes:
    """A file that others append to, as far as it is written; nothing where it is not there."""
    found = b""
    while piece := far.get(path, maximum=_PIECE_BYTES, offset=len(found)):
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
    run: Run, sweep: Sweep, told: Mapping[str, Mapping[int, Status]], *, thorough: bool
) -> list[Subject]:
    found = []
    for number, (chunk, index) in sweep.places().items():
        if not chunk.jobs or not _is_open(sweep, number, thorough=thorough):
            continue
        status = _best([told.get(job, {}).get(index, GONE) for job in chunk.jobs])
        accounts = tuple(name for job in chunk.jobs for name in names_of_task(job, index))
        accounts = accounts if sweep.pilot is None else chunk.jobs
        state = sweep.tasks[number].state
        word = task_word(run.id, number)
        folder = folder_of(run, number)
        found.append(
            Subject((run.id, number), run, folder, word, state, status, chunk.jobs, accounts, thorough)
        )
    return found


def names_of_task(job: str, index: int) -> tuple[str, ...]:
    """How accounting may call a task of an array: as Slurm, PBS or LSF, and Grid Engine write it."""
    return (f"{job}_{index}", f"{job.replace('[]', '')}[{index}]", f"{job}.{index}")


def _best(statuses: Sequence[Status]) -> Status:
    """Of several jobs with the same task, the one that still can do something, or was there at all."""
    queued = [status for status in statuses if status.phase.queued]
    known = [status for status in statuses if status.phase is not Phase.GONE]
    return (queued or known or list(statuses))[0]


def _is_unclear(subject: Subject) -> bool:
    """Whether accounting may know more. Of a task it is asked only where the queue knows nothing: there are many."""
    return subject.status.phase is Phase.GONE if subject.key[1] else not subject.queued


def _ask_accounts(far: Far, scheduler: Scheduler, unclear: Sequence[Subject]) -> Mapping[Key, Status]:
    if not unclear:
        return {}
    since = min(each.run.created for each in unclear)[:10]
    jobs = {job for each in unclear for job in each.jobs}
    words = scheduler.accounting_words(sorted(jobs), "", since)
    told = (scheduler.read_accounting(far.run(words)) or {}) if words else {}
    return {each.key: told[name] for each in unclear for name in each.accounts if name in told}
