"""What `run` adds for chains: its options, and waiting for runs of other sites that have to have ended first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from hibali.errors import UsageError
from hibali_cli.options import Common

if TYPE_CHECKING:
    from hibali.config.model import Site
    from runs.containers.base import Container
    from runs.model import Run
    from runs.store import Reference


class Order(NamedTuple):
    """When a run is to start: after which others, by their ids, and whether on hold. With `wait` they are waited for.

    A `sweep` comes after the end of whatever it takes from. What was `heard` of the others just now is in the ledger: nobody is asked again.
    """

    after: tuple[str, ...] = ()
    hold: bool = False
    wait: bool = False
    sweep: bool = False
    heard: bool = False


_OPTIONS: tuple[Callable[[Any], Any], ...] = (
    click.option(
        "--after",
        multiple=True,
        metavar="ID",
        help="Start when this run has succeeded; may be repeated.",
    ),
    click.option("--hold", is_flag=True, help="Start only when somebody says `hibali runs release`."),
    click.option(
        "--reuse/--fresh",
        default=None,
        envvar="HIBALI_REUSE",
        help="Take what a run of the same pipeline, values and inputs left, wherever it ran; or compute it again. "
        "HIBALI_REUSE=1 in the environment is as --reuse.",
    ),
)


def add_chain_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of chains."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def check_alone(order: Order) -> None:
    """Raise `UsageError` for what only a single run can be asked for."""
    if order.after or order.hold:
        raise UsageError(
            "usage", "a sweep starts when it is submitted", about="--after" if order.after else "--hold"
        )


def check_reusing(reuse: bool | None, *, new: bool, dataset: str | None) -> bool:  # noqa: FBT001 - as click has it
    """Whether to look for a run that can be reused; `--new` always starts one. Raises `UsageError` for what goes not together."""
    if reuse and dataset is not None:
        raise UsageError(
            "usage",
            "a dataset keeps a run with the line that began it, and another line began one that is reused",
            about="--dataset",
            hint="Add --fresh.",
        )
    return bool(reuse) and not new


def load_first(order: Order) -> list[Run]:
    """The runs that come first by name, as the ledger has them; raises `NotFoundError`."""
    from runs.store import Book

    return [Book().load(each) for each in dict.fromkeys(order.after)]


def settle(
    common: Common, references: Sequence[Reference], order: Order, site: Site, container: Container
) -> list[Run]:
    """The runs that come first by name, when all that have to have ended before have succeeded.

    The others are left to the scheduler. Raises `NotFoundError`, and what `runs.dependencies.require_success` does.
    """
    from hibali_cli.progress import listening
    from hibali_cli.run_site import update_runs, wait_for_runs
    from runs.dependencies import must_end_before, needed_parts, require_success
    from runs.schedulers.base import load_scheduler
    from runs.store import Book

    book = Book()
    taken: dict[str, list[Reference]] = {run_id: [] for run_id in order.after}
    for each in references:
        taken.setdefault(each.run, []).append(each)
    scheduler = load_scheduler(site.scheduler.name if site.scheduler else "direct")

    def needed(run: Run) -> list[Run]:
        return needed_parts(run, [] if run.id in order.after else taken[run.id])

    first = [
        run
        for run in map(book.load, taken)
        if order.sweep or must_end_before(run, taken[run.id], needed(run), site, container, scheduler)
    ]
    waited = [run for run in first if not all(part.state.final for part in needed(run))]
    if waited and not order.heard:
        with listening(common, "waiting for runs that come first") as tell:
            (wait_for_runs if order.wait else update_runs)(common, book, waited, tell)
    for run in first:
        for part in needed(book.load(run.id)):
            require_success(part)
    return load_first(order)
