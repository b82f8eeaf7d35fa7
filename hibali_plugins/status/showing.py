"""Show what runs now: transfers, runs and schedules, one line each, once or again and again."""

from __future__ import annotations

import shutil
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hibali.amounts import format_duration, format_size
from hibali.errors import UsageError
from hibali.ledger import short_identifier
from hibali.retry import pause
from hibali.text import counted, printable
from hibali.unreadable import collect_unreadable, raise_unreadable
from hibali_cli import output
from hibali_cli.fields import write_list
from hibali_cli.options import Common
from hibali_cli.output import can_be_drawn_on, flush_results, is_terminal
from runs.present import Present, PresentReader, StatusItem, UnfinishedRun
from transfers.history.running import RunningOperation

if TYPE_CHECKING:  # start-up: only to draw
    from rich.console import ConsoleOptions
    from rich.text import Text

IDLE = "Nothing runs now."
_INTERVAL_SECONDS = 2.0
_LEAST_SECONDS = 0.5
_REDRAWS_PER_SECOND = 2
_SILENT_SECONDS = 30.0  # a longer time without any progress is shown
_MOST_NAME = 60
_GAP = "  "


def show_status(common: Common, folder: str | None, **options: Any) -> int | None:
    """Show what runs now, or how a folder differs from its last transfer; return the exit code."""
    _check_options(folder, options)
    if folder is not None:
        site, colon, _ = folder.partition(":")
        if site in common.settings().sites and (colon or not Path(folder).is_dir()):
            raise UsageError(
                "usage",
                "status takes a folder of this machine",
                subject=folder,
                hint=f"For a folder with that name, write ./{folder}. To check the site: hibali sites check {site}",
            )
        from hibali_plugins.status.folder import show_folder  # start-up: only with a folder

        compared = {name: bool(options[name]) for name in _WITH_FOLDER}
        return show_folder(common, folder, **compared)
    reader = PresentReader(common.config)
    if options["watch"]:
        _watch(common, reader, options["interval"] or _INTERVAL_SECONDS)
        return None
    with collect_unreadable() as unreadable:
        if options["update"]:
            _update(common, reader)
        present = reader.read()
    if options["fields"] is not None:
        records = ({"kind": kind, **fields} for kind, fields in _records(present))
        write_list(common, None, records, options["fields"])
    else:
        _print(common, present)
    raise_unreadable(unreadable)
    return None


_WITH_FOLDER = ("checksum", "remote", "detailed_exit_code")
_WITHOUT_FOLDER = ("watch", "update", "fields")


def _check_options(folder: str | None, options: dict[str, Any]) -> None:
    wrong = [name for name in (_WITH_FOLDER if folder is None else _WITHOUT_FOLDER) if options[name]]
    message = ""
    if wrong:
        option = "--" + wrong[0].replace("_", "-")
        message = f"{option} needs FOLDER" if folder is None else f"{option} cannot be used with FOLDER"
    elif options["watch"] and options["update"]:
        message = "--update cannot be used with --watch; `hibali runs watch` polls the sites"
    elif options["watch"] and options["fields"]:
        message = "--fields cannot be used with --watch"
    elif options["interval"] is not None and not options["watch"]:
        message = "--interval needs --watch"
    elif options["interval"] is not None and options["interval"] < _LEAST_SECONDS:
        message = "--interval cannot be less than 0.5s"
    if message:
        raise UsageError("usage", message, hint="See: hibali status --help")


def _update(common: Common, reader: PresentReader) -> None:
    """Query the sites of unfinished runs; one that cannot be reached is a warning."""
    # start-up: only where a site is contacted
    from hibali_cli.handlers.run_sites import update_runs
    from hibali_cli.progress import listening
    from runs.store import RunStore

    with listening(common, "status") as on_event:
        update_runs(common, RunStore(), [each.run for each in reader.runs.read()], on_event)


# ---- one line for each


def lines_of(present: Present) -> list[StatusItem]:
    """Return the lines for users."""
    return [
        *(operation_line(each) for each in present.operations),
        *(_run_line(each, present.now) for each in present.runs),
        *present.others,
    ]


def operation_title(each: RunningOperation) -> str:
    """Return the operation with its source and target, which are the same place for a removal."""
    source, target = each.fields["source"], each.fields["target"]
    places = target if source == target else f"{source} {target}"
    return f"{each.fields['operation']} {places}"


def operation_line(each: RunningOperation) -> StatusItem:
    """Return the line of a running operation."""
    state = _PHASES.get(each.phase, each.phase) if each.following is None else "following"
    return StatusItem("transfer", operation_title(each), state, list(_progress(each)), each.to_record)


_PHASES = {"waiting": "connecting", "moving": "running"}


