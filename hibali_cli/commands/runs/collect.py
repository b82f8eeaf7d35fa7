"""`hibali runs collect`."""

from __future__ import annotations

import click

from hibali_cli.command import command as as_command
from hibali_cli.options import OUTPUT_FILE, OUTPUT_PLACE, Common


@as_command(
    "collect",
    resumes=True,
    examples=[
        ("hibali runs collect 20260102-030405-0a1b2c3d results", "Pull the outputs into results/, verified."),
        (
            "hibali runs collect 20260102-030405-0a1b2c3d results --table results/all.csv",
            "Pull what the tasks of a sweep left into results/1/, results/2/ ..., and list it.",
        ),
        (
            "hibali runs collect 20260102-030405-0a1b2c3d --dataset study/derived",
            "The same into a dataset, with a record of the run.",
        ),
    ],
)
@click.argument("run_id", metavar="ID")
@click.argument("folder", metavar="[DIR]", type=OUTPUT_PLACE, required=False)
@click.option(
    "--dataset",
    metavar="DIR",
    type=OUTPUT_FILE,
    help="Collect into DIR in a DataLad dataset, and save with a record that `datalad rerun` repeats.",
)
@click.option(
    "--table",
    metavar="FILE",
    type=OUTPUT_FILE,
    help="A .csv, .jsonl or .parquet file of a sweep's tasks and outputs.",
)
@click.option("--no-save", is_flag=True, help="Leave what comes into a dataset uncommitted.")
def command(
    common: Common,
    run_id: str,
    *,
    folder: str | None,
    dataset: str | None,
    table: str | None,
    no_save: bool,
) -> int | None:
    """Pull every declared output of a run into DIR (default: ./ID), verified.

    A run that failed is exit 7, whatever its tool left, or exit 9 when the tool ended with 0 and left a required output missing; exit 6 names an
    output of a successful run that has vanished or is no regular file. Of a sweep all tasks that have
    ended are collected, each into a folder with its number.
    """
    from hibali.errors import RunFailedError, UsageError
    from hibali_cli.collecting import Into, collect_outputs, saving_in, tell_collected
    from hibali_cli.progress import listening
    from hibali_cli.run_record import find_failure
    from hibali_cli.run_site import update_runs
    from runs.model import State
    from runs.store import Book
    from transfers.request import Saving

    if dataset is not None and (folder is not None or no_save):
        raise UsageError("usage", "it says where outputs go, and that they are saved", about="--dataset")
    book = Book()
    run = book.load(run_id)
    if run.sweep is not None:
        from hibali_cli.sweeping import collect_sweep

        return collect_sweep(common, book, run, Into(folder, dataset, no_save), table)
    if table is not None:
        raise UsageError("usage", "it is for a sweep, and this run is none", about="--table")
    with listening(common, f"collect {run.id}") as tell:
        [run] = update_runs(common, book, [run], tell)
        saving = Saving(save=not no_save)
        if dataset is not None and run.state is State.SUCCEEDED:
            saving = saving_in(book, run, dataset)
        receipt = collect_outputs(common, book, run, dataset or folder or f"./{run.id}", tell, saving)
    tell_collected(common, receipt)
    if not run.reported:
        book.note(run.id, "reported")
    failure = find_failure(run)
    if isinstance(failure, RunFailedError) and not common.json:
        raise failure
    return int(receipt.exit)
