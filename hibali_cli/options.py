"""Define the options that every command has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from hibali.amounts import MOST_COUNT, NONE, read_duration
from hibali.errors import UsageError
from hibali.options import Option, declared_by
from hibali_cli.help_text import EVERY_OPTION
from hibali_cli.output import Output, begin_array

if TYPE_CHECKING:
    from hibali.config.settings import Settings


@dataclass(frozen=True, slots=True)
class Common:
    """The values of the common options; `max_seconds` is None without `--max-time`."""

    output: Output = field(default_factory=Output)
    config: str | None = None
    progress: bool = True
    max_seconds: float | None = None
    log_file: str | None = None

    @property
    def json(self) -> bool:
        """Whether results are JSON."""
        return self.output.json

    def settings(self) -> Settings:
        """Read and check config.toml; raises `UsageError` with every problem in it."""
        from hibali.config.settings import load_sites  # start-up: not for --help

        return load_sites(self.config)


COUNT = click.IntRange(1, MOST_COUNT)


class Use(click.types.StringParamType):
    """A text that names a file, a location or a site, and what the command does with it."""


OUTPUT_FILE = Use()  # a file or folder of this machine that a command writes
OUTPUT_PLACE = Use()  # a target of a command, on this machine or SITE:PATH


class SourcesArgument(click.Argument):
    """One or more sources before the target; with one word, it is the target that is missing."""

    def __init__(self, names: Sequence[str], **attributes: Any) -> None:
        super().__init__(names, nargs=-1, required=True, **attributes)

    def handle_parse_result(
        self, ctx: click.Context, opts: Mapping[str, Any], args: list[str]
    ) -> tuple[Any, list[str]]:
        """See click."""
        last = [each for each in ctx.command.params if isinstance(each, click.Argument)][-1]
        given, target = (opts.get(str(each.name)) for each in (self, last))
        if not isinstance(given, tuple) and isinstance(target, str) and not ctx.resilient_parsing:
            raise click.MissingParameter(ctx=ctx, param=last)
        return super().handle_parse_result(ctx, opts, args)


READ, WRITTEN = Use(), Use()  # a location: it must exist, or the command makes it
INPUT_FILE = Use()  # a file of this machine that must exist, or an address
NEW_NAME = Use()  # a name that this command defines
SITE = Use()  # the site, or sites, that the command needs; without a value the default site


def complete_sites(common: Common, parameters: Iterable[click.Parameter], values: dict[str, Any]) -> None:
    """Give the default site to parameters that need a site and have no value; raises `UsageError` without one."""
    for parameter in parameters:
        name = str(parameter.name)
        if parameter.type is SITE and not values[name]:
            site = common.settings().require_default_site(parameter.opts[-1])
            values[name] = (site,) if parameter.multiple else site


def check_outputs(common: Common, parameters: Iterable[click.Parameter], values: Mapping[str, Any]) -> None:
    """Raise `UsageError` if an output file has the name of a site, before the command starts."""
    for parameter in parameters:
        value = values.get(parameter.name or "")
        if not value:
            continue
        if parameter.type is OUTPUT_FILE:
            from hibali.locations import check_local_file  # start-up: not for --help

            check_local_file(value, common.settings())
        elif parameter.type is OUTPUT_PLACE:
            from hibali.locations import check_no_site_name  # start-up: not for --help

            check_no_site_name(value, common.settings())


def reading(read: Callable[[Any], Any]) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """Return a callback for click that reads a value, None where it was not given, and reports what is wrong with it."""

    def callback(context: click.Context, option: click.Parameter, value: Any) -> Any:
        try:
            return None if value is None else read(value)
        except ValueError as problem:
            raise click.BadParameter(str(problem), context, option) from None

    return callback


duration_of = reading(read_duration)


class _Count(click.IntRange):
    """A count, or `none`, which is 0: the resource is not requested although the author or the site suggests it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See click."""
        return 0 if value == NONE else super().convert(value, param, ctx)


class _DeclaredOption(click.Option):
    """An option that is declared in a TypedDict."""

    def __init__(self, each: Option) -> None:
        named: dict[str, Any] = {}
        if each.kind is bool:
            named = {"is_flag": True, "flag_value": not each.default}
        elif each.limits is not None:
            named["type"] = (_Count if NONE in each.choices else click.IntRange)(*each.limits)
        elif each.choices:
            named |= {"type": click.Choice(each.choices), "show_default": each.default is not None}
        elif each.use:
            named["type"] = {"written": WRITTEN, "input": INPUT_FILE}[each.use]
        if each.default is not None:
            named["default"] = each.default
        super().__init__(
            [*(each.flags or f"--{each.name.replace('_', '-')}").split(), each.name],
            metavar=each.metavar,
            multiple=each.is_many,
            callback=each.read and reading(each.read),
            help=each.help,
            **named,
        )
        self.declared = each

    def handle_parse_result(
        self, ctx: click.Context, opts: Mapping[str, Any], args: list[str]
    ) -> tuple[Any, list[str]]:
        """Refuse this option without the one that it needs."""
        needed = self.declared.needs
        if needed and self.name in opts and not ctx.resilient_parsing:
            declared = (each for each in ctx.command.params if isinstance(each, _DeclaredOption))
            other = next(each for each in declared if each.name == needed)
            if not opts.get(needed, other.declared.default):
                verb = "cannot be used with" if other.declared.default else "needs"
                message = f"{self.opts[-1]} {verb} {other.opts[-1]}{self.declared.reason}"
                raise UsageError("usage", message, subject=self.opts[-1], hint=self.declared.hint)
        return super().handle_parse_result(ctx, opts, args)


Decorator = Callable[[Any], Any]


def made_options(group: type) -> tuple[click.Option, ...]:
    """Return the options that a TypedDict declares, for a plugin that adds them to a command."""
    return tuple(map(_DeclaredOption, declared_by(group)))


def options(*groups: type | Decorator) -> Decorator:
    """Return what adds these options to a command, in this order: those that a TypedDict declares, or click's own."""
    sources = [list(declared_by(each)) if isinstance(each, type) else each for each in groups]

    def add(function: Any) -> Any:
        for source in reversed(sources):
            if isinstance(source, list):
                made = map(_DeclaredOption, reversed(source))
                function.__dict__.setdefault("__click_params__", []).extend(made)
            else:
                function = source(function)
        return function

    return add


