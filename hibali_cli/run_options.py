"""Define the options for jobs, dependencies and notifications."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from hibali.amounts import read_job_time, read_size
from hibali.errors import HibaliError, UsageError
from hibali_cli.options import Common
from hibali_cli.output import json_line

if TYPE_CHECKING:
    from hibali.config.model import Site
    from hibali_cli.options import Common
    from hibali_cli.output import Output
    from runs.containers.base import Container
    from runs.model import Run
    from runs.request import Request
    from runs.resources import DecidedResources
    from runs.schedulers.base import Resources
    from runs.schedules.notices import Target
    from runs.store import Reference


_MIB = 1024**2
_PROXY_WORDS = ("--no-proxy", "--with-proxy")
_NONE_OF_ITS_OWN = click.IntRange(0, 1024)
_COUNT = click.IntRange(1, 1_000_000)
_WIDEST = 60  # columns; a longer value stands out of its column


def _take_time(context: click.Context, option: click.Parameter, text: str | None) -> int | None:
    try:
        return None if text is None else read_job_time(text)
    except ValueError as problem:
        raise click.BadParameter(str(problem), context, option) from None


def _take_memory(context: click.Context, option: click.Parameter, text: str | None) -> int | None:
    """In MiB, rounded up: a job that asks for less than was said may be ended for it."""
    try:
        size = None if text is None else read_size(text)
    except ValueError as problem:
        raise click.BadParameter(str(problem), context, option) from None
    if size == 0:
        raise click.BadParameter("a job needs some memory", context, option)
    return None if size is None else -(-size // _MIB)


_OPTIONS: tuple[Callable[[Any], Any], ...] = (
    click.option("--nodes", type=_COUNT, metavar="N", help="Ask for so many nodes."),
    click.option(
        "--tasks", type=_COUNT, metavar="N", help="So many MPI tasks, started by the site's launcher."
    ),
    click.option("--cores", type=_COUNT, metavar="N", help="So many cores for each task."),
    click.option("--memory", callback=_take_memory, metavar="SIZE", help="Memory of a node, such as 16G."),
    click.option(
        "--time",
        "seconds",
        callback=_take_time,
        metavar="TIME",
        help="The job's limit: [D-]HH:MM:SS, or such as 90m.",
    ),
    click.option("--gpus", type=_NONE_OF_ITS_OWN, metavar="N", help="GPUs of a node; 0 for none."),
    click.option("--partition", metavar="P", help="The partition or queue that the job goes to."),
    click.option("--account", metavar="A", help="The account that the job is charged to."),
    click.option("--reservation", metavar="R", help="The reservation that the job belongs to."),
    click.option(
        "--directive",
        "directives",
        multiple=True,
        metavar="OPTION",
        help="One more option for the scheduler as it is written there, as in --directive=--qos=long; repeatable.",
    ),
)
_NAMES = (
    "nodes",
    "tasks",
    "cores",
    "memory",
    "seconds",
    "gpus",
    "partition",
    "account",
    "reservation",
    "directives",
)


def add_job_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command's function the options that say what a job asks for; they reach it by their own names."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def read_resource_options(given: Mapping[str, Any]) -> Resources:
    """What the command line asks for; raises `UsageError` for what cannot be a directive."""
    from runs.schedulers.base import Resources, check_directive, check_plain

    for name in ("partition", "account", "reservation"):
        if given[name] is not None:
            check_plain(given[name], name)
    for text in given["directives"]:
        check_directive(text)
    values = {name: given[name] for name in _NAMES if name != "memory"}
    return Resources(memory_megabytes=given["memory"], **values)


def parse_resource_argv(words: Sequence[str]) -> Resources:
    """What the words of `words_of` ask for."""
    command: Any = add_job_options(click.command()(lambda: None))
    return read_resource_options(
        command.make_context("run", [str(word) for word in words if word not in _PROXY_WORDS]).params
    )


def words_of(wanted: Resources) -> tuple[str, ...]:
    """The options that say just this."""
    given = {
        "nodes": wanted.nodes,
        "tasks": wanted.tasks,
        "cores": wanted.cores,
        "memory": None if wanted.memory_megabytes is None else f"{wanted.memory_megabytes}M",
        "time": None if wanted.seconds is None else f"{wanted.seconds}s",
        "gpus": wanted.gpus,
        "partition": wanted.partition,
        "account": wanted.account,
        "reservation": wanted.reservation,
    }
    words = [f"--{name}={value}" for name, value in given.items() if value is not None]
    return (*words, *(f"--directive={text}" for text in wanted.directives))


def with_wishes(common: Common, request: Request, wanted: Resources) -> Request:
    """The same, asking for what the line wants; a person is told where that is too little. Raises what the site cannot give."""
    asked = {**request.asked, "options": list(words_of(wanted))}
    found = replace(request, wanted=wanted, asked=asked)
    for shortfall in found.ask().shortfalls():
        common.output.warn(f"{request.pipeline.reference}: {shortfall}")
    return found


def with_proxy(request: Request, wanted: bool | None) -> Request:  # noqa: FBT001  # as the option has it
    """The same, whose job has a proxy if the line says so; None leaves what the site says."""
    if wanted is None:
        return request
    words = [*request.asked.get("options", ()), _PROXY_WORDS[wanted]]
    return replace(request, proxy=wanted, asked={**request.asked, "options": words})


def show_resources(output: Output, asked: DecidedResources) -> None:
    """A line for each thing that a job asks for, with who said so, for people."""
    from runs.resources import show_value

    rows: Sequence[Mapping[str, Any]] = asked.to_fields()
    if not rows:
        output.say("the job asks for nothing: the scheduler's own defaults count")
        return
    shown = [(str(each["name"]), show_value(each["name"], each["value"]), str(each["from"])) for each in rows]
    widths = [min(_WIDEST, max(len(row[column]) for row in shown)) for column in (0, 1)]
    output.say("the job asks for")
    for name, value, origin in shown:
        output.say(f"  {name:<{widths[0]}}  {value:<{widths[1]}}  {origin}")


class Order(NamedTuple):
    """When a run is to start: after which others, by their ids, and whether on hold. With `wait` they are waited for.

    A `sweep` comes after the end of whatever it takes from. What was `heard` of the others just now is in the ledger: nobody is asked again.
    """

    after: tuple[str, ...] = ()
    hold: bool = False
    wait: bool = False
    sweep: bool = False
    heard: bool = False


_CHAIN_OPTIONS: tuple[Callable[[Any], Any], ...] = (
    click.option(
        "--after",
        multiple=True,
        metavar="ID",
        help="Start when this run has succeeded; may be repeated.",
    ),
    click.option("--hold", is_flag=True, help="Start only when somebody says `hibali runs release`."),
    click.option(
        "--reuse/--fresh",
        default=None,
        envvar="HIBALI_REUSE",
        help="Take what a run of the same pipeline, values and inputs left, wherever it ran; or compute it again. "
        "HIBALI_REUSE=1 in the environment is as --reuse.",
    ),
)


def add_chain_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of chains."""
    for option in reversed(_CHAIN_OPTIONS):
        function = option(function)
    return function


