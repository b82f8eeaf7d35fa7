"""The options that say what a job asks for, and how what it asks for is shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from hibali.amounts import read_job_time, read_size

if TYPE_CHECKING:
    from hibali_cli.options import Common
    from hibali_cli.output import Output
    from runs.request import Request
    from runs.resources import Asked
    from runs.schedulers.base import Resources

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


def wanted_of(given: Mapping[str, Any]) -> Resources:
    """What the command line asks for; raises `UsageError` for what cannot be a directive."""
    from runs.schedulers.base import Resources, check_directive, check_plain

    for name in ("partition", "account", "reservation"):
        if given[name] is not None:
            check_plain(given[name], name)
    for text in given["directives"]:
        check_directive(text)
    values = {name: given[name] for name in _NAMES if name != "memory"}
    return Resources(memory_megabytes=given["memory"], **values)


def wanted_again(words: Sequence[str]) -> Resources:
    """What the words of `words_of` ask for."""
    command: Any = add_job_options(click.command()(lambda: None))
    return wanted_of(
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


def say_asked(output: Output, asked: Asked) -> None:
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
