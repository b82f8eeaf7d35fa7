"""Collecting a run's outputs, whoever asked for it, and how that is told."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hibali_cli.options import Common

if TYPE_CHECKING:
    from hibali.events import Listener
    from runs.book import Book
    from runs.run import Run
    from transfers.receipt import Receipt
    from transfers.request import Saving


def collect_outputs(
    common: Common, book: Book, run: Run, folder: str, tell: Listener, saving: Saving
) -> Receipt:
    """Pull the outputs into a folder. Raises what `runs.collect.collect` does."""
    from hibali.locations import read_location
    from hibali_cli.run_site import run_site
    from runs.collect import collect

    target = read_location(folder, common.settings())
    return collect(run, run_site(common, run.site), target, book, tell, saving=saving)


def saving_in(book: Book, run: Run, dataset: str) -> Saving:
    """The commit that keeps a run in a dataset. Raises `UsageError`."""
    from runs.dataset import asked_before, keep_in, saving_of

    return saving_of(keep_in(dataset, asked_before(book.records(run.id), run.id)), run)


def tell_collected(common: Common, receipt: Receipt) -> None:
    """A record for programs, one sentence for people."""
    if common.json:
        record = receipt.to_record()
        common.output.record(
            "receipt", {name: record[name] for name in record if name not in {"schema", "kind"}}, flush=True
        )
    else:
        common.output.say(
            f"{receipt.files} files in {receipt.target}, {receipt.files_moved} moved, proof {receipt.proof_moved or 'none needed'}"
        )
