"""`hibali runs compare`."""

from __future__ import annotations

import click

from hibali_cli.command import command as as_command
from hibali_cli.options import OUTPUT_FILE, Common


@as_command(
    "compare",
    examples=[
        ("hibali runs compare A_ID B_ID", "See what differs of two runs and of what they left."),
        ("hibali runs compare A_ID B_ID --by 'cmp -n 100'", "Let a command say what is alike enough."),
    ],
)
@click.argument("a", metavar="A_ID")
@click.argument("b", metavar="B_ID")
@click.option(
    "--by",
    metavar="COMMAND",
    help="For outputs that differ: COMMAND A B ends with 0 where they are alike enough.",
)
@click.option(
    "--dir",
    "folder",
    metavar="DIR",
    type=OUTPUT_FILE,
    help="With --by, bring what is not here into DIR and keep it.",
)
def command(common: Common, a: str, b: str, *, by: str | None, folder: str | None) -> int | None:
    """Compare what two runs left, by digest: exit 0 where all of it is the same, 6 where it is not.

    Nothing is moved: what was not collected is hashed where it lies. Only for --by, what differs is brought here.
    Of sweeps the tasks are compared that answer the same; a run that is no sweep is one task.
    """
    from hibali_cli.comparing import compare_runs, read_command, tell_comparison
    from hibali_cli.progress import listening
    from hibali_cli.run_site import update_runs
    from runs.store import Book

    words = read_command(by, folder)
    book = Book()
    runs = [book.load(a), book.load(b)]
    with listening(common, f"compare {a} {b}") as tell:
        runs = update_runs(common, book, runs, tell)
        found = compare_runs(common, book, runs, words, folder, tell)
    return tell_comparison(common, found, asked=bool(words))
