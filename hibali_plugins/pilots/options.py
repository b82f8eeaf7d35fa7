"""Add --pilot and --allocations to `hibali run`."""

from __future__ import annotations

import click

from hibali_cli.command import AddedOptions

run_options = AddedOptions(
    (
        click.Option(
            ["--pilot"],
            is_flag=True,
            help="Run the tasks of a sweep inside one job with the requested resources, as many at once as it has cores; best for short tasks.",
        ),
        click.Option(
            ["--allocations"],
            type=click.IntRange(1, 1000),
            metavar="N",
            help="If the job of --pilot ends before its tasks, the next one continues them, at most N jobs in all (default: 5).",
        ),
    ),
    after="only_missing",
    examples=(
        (
            "hibali run count answers.json --each subjects.csv --pilot --cores 32 --time 2h --site juwels --wait",
            "Run short tasks in one job, 32 at once.",
        ),
    ),
)
