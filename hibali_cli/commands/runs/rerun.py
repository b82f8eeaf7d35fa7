"""`hibali runs rerun`."""

from __future__ import annotations

import click

from hibali_cli.collecting import Into, check_collecting
from hibali_cli.command import command as as_command
from hibali_cli.options import OUTPUT_FILE, OUTPUT_PLACE, Common


@as_command(
    "rerun",
    resumes=True,
    examples=[
        ("hibali runs rerun 20260102-030405-0a1b2c3d", "Run it once more, with the same answers."),
        (
            "hibali runs rerun 20260102-030405-0a1b2c3d --failed --wait --collect results",
            "Run the tasks of a sweep again that failed, and complete its results.",
        ),
    ],
)
@click.argument("run_id", metavar="ID")
@click.option(
    "--failed", is_flag=True, help="Only what failed, was cancelled or is LOST; nothing where all is well."
)
@click.option(
    "--wait",
    is_flag=True,
    help="Wait for the end; exit 7 when the tool fails, 9 when a required output is missing.",
)
@click.option(
    "--collect",
    "folder",
    metavar="DIR",
    type=OUTPUT_PLACE,
    help="With --wait, pull the outputs into DIR afterwards.",
)
@click.option(
    "--table",
    metavar="FILE",
    type=OUTPUT_FILE,
    help="With --wait, a .csv, .jsonl or .parquet file of a sweep's tasks.",
)
@click.option("--no-save", is_flag=True, help="With --collect, leave what comes into a dataset uncommitted.")
def command(
    common: Common,
    run_id: str,
    *,
    failed: bool,
    wait: bool,
    folder: str | None,
    table: str | None,
    no_save: bool,
) -> int | None:
    """Run again what was run, as a new run; the tasks of a sweep keep their numbers.

    The same line again continues what it began, until somebody was told how that ended; then it begins a new one.
    """
    from hibali_cli.sweeping import rerun

    into = Into(folder, None, no_save)
    check_collecting(into, wait=wait)
    return rerun(common, run_id, into, table, failed=failed, wait=wait)
