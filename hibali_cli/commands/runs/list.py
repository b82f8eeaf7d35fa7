"""`hibali runs list`."""

from __future__ import annotations

import click

from hibali_cli.command import command as as_command
from hibali_cli.options import Common


def _states_of(context: click.Context, option: click.Parameter, texts: tuple[str, ...]) -> tuple[str, ...]:
    """Upper-case names of states; raises `click.BadParameter` for one that is none."""
    from runs.model import State

    words = tuple(word.strip().upper() for text in texts for word in text.split(","))
    known = [str(state) for state in State]
    for word in words:
        if word not in known:
            raise click.BadParameter(f"{word!r} is not one of {', '.join(known)}.", context, option)
    return words


@as_command(
    "list",
    examples=[
        ("hibali runs list", "See every run as it was last heard of."),
        ("hibali runs list --update", "Ask each site once first."),
        ("hibali runs list --state FAILED,LOST", "See those that somebody has to look at."),
    ],
)
@click.option("--update", is_flag=True, help="Ask each site with runs under way, once.")
@click.option(
    "--state",
    "states",
    metavar="STATE,...",
    multiple=True,
    callback=_states_of,
    help="Only runs in one of these states, such as RUNNING,LOST; repeatable.",
)
@click.option("--site", "site_name", metavar="SITE", help="Only runs at SITE.")
def command(common: Common, *, update: bool, states: tuple[str, ...], site_name: str | None) -> int | None:
    """List runs, oldest first, as they were last heard of."""
    from hibali_cli.progress import listening
    from hibali_cli.run_site import update_runs
    from hibali_cli.sweep_record import tasks_text
    from runs.store import Book

    book = Book()
    runs = [run for run in book.all() if site_name in {None, run.site}]
    if update:
        with listening(common, "runs") as tell:
            runs = update_runs(common, book, runs, tell)
    runs = [run for run in runs if not states or run.state in states]
    if common.json:
        for run in runs:
            common.output.record("run", run.to_record())
        common.output.record("end", {"count": len(runs), "exit": 0})
        return None
    rows = [
        (
            run.id,
            run.state,
            tasks_text(run.sweep) if run.sweep is not None else None,
            run.pipeline,
            run.site,
            run.name or None,
            len(run.collected),
        )
        for run in runs
    ]
    common.output.table(["run", "state", "tasks", "pipeline", "site", "name", "collected"], rows)
    return None
