"""`hibali run`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from hibali_cli.command import Section, command
from hibali_cli.options import Common
from hibali_cli.run_options import add_run_options

if TYPE_CHECKING:  # start-up: not for --help
    from runs.options import RunOptions


@command(
    "run",
    section=Section.EVERYDAY,
    resumes=True,
    examples=[
        ("hibali run conform@1.0 answers.json --site juwels", "Start a run and print its id."),
        ("hibali run conform answers.json --site juwels --wait", "Start it and wait for its end."),
        ("hibali run conform answers.json --site juwels --dry-run", "See what would be submitted."),
        (
            "hibali run conform answers.json --site juwels --cores 8 --memory 32G --time 4h",
            "Request other resources than the pipeline suggests.",
        ),
        (
            "hibali run conform answers.json --site juwels --wait --collect results --reuse",
            "Collect the outputs, reusing an earlier equal run.",
        ),
        (
            "hibali run report answers.json --site juwels --after 20260102-030405-0a1b2c3d --hold",
            "Start it after another run, on hold until `hibali runs release`.",
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
            "Run it where the fewest bytes have to move, and show why.",
        ),
        (
            "hibali run conform answers.json --site juwels --wait --dataset derived",
            "Save outputs and a record of the run in the DataLad dataset that contains derived/.",
        ),
    ],
)
@click.argument("pipeline")
@click.argument("invocation", metavar="[INVOCATION.json]", required=False)
@add_run_options
def run_command(
    common: Common, *, pipeline: str, invocation: str | None, options: RunOptions, dry_run: bool
) -> int | None:
    """Run a pipeline at a site with the input values in a file.

    Running the same command again resumes the run that it started, until hibali has reported how that run ended; then it starts
    a new one. Values of file inputs are local paths, relative to the current folder, SITE:PATH, or run:ID/OUTPUT-ID for the output of another run.
    --each and --param make a sweep: a task for each row and each combination of values, which replace values of the file.
    With --pilot its tasks share one job with the requested resources; if it ends before they do, the next job continues them.
    The resources of a job are those of the command line, else those of the site's table, else those that the pipeline suggests.
    """
    # local: the handlers load every part of a run, and `--help` needs none
    from hibali_cli.handlers.launch import find_pipeline, run_single
    from hibali_cli.handlers.sweeps import run_sweep
    from registry.catalogue import Catalogue

    catalogue = Catalogue()
    found = find_pipeline(common, catalogue, pipeline)
    invocation_path = None if invocation is None else Path(invocation)
    start = run_single if options.sweep is None else run_sweep
    return start(common, catalogue, found, invocation_path, options, dry_run=dry_run)
