"""`hibali runs logs`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from hibali_cli.command import command as as_command
from hibali_cli.options import Common

if TYPE_CHECKING:
    from hibali_cli.log_lines import LogLines
    from runs.logs import Stream
    from runs.model import Run
    from runs.store import Book


@as_command(
    "logs",
    examples=[
        ("hibali runs logs 20260102-030405-0a1b2c3d", "See what the tool printed."),
        ("hibali runs logs ID --task 17", "See what one task of a sweep printed."),
        ("hibali runs logs ID --stderr >errors.txt", "Keep what it printed to stderr, byte for byte."),
        ("hibali runs logs -f ID", "See both as they come, until the run has ended."),
    ],
)
@click.argument("run_id", metavar="ID")
@click.option("-f", "--follow", is_flag=True, help="Go on as more is written, until the run has ended.")
@click.option("--stderr", "stream", flag_value="stderr", help="What went to standard error.")
@click.option("--stdout", "stream", flag_value="stdout", help="What went to standard output.")
@click.option("--scheduler", "stream", flag_value="scheduler.log", help="What the job itself said.")
@click.option("--task", type=int, metavar="N", help="Of a sweep, the task of this number.")
def command(
    common: Common, run_id: str, *, follow: bool, stream: Stream | None, task: int | None
) -> int | None:
    """Print what the tool wrote to standard output; on a terminal control characters are escaped.

    With --follow both streams are shown, each where it belongs, unless one is named. A run that waits is waited for.
    """
    from hibali_cli.log_lines import LogLines
    from runs.records import choose_task
    from runs.store import Book

    book = Book()
    run = choose_task(book.load(run_id), task, log_of_job=stream == "scheduler.log")
    lines = LogLines(common, run.id, apart=follow and stream is None)
    if not follow:
        _print(common, run, stream or "stdout", lines)
        return None
    try:
        ended = _follow(common, book, run, task, ("stdout", "stderr") if stream is None else (stream,), lines)
    finally:
        lines.end()
    if common.json:
        common.output.record("run", ended.to_record())
    else:
        common.output.say(f"{ended.id} {ended.state}")
    return None


def _print(common: Common, run: Run, stream: Stream, lines: LogLines) -> None:
    from hibali_cli.progress import listening
    from hibali_cli.run_site import opener, run_site
    from runs.logs import read_log

    with listening(common, f"logs {run.id}") as tell:
        far = opener(run_site(common, run.site), tell)()
        try:
            for piece in read_log(far, run, stream):
                lines.show(stream, piece)
            lines.end()
        finally:
            far.close()


def _follow(
    common: Common, book: Book, run: Run, task: int | None, streams: tuple[Stream, ...], lines: LogLines
) -> Run:
    from hibali_cli.progress import listening
    from hibali_cli.run_site import opener, run_site
    from runs.logs import follow_logs
    from runs.schedulers.base import load_scheduler

    site = run_site(common, run.site)
    with listening(common, f"logs {run.id}") as tell:
        return follow_logs(
            opener(site, tell),
            load_scheduler(run.scheduler),
            book,
            run,
            streams,
            lines.show,
            limits=site.limits,
            task=task,
            tell=tell,
        )