def show_help(context: click.Context, option: click.Parameter, requested: bool) -> None:  # noqa: FBT001  # click calls it so
    """Print the help (a click callback) with hibali's output, which handles an unwritable stdout."""
    del option
    if requested:
        Output().text(context.get_help() + "\n")
        context.exit()


def _show_all_help(context: click.Context, option: click.Parameter, requested: bool) -> None:  # noqa: FBT001  # click calls it so
    if requested:
        context.meta[EVERY_OPTION] = True
        show_help(context, option, requested)


add_help_option = click.option(
    "-h",
    "--help",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=show_help,
    help="Show this message and exit.",
)
_help_all_option = click.option(
    "--help-all",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_all_help,
    help="Show all options and exit.",
)
_OPTIONS: tuple[Callable[[Any], Any], ...] = (
    click.option("--json", "json", is_flag=True, help="Write results to stdout as JSON lines."),
    click.option("--json-array", "json_array", is_flag=True, help="Write them as one JSON array."),
    click.option("-q", "--quiet", is_flag=True, help="Print only errors."),
    click.option("-v", "--verbose", count=True, help="Print every file; -vv also requests."),
    click.option("--log-file", metavar="FILE", help="Append all messages to FILE, also with --quiet."),
    click.option("--config", metavar="FILE", help="Read FILE instead of your config.toml."),
    click.option("--no-progress", is_flag=True, help="Show no progress, also on a terminal."),
    click.option(
        "--max-time",
        callback=duration_of,
        metavar="DURATION",
        help="Stop cleanly after this time, with exit code 5.",
    ),
    add_help_option,
)
COMMON_NAMES = ("json", "json_array", "quiet", "verbose", "log_file", "config", "no_progress", "max_time")


def add_common_options(function: Callable[..., Any], *, has_layout: bool = False) -> Callable[..., Any]:
    """Add the common options to a command's function, after its own and in the same order everywhere.

    One whose help has a layout also has --help-all.
    """
    own = list(getattr(function, "__click_params__", []))
    for option in reversed((*_OPTIONS, _help_all_option) if has_layout else _OPTIONS):
        option(function)
    together = list(getattr(function, "__click_params__", []))
    # click stores parameters in reverse order
    function.__click_params__ = together[len(own) :] + own  # type: ignore[attr-defined]
    return function


def pop_common(values: dict[str, Any]) -> Common:
    """Remove the common options from a command's parameters and return them."""
    popped = {name: values.pop(name) for name in COMMON_NAMES}
    json = popped["json"] or popped["json_array"]
    if popped["json_array"]:
        begin_array()
    output = Output(json=json, quiet=popped["quiet"], verbose=popped["verbose"] > 0)
    if popped["log_file"] is not None:
        from hibali_cli.log_file import open_log  # start-up: only with a log

        open_log(popped["log_file"])
    if popped["verbose"] > 1:
        from hibali.request_log import log_requests  # start-up: only where requests are reported

        log_requests(output.detail)
    return Common(
        output=output,
        config=popped["config"],
        progress=not (popped["no_progress"] or popped["quiet"]),
        max_seconds=popped["max_time"],
        log_file=popped["log_file"],
    )
