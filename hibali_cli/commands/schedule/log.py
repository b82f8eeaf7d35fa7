"""`hibali schedule log`."""

from __future__ import annotations

from datetime import datetime

import click

from hibali.amounts import size_words, time_words
from hibali.errors import NotFoundError
from hibali_cli.command import command as as_command
from hibali_cli.options import Common
from hibali_cli.scheduling import outcome_words

_EXAMPLES = [
    ("hibali schedule log nightly", "See how the last 30 runs of nightly went."),
    ("hibali schedule log nightly --text -n 100", "Read the last 100 lines of what it said."),
]


@as_command("log", examples=_EXAMPLES)
@click.argument("name")
@click.option(
    "-n", "count", type=click.IntRange(1), default=30, show_default=True, help="So many of the last ones."
)
@click.option("--text", is_flag=True, help="What the runs said, instead of how they went.")
def command(common: Common, name: str, *, count: int, text: bool) -> int | None:
    """Show how the runs of a schedule went, the last one last."""
    from runs.schedules.records import fired_schedules, read_firings
    from runs.schedules.schedule import load_schedules

    if name not in fired_schedules():
        load_schedules(common.config).one(name)
    if text:
        _show_text(common, name, count)
        return None
    firings = read_firings(name)[-count:]
    if common.json:
        for firing in firings:
            common.output.record("firing", firing.to_record())
        common.output.record("end", {"count": len(firings), "exit": 0})
        return None
    rows = [
        (
            f"{datetime.fromisoformat(each.began).astimezone():%Y-%m-%d %H:%M:%S}",
            outcome_words(each) + (" (made up)" if each.made_up else ""),
            None if each.seconds is None else time_words(each.seconds),
            each.amount("files_moved") if each.amounts else None,
            size_words(each.amount("bytes_moved")) if each.amounts else None,
            each.amount("files_failed") if each.amounts else None,
            each.proof,
            each.message or (each.operations or each.runs or (None,))[-1],
        )
        for each in firings
    ]
    common.output.table(["began", "how", "took", "files", "bytes", "failed", "proof", "what"], rows)
    return None


def _show_text(common: Common, name: str, count: int) -> None:
    from runs.schedules.records import log_path

    try:
        lines = log_path(name).read_bytes().splitlines()
    except FileNotFoundError:
        raise NotFoundError("no-log", "nothing was said yet", about=name) from None
    if common.json:
        common.output.record(
            "log",
            {"id": name, "stream": "stderr", "text": b"\n".join(lines[-count:]).decode("utf-8", "replace")},
        )
        return
    for line in lines[-count:]:
        common.output.line(line)
