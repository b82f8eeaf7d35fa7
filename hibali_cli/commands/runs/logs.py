"""`hibali runs logs`."""

from __future__ import annotations

import sys

import click

from hibali_cli.command import command as as_command
from hibali_cli.options import Common


@as_command(
    "logs",
    examples=[
        ("hibali runs logs 20260102-030405-0a1b2c3d", "See what the tool printed."),
        ("hibali runs logs ID --task 17", "See what one task of a sweep printed."),
        ("hibali runs logs ID --stderr >errors.txt", "Keep what it printed to stderr, byte for byte."),
    ],
)
@click.argument("run_id", metavar="ID")
@click.option("--stderr", "stream", flag_value="stderr", help="What went to standard error.")
@click.option("--stdout", "stream", flag_value="stdout", default=True, help="What went to standard output.")
@click.option("--scheduler", "stream", flag_value="scheduler.log", help="What the job itself said.")
@click.option("--task", type=int, metavar="N", help="Of a sweep, the task of this number.")
def command(common: Common, run_id: str, stream: str, task: int | None) -> int | None:
    """Print what the tool wrote; on a terminal control characters are escaped."""
    from hibali_cli.progress import listening
    from hibali_cli.run_site import opener, run_site
    from runs.book import Book
    from runs.logs import read_log
    from runs.sweeps.sweep import choose_task

    run = choose_task(Book().load(run_id), task, log_of_job=stream == "scheduler.log")
    with listening(common, f"logs {run.id}") as tell:
        far = opener(run_site(common, run.site), tell)()
        try:
            for piece in read_log(far, run, stream):  # type: ignore[arg-type]
                _show(common, run_id, stream, piece)
        finally:
            far.close()
    return None


def _show(common: Common, run_id: str, stream: str, piece: bytes) -> None:
    """Bytes as they are into a file or pipe; never to a terminal (S17)."""
    if common.json:
        from hibali.text import path_fields

        common.output.record("log", {"id": run_id, "stream": stream, **path_fields(piece, "text")})
    elif sys.stdout.isatty():
        for line in piece.splitlines():
            common.output.line(line)
    else:
        common.output.raw(piece)
