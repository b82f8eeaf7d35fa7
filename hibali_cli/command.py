"""Define commands and groups: click with examples, exit codes and the common options."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from enum import StrEnum
from importlib import import_module
from typing import Any, Final, Literal, NamedTuple, TypeVar

import click
from click.core import ParameterSource

from hibali_cli.completion import RUNS, SITES, add_completions, kinds_of
from hibali_cli.help_text import (
    EVERY_OPTION,
    FIRST_EXAMPLES,
    HelpLayout,
    write_examples,
    write_sections,
    write_topics_hint,
)
from hibali_cli.interruption import RESUMES, hint_if_interrupted, limit_time
from hibali_cli.options import add_common_options, add_help_option, check_outputs, complete_sites, pop_common
from hibali_cli.output import until_pipe_closes

# Further names of commands, which no list shows.
_ALIASES: Final[Mapping[str, str]] = {"copy": "cp"}


# Commands that only print: the program that reads their output may stop early.
_LISTINGS: Final = frozenset({"cat", "du", "get", "list", "log", "logs", "ls", "search", "show"})


class Section(StrEnum):
    """The sections of `hibali --help`, in their order."""

    EVERYDAY = "Everyday commands"
    TRANSFERS = "Transfers"
    FILES = "Files at a site"
    PIPELINES = "Pipelines and runs"
    REPORTS = "Status, schedules and reports"
    SETUP = "Setup"


_WORD = re.compile(r"[a-z][a-z0-9]*")


class AddedOptions(NamedTuple):
    """Options that a plugin adds to a command of hibali, after its parameter `after`, and examples.

    Where one of them is given, `calls` (MODULE:FUNCTION) is called in place of the work of the command, with all parameters.
    Without `calls`, the work of the command reads them. `checks` gets them when the command is to be scheduled; it raises `UsageError`.
    `title` is that of their section where the help has sections.
    """

    options: tuple[click.Option, ...]
    after: str
    calls: str = ""
    checks: str = ""
    examples: tuple[tuple[str, str], ...] = ()
    title: str = ""


class _WithExamples(click.Command):
    """A command whose help has examples: pairs of a command line and what it does; `section` is that of its group.

    `adds` is MODULE:FUNCTION, which returns `AddedOptions` by name that take time to find.
    """

    def __init__(
        self,
        *arguments: Any,
        calls: str | Callable[..., int | None],
        examples: Sequence[tuple[str, str]] = (),
        section: str = "",
        asks: str = "",
        adds: str = "",
        layout: HelpLayout | None = None,
        **named: Any,
    ) -> None:
        super().__init__(*arguments, **named)
        self.layout = layout
        self.calls = calls
        self.adds = adds
        self.asks = asks
        self.examples = tuple(examples)
        self.section = section
        self.added: dict[str, AddedOptions] = {}

    def extend(self, path: str) -> None:
        """Add the options of plugins, once; `path` is that of the command in their declarations."""
        from hibali.plugins import every, object_of  # start-up: not for --version

        if self.adds:
            found, self.adds = object_of(self.adds)(), ""
            for name, added in found.items():
                self._add(name, added)
        for name, added in every("hibali.options", path):
            self._add(name, added)

    def _add(self, name: str, added: AddedOptions) -> None:
        if name not in self.added:
            self.added[name] = added
            self.examples += added.examples
            add_completions(added.options)
            names = [each.name for each in self.params]
            # the parameter of a plugin that was removed is not there
            position = names.index(added.after) + 1 if added.after in names else len(names)
            self.params[position:position] = added.options
            if self.layout is not None and added.title:
                self.layout = self.layout.with_section(str(added.options[0].name), added.title)

    def work(self, values: dict[str, Any]) -> Callable[..., int | None]:
        """Import and return the function that does the work; unused options of plugins are removed from its values."""
        calls = self.calls
        for added in self.added.values():
            if not added.calls:
                continue
            if any(_is_given(str(each.name)) for each in added.options):
                calls = added.calls
            else:
                for each in added.options:
                    del values[str(each.name)]
        from hibali.plugins import object_of  # start-up: not for --version

        work: Callable[..., int | None] = calls if callable(calls) else object_of(calls)
        return work

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments, also with habits of other tools, and explain an unknown option."""
        from hibali_cli.other_tools import without_human_letter  # start-up: not for --version

        return parse_explained(super().parse_args, self, ctx, without_human_letter(args, self))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options, those of a command with many in sections."""
        if self.layout is None:
            super().format_options(ctx, formatter)
        else:
            write_sections(ctx, self.layout, formatter)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """End the help with examples, and where exit codes are explained."""
        short = self.layout is not None and EVERY_OPTION not in ctx.meta
        write_examples(self.examples[:FIRST_EXAMPLES] if short else self.examples, formatter)
        write_topics_hint(formatter)


def parse_explained(
    parse: Callable[[click.Context, list[str]], list[str]],
    command: click.Command,
    context: click.Context,
    words: list[str],
) -> list[str]:
    """Parse arguments, and explain an unknown option."""
    given = list(words)
    try:
        return parse(context, words)
    except click.NoSuchOption as problem:
        from hibali_cli.other_tools import explain_unknown_option  # start-up: only for wrong options

        raise explain_unknown_option(problem, given, command) from None


def _is_given(name: str) -> bool:
    source = click.get_current_context().get_parameter_source(name)
    return source not in {None, ParameterSource.DEFAULT, ParameterSource.DEFAULT_MAP}


class HibaliCommand(_WithExamples):
    """A command."""


class CommandGroup(click.Group):
    """A group of commands, whose help lists them in sections."""

    section = ""
    sections: Mapping[str, Sequence[str]] | None = (
        None  # the names by section; None: each command has its own
    )

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands by section, in one column; those without one come last."""
        found: dict[str, list[tuple[str, click.Command]]] = {name: [] for name in self.sections or Section}
        placed = {name: title for title, names in (self.sections or {}).items() for name in names}
        for name in self.list_commands(ctx):
            each = self.get_command(ctx, name)
            if each is not None and not each.hidden:
                title = placed.get(name) or getattr(each, "section", "")
                found.setdefault(title or "Commands", []).append((name, each))
        width = max((len(name) for each in found.values() for name, _ in each), default=0)
        limit = formatter.width - 6 - width
        for title, commands in found.items():
            if commands:
                with formatter.section(title):
                    rows = [(name.ljust(width), each.get_short_help_str(limit)) for name, each in commands]
                    formatter.write_dl(rows)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments before the command, and explain an unknown option."""
        return parse_explained(super().parse_args, self, ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of its own commands, and of those that plugins add to it, sorted."""
        from hibali.plugins import every  # start-up: only to list commands

        added = (name.rpartition(".")[2] for name, _ in every("hibali.commands", _path_of(ctx)))
        return sorted({*self._own_commands(ctx), *added})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return its own command of that name, with the options of plugins, else a plugin's; None for an unknown one."""
        from hibali.plugins import find  # start-up: not for --version

        own = self._own_command(ctx, cmd_name)
        path = f"{_path_of(ctx)}.{cmd_name if own is None else own.name}".removeprefix(".")
        if own is None:
            found = find("hibali.commands", path)
            return found if isinstance(found, click.Command) else None
        if isinstance(own, _WithExamples):
            own.extend(path)
        return own

    def _own_commands(self, ctx: click.Context) -> list[str]:
        return super().list_commands(ctx)

    def _own_command(self, ctx: click.Context, name: str) -> click.Command | None:
        return super().get_command(ctx, name)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Suggest similar commands for an unknown name."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as problem:
            from hibali_cli.other_tools import explain_unknown_command  # start-up: only for wrong commands

            similar = explain_unknown_command(args[0], self, ctx)
            if not similar:
                raise
            raise click.UsageError(f"{problem.message} Did you mean {similar!r}?", ctx) from None

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """End the help with where exit codes are explained."""
        del ctx
        write_topics_hint(formatter)


