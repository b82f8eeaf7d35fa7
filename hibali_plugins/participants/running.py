"""Run a pipeline for the participants of a BIDS dataset, and show what became of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from hibali.documents import read_json_file
from hibali.errors import UsageError
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
    Participant,
    assign_values,
    choose_missing,
    find_attempts,
    find_participants,
    state_text,
)
from registry.catalogue import Catalogue
from registry.pipeline import Pipeline
from runs.model import Run
from runs.new_request import make_tasks, with_sites
from runs.outputs import read_reference
from runs.request import Workload
from runs.run_index import RunFilter
from runs.store import RunStore


@dataclass(frozen=True, slots=True)
class DatasetOptions:
    """The participants, or the `sessions`, of a BIDS dataset as tasks; with `only_missing` those that have not succeeded."""

    dataset: str
    sessions: bool = False
    only_missing: bool = False


def read_participant_tasks(
    common: Common, pipeline: Pipeline, invocation_path: Path | None, options: DatasetOptions
) -> Workload | None:
    """Return the tasks of a dataset; None if `only_missing` leaves none."""
    with listening(common, f"run {pipeline.reference}") as on_event:
        assigned = _assign(common, pipeline, _values(invocation_path), options, on_event)
        rows = tuple(assigned.rows.values())
        if options.only_missing:
            attempts = find_attempts(assigned, _runs_of(common, pipeline, on_event))
            missing = choose_missing(assigned, attempts)
            rows = missing.rows
            what = "session" if options.sessions else "participant"
            if missing.done:
                common.output.info(f"{counted(missing.done, what)} succeeded before.")
            if missing.elsewhere:
                common.output.info(
                    f"{counted(missing.elsewhere, what)} in runs that are not over: hibali runs list"
                )
            if missing.resumed is not None:
                common.output.info(
                    f"{missing.resumed.id} is not over: it is resumed. For others, repeat the command afterwards."
                )
    if not rows:
        return None
    return make_tasks(pipeline, assigned.common, rows, subject=str(invocation_path or options.dataset))


def run_participants(
    common: Common,
    pipeline: str,
    invocation: str | None,
    *,
    dry_run: bool,
    each_participant: str | None,
    each_session: str | None,
    only_missing: bool,
    **values: Any,
) -> int | None:
    """Start a sweep with a task for each participant or session, or show what it would do; return the exit code."""
    dataset = _read_dataset(each_participant, each_session, values, only_missing=only_missing)
    option = "--each-session" if dataset.sessions else "--each-participant"
    options = read_run_options(values, (option, dataset.dataset))
    found = find_pipeline(common, Catalogue(), pipeline)
    path = None if invocation is None else Path(invocation)
    check_table_options(options.collect, wait=options.wait)
    workload = read_participant_tasks(common, found, path, dataset)
    if workload is None:
        common.output.info("None is missing, so nothing is run.")
        return None
    if read_location(dataset.dataset, common.settings()).typed_local:
        assert options.sweep is not None
        sweep = replace(options.sweep, participants=(option, str(Path.cwd() / dataset.dataset)))
        options = replace(options, sweep=sweep)
    return run_workload(common, workload, path, options, dry_run=dry_run)


def _read_dataset(
    participants: str | None, sessions: str | None, values: Mapping[str, Any], *, only_missing: bool
) -> DatasetOptions:
    dataset = participants or sessions
    if dataset is None:
        raise UsageError(
            "usage",
            "only participants and sessions can be missing",
            subject="--only-missing",
            hint="Add --each-participant DATASET.",
        )
    others = [participants, sessions, values["each"], *values["parameters"]]
    if sum(each is not None for each in others) > 1:
        raise UsageError(
            "contradiction",
            "--each-participant, --each-session, --each and --param cannot be used together",
            subject="--each-session" if sessions else "--each-participant",
        )
    return DatasetOptions(dataset, sessions is not None, only_missing)


def list_participants(common: Common, pipeline: str, words: tuple[str, ...], *, sessions: bool) -> int | None:
    """Show the state of each participant, from the ledger after querying the sites of runs that are not over."""
    if len(words) > 2:
        raise click.UsageError("Got an unexpected extra argument.")
    *invocation, dataset = words
    found = find_pipeline(common, Catalogue(), pipeline)
    path = Path(invocation[0]) if invocation else None
    with listening(common, "runs participants") as on_event:
        assigned = _assign(common, found, _values(path), DatasetOptions(dataset, sessions), on_event)
        attempts = find_attempts(assigned, _runs_of(common, found, on_event))
    if write_list(
        common, "participant", (_record(found, each, attempts.get(each)) for each in assigned.rows)
    ):
        return None
    rows = [(str(each), *_cells(attempts.get(each))) for each in assigned.rows]
    common.output.table(["participant", "state", "run", "task"], rows)
    states = Counter(state_text(attempts.get(each)) for each in assigned.rows)
    common.output.info(", ".join(f"{count} {state}" for state, count in sorted(states.items())))
    return None


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
) -> Assigned:
    settings = common.settings()

    def locate(text: str) -> str:
        if read_reference(text, settings.sites) is not None:
            return text
        return str(Path(text).absolute()) if read_location(text, settings).typed_local else text

    dataset = read_location(options.dataset, settings)
    participants = find_participants(dataset, on_event, sessions=options.sessions)
    named = with_sites(pipeline, values, settings)  # the data of another default site are other values
    return assign_values(pipeline, named, participants, locate, sessions=options.sessions)


def _runs_of(common: Common, pipeline: Pipeline, on_event: Listener) -> list[Run]:
    """Return all runs of the pipeline, those that are not over as their sites tell now."""
    run_store = RunStore()
    runs = run_store.find(RunFilter(pipeline_digest=pipeline.digest))
    unfinished = [run for run in runs if not run.state.final]
    known = {run.id: run for run in update_runs(common, run_store, unfinished, on_event)}
    return [known.get(run.id, run) for run in runs]


def _cells(attempt: Attempt | None) -> tuple[Cell, ...]:
    if attempt is None:
        return state_text(None), None, None
    return state_text(attempt), id_cell(attempt.run.id), attempt.task or None


def _record(pipeline: Pipeline, participant: Participant, attempt: Attempt | None) -> dict[str, Any]:
    return {
        "pipeline": pipeline.reference,
        "participant": participant.label,
        "session": participant.session or None,
        "state": state_text(attempt),
        "run": None if attempt is None else attempt.run.id,
        "task": None if attempt is None else attempt.task or None,
    }
