"""What `hibali run` and `hibali runs rerun` do with many tasks: reading them, sending them, following them, and the table at the end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hibali.errors import HibaliError, RunFailedError, UsageError
from hibali.events import Listener, Noted
from hibali.ledger import new_identifier
from hibali.locations import Location, read_location
from hibali.strict_json import read_json_file
from hibali_cli.chaining import Order, settle
from hibali_cli.collecting import Into, tell_collected
from hibali_cli.job_options import wanted_again, with_wishes
from hibali_cli.launching import (
    announce,
    make_request,
    require_consent,
    run_one,
    show_files,
)
from hibali_cli.notifying import notifying
from hibali_cli.options import Common
from hibali_cli.progress import listening
from hibali_cli.run_record import find_failure, report_ends, state_text
from hibali_cli.run_site import opener, run_site, update_runs
from registry.invocation import Invocation
from registry.parameters import check_tasks, make_rows
from registry.pipeline import Pipeline
from runs.book import Book
from runs.carry import Synchroniser
from runs.container import load_container
from runs.dataset import asked_here
from runs.follow import wait_for_end
from runs.inputs import locate_files
from runs.launch import Request, TaskRequest, launch
from runs.pilot.ready import check_wishes
from runs.run import Run, State
from runs.scheduler import load_scheduler
from runs.sweeps.collect import ChosenFiles, TaskCollector, ended_tasks, list_outputs
from runs.sweeps.launch import files_of, show_tasks
from runs.sweeps.rerun import read_again, tasks_to_rerun
from runs.sweeps.sweep import sweep_of
from runs.sweeps.table import OutputFile, check_table, hash_files, write_table
from runs.taking import list_references
from transfers.request import Saving

if TYPE_CHECKING:
    from registry.catalogue import Catalogue
    from transfers.receipt import Receipt


@dataclass(frozen=True, slots=True)
class SweepLine:
    """What the command line said of the tasks, and where their table goes."""

    each: Path | None
    parameters: Sequence[str]
    table: str | None


def rerun(common: Common, run_id: str, into: Into, table: str | None, *, failed: bool, wait: bool) -> int:
    """Run again what the ledger has of a run; the exit code."""
    from registry.catalogue import Catalogue

    check_sweep_options(into, table, wait=wait)
    book = Book()
    run = book.load(run_id)
    if table is not None and run.sweep is None:
        raise UsageError("usage", "it is for a sweep, and this run is none", about="--table")
    with listening(common, f"run {run.id}") as tell:
        [run] = update_runs(common, book, [run], tell)
    numbers = tasks_to_rerun(run, failed=failed)
    if not numbers:
        if common.json:
            common.output.record("run", run.to_record())
        common.output.say(f"{run.id} {state_text(run)}: there is nothing to run again")
        return 0
    catalogue = Catalogue()
    request = _read_again(common, book, run, catalogue.find(run.pipeline), numbers)
    require_consent(common, catalogue, request.pipeline, request.container)
    if request.tasks:
        return send_and_follow(common, request, into, table, wait=wait)
    return run_one(common, request, wait=wait, into=into)


def _read_again(common: Common, book: Book, run: Run, pipeline: Pipeline, numbers: Sequence[int]) -> Request:
    """The request that runs these tasks of a run again, or all of one that is no sweep."""
    again = read_again(run, book, pipeline, numbers)
    site = run_site(common, run.site)
    image = str(again.asked.get("image", ""))
    located = locate_files(again.files, common.settings(), site, known=again.known)
    request = make_request(pipeline, again.invocation, located, site, image, again.asked)
    request = with_wishes(common, request, wanted_again(again.asked.get("options") or ()))
    pilot = run.sweep.pilot if run.sweep is not None else None
    allocations = pilot.allocations if pilot is not None else 0
    return replace(
        request, tasks=again.tasks, origin=run.id, name=run.name, image=image, allocations=allocations
    )


def run_sweep(
    common: Common,
    catalogue: Catalogue,
    pipeline: Pipeline,
    answers: Path | None,
    line: SweepLine,
    site_name: str,
    asked: dict[str, Any],
    into: Into,
    *,
    wait: bool,
    dry_run: bool,
    notify: str | None = None,
) -> int | None:
    """Check every task, then send them all, and follow them where that is asked for; the exit code."""
    check_sweep_options(into, line.table, wait=wait)
    request = _read_sweep(
        common, pipeline, answers, line, site_name, asked["image"], identify=not dry_run, wait=wait
    )
    request = with_wishes(common, request, asked["wanted"])
    request = replace(request, allocations=asked["allocations"])
    if request.allocations:
        check_wishes(request.ask())
    if dry_run:
        _show_sweep(common, request)
        return None
    require_consent(common, catalogue, pipeline, request.container)
    return send_and_follow(common, replace(request, **asked), into, line.table, wait=wait, notify=notify)


def check_sweep_options(into: Into, table: str | None, *, wait: bool) -> None:
    """Raise `UsageError` for what a sweep cannot be asked for."""
    if into.dataset is not None:
        raise UsageError(
            "usage",
            "one record cannot repeat many tasks: a sweep is not kept with one",
            about="--dataset",
            hint="Collect into the dataset with --collect DIR, which saves the outputs.",
        )
    if table is not None and not wait:
        raise UsageError(
            "usage",
            "the table is there when the tasks have ended",
            about="--table",
            hint="Add --wait; or, when they have ended: hibali runs collect ID DIR --table FILE",
        )
    if table is not None:
        check_table(Path(table), into.folder)


def _read_sweep(
    common: Common,
    pipeline: Pipeline,
    answers: Path | None,
    line: SweepLine,
    site_name: str,
    image: str,
    *,
    identify: bool,
    wait: bool,
) -> Request:
    """Everything that can be checked here is checked before the site is asked anything."""
    site = run_site(common, site_name)
    given = read_json_file(answers) if answers is not None else {}
    rows = make_rows(pipeline, line.each, line.parameters)
    invocations = check_tasks(pipeline, given, rows)
    tasks = tuple(
        TaskRequest(number, row.values, invocation)
        for number, (row, invocation) in enumerate(zip(rows, invocations, strict=True), start=1)
    )
    files = files_of(tasks)
    if identify:
        references = list_references(files, common.settings())
        settle(common, references, Order(wait=wait, sweep=True), site, load_container(site.container))
    located = locate_files(files, common.settings(), site, identify=identify)
    asked = asked_here(answers or Path(), located, image).to_fields()
    request = make_request(pipeline, Invocation(dict(given), dict(given)), located, site, image, asked)
    request.container.image_name(pipeline.container)
    return replace(request, tasks=tasks)


def send_and_follow(
    common: Common, request: Request, into: Into, table: str | None, *, wait: bool, notify: str | None = None
) -> int:
    """The sweep sent, or what there is room for; with `wait` all of it, to its end. Raises how it failed."""
    book = Book()
    receipt = None
    title = f"run {request.pipeline.reference} at {request.site.name}"
    with notifying(common, notify) as notice, listening(common, title) as tell:
        far = opener(request.site, tell)()
        try:
            run = launch(
                request, far, book, Synchroniser(), began=lambda run: announce(common, run), tell=tell
            )
        finally:
            far.close()
        if wait:
            run, receipt = _finish(common, book, run, request, into, table, tell)
            notice(run)
    if receipt is not None:
        tell_collected(common, receipt)
    if wait or run.state.ended:
        report_ends(common, book, [run])
    elif common.json:
        common.output.record("run", run.to_record())
    else:
        _tell_sent(common, run)
    return int(receipt.exit) if receipt is not None else 0


def _tell_sent(common: Common, run: Run) -> None:
    common.output.say(f"{state_text(run)} at {run.site}: hibali runs wait {run.id}")
    waiting = sum(len(chunk.tasks) for chunk in sweep_of(run).unsent())
    if waiting:
        common.output.say(
            f"{waiting} tasks wait here for room in the queue; `runs wait` sends them as there is some"
        )


def _finish(
    common: Common, book: Book, run: Run, request: Request, into: Into, table: str | None, tell: Listener
) -> tuple[Run, Receipt | None]:
    """Follow it to the end, collecting as tasks finish; then whatever is left, and the table."""
    collector = None
    if into.folder is not None:
        target = read_location(into.folder, common.settings())
        collector = TaskCollector(book, request.site, target, tell, Saving(save=not into.no_save))

    def changed(now: Run) -> None:
        common.output.detail(f"{now.id} {state_text(now)}")
        try:
            if collector is not None:
                collector.bring_new(now)
        except HibaliError as problem:
            tell(Noted(f"not collected yet: {problem.message}"))

    [run] = wait_for_end(
        opener(request.site, tell),
        load_scheduler(run.scheduler),
        book,
        [run.id],
        limits=request.site.limits,
        tell=tell,
        changed=changed,
    )
    numbers = sweep_of(run).in_state(State.SUCCEEDED)
    receipt, chosen = collector.bring(run, numbers) if collector is not None else (None, None)
    if table is not None:
        make_table(common, run, Path(table), collector, chosen)
    return book.load(run.id), receipt


def collect_sweep(common: Common, book: Book, run: Run, into: Into, table: str | None) -> int:
    """Pull what the tasks left that have ended, and list all tasks; the exit code. Raises how the sweep failed."""
    check_sweep_options(into, table, wait=True)
    with listening(common, f"collect {run.id}") as tell:
        [run] = update_runs(common, book, [run], tell, going_on=True)
        target = read_location(into.folder or f"./{run.id}", common.settings())
        site = run_site(common, run.site)
        collector = TaskCollector(book, site, target, tell, Saving(save=not into.no_save))
        receipt, chosen = collector.bring(run, ended_tasks(run))
        if table is not None:
            make_table(common, run, Path(table), collector, chosen)
    tell_collected(common, receipt)
    if run.state.final and not run.reported:
        book.note(run.id, "reported")
    failure = find_failure(run)
    if isinstance(failure, RunFailedError) and not common.json:
        raise failure
    return int(receipt.exit)


def make_table(
    common: Common, run: Run, path: Path, collector: TaskCollector | None, chosen: ChosenFiles | None
) -> None:
    """One row a task, with the digests of its outputs where they are now: where they were collected to, else at the site."""
    left: dict[int, list[OutputFile]] = {}
    if collector is not None and chosen is not None:
        digests = dict(collector.digests)
        rest = [name for name in chosen.files if name not in digests]
        digests |= hash_files(collector.target, rest)
        root = collector.target.text.rstrip("/")
        names = {name: name for name in chosen.files}
    else:
        folder = f"{_text(run.folder)}/tasks"
        source = Location(run_site(common, run.site), folder, f"{run.site}:{folder}")
        ended = sweep_of(run).in_state(State.SUCCEEDED, State.FAILED, State.CANCELLED)
        chosen = list_outputs(run, source, ended)
        names = {name: entry.path for name, entry in chosen.files.items()}
        digests = hash_files(source, list(names.values()))
        root = source.text
    for number, files in chosen.by_task().items():
        left[number] = [
            OutputFile(output, _bytes(root) + b"/" + names[name], digests.get(names[name], ""))
            for output, name in files
        ]
    write_table(path, run, left)
    common.output.say(f"{path}: {len(sweep_of(run).tasks)} tasks")


def _text(path: bytes) -> str:
    return path.decode("utf-8", "surrogateescape")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _show_sweep(common: Common, request: Request) -> None:
    """The first job array and the first task: the others differ by their numbers and values."""
    shown = show_tasks(request, new_identifier())
    where = f"{shown.chunks} job arrays; this is the first of each"
    if request.allocations:
        where = "one job after the other; this is the first one, and the first task"
    common.output.say(f"{len(request.tasks)} tasks in {where}")
    show_files(common, request, shown.prepared, shown.files)
