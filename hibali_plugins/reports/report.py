"""Show the status report on the terminal, as JSON or as an HTML file; write the HTML report of runs."""

from __future__ import annotations

import io
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from hibali.amounts import format_size
from hibali.files import WholeFile
from hibali.text import counted, path_fields, printable
from hibali.unreadable import collect_unreadable, raise_unreadable
from hibali_cli.handlers.run_sites import update_runs
from hibali_cli.options import Common
from hibali_cli.output import coloured
from hibali_cli.progress import listening
from hibali_plugins.reports import run_page
from hibali_plugins.reports.recent import read_recent
from hibali_plugins.reports.status import (
    Day,
    Health,
    Mark,
    Overview,
    ScheduleRow,
    headline,
    mark_of,
    summary,
    to_record,
)
from hibali_plugins.reports.status_data import read_overview
from hibali_plugins.reports.status_page import render
from runs.store import RunStore

_PAGE = "index.html"
_SIGNS = {
    Mark.DONE: (".", "green"),
    Mark.INCOMPLETE: ("i", "yellow"),
    Mark.LATER: ("l", "yellow"),
    Mark.FAILED: ("X", "bold red"),
    Mark.BROKEN: ("B", "bold red"),
    Mark.SKIPPED: ("-", "dim"),
    Mark.RUNNING: (">", "blue"),
}
_COLOURS = {Health.WELL: "green", Health.NEEDS_YOU: "bold red", Health.PAUSED: "dim", Health.NEW: "dim"}
_BLOCKS = " ▁▂▃▄▅▆▇█"


def show_report(common: Common, output: str | None, days: int) -> int | None:
    """Collect and show the status; recorded problems are not errors of this command, but unreadable records are."""
    found = read_overview(common.config, days)
    written = None if output is None else _write(found, output)
    if common.json:
        page_fields = {"path": None} if written is None else path_fields(os.fsencode(written[0]))
        size = None if written is None else written[1]
        common.output.record("report", {**to_record(found), **page_fields, "bytes": size}, flush=True)
    elif written is not None:
        common.output.line(os.fsencode(written[0]))
        common.output.info(headline(found) + ".")
    else:
        common.output.text(_on_terminal(found))
    raise_unreadable(found.unreadable)
    return None


def _write(found: Overview, output: str) -> tuple[str, int]:
    """Write the page and return its path and size. Raises as `WholeFile` does; then an existing page is kept."""
    path = Path(output)
    if output.endswith("/") or path.is_dir():
        path /= _PAGE
    page = render(found, read_recent(found.now))
    with WholeFile(path) as file:
        file.write(page)
        file.commit()
    return str(path), len(page)


def _on_terminal(found: Overview) -> str:

    colour = coloured(sys.stdout)
    console = Console(
        file=io.StringIO(),
        force_terminal=colour,
        no_color=not colour,
        highlight=False,
        emoji=False,
        markup=False,
    )
    console.print(Text(headline(found), style="bold red" if found.troubles else "bold green"))
    console.print(Text(printable(summary(found))), soft_wrap=True)
    for trouble in found.troubles:
        console.print()
        console.print(Text(printable(trouble.about), style="bold"), soft_wrap=True)
        console.print(Text(f"  {printable(trouble.what)}"), soft_wrap=True)
        console.print(Text(f"  Fix: {printable(trouble.todo)}", style="cyan"), soft_wrap=True)
    if found.lines:
        console.print()
        console.print(_schedules(found.lines))
        console.print(_legend(found.lines), soft_wrap=True)
    for title, rows in _lists(found):
        console.print()
        console.print(Text(title, style="bold"))
        for row in rows:
            console.print(Text(f"  {printable(row)}"), soft_wrap=True)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def _schedules(lines: Sequence[ScheduleRow]) -> object:

    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    for line in lines:
        strip = Text()
        for firing in line.strip:
            strip.append(*_SIGNS[mark_of(firing)])
        last = line.last
        last_run = (
            "" if last is None else f"{mark_of(last)} {(last.ended or last.began)[:16].replace('T', ' ')}"
        )
        table.add_row(
            Text(line.schedule.name),
            Text(str(line.health), style=_COLOURS[line.health]),
            strip,
            Text(last_run),
        )
    return table


def _legend(lines: Sequence[ScheduleRow]) -> object:

    there = {mark_of(each) for line in lines for each in line.strip}
    return Text("  ".join(f"{_SIGNS[mark][0]} {mark}" for mark in Mark if mark in there), style="dim")


def _lists(found: Overview) -> list[tuple[str, list[str]]]:
    """Yield the sections of plain lines with their titles, if they have lines."""
    lists = [
        ("Moved per day", _days(found.days)),
        (
            "Not verified by content",
            [
                f"{each.target}: {counted(each.files, 'file')}, {format_size(each.bytes)}, {each.proof}"
                for each in found.unproven
            ],
        ),
        (
            "Expiring or purged soon",
            [f"{each.when[:10]}  {each.about}: {each.what}" for each in found.expiries],
        ),
        ("Sites, in the last day", [_site(each) for each in found.usage]),
        (
            "Runs",
            [", ".join(f"{count} {state.lower()}" for state, count in found.runs.items())]
            if found.runs
            else [],
        ),
    ]
    return [(title, rows) for title, rows in lists if rows]


def _days(days: Sequence[Day]) -> list[str]:
    most = max((day.bytes for day in days), default=0)
    if not most:
        return []
    bars = "".join(_BLOCKS[-(-day.bytes * 8 // most)] for day in days)
    return [bars, f"{days[0].day} to {days[-1].day}, at most {format_size(most)}"]


def _site(usage: object) -> str:
    assert isinstance(usage, dict)
    day, limits = usage["day"], usage["limits"]
    return (
        f"{usage['name']}: {usage['queued_jobs']} of {counted(limits['queued_jobs'], 'queued job')},"
        f" {counted(day['logins'], 'login')}, {counted(day['scheduler_commands'], 'scheduler command')},"
        f" {format_size(day['bytes'])}"
    )


def write_report(common: Common, run_ids: tuple[str, ...], *, output: str, update: bool) -> int | None:
    """Write an HTML report of runs."""
    run_store = RunStore()
    with collect_unreadable() as unreadable:
        runs = [run_store.load(run_id) for run_id in dict.fromkeys(run_ids)] if run_ids else run_store.all()
    if update:
        with listening(common, "report") as on_event:
            runs = update_runs(common, run_store, runs, on_event)
    page = run_page.render(
        [run_page.report_run(run, run_store) for run in sorted(runs, key=lambda run: run.id)], time.time()
    )
    with WholeFile(Path(output)) as file:
        file.write(page)
        file.commit()
    if common.json:
        fields = {"format": "report", "runs": [run.id for run in runs], "bytes": len(page)}
        common.output.record("exported", {**path_fields(os.fsencode(output)), **fields})
    else:
        common.output.line(os.fsencode(output))
    raise_unreadable(unreadable)
    return None
