"""What a bundle is made of, from the ledger of a run or from an invocation that was not run yet."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hibali.errors import NotFoundError, RefusedError, UsageError
from hibali.events import Listener
from hibali.locations import Location, read_location
from hibali.settings import Settings
from hibali.sites import Site
from registry.invocation import Invocation
from registry.pipeline import Pipeline
from runs.book import Book
from runs.bundles.compose import Given
from runs.bundles.contents import check_unchanged, take_content
from runs.bundles.outputs import Left, hash_outputs, recorded_outputs
from runs.collect import require_end
from runs.prepare import Input, list_inputs
from runs.run import Run
from transfers.datasets.contents import bring_here
from transfers.far import Far


def given_answers(run: Run, book: Book, pipeline: Pipeline) -> Any:
    """The answers of a run as they were given; raises `RefusedError` where its pipeline is another one by now, `UsageError` for a sweep."""
    require_single(run)
    check_pipeline(run, pipeline)
    return _begun(run, book).get("invocation")


def require_single(run: Run) -> None:
    """Raise `UsageError` for a sweep, whose outputs are those of many."""
    if run.sweep is not None:
        raise UsageError(
            "no-single-run",
            "this is for one run, and this is a sweep",
            about=run.id,
            hint="Run the task that is meant by itself, and take that run.",
        )


def check_pipeline(run: Run, pipeline: Pipeline) -> None:
    """Raise `RefusedError` where this is not what was run."""
    if pipeline.digest != run.pipeline_digest:
        raise RefusedError(
            "other-pipeline",
            f"the run was of sha256 {run.pipeline_digest}, and the catalogue has {pipeline.digest}",
            about=run.pipeline,
            hint="Add the descriptor that was run again.",
        )


def inputs_of_run(
    run: Run,
    book: Book,
    invocation: Invocation,
    settings: Settings,
    site: Site,
    open_far: Callable[[], Far],
    tell: Listener,
) -> list[Given]:
    """The inputs that a run had, hashed where they lie now.

    Raises `RefusedError` where one changed since, `NotFoundError` where one is gone, or where nobody wrote down where it lay.
    """
    recorded = _begun(run, book).get("inputs")
    asked = list_inputs(invocation)
    if not isinstance(recorded, list) or len(recorded) != len(asked):
        raise NotFoundError(
            "inputs-not-recorded",
            "the ledger does not say where the inputs of this run lay",
            about=run.id,
            hint="Run it again with this version, and bundle that run.",
        )
    found = []
    for each, known in zip(asked, recorded, strict=True):
        place = read_location(str(known["location"]), settings, literal=True)
        given = _take(replace(each, name=str(known["name"])), place, tell)
        check_unchanged(given.input, place, str(known["identity"]), site, given.content, open_far)
        found.append(given)
    return found


def inputs_of_invocation(invocation: Invocation, settings: Settings, tell: Listener) -> list[Given]:
    """The inputs that an invocation names, from the current folder, hashed where they lie."""
    found = []
    for each in list_inputs(invocation):
        place = read_location(each.text, settings)
        name = place.name.decode("utf-8", "surrogateescape") or "input"
        found.append(_take(replace(each, name=name), real_place(place), tell))
    return found


def real_place(place: Location) -> Location:
    """A local path stands for what it leads to: a link is not taken as a link, and what git-annex keeps elsewhere is got."""
    if not place.typed_local:
        return place
    bring_here(place.raw)
    real = os.path.realpath(place.raw).decode("utf-8", "surrogateescape")
    return replace(place, path=real, slash=False)


def image_of(run: Run, book: Book) -> str:
    """The id of the image that a run was started with, 64 hexadecimal digits; "" for none."""
    found = [str(record.get("id")) for record in book.records(run.id) if record.get("kind") == "image"]
    return found[-1] if found else ""


def left_by(run: Run, book: Book, site: Callable[[], Site]) -> Left:
    """The outputs of a run that has ended, of a sweep as `left_by_tasks` names them.

    Raises `TryLaterError` for one that has not ended, or of which nobody knows.
    """
    require_end(run)
    if run.sweep is not None:
        from runs.sweeps.left import left_by_tasks

        return left_by_tasks(run, book, site)
    return recorded_outputs(run, book) or hash_outputs(run, site())


def _take(each: Input, place: Location, tell: Listener) -> Given:
    return Given(each, place, take_content(each, place, tell))


def _begun(run: Run, book: Book) -> dict[str, Any]:
    return next(record for record in book.records(run.id) if record.get("kind") == "prepared")
