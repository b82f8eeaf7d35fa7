"""Run sweeps: read and check their tasks, submit, follow, and show them as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hibali.documents import read_json_file
from hibali.errors import HibaliError, RunFailedError, UsageError
from hibali.events import Listener, Noted
from hibali.ledger import new_identifier
from hibali.locations import Location, read_target
from hibali_cli.handlers.launch import (
    Into,
    announce,
    make_request,
    report_collected,
    require_consent,
    run_one,
    saving_in,
    show_files,
)
from hibali_cli.handlers.run_sites import following, opener, run_site, update_runs
from hibali_cli.handlers.runs import find_failure, report_ends, state_text
from hibali_cli.handlers.site_choice import (
    SiteOptions,
    choose_site,
    is_choice,
    texts_of,
    typed_sites,
    with_experience,
)
from hibali_cli.options import Common
from hibali_cli.progress import listening
from hibali_cli.run_options import Order, notifying, parse_resource_argv, settle, with_proxy, with_wishes
from registry.invocation import Invocation
from registry.parameters import check_tasks, make_rows
from registry.pipeline import Pipeline
from runs.containers.base import load_container
from runs.dataset import find_dataset, recorded_request, typed_request
from runs.inputs import Located, list_references, locate_files, seen_from
from runs.launch import launch
from runs.model import Run, State
from runs.monitor import wait_for_end
from runs.pilot.setup import by_pilot
from runs.records import sweep_of
from runs.request import Request, TaskRequest, with_job_proxy
from runs.schedulers.base import load_scheduler
from runs.stage import Synchroniser
from runs.store import RunStore
from runs.sweeps.collect import ChosenFiles, TaskCollector, ended_tasks, list_outputs
from runs.sweeps.launch import files_of, show_tasks, takes_several, tasks_key
from runs.sweeps.table import OutputFile, check_table, hash_files, read_again, tasks_to_rerun, write_table
from transfers.request import Saving

if TYPE_CHECKING:
    from registry.catalogue import Catalogue
    from runs.model import Input
    from transfers.journal import Receipt


@dataclass(frozen=True, slots=True)
class SweepLine:
    """What the command line said of the tasks, where their table goes, and in how many jobs a pilot may run them; 0 for job arrays."""

    each: Path | None
    parameters: Sequence[str]
    table: str | None
    allocations: int = 0


@dataclass(frozen=True, slots=True)
class Tasks:
    """What a line asks for, read and checked: what all tasks answer, each of them, and their files."""

    pipeline: Pipeline
    answers: Path | None
    line: SweepLine
    invocation: Invocation
    tasks: tuple[TaskRequest, ...]
    files: tuple[Input, ...]


def read_tasks(pipeline: Pipeline, answers: Path | None, line: SweepLine) -> Tasks:
    """Everything that a line says of its tasks; raises every problem of every row at once."""
    given = read_json_file(answers) if answers is not None else {}
    rows = make_rows(pipeline, line.each, line.parameters)
    files = ", ".join(str(each) for each in (line.each, answers) if each is not None)
    invocations = check_tasks(pipeline, given, rows, subject=files or "--param")
    tasks = tuple(
        TaskRequest(number, row.values, invocation)
        for number, (row, invocation) in enumerate(zip(rows, invocations, strict=True), start=1)
    )
    invocation = Invocation(dict(given), dict(given))
    return Tasks(pipeline, answers, line, invocation, tasks, tuple(files_of(tasks)))


def choose_sweep(common: Common, sweep: Tasks, choosing: SiteOptions, order: Order) -> Request:
    """The request at the best site, by what all tasks read together."""
    several = takes_several(sweep.tasks)
    located = locate_files(sweep.files, common.settings(), None, several=several)
    texts = texts_of(located)
    key = tasks_key(
        sweep.pipeline, sweep.invocation, sweep.tasks, texts, typed_sites(choosing), choosing.name
    )

    def make(name: str) -> Request:
        here = order._replace(wait=False, heard=True)
        return request_at(common, sweep, name, choosing, here, identify=True, located=located)

    return choose_site(common, with_experience(choosing, sweep.pipeline), key, located, make, order)


def request_at(
    common: Common,
    sweep: Tasks,
    site_name: str,
    choosing: SiteOptions,
    order: Order,
    *,
    identify: bool,
    located: Sequence[Located] | None = None,
) -> Request:
    """Everything that can be checked here is checked before the site is asked anything; `located` as `read_request` has it."""
    site = run_site(common, site_name)
    settings = common.settings()
    if identify:
        settle(
            common, list_references(sweep.files, settings), order, site, load_container(site.container.name)
        )
    if located is None:
        several = takes_several(sweep.tasks)
        located = locate_files(sweep.files, settings, site, identify=identify, several=several)
    else:
        located = seen_from(located, site, settings)
    asked = typed_request(sweep.answers, located, choosing.image, sweep.line.each, sweep.line.parameters)
    request = make_request(sweep.pipeline, sweep.invocation, located, site, choosing.image, asked.to_fields())
    request.container.image_name(sweep.pipeline.container)
    return replace(request, tasks=sweep.tasks, marks=choosing.marks)


def request_again(
    common: Common, run_store: RunStore, run: Run, pipeline: Pipeline, numbers: Sequence[int]
) -> Request:
    """The request that runs these tasks of a run again, or all of one that is no sweep."""
    again = read_again(run, run_store, pipeline, numbers)
    site = run_site(common, run.site)
    image = str(again.asked.get("image", ""))
    several = takes_several(again.tasks or [TaskRequest(0, {}, again.invocation)])
    located = locate_files(again.files, common.settings(), site, known=again.known, several=several)
    request = make_request(pipeline, again.invocation, located, site, image, again.asked)
    request = with_wishes(common, request, parse_resource_argv(again.asked.get("options") or ()))
    request = replace(
        request, tasks=again.tasks, origin=run.id, name=run.spec.name, image=image, proxy=run.submission.proxy
    )
    pilot = run.sweep.pilot if run.sweep is not None else None
    return request if pilot is None else by_pilot(request, pilot.allocations)


def rerun(common: Common, run_id: str, into: Into, table: str | None, *, failed: bool, wait: bool) -> int:
    """Run again what the ledger has of a run; the exit code."""
    from registry.catalogue import Catalogue

    check_sweep_options(into, table, wait=wait)
    run_store = RunStore()
    run = run_store.load(run_id)
    if table is not None and run.sweep is None:
        raise UsageError("usage", "it is for a sweep, and this run is none", subject="--table")
    with listening(common, f"run {run.id}") as on_event:
        [run] = update_runs(common, run_store, [run], on_event)
    numbers = tasks_to_rerun(run, failed=failed)
    if not numbers:
        if common.json:
            common.output.record("run", run.to_record())
        common.output.say(f"{run.id} {state_text(run)}: there is nothing to run again")
        return 0
    catalogue = Catalogue()
    request = request_again(common, run_store, run, catalogue.find(run.spec.pipeline), numbers)
    require_consent(common, catalogue, request.pipeline, request.container)
    if request.tasks:
        return send_and_follow(common, request, into, table, wait=wait)
    return run_one(common, request, wait=wait, into=into)


def run_sweep(
    common: Common,
    catalogue: Catalogue,
    pipeline: Pipeline,
    answers: Path | None,
    line: SweepLine,
    choosing: SiteOptions,
    into: Into,
    *,
    wait: bool,
    dry_run: bool,
    notify: str | None = None,
) -> int | None:
    """Check every task, then send them all, and follow them where that is asked for; the exit code."""
    check_sweep_options(into, line.table, wait=wait)
    sweep = read_tasks(pipeline, answers, line)
    order = Order(wait=wait, sweep=True)
    if is_choice(choosing, common.settings()):
        request = choose_sweep(common, sweep, choosing, order)
        if choosing.explain and dry_run:
            return None
    else:
        [name] = set(choosing.sites)
        request = request_at(common, sweep, name, choosing, order, identify=not dry_run)
    request = with_proxy(with_wishes(common, request, choosing.wanted), choosing.proxy)
    if line.allocations:
        request = by_pilot(request, line.allocations)
    if into.dataset is not None:
        find_dataset(into.dataset, recorded_request([{"asked": request.asked}], pipeline.reference))
    if dry_run:
        _show_sweep(common, request)
        return None
    require_consent(common, catalogue, pipeline, request.container)
    request = replace(request, name=choosing.name, new=choosing.new, image=choosing.image)
    return send_and_follow(common, request, into, line.table, wait=wait, notify=notify)


def check_sweep_options(into: Into, table: str | None, *, wait: bool) -> None:
    """Raise `UsageError` for what a sweep cannot be asked for."""
    if table is not None and not wait:
        raise UsageError(
            "usage",
            "the table is there when the tasks have ended",
            subject="--table",
            hint="Add --wait; or, when they have ended: hibali runs collect ID DIR --table FILE",
        )
    if table is not None:
        check_table(Path(table), into.folder or into.dataset)


def send_and_follow(
    common: Common, request: Request, into: Into, table: str | None, *, wait: bool, notify: str | None = None
) -> int:
    """The sweep sent, or what there is room for; with `wait` all of it, to its end. Raises how it failed."""
    request = with_job_proxy(request)
    run_store = RunStore()
    receipt = None
    title = f"run {request.pipeline.reference} at {request.site.name}"
    with notifying(common, notify) as notice, listening(common, title) as on_event:
        host = opener(request.site, on_event)()
        try:
            run = launch(
                request,
                host,
                run_store,
                Synchroniser(),
                began=lambda run: announce(common, run),
                on_event=on_event,
            )
        finally:
            host.close()
        if wait:
            run, receipt = _finish(common, run_store, run, request, into, table, on_event)
            notice(run)
    if receipt is not None:
        report_collected(common, receipt)
    if wait or run.state.ended:
        report_ends(common, run_store, [run])
    elif common.json:
        common.output.record("run", run.to_record())
    else:
        _tell_sent(common, run)
    return int(receipt.exit) if receipt is not None else 0


def _tell_sent(common: Common, run: Run) -> None:
    common.output.say(f"{state_text(run)} at {run.site}: hibali runs wait {run.id}")
    waiting = sum(len(chunk.tasks) for chunk in sweep_of(run).unsubmitted())
    if waiting:
        common.output.say(
            f"{waiting} tasks wait here for room in the queue; `runs wait` sends them as there is some"
        )


def _finish(
    common: Common,
    run_store: RunStore,
    run: Run,
    request: Request,
    into: Into,
    table: str | None,
    on_event: Listener,
) -> tuple[Run, Receipt | None]:
    """Follow it to the end, collecting as tasks finish; then whatever is left, and the table."""
    collector = None
    folder = into.folder or into.dataset
    if folder is not None:
        target = read_target(folder, common.settings())
        collector = TaskCollector(run_store, request.site, target, on_event, Saving(save=not into.no_save))

    def changed(now: Run) -> None:
        common.output.detail(f"{now.id} {state_text(now)}")
        shown.changed(now)
        try:
            if collector is not None and into.dataset is None:
                collector.bring_new(now)
        except HibaliError as problem:
            on_event(Noted(f"not collected yet: {problem.message}"))

    with following(common, run_store, [run], on_event) as shown:
        [run] = wait_for_end(
            opener(request.site, shown.on_event),
            load_scheduler(run.placement.scheduler),
            run_store,
            [run.id],
            limits=request.site.limits,
            on_event=shown.on_event,
            changed=changed,
        )
    if collector is not None and into.dataset is not None:
        # one commit with one record, when all is well; nothing is kept unasked of what failed
        collector = (
            _keeping(run_store, run, into.dataset, collector) if run.state is State.SUCCEEDED else None
        )
    numbers = sweep_of(run).in_state(State.SUCCEEDED)
    receipt, chosen = collector.bring(run, numbers) if collector is not None else (None, None)
    if table is not None:
        make_table(common, run, Path(table), collector, chosen)
    return run_store.load(run.id), receipt


def _keeping(run_store: RunStore, run: Run, dataset: str, collector: TaskCollector) -> TaskCollector:
    """The same, committing what it brings with a record of the line. Raises `UsageError` for a part of what that line asks for."""
    part = run
    while part.spec.origin:
        whole = run_store.load(part.spec.origin)
        if sweep_of(whole).tasks.keys() != sweep_of(part).tasks.keys():
            raise UsageError(
                "part-of-a-sweep",
                "these tasks are a part of their sweep, and the record of its line would repeat all of them",
                subject=run.id,
                hint=f"Collect them without a record: hibali runs collect {run.id} DIR",
            )
        part = whole
    return collector.saving(saving_in(run_store, run, dataset))


def collect_sweep(common: Common, run_store: RunStore, run: Run, into: Into, table: str | None) -> int:
    """Pull what the tasks left that have ended, and list all tasks; the exit code. Raises how the sweep failed."""
    check_sweep_options(into, table, wait=True)
    with listening(common, f"collect {run.id}") as on_event:
        [run] = update_runs(common, run_store, [run], on_event, going_on=True)
        target = read_target(into.dataset or into.folder or f"./{run.id}", common.settings())
        site = run_site(common, run.site)
        collector = TaskCollector(run_store, site, target, on_event, Saving(save=not into.no_save))
        if into.dataset is not None and run.state is State.SUCCEEDED:
            collector = _keeping(run_store, run, into.dataset, collector)
        receipt, chosen = collector.bring(run, ended_tasks(run))
        if table is not None:
            make_table(common, run, Path(table), collector, chosen)
    report_collected(common, receipt)
    if run.state.final and not run.results.reported:
        run_store.note(run.id, "reported")
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
