"""`hibali run`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hibali.errors import UsageError
from hibali_cli.command import command
from hibali_cli.handlers.launch import (
    Into,
    check_collecting,
    read_request,
    require_consent,
    run_one,
    show_request,
)
from hibali_cli.options import OUTPUT_FILE, OUTPUT_PLACE, Common
from hibali_cli.run_options import (
    Order,
    add_chain_options,
    add_job_options,
    check_alone,
    check_reusing,
    notify_option,
    read_resource_options,
    with_proxy,
    with_wishes,
)

if TYPE_CHECKING:
    from runs.fast_storage import FastOptions


@command(
    "run",
    resumes=True,
    examples=[
        ("hibali run conform@1.0 answers.json --site juwels", "Start a run and print its id."),
        ("hibali run conform answers.json --site juwels --wait", "Start it and wait for its end."),
        ("hibali run conform answers.json --site juwels --dry-run", "See what would be submitted."),
        (
            "hibali run conform answers.json --site juwels --cores 8 --memory 32G --time 4h",
            "Ask for more than the author suggests and the site gives by default.",
        ),
        (
            "hibali run conform answers.json --site juwels --wait --collect results --reuse",
            "Have the results there, computed once.",
        ),
        (
            "hibali run report answers.json --site juwels --after 20260102-030405-0a1b2c3d --hold",
            "Start it after another run, when somebody lets it go.",
        ),
        (
            "hibali run conform answers.json --each subjects.csv --param threshold=0.1,0.5 --site juwels --wait --collect results",
            "Run it once for each row and threshold, as job arrays.",
        ),
        (
            "hibali run count answers.json --each subjects.csv --pilot --cores 32 --time 2h --site juwels --wait",
            "Run short tasks in one job, 32 at once.",
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
@click.option(
    "--pilot",
    is_flag=True,
    help="Of a sweep, run the tasks inside one job, as many at once as it has cores; best for short ones.",
)
@click.option(
    "--allocations",
    type=click.IntRange(1, 1000),
    metavar="N",
    help="With --pilot, submit at most N jobs, one after the other, until all tasks have ended; 5 where not said.",
)
@click.option(
    "--wait",
    is_flag=True,
    help="Wait for the end; exit 7 when the tool fails, 9 when a required output is missing.",
)
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
@click.option(
    "--with-proxy/--no-proxy",
    "proxy",
    default=None,
    help="Give the job a proxy for GSI of its own, or none whatever the site says.",
)
@click.option(
    "--collect",
    "folder",
    metavar="DIR",
    type=OUTPUT_PLACE,
    help="With --wait, pull the outputs into DIR afterwards.",
)
@click.option(
    "--dataset",
    metavar="DIR",
    type=OUTPUT_FILE,
    help="With --wait, collect into DIR in a DataLad dataset and save, so that `datalad rerun` repeats it.",
)
@click.option(
    "--table",
    metavar="FILE",
    type=OUTPUT_FILE,
    help="With --wait, a .csv, .jsonl or .parquet file of all tasks and outputs.",
)
@click.option("--no-save", is_flag=True, help="With --collect, leave what comes into a dataset uncommitted.")
@add_chain_options
@notify_option
def run_command(
    common: Common,
    *,
    pipeline: str,
    invocation: str | None,
    site_names: tuple[str, ...],
    explain: bool,
    each: str | None,
    parameters: tuple[str, ...],
    pilot: bool,
    allocations: int | None,
    wait: bool,
    dry_run: bool,
    name: str,
    new: bool,
    image: str,
    fast_inputs: tuple[str, ...],
    fast_work: str,
    no_fast: bool,
    proxy: bool | None,
    folder: str | None,
    dataset: str | None,
    table: str | None,
    no_save: bool,
    after: tuple[str, ...],
    hold: bool,
    reuse: bool | None,
    notify: str | None,
    **job: Any,
) -> int | None:
    """Run a pipeline at a site with the answers in a file.

    The same line again continues the run it began, until somebody was told how that ended; then it begins a
    new one. File answers are local paths, from the current folder, SITE:PATH, or run:ID/OUTPUT-ID: what another run leaves.
    With --each and --param it is a sweep: a task for each row and each combination of values, which go before the answers of the file.
    With --pilot its tasks share one job, for which the line asks then; when that ends before they do, the next one goes on.
    What a job asks for is the author's suggestion, unless the site's table says something else, unless the line does.
    """
    from hibali_cli.handlers.site_choice import SiteOptions, choose_request, is_choice
    from registry.catalogue import Catalogue

    into = Into(folder, dataset, no_save)
    check_collecting(into, wait=wait)
    reuses = check_reusing(reuse, new=new, dataset=dataset)
    _check_words(name, notify, wait=wait)
    catalogue = Catalogue()
    found = catalogue.find(pipeline)
    deprecation = catalogue.deprecation(found)
    if deprecation is not None:
        common.output.warn(f"{found.reference}: {deprecation}")
    order = Order(after, hold, wait)
    marks = _marks_of(fast_inputs, fast_work, no_fast=no_fast)
    wanted = read_resource_options(job)
    choosing = SiteOptions(site_names, image, name, new, explain, marks, wanted, proxy)
    answers = None if invocation is None else Path(invocation)
    if each is not None or parameters:
        from hibali_cli.handlers.sweeps import SweepLine, run_sweep

        check_alone(order)
        most = _allocations(allocations, pilot=pilot)
        tasks = SweepLine(None if each is None else Path(each), parameters, table, most)
        return run_sweep(
            common,
            catalogue,
            found,
            answers,
            tasks,
            choosing,
            into,
            wait=wait,
            dry_run=dry_run,
            notify=notify,
        )
    if table is not None:
        raise UsageError("usage", "it is for --each and --param", subject="--table")
    if pilot or allocations is not None:
        raise UsageError(
            "usage", "it is for the tasks of --each and --param", subject="--pilot, --allocations"
        )
    if answers is None:
        raise UsageError(
            "usage",
            "a run needs answers",
            subject="INVOCATION.json",
            hint=f"`hibali pipelines example {found.reference}` starts a file; --param ID=VALUE,... makes a sweep.",
        )
    if is_choice(choosing, common.settings()):
        request = choose_request(common, found, answers, choosing, order)
        if explain and dry_run:
            return None
    else:
        request = read_request(
            common, found, answers, site_names[0], image, order, identify=not dry_run, marks=marks
        )
    request = with_proxy(with_wishes(common, request, wanted), proxy)
    if dataset is not None:
        from runs.dataset import find_dataset, recorded_request

        find_dataset(dataset, recorded_request([{"asked": request.asked}], found.reference))
    if dry_run:
        show_request(common, request)
        return None
    require_consent(common, catalogue, request.pipeline, request.container)
    request = replace(request, name=name, new=new, image=image)
    return run_one(common, request, wait=wait, into=into, reuses=reuses, notify=notify)


def _allocations(most: int | None, *, pilot: bool) -> int:
    """How many jobs a pilot may have, one after the other; 0 for job arrays."""
    from runs.model import MOST_ALLOCATIONS

    if most is not None and not pilot:
        raise UsageError("usage", "it is for --pilot", subject="--allocations")
    return (MOST_ALLOCATIONS if most is None else most) if pilot else 0


def _check_words(name: str, notify: str | None, *, wait: bool) -> None:
    if notify is not None and not wait:
        raise UsageError(
            "usage", "somebody has to wait for the end that it tells", subject="--notify", hint="Add --wait."
        )
    if any(ord(letter) < 32 for letter in name) or len(name) > 200:
        raise UsageError("bad-name", "a run's name is one short line", subject="--name")


def _marks_of(inputs: tuple[str, ...], work: str, *, no_fast: bool) -> FastOptions:
    from runs.fast_storage import FastOptions

    if no_fast and (inputs or work):
        raise UsageError("contradiction", "--no-fast leaves nothing fast", subject="--no-fast")
    return FastOptions(inputs, work, no_fast)
