"""Bring the results of a study's jobs to the places where nipoppy looks for them."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import hibali_api.transfers
from hibali.config.settings import site_for_runs
from hibali.errors import Exit, NotFoundError, TryLaterError
from hibali.events import Listener
from hibali_cli.options import Common
from hibali_cli.progress import listening
from hibali_plugins.nipoppy.jobs import StudyJobs, study_of
from runs.model import Run, State
from runs.monitor import wait_at_site
from runs.status import find_failure


def fetch_results(common: Common, study: str, *, wait: bool) -> int | None:
    """Fetch results and logs of the jobs that ended; return the exit code of the last run that failed.

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
            _fetch(common, root, ended, on_event)
            for run in ended:
                jobs.note_fetched(run)
                failure = find_failure(run)
                if failure is not None:
                    code = run.failure_exit
                    common.output.warn(str(failure))
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
            hint=f"To wait for them: hibali nipoppy fetch {shlex.quote(root)} --wait. One that was not submitted yet: repeat nipoppy process.",
        )
    if not runs:
        common.output.info("No run has results to fetch.")
    return code or None


def _wait(common: Common, jobs: StudyJobs, run: Run, on_event: Listener) -> None:
    if not run.state.final and (run.job or run.waits):
        wait_at_site(site_for_runs(common.settings(), run.site), jobs.run_store, run, on_event)


def _source(run: Run) -> tuple[str, str]:
    return str(run.spec.invocation["place"]), str(run.spec.invocation["output"])


def _fetch(common: Common, root: str, runs: Sequence[Run], on_event: Listener) -> None:
    """Fetch the results of runs of one pipeline, and all logs; files that are replaced here are kept in scratch/replaced.

    Where jobs succeeded, missing results are an error, so that the runs do not count as fetched.
    """
    place, output = _source(runs[0])
    known: Any = {
        "config": common.config,
        "on_event": on_event,
        "backup_dir": f"{root}/scratch/replaced/{runs[-1].id}",
    }
    succeeded = any(each.state is State.SUCCEEDED for run in runs for each in run.tasks.values())
    for folder in (f"derivatives/{output}", "logs"):
        try:
            hibali_api.transfers.pull(f"{place}/{folder}/", f"{root}/{folder}/", **known)
        except NotFoundError as problem:
            if succeeded:
                raise
            common.output.warn(f"{folder}: {problem.message}")
