"""Running again what the ledger has of a run: all of it, or the tasks that did not end well."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hibali.errors import RefusedError, TryLaterError
from registry.invocation import Invocation, check_invocation
from registry.parameters import Row, check_tasks
from registry.pipeline import Pipeline
from runs.book import Book
from runs.launch import TaskRequest
from runs.prepare import Input, list_inputs
from runs.run import Run
from runs.sweeps.launch import files_of
from runs.sweeps.sweep import NOT_WELL


@dataclass(frozen=True, slots=True)
class Again:
    """What was asked for: the answers of all, and of each task (none for a single run); `known` has where each file lay.

    `asked` is how the line was typed (runs.dataset).
    """

    invocation: Invocation
    tasks: tuple[TaskRequest, ...]
    files: tuple[Input, ...]
    known: Mapping[str, str]
    asked: Mapping[str, Any]


def tasks_to_rerun(run: Run, *, failed: bool) -> tuple[int, ...]:
    """The numbers of the tasks to run again, 0 for a run that is no sweep; with `failed` those that failed, were cancelled or are LOST.

    They keep their numbers. Raises `TryLaterError` where that cannot be said yet.
    """
    if run.sweep is None:
        chosen: tuple[int, ...] = (0,) if not failed or run.state in NOT_WELL else ()
    else:
        chosen = run.sweep.in_state(*NOT_WELL) if failed else tuple(run.sweep.tasks)
    if not run.state.ended and not (failed and chosen):
        raise TryLaterError(
            "not-ended", f"the run is {run.state}", about=run.id, hint=f"hibali runs wait {run.id}"
        )
    return chosen


def read_again(run: Run, book: Book, pipeline: Pipeline, numbers: Sequence[int]) -> Again:
    """What the ledger has of these tasks of a run. Raises `RefusedError` where its pipeline is another one by now."""
    if pipeline.digest != run.pipeline_digest:
        raise RefusedError(
            "other-pipeline",
            f"the run was of sha256 {run.pipeline_digest}, and the catalogue has {pipeline.digest}",
            about=run.pipeline,
            hint="Add the descriptor that was run again.",
        )
    begun = next(record for record in book.records(run.id) if record.get("kind") == "prepared")
    answers = begun["invocation"]
    asked = begun.get("asked") or {}
    if run.sweep is None:
        invocation = check_invocation(pipeline, answers)
        files = list_inputs(invocation)
        known = _places(begun, [each.text for each in files])
        return Again(invocation, (), tuple(files), known, asked)
    rows = [Row(run.sweep.values(number)) for number in numbers]
    found = check_tasks(pipeline, answers, rows)
    tasks = tuple(
        TaskRequest(number, row.values, invocation)
        for number, row, invocation in zip(numbers, rows, found, strict=True)
    )
    return Again(
        Invocation(dict(answers), dict(answers)), tasks, tuple(files_of(tasks)), _places(begun, ()), asked
    )


def _places(begun: Mapping[str, Any], texts: Sequence[str]) -> dict[str, str]:
    """Where each file lay: a relative path was meant from another folder, perhaps."""
    recorded = begun.get("inputs") or []
    known = {str(each["text"]): str(each["location"]) for each in recorded if "text" in each}
    if not known and len(recorded) == len(texts):
        known = {text: str(each["location"]) for text, each in zip(texts, recorded, strict=True)}
    return known