def _path_of(context: click.Context) -> str:
    """Return what comes before the last dot in the names of parts that plugins add to a group, as in `pipelines.image`."""
    names: list[str] = []
    while context.parent is not None:
        names.insert(0, str(context.info_name))
        context = context.parent
    return ".".join(names)


class FolderGroup(CommandGroup):
    """A group whose commands are found in a folder: `push.py` has `push_command`.

    A module with several commands is named for each of them in `modules`; one with `_` in its name is a part of another. Nothing
    is imported before it is named on the command line.
    """

    def __init__(self, *arguments: Any, package: str, modules: Mapping[str, str], **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._package = package
        self._modules = modules

    def _own_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the folder's commands and of those added by hand."""
        del ctx
        folder = import_module(self._package).__path__[0]
        found = {name.removesuffix(".py") for name in os.listdir(folder)}  # noqa: PTH208  # pathlib costs start-up time
        names = {name for name in found if _WORD.fullmatch(name)} - set(self._modules.values())
        return [*names, *self._modules, *self.commands]

    def _own_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Import and return the command of that name; None for an unknown one."""
        name = _ALIASES.get(name, name)
        if name in self.commands or name not in self._own_commands(ctx):
            return super()._own_command(ctx, name)
        module = import_module(f"{self._package}.{self._modules.get(name, name)}")
        found = getattr(module, f"{name}_command")
        assert isinstance(found, click.Command)
        return found


class ListingGroup(_WithExamples, CommandGroup):
    """A group that is also a command where no subcommand follows, with examples."""


Made = TypeVar("Made", HibaliCommand, ListingGroup)


def command(
    name: str,
    *,
    calls: str = "",
    examples: Sequence[tuple[str, str]] = (),
    resumes: bool = False,
    section: str = "",
    asks: Literal["", "always", "unless --yes"] = "",
    adds: str = "",
    layout: HelpLayout | None = None,
) -> Callable[[Callable[..., int | None]], HibaliCommand]:
    """Declare a command with the common options; `section` is that of the help of its group.

    `calls` is MODULE:FUNCTION, imported when the command runs; without it, the decorated function is called itself.
    It takes `common: Common` first, then the parameters of the command by name, and returns the exit code
    (None is 0). Hibali errors that it raises are printed by the frame. A command that
    `resumes` continues when it is run again after an interruption. One that `asks` questions cannot be scheduled.
    `adds` is MODULE:FUNCTION, which returns `AddedOptions` by name; it is imported when the command is looked up.
    A command with a `layout` shows its options in sections, and all of them only with --help-all.
    """
    named = {"examples": examples, "section": section, "asks": asks, "adds": adds, "layout": layout}
    return _decorator(HibaliCommand, name, calls, resumes=resumes, **named)


def _decorator(
    kind: type[Made], name: str, calls: str, *, resumes: bool = False, **named: Any
) -> Callable[[Callable[..., int | None]], Made]:
    def decorate(function: Callable[..., int | None]) -> Made:
        def run(**values: Any) -> int | None:
            context = click.get_current_context()
            if context.invoked_subcommand is not None:
                _refuse_ignored_options(context, context.invoked_subcommand)
                return None
            complete_ids(made.params, values)
            common = pop_common(values)
            complete_sites(common, made.params, values)
            check_outputs(common, context.command.params, values)
            hint = RESUMES if resumes and not values.get("dry_run") else ""
            prints = name in _LISTINGS or isinstance(made, ListingGroup)
            ends = until_pipe_closes() if prints else nullcontext()
            with limit_time(common.max_seconds), hint_if_interrupted(hint), ends:
                return made.work(values)(common, **values)

        run.__doc__ = function.__doc__
        run.__click_params__ = getattr(function, "__click_params__", [])  # type: ignore[attr-defined]
        added: dict[str, Any] = {"calls": calls or function, "add_help_option": False, **named}
        with_options = add_common_options(run, has_layout=named.get("layout") is not None)
        made: Made = click.command(name, cls=kind, **added)(with_options)
        add_completions(made.params)
        return made

    return decorate


def complete_ids(parameters: Iterable[click.Parameter], values: dict[str, Any]) -> None:
    """Replace parts of run ids and names of runs by the ids, in every parameter that takes runs.

    Raises `UsageError` for an ambiguous one; other values of the parameter are kept.
    """
    context = click.get_current_context()
    for parameter in parameters:
        ignored = values.get(str(parameter.name))
        kinds = kinds_of(parameter, context)
        if ignored and RUNS in kinds and SITES not in kinds:
            from runs.store import RunStore  # start-up: only for wrong commands and run ids

            only = len(kinds) == 1
            typed = ignored if isinstance(ignored, tuple) else (ignored,)
            found = RunStore().find_ids(typed, only=only)
            values[str(parameter.name)] = found if isinstance(ignored, tuple) else found[0]


def command_group(
    name: str,
    *,
    commands: Sequence[click.Command] | Mapping[str, Sequence[click.Command]],
    help_text: str,
    section: str = "",
) -> CommandGroup:
    """Return a group of these commands, which a large one has by the sections of its help."""
    sections = commands if isinstance(commands, Mapping) else {"Commands": commands}
    listed = [each for some in sections.values() for each in some]
    group = CommandGroup(name, commands=listed, help=help_text, no_args_is_help=True, add_help_option=False)
    group.section = section
    group.sections = {title: [str(each.name) for each in some] for title, some in sections.items()}
    return add_help_option(group)


def folder_group(name: str, *, package: str, modules: Mapping[str, str], help_text: str) -> FolderGroup:
    """Return a group whose commands are found in the folder of a package."""
    group = FolderGroup(
        name, package=package, modules=modules, help=help_text, no_args_is_help=True, add_help_option=False
    )
    return add_help_option(group)


def listing_group(
    name: str,
    *,
    calls: str,
    commands: Sequence[click.Command],
    examples: Sequence[tuple[str, str]] = (),
    section: str = "",
) -> Callable[[Callable[..., int | None]], ListingGroup]:
    """Declare the command of a group where no subcommand follows; see `command`.

    It raises `click.UsageError` for options before a subcommand, which would ignore them.
    """
    named: dict[str, Any] = {"commands": commands, "invoke_without_command": True}
    return _decorator(ListingGroup, name, calls, examples=examples, section=section, **named)


def _refuse_ignored_options(context: click.Context, command: str) -> None:
    """Refuse options that would be ignored."""
    ignored = [
        option.opts[-1]
        for option in context.command.params
        if option.name and context.get_parameter_source(option.name) is ParameterSource.COMMANDLINE
    ]
    if ignored:
        raise click.UsageError(
            f"{ignored[0]} before {command!r} would be ignored. Write options after {command!r}.",
            context,
        )
