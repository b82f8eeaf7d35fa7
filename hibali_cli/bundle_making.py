"""What `bundle create` gathers and writes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from hibali.errors import RefusedError, UsageError
from hibali.files import account_names
from hibali_cli.bundle_record import show_bundle
from hibali_cli.options import Common
from hibali_cli.progress import listening
from hibali_cli.records import moment
from hibali_cli.run_site import opener, run_site, update_runs
from registry.catalogue import Catalogue
from registry.invocation import check_invocation, read_invocation
from registry.signature import is_signature_name
from runs.bundles.archive import Archive
from runs.bundles.create import (
    Parts,
    create_bundle,
    given_answers,
    image_of,
    inputs_of_invocation,
    inputs_of_run,
    left_by,
    require_single,
)
from runs.bundles.read import Bundle, read_bundle
from runs.model import RUN_ID
from runs.store import Book

if TYPE_CHECKING:
    from hibali.events import Listener
    from registry.pipeline import Pipeline
    from runs.bundles.create import Include


class Taking(NamedTuple):
    """What is to travel besides descriptor, answers and digests."""

    include: Include
    image: bool


def make_bundle(
    common: Common, what: str, output: str, pipeline: str | None, include: str, *, with_image: bool
) -> None:
    """Write the bundle of a run or of an invocation, and tell what is in it."""
    target = Path(output)
    taking = Taking(cast("Include", include), with_image)
    with listening(common, f"bundle {what}") as tell:
        if RUN_ID.fullmatch(what):
            if pipeline is not None:
                raise UsageError("usage", "a run knows its pipeline", about="--pipeline")
            parts = _parts_of_run(common, what, taking, tell)
        else:
            parts = _parts_of_invocation(common, Path(what), pipeline, taking, tell)
        create_bundle(parts, target, tell)
    with Archive(target) as archive:
        bundle = read_bundle(archive)
    if common.json:
        show_bundle(common, target, bundle)
    else:
        _tell(common, target, bundle)


def _parts_of_run(common: Common, run_id: str, taking: Taking, tell: Listener) -> Parts:
    book, catalogue = Book(), Catalogue()
    [run] = update_runs(common, book, [book.load(run_id)], tell)
    require_single(run)
    left = left_by(run, book, lambda: run_site(common, run.site))
    pipeline = catalogue.find(run.pipeline)
    invocation = check_invocation(pipeline, given_answers(run, book, pipeline))
    site = common.settings().site(run.site)
    image = image_of(run, book)
    return Parts(
        pipeline=pipeline,
        invocation=invocation,
        inputs=inputs_of_run(run, book, invocation, common.settings(), site, opener(site, tell), tell),
        published=run.ended or run.created,
        agent=account_names()[0],
        run=run,
        image_id=image,
        left=left,
        include=taking.include,
        **_beside(catalogue, pipeline, taking, started=image),
    )


def _parts_of_invocation(
    common: Common, answers: Path, reference: str | None, taking: Taking, tell: Listener
) -> Parts:
    if reference is None:
        raise UsageError(
            "usage",
            "an invocation does not say which pipeline it is for",
            about=str(answers),
            hint="Give --pipeline NAME@VERSION, or the id of a run: hibali runs list",
        )
    catalogue = Catalogue()
    pipeline = catalogue.find(reference)
    invocation = read_invocation(pipeline, answers)
    changed = moment(answers.stat().st_mtime_ns) or moment(time.time_ns()) or ""
    return Parts(
        pipeline=pipeline,
        invocation=invocation,
        inputs=inputs_of_invocation(invocation, common.settings(), tell),
        published=f"{changed[:19]}Z",
        agent=account_names()[0],
        include=taking.include,
        **_beside(catalogue, pipeline, taking),
    )


def _beside(catalogue: Catalogue, pipeline: Pipeline, taking: Taking, *, started: str = "") -> dict[str, Any]:
    """What travels with a descriptor: who signed it, and the image it is pinned to, if that is the one that was `started`."""
    files = catalogue.beside(pipeline.name, pipeline.version)
    image = catalogue.image(pipeline)
    if image is not None and started and image.id != f"sha256:{started}":
        image = None
        if taking.image:
            raise RefusedError(
                "other-image",
                f"the run was started with sha256:{started}, and the catalogue has another image",
                about=pipeline.reference,
                hint="Leave out --with-image: the bundle then names the one that was started.",
            )
    return {
        "image": image,
        "image_file": catalogue.image_file(pipeline) if taking.image else None,
        "signatures": {name: path.read_bytes() for name, path in files.items() if is_signature_name(name)},
    }


def _tell(common: Common, target: Path, bundle: Bundle) -> None:
    """The file, what is not in it, and what a peer may compare it by."""
    common.output.line(str(target))
    record = bundle.record
    for each in record.inputs:
        if not each.included:
            common.output.warn(
                f"the input {each.id} is not in it, only its digest: it lies at {each.location}"
            )
    for problem in record.outputs.problems if record.outputs else ():
        common.output.warn(f"{problem['path']}: {problem['message']}")
    state = f" of a run that {record.run.state}" if record.run else ""
    common.output.say(f"{target.stat().st_size} bytes{state}; the sha256 of its manifest is {bundle.content}")
