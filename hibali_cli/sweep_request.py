"""The request of a sweep: its tasks read and checked, its inputs located, at one site or at the best of several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hibali.documents import read_json_file
from hibali_cli.chaining import Order, settle
from hibali_cli.choosing import Asked, choose_site, texts_of, typed_sites, with_experience
from hibali_cli.job_options import wanted_again, with_wishes
from hibali_cli.launching import make_request
from hibali_cli.options import Common
from hibali_cli.run_site import run_site
from registry.invocation import Invocation
from registry.parameters import check_tasks, make_rows
from registry.pipeline import Pipeline
from runs.containers.base import load_container
from runs.dataset import asked_here
from runs.inputs import Located, list_references, locate_files, seen_from
from runs.model import Run
from runs.pilot.setup import by_pilot
from runs.request import Request, TaskRequest
from runs.store import Book
from runs.sweeps.launch import files_of, takes_several, tasks_key
from runs.sweeps.table import read_again

if TYPE_CHECKING:
    from runs.model import Input


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
    invocations = check_tasks(pipeline, given, rows, about=files or "--param")
    tasks = tuple(
        TaskRequest(number, row.values, invocation)
        for number, (row, invocation) in enumerate(zip(rows, invocations, strict=True), start=1)
    )
    invocation = Invocation(dict(given), dict(given))
    return Tasks(pipeline, answers, line, invocation, tasks, tuple(files_of(tasks)))


def choose_sweep(common: Common, sweep: Tasks, choosing: Asked, order: Order) -> Request:
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
    choosing: Asked,
    order: Order,
    *,
    identify: bool,
    located: Sequence[Located] | None = None,
) -> Request:
    """Everything that can be checked here is checked before the site is asked anything; `located` as `read_request` has it."""
    site = run_site(common, site_name)
    settings = common.settings()
    if identify:
        settle(common, list_references(sweep.files, settings), order, site, load_container(site.container))
    if located is None:
        several = takes_several(sweep.tasks)
        located = locate_files(sweep.files, settings, site, identify=identify, several=several)
    else:
        located = seen_from(located, site, settings)
    asked = asked_here(sweep.answers, located, choosing.image, sweep.line.each, sweep.line.parameters)
    request = make_request(sweep.pipeline, sweep.invocation, located, site, choosing.image, asked.to_fields())
    request.container.image_name(sweep.pipeline.container)
    return replace(request, tasks=sweep.tasks, marks=choosing.marks)


def request_again(
    common: Common, book: Book, run: Run, pipeline: Pipeline, numbers: Sequence[int]
) -> Request:
    """The request that runs these tasks of a run again, or all of one that is no sweep."""
    again = read_again(run, book, pipeline, numbers)
    site = run_site(common, run.site)
    image = str(again.asked.get("image", ""))
    several = takes_several(again.tasks or [TaskRequest(0, {}, again.invocation)])
    located = locate_files(again.files, common.settings(), site, known=again.known, several=several)
    request = make_request(pipeline, again.invocation, located, site, image, again.asked)
    request = with_wishes(common, request, wanted_again(again.asked.get("options") or ()))
    request = replace(request, tasks=again.tasks, origin=run.id, name=run.name, image=image, proxy=run.proxy)
    pilot = run.sweep.pilot if run.sweep is not None else None
    return request if pilot is None else by_pilot(request, pilot.allocations)