def check_alone(order: Order) -> None:
    """Raise `UsageError` for what only a single run can be asked for."""
    if order.after or order.hold:
        raise UsageError(
            "usage", "a sweep starts when it is submitted", subject="--after" if order.after else "--hold"
        )


def check_reusing(reuse: bool | None, *, new: bool, dataset: str | None) -> bool:  # noqa: FBT001 - as click has it
    """Whether to look for a run that can be reused; `--new` always starts one. Raises `UsageError` for what goes not together."""
    if reuse and dataset is not None:
        raise UsageError(
            "usage",
            "a dataset keeps a run with the line that began it, and another line began one that is reused",
            subject="--dataset",
            hint="Add --fresh.",
        )
    return bool(reuse) and not new


def load_first(order: Order) -> list[Run]:
    """The runs that come first by name, as the ledger has them; raises `NotFoundError`."""
    from runs.store import RunStore

    return [RunStore().load(each) for each in dict.fromkeys(order.after)]


def settle(
    common: Common, references: Sequence[Reference], order: Order, site: Site, container: Container
) -> list[Run]:
    """The runs that come first by name, when all that have to have ended before have succeeded.

    The others are left to the scheduler. Raises `NotFoundError`, and what `runs.dependencies.require_success` does.
    """
    from hibali_cli.handlers.run_sites import update_runs, wait_for_runs
    from hibali_cli.progress import listening
    from runs.dependencies import must_end_before, needed_parts, require_success
    from runs.schedulers.base import load_scheduler
    from runs.store import RunStore

    run_store = RunStore()
    taken: dict[str, list[Reference]] = {run_id: [] for run_id in order.after}
    for each in references:
        taken.setdefault(each.run, []).append(each)
    scheduler = load_scheduler(site.scheduler.name if site.scheduler else "direct")

    def needed(run: Run) -> list[Run]:
        return needed_parts(run, [] if run.id in order.after else taken[run.id])

    first = [
        run
        for run in map(run_store.load, taken)
        if order.sweep or must_end_before(run, taken[run.id], needed(run), site, container, scheduler)
    ]
    waited = [run for run in first if not all(part.state.final for part in needed(run))]
    if waited and not order.heard:
        with listening(common, "waiting for runs that come first") as on_event:
            (wait_for_runs if order.wait else update_runs)(common, run_store, waited, on_event)
    for run in first:
        for part in needed(run_store.load(run.id)):
            require_success(part)
    return load_first(order)


notify_option = click.option(
    "--notify",
    metavar="COMMAND|URL",
    help="At the end of each run, run COMMAND ID STATE, or POST to URL: both get the run as JSON.",
)


@contextmanager
def notifying(common: Common, text: str | None) -> Iterator[Callable[[Run], None]]:
    """Call it with a run as often as that changes: its end is told once, in the background, and waited for at the end.

    What cannot be told is a warning: it changes nothing about the run. Raises `UsageError` at once for what can never be told.
    """
    from runs.model import ignore_run

    if text is None:
        yield ignore_run
        return
    from runs.schedules.notices import read_target

    notices = _Notices(common, read_target(text))
    try:
        yield notices.take
    except HibaliError:
        notices.finish()
        raise
    notices.finish()


class _Notices:
    """One after the other, in a thread of their own: whoever is told may take long."""

    def __init__(self, common: Common, target: Target) -> None:
        self._common = common
        self._target = target
        self._told: set[str] = set()
        self._queue: queue.SimpleQueue[Run | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="notify", daemon=True)
        self._thread.start()

    def take(self, run: Run) -> None:
        """May be called from any thread."""
        if run.state.ended and run.id not in self._told:
            self._told.add(run.id)
            self._queue.put(run)

    def finish(self) -> None:
        """Return when all were told, or could not be."""
        self._queue.put(None)
        self._thread.join()

    def _work(self) -> None:
        from runs.schedules.notices import give_run_notice

        while (run := self._queue.get()) is not None:
            record = json_line({"schema": 1, "kind": "run", **run.to_whole_record()})
            try:
                give_run_notice(self._target, run.id, run.state, record.encode("ascii") + b"\n")
            except HibaliError as problem:
                subject = f"{problem.subject}: " if problem.subject else ""
                self._common.output.warn(f"not notified of the end of {run.id}: {subject}{problem.message}")
