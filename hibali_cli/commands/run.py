"""`hibali run`."""

from __future__ import annotations

import click

from hibali_cli.command import Section, command
from hibali_cli.run_options import LAYOUT, add_run_options


@command(
    "run",
    calls="hibali_cli.handlers.launch:run_pipeline",
    section=Section.EVERYDAY,
    layout=LAYOUT,
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
def run_command() -> None:
    """Run a pipeline at a site with the input values in a file.

    Running the same command again resumes the run that it started, until hibali has reported how that run ended; then it starts
    a new one. Values of file inputs are local paths, relative to the current folder, SITE:PATH, or run:ID/OUTPUT-ID for the output of another run.
    --each and --param make a sweep: a task for each row and each combination of values, which replace values of the file.
    The resources of a job are those of the command line, else those of the site's table, else those that the pipeline suggests.
    """