def _progress(each: RunningOperation) -> Iterator[str]:
    counts, following = each.counts, each.following
    if following is not None and following["files_sent"]:
        yield f"{counted(following['files_sent'], 'file')} ({format_size(following['bytes_sent'])}) sent"
    if following is not None and following["files_waiting"]:
        yield f"{following['files_waiting']} not finished yet"
    if each.phase in {"moving", "hashing"}:
        if counts["bytes_to_do"]:
            yield f"{int(100 * (each.share or 0.0))} % of {format_size(counts['bytes_to_do'])}"
        if each.rate is not None:
            yield f"{format_size(int(each.rate))}/s"
        if each.seconds_left is not None:
            yield f"{format_duration(each.seconds_left)} left"
        yield f"{counts['files']:,} of {counts['files_to_do']:,} {'file' if counts['files_to_do'] == 1 else 'files'}"
    if counts["files_deleted"]:
        yield f"{counts['files_deleted']:,} deleted"
    if counts["files_failed"]:
        yield f"{counts['files_failed']:,} failed"
    if each.silent_seconds >= _SILENT_SECONDS and following is None:
        yield f"no progress for {format_duration(each.silent_seconds)}"
    yield each.id


def _run_line(each: UnfinishedRun, now: float) -> StatusItem:
    from hibali_cli.handlers.runs import about_run  # start-up: only for runs

    run = each.run
    lasting = f"for {format_duration(max(0.0, now - each.since))}"
    named = [run.spec.name] if run.spec.name else []
    facts = [f"{run.spec.pipeline} at {run.site}", lasting, *named, about_run(run)]
    return StatusItem("run", run.id, str(run.state), [fact for fact in facts if fact], run.to_record)


def formatted(lines: Sequence[StatusItem], width: int | None = None) -> list[str]:
    """Align lines in columns, escaped; with a width, shorten ids and names, and leave out facts that do not fit."""
    from hibali_cli.display import shortened  # start-up: only where it is written

    most = _MOST_NAME if width is None else max(_LEAST_NAME, min(_MOST_NAME, width // 3))
    as_shown = short_identifier if width is not None else str
    names = [printable(as_shown(line.name)) for line in lines]
    if width is not None:
        names = [shortened(name, most, front=0.5) for name in names]
    columns = [[line.kind for line in lines], names, [printable(line.state) for line in lines]]
    widths = [max((len(text) for text in column if len(text) <= most), default=0) for column in columns]
    found = []
    for texts, line in zip(zip(*columns, strict=True), lines, strict=True):
        text = _GAP.join(each.ljust(size) for each, size in zip(texts, widths, strict=True))
        for number, fact in enumerate(line.facts):
            longer = f"{text}{', ' if number else _GAP}{printable(as_shown(fact))}"
            if width is not None and len(longer) > width:
                break
            text = longer
        found.append(text.rstrip() if width is None else shortened(text.rstrip(), width, front=1.0))
    return found


_LEAST_NAME = 20


def _print(common: Common, present: Present) -> None:
    """Write the present as JSON lines, or as lines for users."""
    if common.json:
        _write_records(common, present)
        return
    if present.is_idle:
        common.output.line(IDLE)
    width = shutil.get_terminal_size().columns if is_terminal(sys.stdout) else None
    for text in formatted(lines_of(present), width):
        common.output.text(text + "\n")


def _write_records(common: Common, present: Present) -> None:
    count = 0
    for kind, fields in _records(present):
        common.output.record(kind, fields)
        count += 1
    common.output.record("end", {"count": count, "exit": 0}, flush=True)


def _records(present: Present) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the kind and the fields of each JSON line."""
    for operation in present.operations:
        yield "running", operation.to_record()
    for run in present.runs:
        yield "run", run.run.to_record()
    for item in present.others:
        yield item.kind, item.record()


# ---- again and again


def _watch(common: Common, reader: PresentReader, interval: float) -> None:
    """Show the present until an interruption: drawn on a terminal, elsewhere a block each time."""
    drawn = not common.json and can_be_drawn_on(sys.stderr) and is_terminal(sys.stdout)
    if drawn:
        _draw(reader, interval)
        return
    while True:
        present = reader.read()
        if not common.json:
            common.output.text(f"{datetime.now().astimezone():%Y-%m-%d %H:%M:%S}\n")
        _print(common, present)
        if not common.json:
            common.output.text("\n")
        flush_results()
        pause(interval)


def _draw(reader: PresentReader, interval: float) -> None:
    from hibali_cli.display import Drawing, plain_line  # start-up: only to draw

    guard = threading.Lock()
    shown = reader.read()

    def drawn(options: ConsoleOptions) -> list[Text]:
        with guard:
            present = shown
        width = options.max_width - len("^C")  # added by the terminal itself
        lines = [*([IDLE] if present.is_idle else []), *formatted(lines_of(present), width)]
        most = options.size.height - 3
        if len(lines) > most:
            lines = [*lines[: most - 1], f"... and {len(lines) - most + 1} more"]
        clock = f"{datetime.now().astimezone():%H:%M:%S}"
        return [plain_line(f"hibali status at {clock}", "bold"), *map(plain_line, lines)]

    drawing = Drawing(drawn, _REDRAWS_PER_SECOND)
    with output.after(drawing.clear):
        try:
            drawing.show()
            while True:
                pause(interval)
                present = reader.read()
                with guard:
                    shown = present
        finally:
            drawing.clear()
