"""Run a pipeline for the participants of a BIDS dataset, and show what became of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from hibali.documents import read_json_file
from hibali.errors import NotFoundError, UsageError
from hibali.events import Listener
from hibali.locations import read_location
from hibali.text import counted
from hibali_cli.cells import id_cell
from hibali_cli.fields import write_list
from hibali_cli.handlers.descriptors import find_pipeline
from hibali_cli.handlers.launch import check_table_options, run_workload
from hibali_cli.handlers.run_sites import update_runs
from hibali_cli.options import Common
from hibali_cli.output import Cell
from hibali_cli.progress import listening
from hibali_cli.run_options import read_run_options
from hibali_plugins.participants.assignment import (
    Assigned,
    Attempt,
    Missing,
    Participant,
    assign_values,
    choose_missing,
    find_attempts,
    find_participants,
    state_text,
)
from hibali_plugins.participants.completeness import (
    Datasets,
    check_patterns,
    describe_parts,
    find_absent,
    find_datasets,
    find_lacking,
    lacking_lines,
    refuse_lacking,
    select_parts,
    without_ignored,
)
from registry.catalogue import Catalogue
from registry.pipeline import Pipeline
from runs.identity import PART
from runs.model import Run
from runs.new_request import make_tasks, with_sites
from runs.outputs import read_reference
from runs.request import Workload
from runs.run_index import RunFilter
from runs.store import RunStore


@dataclass(frozen=True, slots=True)
class DatasetOptions:
    """The participants, or the `sessions`, of a BIDS dataset as tasks; with `only_missing` those that have not succeeded.

    With `whole` each task gets the whole dataset. `required` are patterns of files that each must have; with `skip` those without are left out.
    """

    dataset: str
    sessions: bool = False
    only_missing: bool = False
    whole: bool = False
    required: tuple[str, ...] = ()
    skip: bool = False

    def to_argv(self) -> tuple[str, ...]:
        """Return the options as they are recorded, the dataset with its absolute path if it is on this machine."""
        option = "--each-session" if self.sessions else "--each-participant"
        more = [f"--required-file={each}" for each in self.required]
        more += ["--skip-incomplete"] if self.skip else []
        return (option, self.dataset, *more, *(["--whole-dataset"] if self.whole else []))


@dataclass(frozen=True, slots=True)
class ParticipantTasks:
    """The tasks of a dataset, None if there is none to run; `skipped` are those that lack files, by the digest of their values.

    `before` is the number of those that succeeded before or are in other runs. `resumed` is the id of the run that has the tasks already.
    """

    workload: Workload | None
    skipped: Mapping[str, tuple[str, ...]]
    before: int = 0
    resumed: str = ""


def read_participant_tasks(
    common: Common, pipeline: Pipeline, invocation_path: Path | None, options: DatasetOptions
) -> ParticipantTasks:
    """Return the tasks of a dataset. Raises `NotFoundError` with all who lack required files, unless they are to be skipped."""
    check_patterns(options.required)
    with listening(common, f"run {pipeline.reference}") as on_event:
        assigned, datasets = _assign(common, pipeline, _values(invocation_path), options, on_event)
        chosen, resumed, before = tuple(assigned.rows), "", 0
        if options.only_missing:
            attempts = find_attempts(assigned, _runs_of(common, pipeline, on_event))
            missing = choose_missing(assigned, attempts)
            chosen, resumed = missing.participants, "" if missing.resumed is None else missing.resumed.id
            before = missing.done + missing.elsewhere
            _report_missing(common, missing, options)
        selections = [] if resumed else select_parts(chosen, datasets, options.required)
        lacking = {} if resumed else find_lacking(chosen, datasets, selections)
        if options.skip and not resumed:
            rows_of_chosen = {each: assigned.rows[each].values for each in chosen}
            for each, absent in find_absent(pipeline, rows_of_chosen).items():
                lacking[each] = (*lacking.get(each, ()), *absent)
    if lacking and not options.skip:
        raise refuse_lacking(lacking, len(chosen))
    for line in lacking_lines(lacking):
        common.output.info(f"Skipped: {line}")
    complete = [each for each in chosen if each not in lacking]
    skipped = {digest: lacking[each] for digest, each in assigned.by_digest().items() if each in lacking}
    if not complete:
        return ParticipantTasks(None, skipped, before)
    kept = [
        {each: selected for each, selected in selection.items() if each not in lacking}
        for selection in selections
    ]
    for line in describe_parts(datasets, kept):
        common.output.info(line)
    rows = [assigned.rows[each] for each in complete]
    subject = str(invocation_path or options.dataset)
    workload = make_tasks(pipeline, assigned.common, rows, subject=subject)
    return ParticipantTasks(workload, skipped, resumed=resumed)


def _report_missing(common: Common, missing: Missing, options: DatasetOptions) -> None:
    what = "session" if options.sessions else "participant"
    if missing.done:
        common.output.info(f"{counted(missing.done, what)} succeeded before.")
    if missing.elsewhere:
        common.output.info(f"{counted(missing.elsewhere, what)} in runs that are not over: hibali runs list")
    if missing.resumed is not None:
        common.output.info(
            f"{missing.resumed.id} is not over, so only it can be resumed. For others, repeat the command afterwards."
        )


def run_participants(
    common: Common,
    pipeline: str,
    invocation: str | None,
    *,
    dry_run: bool,
    each_participant: str | None,
    each_session: str | None,
    only_missing: bool,
    required_files: tuple[str, ...],
    skip_incomplete: bool,
    whole_dataset: bool,
    **values: Any,
) -> int | None:
    """Start a sweep with a task for each participant or session, or show what it would do; return the exit code."""
    _check_options(each_participant, each_session, values)
    dataset = DatasetOptions(
        str(each_participant or each_session),
        each_session is not None,
        only_missing,
        whole_dataset,
        required_files,
        skip_incomplete,
    )
    options = read_run_options(values, dataset.to_argv())
    found = find_pipeline(common, Catalogue(), pipeline)
    path = None if invocation is None else Path(invocation)
    check_table_options(options.collect, wait=options.wait)
    tasks = read_participant_tasks(common, found, path, dataset)
    if tasks.workload is None:
        if tasks.skipped and not tasks.before:
            raise NotFoundError(
                "incomplete-participants", "all participants lack required files", subject=dataset.dataset
            )
        left_out = f" but {len(tasks.skipped)} without required files" if tasks.skipped else ""
        common.output.info(f"None{left_out} is missing, so nothing is run.")
        return None
    if read_location(dataset.dataset, common.settings()).typed_local:
        dataset = replace(dataset, dataset=str(Path.cwd() / dataset.dataset))
    assert options.sweep is not None
    sweep = replace(
        options.sweep, participants=dataset.to_argv(), skipped=tasks.skipped, resumed=tasks.resumed
    )
    return run_workload(common, tasks.workload, path, replace(options, sweep=sweep), dry_run=dry_run)


def _check_options(participants: str | None, sessions: str | None, values: Mapping[str, Any]) -> None:
    if participants is None and sessions is None:
        raise UsageError(
            "usage",
            "only participants and sessions can be missing, incomplete or parts of a dataset",
            subject="--only-missing, --required-file, --skip-incomplete, --whole-dataset",
            hint="Add --each-participant DATASET.",
        )
    others = [participants, sessions, values["each"], *values["parameters"]]
    if sum(each is not None for each in others) > 1:
        raise UsageError(
            "contradiction",
            "--each-participant, --each-session, --each and --param cannot be used together",
            subject="--each-session" if sessions else "--each-participant",
        )


def list_participants(
    common: Common, pipeline: str, words: tuple[str, ...], *, sessions: bool, whole_dataset: bool
) -> int | None:
    """Show the state of each participant, from the ledger after querying the sites of runs that are not over."""
    if len(words) > 2:
        raise click.UsageError("Got an unexpected extra argument.")
    *invocation, dataset = words
    found = find_pipeline(common, Catalogue(), pipeline)
    path = Path(invocation[0]) if invocation else None
    options = DatasetOptions(dataset, sessions, whole=whole_dataset)
    with listening(common, "runs participants") as on_event:
        assigned, _ = _assign(common, found, _values(path), options, on_event)
        runs = _runs_of(common, found, on_event)
    attempts = find_attempts(assigned, runs)
    skipped = _find_skipped(assigned, runs, attempts)
    if write_list(
        common,
        "participant",
        (_record(found, each, attempts.get(each), skipped.get(each, ())) for each in assigned.rows),
    ):
        return None
    rows = [(str(each), *_cells(attempts.get(each), skipped.get(each, ()))) for each in assigned.rows]
    common.output.table(["participant", "state", "run", "task"], rows)
    for line in lacking_lines(skipped):
        common.output.info(f"Skipped: {line}")
    states = Counter(state_text(attempts.get(each), skipped.get(each, ())) for each in assigned.rows)
    common.output.info(", ".join(f"{count} {state}" for state, count in sorted(states.items())))
    return None


def _find_skipped(
    assigned: Assigned, runs: Iterable[Run], attempts: Mapping[Participant, Attempt]
) -> dict[Participant, tuple[str, ...]]:
    """Return what those lacked whom the latest run that named them left out, and who were never run."""
    run_store, by_digest = RunStore(), assigned.by_digest()
    found: dict[Participant, tuple[str, ...]] = {}
    for run in runs:
        if run.sweep is not None:
            recorded = (run_store.records(run.id)[0].get("asked") or {}).get("skipped") or {}
            found |= {by_digest[each]: tuple(lacks) for each, lacks in recorded.items() if each in by_digest}
    return {each: found[each] for each in assigned.rows if each in found and each not in attempts}


def _values(invocation_path: Path | None) -> dict[str, Any]:
    values = read_json_file(invocation_path) if invocation_path is not None else {}
    if not isinstance(values, dict):
        message = "an invocation is a JSON object of input ids and values"
        raise UsageError("invalid-invocation", message, subject=str(invocation_path))
    return values


def _assign(
    common: Common,
    pipeline: Pipeline,
    values: Mapping[str, Any],
    options: DatasetOptions,
    on_event: Listener,
) -> tuple[Assigned, Datasets]:
    settings = common.settings()

    def locate(text: str) -> str:
        folder, mark, part = text.rpartition(PART)
        if mark:
            return f"{locate(folder)}{mark}{part}"
        if read_reference(text, settings.sites) is not None:
            return text
        return str(Path(text).absolute()) if read_location(text, settings).typed_local else text

    dataset = read_location(options.dataset, settings)
    named = with_sites(pipeline, values, settings)  # the data of another default site are other values
    datasets = find_datasets(
        pipeline, named, dataset, settings, on_event, sessions=options.sessions, whole=options.whole
    )
    participants, ignored = without_ignored(
        find_participants(dataset, on_event, sessions=options.sessions), datasets.main
    )
    if ignored:
        common.output.info(f"{dataset.text}: .bidsignore leaves out {ignored} participants or sessions.")
    assigned = assign_values(pipeline, datasets.values, participants, locate, sessions=options.sessions)
    return assigned, datasets


def _runs_of(common: Common, pipeline: Pipeline, on_event: Listener) -> list[Run]:
    """Return all runs of the pipeline, those that are not over as their sites tell now."""
    run_store = RunStore()
    runs = run_store.find(RunFilter(pipeline_digest=pipeline.digest))
    unfinished = [run for run in runs if not run.state.final]
    known = {run.id: run for run in update_runs(common, run_store, unfinished, on_event)}
    return [known.get(run.id, run) for run in runs]


def _cells(attempt: Attempt | None, lacks: Sequence[str]) -> tuple[Cell, ...]:
    if attempt is None:
        return state_text(None, lacks), None, None
    return state_text(attempt), id_cell(attempt.run.id), attempt.task or None


def _record(
    pipeline: Pipeline, participant: Participant, attempt: Attempt | None, lacks: Sequence[str]
) -> dict[str, Any]:
    return {
        "pipeline": pipeline.reference,
        "participant": participant.label,
        "session": participant.session or None,
        "state": state_text(attempt, lacks),
        "run": None if attempt is None else attempt.run.id,
        "task": None if attempt is None else attempt.task or None,
        "lacks": list(lacks),
    }
