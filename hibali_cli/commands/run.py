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
from hibali_cli.job_options import add_job_options, say_asked, wanted_of, with_wishes
from hibali_cli.options import Common

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hibali.sites import Site
    from registry.catalogue import Catalogue
    from registry.invocation import Invocation
    from registry.pipeline import Pipeline
    from runs.container import Container
    from runs.fast import Marks
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
            "hibali run conform answers.json --site juwels --cores 8 --memory 32G --time 4h",
            "Ask for more than the author suggests and the site gives by default.",
        ),
        (
            "hibali run conform answers.json --each subjects.csv --param threshold=0.1,0.5 --site juwels --wait --collect results",
            "Run it once for each row and threshold, as job arrays.",
        ),
        (
            "hibali run conform answers.json --site auto --explain",
            "Run it where the least has to move, and see why there.",
        ),
        (
            "hibali run conform answers.json --site juwels --wait --dataset derived",
            "Keep outputs and record in the DataLad dataset around derived/.",
        ),
    ],
)
@click.argument("pipeline")
@click.argument("invocation", metavar="[INVOCATION.json]", required=False)
@click.option(
    "--site",
    "site_names",
    required=True,
    multiple=True,
    metavar="SITE|auto",
    help="Run it there; of several, or of all with `auto`, where the least has to move and it waits least.",
)
@click.option("--explain", is_flag=True, help="Show how the sites compare; with --dry-run no more than that.")
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
@click.option(
    "--fast",
    "fast_inputs",
    multiple=True,
    metavar="INPUT[=TIER]",
    help="In the job, copy this input to the site's fast storage first.",
)
@click.option(
    "--fast-work",
    default="",
    metavar="TIER",
    help="Let the tool write on fast storage, and bring what it wrote back at its end.",
)
@click.option("--no-fast", is_flag=True, help="Copy nothing, whatever the site's configuration says.")
@add_job_options
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
    site_names: tuple[str, ...],
    explain: bool,
    each: str | None,
    parameters: tuple[str, ...],
    wait: bool,
    dry_run: bool,
    name: str,
    new: bool,
    image: str,
    fast_inputs: tuple[str, ...],
    fast_work: str,
    no_fast: bool,
    folder: str | None,
    dataset: str | None,
    table: str | None,
    no_save: bool,
    **job: Any,
) -> int | None:
    """Run a pipeline at a site with the answers in a file.

    The same line again continues the run it began, until somebody was told how that ended; then it begins a
    new one. File answers are local paths, from the current folder, or SITE:PATH. With --each and --param it is a sweep: a task for
    each row and each combination of values, which go before the answers of the file. What a job asks for is the author's
    suggestion, unless the site's table says something else, unless the line does.
    """
    from hibali_cli.choosing import Asked, choose_request, is_choice
    from registry.catalogue import Catalogue
    from runs.fast import Marks

    into = Into(folder, dataset, no_save)
    check_collecting(into, wait=wait)
    if any(ord(letter) < 32 for letter in name) or len(name) > 200:
        raise UsageError("bad-name", "a run's name is one short line", about="--name")
    catalogue = Catalogue()
    found = catalogue.find(pipeline)
    deprecation = catalogue.deprecation(found)
    if deprecation is not None:
        common.output.warn(f"{found.reference}: {deprecation}")
    if no_fast and (fast_inputs or fast_work):
        raise UsageError("contradiction", "--no-fast leaves nothing fast", about="--no-fast")
    marks = Marks(fast_inputs, fast_work, no_fast)
    wanted = wanted_of(job)
    choosing = Asked(site_names, image, name, new, explain, marks, wanted)
    answers = None if invocation is None else Path(invocation)
    if each is not None or parameters:
        from hibali_cli.sweeping import SweepLine, run_sweep

        if is_choice(choosing, common.settings()) or fast_inputs or fast_work:
            raise UsageError(
                "usage",
                "a sweep is at one named site, and nothing of it on fast storage",
                about="--each, --param",
                hint="Name one --site, and leave out --explain and --fast; of a site's own `fast` a sweep takes nothing.",
            )
        tasks = SweepLine(None if each is None else Path(each), parameters, table)
        asked = {"name": name, "new": new, "image": image, "wanted": wanted}
        return run_sweep(
            common, catalogue, found, answers, tasks, site_names[0], asked, into, wait=wait, dry_run=dry_run
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
    if is_choice(choosing, common.settings()):
        request = choose_request(common, found, answers, choosing)
        if explain and dry_run:
            return None
    else:
        request = read_request(
            common, found, answers, site_names[0], image, identify=not dry_run, marks=marks
        )
    request = with_wishes(common, request, wanted)
    if dataset is not None:
        from runs.dataset import asked_before, keep_in

        keep_in(dataset, asked_before([{"asked": request.asked}], found.reference))
    if dry_run:
        _show(common, request)
        return None
    require_consent(common, catalogue, request.pipeline, request.container)
    return run_one(common, replace(request, name=name, new=new, image=image), wait=wait, into=into)


def read_request(
    common: Common,
    pipeline: Pipeline,
    answers: Path,
    site_name: str,
    image: str,
    *,
    identify: bool,
    located: Sequence[Located] | None = None,
    marks: Marks | None = None,
) -> Request:
    """Everything that can be checked here is checked before the site is asked anything.

    `located` are the inputs, where they were looked at without a site already; `marks` say what goes to fast storage.
    """
    from hibali.strict_json import read_json_file
    from hibali_cli.run_site import run_site
    from registry.invocation import check_invocation
    from runs.container import load_container
    from runs.dataset import asked_here
    from runs.fast import NO_MARKS
    from runs.inputs import locate_inputs, seen_from

    site = run_site(common, site_name)
    invocation = check_invocation(pipeline, read_json_file(answers))
    load_container(site.container).image_name(pipeline.container)
    if located is None:
        located = locate_inputs(invocation, common.settings(), site, identify=identify)
    located = seen_from(located, site)
    asked = asked_here(answers, located, image).to_fields()
    return make_request(pipeline, invocation, located, site, image, asked, marks or NO_MARKS)


def make_request(
    pipeline: Pipeline,
    invocation: Invocation,
    located: Sequence[Located],
    site: Site,
    image: str,
    asked: Mapping[str, Any],
    marks: Marks | None = None,
) -> Request:
    """The request of these answers at a site, with its inputs located; without `marks` nothing goes to fast storage."""
    from hibali_cli.catalogue import pinned_image
    from registry.catalogue import Catalogue
    from runs.container import load_container
    from runs.fast import NOTHING_FAST, read_fast
    from runs.launch import Request
    from runs.scheduler import load_scheduler

    container = load_container(site.container)
    inputs = tuple(each.input for each in located)
    in_place = [each.identity is None for each in located]
    names_archive = bool(image) and not image.startswith("sha256:")
    takes_pinned = container.isolates and bool(container.formats) and not names_archive
    return Request(
        pipeline=pipeline,
        invocation=invocation,
        inputs=inputs,
        places=tuple(each.place for each in located),
        identities=tuple(each.identity for each in located),
        site=site,
        scheduler=load_scheduler(site.scheduler.name if site.scheduler else "direct"),
        container=container,
        pinned=pinned_image(Catalogue(), pipeline) if takes_pinned else None,
        fast=NOTHING_FAST if marks is None else read_fast(site, inputs, in_place, marks),
        asked=asked,
    )


def require_consent(common: Common, catalogue: Catalogue, pipeline: Pipeline, container: Container) -> None:
    """Where nothing confines it, the tool is its author's code with all of the user's rights (S11)."""
    if container.confines or catalogue.is_trusted(pipeline.digest):
        return
    how = (
        f"in {container.name}, which shows it the site's folders"
        if container.isolates
        else "without a container"
    )
    asked = f"{pipeline.reference} runs {how}: as you, on all your files. Trust it?"
    if not common.json and sys.stdin.isatty() and sys.stderr.isatty() and click.confirm(asked, err=True):
        catalogue.trust(pipeline.reference)
        return
    raise RefusedError(
        "not-trusted",
        f"this pipeline's code runs {how}, as you, and nobody has consented to that",
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
    if prepared.fast:
        files["fast.sh"] = prepared.fast
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
                "resources": prepared.asked.to_fields(),
                "submit": list(prepared.submit),
                "files": dict(files),
                "outputs": outputs,
            },
        )
        return
    say_asked(common.output, prepared.asked)
    for path, content in files.items():
        common.output.say(f"--- {prepared.folder}/{path}")
        if sys.stdout.isatty():
            for line in content.splitlines():
                common.output.line(line)
        else:
            common.output.raw(content.encode("utf-8", "surrogateescape"))
