"""Bring the results of a study's jobs to the places where nipoppy looks for them."""

from __future__ import annotations

import os
import re
import shlex
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from itertools import product, starmap
from pathlib import Path
from typing import Any

import hibali_api.files
import hibali_api.transfers
from hibali.config.settings import site_for_runs
from hibali.errors import Exit, NotFoundError, TryLaterError
from hibali.events import Listener
from hibali.text import counted
from hibali_cli.options import Common
from hibali_cli.progress import listening
from hibali_plugins.nipoppy.jobs import StudyJobs, parts_of, study_of
from runs.model import Run, State
from runs.monitor import wait_at_site
from runs.status import find_failure
from transfers.model.entry import Kind

_ENTITY = re.compile(rb"(?:^|[/_])(sub|ses)-([0-9A-Za-z+]+)")
_SHOWN = 10  # labels in a message


def fetch_results(common: Common, study: str, *, wait: bool) -> int | None:
    """Fetch results of jobs that succeeded, and logs of all that ended; return the exit code of the last run that failed.

    Results of a pipeline are fetched when none of its runs is unfinished, so that nipoppy never sees half of a file.
    Raises `TryLaterError` if some are left.
    """
    root = study_of(study)
    jobs = StudyJobs(root, common.settings())
    code = Exit.DONE
    with listening(common, f"nipoppy fetch {root}") as on_event, ExitStack() as locked:
        for run in jobs.find(on_event, common.output.warn) if wait else ():
            _wait(common, jobs, run, on_event)
        locked.enter_context(jobs.lock())  # no run begins while results are fetched
        runs = jobs.find(on_event, common.output.warn)
        unfinished = Counter(_source(each) for each in runs if not each.state.final)
        for place, output in dict.fromkeys(map(_source, runs)):
            if (place, output) in unfinished:
                continue
            ended = [each for each in runs if _source(each) == (place, output)]
            latest = {part: state for run in ended for part, state in parts_of(run)}
            _fetch(common, root, ended, latest, on_event)
            for run in ended:
                jobs.note_fetched(run)
                failure = find_failure(run)
                if failure and any(latest[part] is not State.SUCCEEDED for part, _ in parts_of(run)):
                    code = run.failure_exit
                    common.output.warn(f"{run.id}: {failure.message}")
            if common.json:
                fields = {"study": root, "change": "fetched", "place": place, "output": output}
                common.output.record("nipoppy", {**fields, "runs": [each.id for each in ended]})
            else:
                name, _, version = output.partition("/")
                common.output.line(
                    f"{output}: fetched. Next: nipoppy track-processing --study {shlex.quote(root)} --pipeline {name} --pipeline-version {version}"
                )
    if unfinished:
        raise TryLaterError(
            "not-ended",
            f"{sum(unfinished.values())} of {len(runs)} runs have not ended, so their results were not fetched",
            subject=root,
            hint=f"Repeat `nipoppy process` if some were not submitted. To wait for the others: hibali nipoppy fetch {shlex.quote(root)} --wait",
        )
    if not runs:
        common.output.info("No run has results to fetch.")
    return code or None


def _wait(common: Common, jobs: StudyJobs, run: Run, on_event: Listener) -> None:
    if not run.state.final and (run.job or run.waits):
        wait_at_site(site_for_runs(common.settings(), run.site), jobs.run_store, run, on_event)


def _source(run: Run) -> tuple[str, str]:
    return str(run.spec.invocation["place"]), str(run.spec.invocation["output"])


def _fetch(
    common: Common,
    root: str,
    runs: Sequence[Run],
    latest: Mapping[tuple[str, ...], State],
    on_event: Listener,
) -> None:
    """Fetch what jobs of one pipeline made that succeeded, and all logs; files that are replaced here are kept in scratch/replaced.

    `latest` are the states of what the runs compute; a participant of whom one step failed has only half of the results. Where jobs
    succeeded, a missing folder of results is an error, so that the runs do not count as fetched.
    """
    place, output = _source(runs[0])
    replaced = Path(root, "scratch", "replaced", runs[-1].id)
    known: Any = {"config": common.config, "on_event": on_event, "backup_dir": str(replaced)}
    results = f"derivatives/{output}"
    left = sorted({part[2:] for part, state in latest.items() if state is not State.SUCCEEDED})
    succeeded = {part[2:] for part in latest} - {*left}
    if left:
        labels = ", ".join("/".join(filter(None, each)) for each in left[:_SHOWN])
        common.output.warn(
            f"{counted(len(left), 'job')} did not succeed, and results stay at {place}/{results}: {labels}"
        )
    if succeeded:
        found = hibali_api.files.ls(
            f"{place}/{results}/", recursive=True, config=common.config, on_event=on_event
        )
        chosen = filter(
            result_selector(succeeded, left), (each.path for each in found if each.kind is not Kind.FOLDER)
        )
        names = [os.fsdecode(each) for each in chosen]
        if names:
            hibali_api.transfers.pull(f"{place}/{results}/", f"{root}/{results}/", files_from=names, **known)
        else:
            common.output.warn(f"jobs succeeded, but none of their results is in {place}/{results}")
    try:
        hibali_api.transfers.pull(f"{place}/logs/", f"{root}/logs/", **known)
    except NotFoundError as problem:
        if succeeded:
            raise
        common.output.warn(f"logs: {problem.message}")
    count = sum(not each.is_dir() for each in replaced.rglob("*"))
    if count:
        common.output.warn(
            f"{counted(count, 'file')} of the study differed; the earlier content is in {replaced}"
        )


def result_selector(
    succeeded: Collection[tuple[str, ...]], left: Collection[tuple[str, ...]]
) -> Callable[[bytes], bool]:
    """Return whether a result is of jobs that succeeded and of no other one, as far as its name and its folders say whose it is.

    The jobs of others failed, or ran earlier, so that what is here may be newer. Jobs are participants and sessions, "" for all.
    """
    made, failed = {*succeeded}, {*left}
    participants, sessions = {each[0] for each in made}, {each[1] for each in made}

    def is_of(participant: str, session: str) -> bool:
        including = {*product({participant, ""}, {session, ""})}
        if including & failed:
            return False
        if participant and session:
            return bool(including & made)
        known = not participant or {participant, ""} & participants
        return bool(known and (not session or {session, ""} & sessions))

    def select(name: bytes) -> bool:
        labels: dict[bytes, set[str]] = {b"sub": set(), b"ses": set()}
        for entity, label in _ENTITY.findall(name):
            labels[entity].add(label.decode("ascii"))
        return all(starmap(is_of, product(labels[b"sub"] or {""}, labels[b"ses"] or {""})))

    return select
