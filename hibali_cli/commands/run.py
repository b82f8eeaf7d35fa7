"""`hibali run`."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hibali.errors import RefusedError, UsageError
from hibali_cli.collecting import Into, check_collecting, collect_into, tell_collected
from hibali_cli.command import command as as_command
from hibali_cli.options import Common

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hibali.sites import Site
    from registry.catalogue import Catalogue
    from registry.invocation import Invocation
    from registry.pipeline import Pipeline
    from runs.container import Container
    from runs.inputs import Located
    from runs.launch import Request
    from runs.prepare import Prepared
    from runs.run import Run


@as_command(
    "run",
    examples=[
        ("hibali run conform@1.0 answers.json --site juwels", "Start a run and print its id."),
        ("hibali run conform answers.json --site juwels --wait", "Start it and wait for its end."),
        ("hibali run conform answers.json --site juwels --dry-run", "See what would be submitted."),
        (
            "hibali run conform answers.json --each subjects.csv --param threshold=0.1,0.5 --site juwels --wait --collect results",
            "Run it once for each row and threshold, as job arrays.",
        ),
        (
            "hibali run conform answers.json --site juwels --wait --dataset derived",
            "Keep outputs and record in the DataLad dataset around derived/.",
        ),
    ],
)
@click.argument("pipeline")
@click.argument("invocation", metavar="[INVOCATION.json]", required=False)
@click.option("--site", "site_name", required=True, metavar="SITE", help="Run it there.")
@click.option("--each", "each", metavar="TABLE", help="A task for each row of a .csv, .tsv or .jsonl file.")
@click.option(
    "--param",
    "parameters",
    metavar="ID=VALUE,...",
    multiple=True,
    help="A task for each of these values; several options make all combinations.",
)
@click.option("--wait", is_flag=True, help="Wait for the end; exit 7 when the tool fails.")
@click.option("--dry-run", is_flag=True, help="Print what would be submitted, and stop.")
@click.option("--name", default="", metavar="NAME", help="A word of yours that tells runs apart.")
@click.option("--new", is_flag=True, help="Start a new run, even where this line has one under way.")
@click.option("--image", default="", metavar="ARCHIVE|sha256:ID", help="Bring the image, or accept this one.")
@click.option("--collect", "folder", metavar="DIR", help="With --wait, pull the outputs into DIR afterwards.")
@click.option(
    "--dataset",
    metavar="DIR",
    help="With --wait, collect into DIR in a DataLad dataset and save, so that `datalad rerun` repeats it.",
)
@click.option(
    "--table", metavar="FILE", help="With --wait, a .csv, .jsonl or .parquet file of all tasks and outputs."
)
@click.option("--no-save", is_flag=True, help="With --collect, leave what comes into a dataset uncommitted.")
def command(
    common: Common,
    *,
    pipeline: str,
    invocation: str | None,
    site_name: str,
    each: str | None,
    parameters: tuple[str, ...],
    wait: bool,
    dry_run: bool,
    name: str,
    new: bool,
    image: str,
    folder: str | None,
    dataset: str | None,
    table: str | None,
    no_save: bool,
) -> int | None:
    """Run a pipeline at a site with the answers in a file.

    The same line again continues the run it began, until somebody was told how that ended; then it begins a
    new one. File answers are local paths, from the current folder, or SITE:PATH. With --each and --param it is a sweep: a task for
    each row and each combination of values, which go before the answers of the file.
    """
    from registry.catalogue import Catalogue

    into = Into(folder, dataset, no_save)
    check_collecting(into, wait=wait)
    if any(ord(letter) < 32 for letter in name) or len(name) > 200:
        raise UsageError("bad-name", "a run's name is one short line", about="--name")
    catalogue = Catalogue()
    found = catalogue.find(pipeline)
    deprecation = catalogue.deprecation(found)
    if deprecation is not None:
        common.output.warn(f"{found.reference}: {deprecation}")
    answers = None if invocation is None else Path(invocation)
    if each is not None or parameters:
        from hibali_cli.sweeping import SweepLine, run_sweep

        tasks = SweepLine(None if each is None else Path(each), parameters, table)
        asked = {"name": name, "new": new, "image": image}
        return run_sweep(
            common, catalogue, found, answers, tasks, site_name, asked, into, wait=wait, dry_run=dry_run
        )
    if table is not None:
        raise UsageError("usage", "it is for --each and --param", about="--table")
    if answers is None:
        raise UsageError(
            "usage",
            "a run needs answers",
            about="INVOCATION.json",
            hint=f"hibali pipelines example {found.reference} starts a file; --param ID=VALUE,... makes a sweep.",
        )
    request = read_request(common, found, answers, site_name, image, identify=not dry_run)
    if dataset is not None:
        from runs.dataset import asked_before, keep_in

        keep_in(dataset, asked_before([{"asked": request.asked}], found.reference))
    if dry_run:
        _show(common, request)
        return None
    require_consent(common, catalogue, request.pipeline, request.container)
    return run_one(common, replace(request, name=name, new=new, image=image), wait=wait, into=into)


def read_request(
    common: Common, pipeline: Pipeline, answers: Path, site_name: str, image: str, *, identify: bool
) -> Request:
    """Everything that can be checked here is checked before the site is asked anything."""
    from hibali.strict_json import read_json_file
    from hibali_cli.run_site import run_site
    from registry.invocation import check_invocation
    from runs.container import load_container
    from runs.dataset import asked_here
    from runs.inputs import locate_inputs

    site = run_site(common, site_name)
    invocation = check_invocation(pipeline, read_json_file(answers))
    load_container(site.container).image_name(pipeline.container)
    located = locate_inputs(invocation, common.settings(), site, identify=identify)
    asked = asked_here(answers, located, image).to_fields()
    return make_request(pipeline, invocation, located, site, image, asked)


def make_request(
    pipeline: Pipeline,
    invocation: Invocation,
    located: Sequence[Located],
    site: Site,
    image: str,
    asked: Mapping[str, Any],
) -> Request:
    """The request of these answers at a site, with its inputs located."""
    from hibali_cli.catalogue import pinned_image
    from registry.catalogue import Catalogue
    from runs.container import load_container
    from runs.launch import Request
    from runs.scheduler import load_scheduler

    container = load_container(site.container)
    names_archive = bool(image) and not image.startswith("sha256:")
    return Request(
        pipeline=pipeline,
        invocation=invocation,
        inputs=tuple(each.input for each in located),
        places=tuple(each.place for each in located),
        identities=tuple(each.identity for each in located),
        site=site,
        scheduler=load_scheduler(site.scheduler.name if site.scheduler else "direct"),
        container=container,
        pinned=pinned_image(Catalogue(), pipeline) if container.isolates and not names_archive else None,
        asked=asked,
    )


def require_consent(common: Common, catalogue: Catalogue, pipeline: Pipeline, container: Container) -> None:
    """Without a container the tool is its author's code with all of the user's rights (S11)."""
    if container.isolates or catalogue.is_trusted(pipeline.digest):
        return
    asked = (
        f"{pipeline.reference} runs without a container at this site: as you, on all your files. Trust it?"
    )
    if not common.json and sys.stdin.isatty() and sys.stderr.isatty() and click.confirm(asked, err=True):
        catalogue.trust(pipeline.reference)
        return
    raise RefusedError(
        "not-trusted",
        "without a container this pipeline's code runs as you, and nobody has consented to that",
        about=pipeline.reference,
        hint=f"Read it (hibali pipelines show {pipeline.reference}), then: hibali pipelines trust {pipeline.reference}",
    )


def run_one(common: Common, request: Request, *, wait: bool, into: Into) -> int:
    """Launch a single run, and follow it where that is asked for; the exit code. Raises how it failed."""
    from hibali_cli.progress import listening
    from hibali_cli.run_record import report_ends, tell_left
    from hibali_cli.run_site import opener, wait_for_runs
    from runs.book import Book
    from runs.carry import Synchroniser
    from runs.launch import launch

    book = Book()
    with listening(common, f"run {request.pipeline.reference} at {request.site.name}") as tell:
        far = opener(request.site, tell)()
        try:
            run = launch(
                request,
                far,
                book,
                Synchroniser(),
                began=lambda run: announce(common, run),
                tell=tell,
            )
        finally:
            far.close()
        if wait:
            [run] = wait_for_runs(common, book, [run], tell)
        receipt = collect_into(common, book, run, into, tell)
    if receipt is not None:
        tell_collected(common, receipt)
    if wait or run.state.ended:
        report_ends(common, book, [run])
    else:
        tell_left(common, run)
    return int(receipt.exit) if receipt is not None else 0


def announce(common: Common, run: Run) -> None:
    """The id comes out as soon as there is one, whatever happens next."""
    from hibali_cli.output import flush_results

    if not common.json:
        common.output.line(run.id)
        flush_results()


def _show(common: Common, request: Request) -> None:
    from hibali.ledger import new_identifier
    from runs.launch import show_prepared

    prepared = show_prepared(request, new_identifier())
    files = {"job.sh": prepared.job_script, "start": prepared.start, "command": prepared.command}
    files |= {f"work/{path}": content for path, content in prepared.configuration_files.items()}
    show_files(common, request, prepared, files)


def show_files(common: Common, request: Request, prepared: Prepared, files: Mapping[str, str]) -> None:
    """What would be put into the folder of `prepared`, and the command that would be said there."""
    if common.json:
        outputs = [{"id": each.id, "path": each.path, "optional": each.optional} for each in prepared.outputs]
        common.output.record(
            "prepared",
            {
                "pipeline": request.pipeline.reference,
                "site": request.site.name,
                "submit": list(prepared.submit),
                "files": dict(files),
                "outputs": outputs,
            },
        )
        return
    for path, content in files.items():
        common.output.say(f"--- {prepared.folder}/{path}")
        if sys.stdout.isatty():
            for line in content.splitlines():
                common.output.line(line)
        else:
            common.output.raw(content.encode("utf-8", "surrogateescape"))
