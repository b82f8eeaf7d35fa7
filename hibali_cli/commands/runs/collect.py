"""`hibali runs collect`."""

from __future__ import annotations

import click

from hibali_cli.command import command as as_command
from hibali_cli.options import Common


@as_command(
    "collect",
    examples=[
        ("hibali runs collect 20260102-030405-0a1b2c3d results", "Pull the outputs into results/, verified."),
    ],
)
@click.argument("run_id", metavar="ID")
@click.argument("folder", metavar="[DIR]", required=False)
def command(common: Common, run_id: str, folder: str | None) -> int | None:
    """Pull every declared output of a run into DIR (default: ./ID), verified.

    Exit 6 names a required output that is missing; a tool that failed is exit 7, whatever it left.
    """
    from hibali.errors import RunFailedError
    from hibali.locations import read_location
    from hibali_cli.progress import listening
    from hibali_cli.run_record import find_failure
    from hibali_cli.run_site import run_site, update_runs
    from runs.book import Book
    from runs.collect import collect

    book = Book()
    run = book.load(run_id)
    settings = common.settings()
    target = read_location(folder or f"./{run.id}", settings)
    with listening(common, f"collect {run.id}") as tell:
        [run] = update_runs(common, book, [run], tell)
        receipt = collect(run, run_site(common, run.site), target, book, tell)
    if common.json:
        record = receipt.to_record()
        common.output.record(
            "receipt", {name: record[name] for name in record if name not in {"schema", "kind"}}, flush=True
        )
    else:
        common.output.say(
            f"{receipt.files} files in {target.text}, {receipt.files_moved} moved, proof {receipt.proof_moved or 'none needed'}"
        )
    if not run.reported:
        book.note(run.id, "reported")
    failure = find_failure(run)
    if isinstance(failure, RunFailedError) and not common.json:
        raise failure
    return int(receipt.exit)
