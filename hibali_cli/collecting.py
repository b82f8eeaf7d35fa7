"""Collecting a run's outputs, whoever asked for it, and how that is told."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from hibali.errors import UsageError
from hibali_cli.options import Common

if TYPE_CHECKING:
    from hibali.events import Listener
    from runs.model import Run
    from runs.store import Book
    from transfers.journal import Receipt
    from transfers.request import Saving


def collect_outputs(
    common: Common, book: Book, run: Run, folder: str, tell: Listener, saving: Saving
) -> Receipt:
    """Pull the outputs into a folder. Raises what `runs.collect.collect` does."""
    from hibali.locations import read_target
    from hibali_cli.run_site import ask_usage, run_site
    from runs.collect import collect

    target = read_target(folder, common.settings())
    ask_usage(common, book, run, tell)
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


class Into(NamedTuple):
    """Where outputs go after a run that is waited for, if anywhere."""

    folder: str | None
    dataset: str | None
    no_save: bool


def check_collecting(into: Into, *, wait: bool) -> None:
    """Raise `UsageError` for what cannot be asked for together."""
    folder, dataset, no_save = into
    if folder is not None and dataset is not None:
        raise UsageError(
            "usage", "outputs go to one place: it says where, as --collect does", about="--dataset"
        )
    if (folder is not None or dataset is not None) and not wait:
        option = "--collect" if dataset is None else "--dataset"
        later = "DIR" if dataset is None else "--dataset DIR"
        hint = f"Add --wait; or, when the run has ended: hibali runs collect ID {later}"
        raise UsageError("usage", "outputs are there when the run has ended", about=option, hint=hint)
    if no_save and folder is None:
        raise UsageError("usage", "it is for --collect", about="--no-save")


def collect_into(common: Common, book: Book, run: Run, into: Into, tell: Listener) -> Receipt | None:
    """Outputs of a run that succeeded; of one that failed nothing is kept unasked."""
    from runs.model import State
    from transfers.request import Saving

    folder = into.dataset or into.folder
    if folder is None or run.state is not State.SUCCEEDED:
        return None
    saving = Saving(save=not into.no_save)
    if run.kept:
        return _collect_kept(common, book, run, folder, saving, tell)
    if into.dataset is not None:
        saving = saving_in(book, run, into.dataset)
    return collect_outputs(common, book, run, folder, tell, saving)


def _collect_kept(
    common: Common, book: Book, run: Run, folder: str, saving: Saving, tell: Listener
) -> Receipt:
    """From where they were collected before."""
    from hibali.errors import NotFoundError
    from hibali.locations import read_target
    from runs.inputs import bring_kept, find_kept

    kept = find_kept(run, book)
    if kept is None:
        raise NotFoundError("outputs-gone", "what the run left was taken away at this moment", about=run.id)
    return bring_kept(kept, read_target(folder, common.settings()), saving, tell)
