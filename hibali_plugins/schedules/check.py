"""Check whether a schedule can work unattended, before it is added and on request."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from hibali.config.settings import SITE_VARIABLE, Settings
from hibali.documents import missing_file, read_json_file
from hibali.errors import HibaliError, NotFoundError, TryLaterError, UsageError
from hibali.locations import Location, check_writable, read_location
from hibali.plugins import object_of
from hibali_api.transfer_request import transfer_request
from hibali_cli.completion import ENDS, PIPELINES, PLACES, REMOTES, RUNS, SITES, kinds_of
from hibali_cli.failure import print_error
from hibali_cli.handlers.transfers import with_names
from hibali_cli.options import (
    COMMON_NAMES,
    INPUT_FILE,
    NEW_NAME,
    OUTPUT_PLACE,
    READ,
    SITE,
    WRITTEN,
    Common,
    Use,
)
from hibali_plugins.schedules.environment import bare_environment
from hibali_plugins.schedules.preflight import (
    ScheduleEndpoint,
    find_schedule_problems,
    missing_source,
    try_command,
)
from hibali_plugins.schedules.schedule import Schedule, load_schedules
from registry.catalogue import Catalogue
from registry.invocation import check_invocation
from runs.inputs import list_inputs
from runs.model import FROM_RUN
from runs.store import RunStore
from transfers.stores.open_store import open_store

# control characters, and bytes that are not UTF-8
UNSAFE_CHARACTERS = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")


def check_argv(argv: Sequence[str]) -> tuple[str, ...]:
    """Check the arguments after `hibali` of a command to schedule; raises `UsageError` as running it would."""
    arguments = list(argv[1:] if argv[:1] == ("hibali",) else argv)
    if not arguments or arguments[0] == "schedule":
        raise UsageError(
            "bad-command",
            "the command to run must follow --, as in: -- push /data bucket:data",
            subject="hibali schedule add",
        )
    for argument in arguments:
        if UNSAFE_CHARACTERS.search(argument):
            raise UsageError(
                "bad-command",
                "an argument with a newline, another control character or invalid UTF-8 cannot be stored",
                subject=ascii(argument),
                hint="Use the folder that contains it.",
            )
    parse_command(arguments)
    return tuple(arguments)


def pin_default_site(
    common: Common, argv: Sequence[str], environment: Mapping[str, str]
) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the command and its environment with the default site named, so that a later default does not redirect it.

    The environment gets it also as HIBALI_SITE, for what is no place by itself, such as `:PATH` in a file of values. Raises
    `UsageError` if a default site is needed and there is none.
    """
    command = parse_command(argv)
    settings = _settings(common, command, environment)
    pinned = list(argv)
    for number, word in enumerate(argv):
        option, equals, value = word.rpartition("=") if word.startswith("--") else ("", "", word)
        named = [*pinned[:number], f"{option}{equals}SITE{value}", *pinned[number + 1 :]]
        if value.startswith(":") and _differ_in_places(parse_command(pinned), parse_command(named)):
            pinned[number] = f"{option}{equals}{settings.with_site(value)}"
    for parameter in command.context.command.params:
        if parameter.type is SITE and not command.values(str(parameter.name)):
            words = len(command.name.split())
            option = parameter.opts[-1]
            pinned[words:words] = [option, settings.require_default_site(option)]
    site = {SITE_VARIABLE: settings.default_site} if settings.default_site else {}
    return tuple(pinned), {**site, **environment}


def _differ_in_places(one: Command, other: Command) -> bool:
    """Return whether two parses of a command differ only in places: the same text may also be the value of another option."""
    names = {name for name in one.context.params if one.values(name) != other.values(name)}
    places = [each for each in one.context.command.params if each.name in names and one.takes_place(each)]
    return 0 < len(names) == len(places)


def find_problems(common: Common, schedule: Schedule, *, connect: bool = True) -> list[HibaliError]:
    """Find problems that will keep a schedule from working: in its command, then at its sites and endpoints.

    Each step is taken only if the one before found nothing; without `connect` only the first.
    """
    found = find_mistakes(common, schedule)
    if found or not connect:
        return found
    ends = find_endpoints(common, schedule)
    found = find_schedule_problems(common.config, common.settings(), schedule, datetime.now(UTC), ends)
    return found or find_unreachable(common, schedule, ends)


def print_problems(
    common: Common, name: str, problems: Sequence[HibaliError], *, adding: bool = False
) -> None:
    """Report all problems; raise the first that the user must correct, else the first temporary one."""
    if common.json:
        records = [problem.to_record() for problem in problems]
        common.output.record("schedule-check", {"name": name, "obstacles": records})
    if not problems:
        return
    worst = min(problems, key=lambda problem: 1 if int(problem.exit) == 5 else 0)
    for problem in problems:
        if problem is not worst:
            print_error(problem)
    if adding and isinstance(worst, TryLaterError):
        worst.hint = f"{worst.hint} To add the schedule anyway: --no-check".strip()
    raise worst


@dataclass(frozen=True, slots=True)
class Command:
    """A parsed command line: the name of the command, and its parameters by name."""

    name: str
    context: click.Context

    def values(self, name: str) -> tuple[Any, ...]:
        """Return the values of a parameter, () for none."""
        value = self.context.params.get(name)
        if value is None:
            return ()
        return value if isinstance(value, tuple) else (value,)

    def used(self, *uses: Use) -> Iterator[tuple[Use, str]]:
        """Yield the values of parameters that declare one of these uses."""
        for parameter in self.context.command.params:
            if isinstance(parameter.type, Use) and parameter.type in uses:
                for value in self.values(str(parameter.name)):
                    yield parameter.type, str(value)

    def takes_place(self, parameter: click.Parameter) -> bool:
        """Return whether a parameter takes a place, on this machine or at a site."""
        kinds = kinds_of(parameter, self.context)
        return bool({PLACES, ENDS} & {*kinds}) or parameter.type in {READ, WRITTEN, OUTPUT_PLACE}

    def texts(self, kind: str) -> Iterator[tuple[click.Parameter, str]]:
        """Yield the values of parameters that take a name of this kind."""
        for parameter in self.context.command.params:
            if kind in kinds_of(parameter, self.context):
                for value in self.values(str(parameter.name)):
                    yield parameter, str(value)


def parse_command(argv: Sequence[str]) -> Command:
    """Parse the arguments after `hibali` without running them, in a command of it. Raises as running them would."""
    found: click.Command = click.get_current_context().find_root().command
    context = click.Context(found, info_name="hibali")
    rest = list(argv)
    while isinstance(found, click.Group) and (rest or not found.invoke_without_command):
        if not rest or rest[0].startswith("-"):
            if found.invoke_without_command:
                break
            raise UsageError(
                "bad-command",
                f"{' '.join(argv)!r} is a group and needs a subcommand",
                subject="hibali schedule add",
            )
        name, command, rest = found.resolve_command(context, rest)
        if command is None or name is None:
            raise UsageError("bad-command", "the command does not exist", subject=" ".join(argv))
        found = command
        context = click.Context(found, info_name=name, parent=context)
    if {"-h", "--help"} & set(rest):
        raise UsageError("bad-command", "--help cannot be scheduled", subject="hibali schedule add")
    parsed = found.make_context(context.info_name, list(rest), parent=context.parent)
    return Command(parsed.command_path.partition(" ")[2], parsed)


def find_mistakes(common: Common, schedule: Schedule) -> list[HibaliError]:
    """Return problems that are found without connecting to a site.

    Raises `click.UsageError` for a command that cannot be parsed.
    """
    command = parse_command(schedule.command)
    found: list[HibaliError] = []
    try:
        _check_folder(schedule)
    except NotFoundError as problem:
        return [problem]
    with contextlib.chdir(schedule.folder):
        settings = _settings(common, command, schedule.environment)
        checks: Iterable[Callable[[], None]] = (
            lambda: _check_interactive(command),
            lambda: _check_names(command, settings),
            lambda: _check_options(common, command),
            lambda: _check_files(command),
        )
        for check in checks:
            try:
                check()
            except HibaliError as problem:
                if not any(each.message == problem.message for each in found):
                    found.append(problem)
    return found


def find_endpoints(common: Common, schedule: Schedule) -> list[ScheduleEndpoint]:
    """Return every location that the command reads or writes."""
    command = parse_command(schedule.command)
    with contextlib.chdir(schedule.folder):
        settings = _settings(common, command, schedule.environment)
        return [
            ScheduleEndpoint(read_location(text, settings), use is READ)
            for use, text in command.used(READ, WRITTEN)
        ]


def find_unreachable(
    common: Common, schedule: Schedule, ends: Sequence[ScheduleEndpoint]
) -> list[HibaliError]:
    """Open the `ends`, and check a run as a dry run does; return the errors."""
    command = parse_command(schedule.command)
    found = [_closed(end.location, must_exist=end.must_exist) for end in ends if end.location.typed_local]
    problems = [problem for problem in found if problem is not None]
    if command.name == "run" and not command.context.params["dry_run"]:
        with contextlib.chdir(schedule.folder):
            settings = _settings(common, command, schedule.environment)
            problems += _dry_run(common, schedule) or _missing_inputs(command, settings)
    return problems


def _dry_run(common: Common, schedule: Schedule) -> list[HibaliError]:
    argv = ["run", "--dry-run", "--json", "--no-progress", *schedule.command[1:]]
    problem = try_command(argv, bare_environment(common.config, schedule.environment))
    return [] if problem is None else [problem]


def _missing_inputs(command: Command, settings: Settings) -> list[HibaliError]:
    """Check the input files of the invocation, which a dry run does not check."""
    if not command.values("invocation") or command.values("each") or command.values("parameters"):
        return []
    [pipeline], [invocation_path] = command.values("pipeline"), command.values("invocation")
    invocation = check_invocation(Catalogue().find(pipeline), read_json_file(Path(invocation_path)))
    texts = [each.text for each in list_inputs(invocation) if not each.text.startswith(FROM_RUN)]
    return [problem for text in texts if (problem := _closed(read_location(text, settings))) is not None]


def _closed(location: Location, *, must_exist: bool = True) -> HibaliError | None:
    """Open a location; return the error if that fails."""
    try:
        with contextlib.closing(open_store(location)) as store:
            return missing_source(location) if store.stat() is None and must_exist else None
    except HibaliError as problem:
        return problem


def _check_folder(schedule: Schedule) -> None:
    if not os.access(schedule.folder, os.R_OK | os.X_OK):
        raise NotFoundError(
            "no-such-folder",
            "the folder in which the command runs does not exist, or cannot be entered",
            subject=schedule.folder,
            hint=f"Add {schedule.name} again from another folder, with --replace.",
        )


def _settings(common: Common, command: Command, environment: Mapping[str, str]) -> Settings:
    """Return the configuration that the command will read, with the default site of its environment."""
    settings = replace(common, config=command.context.params.get("config") or common.config).settings()
    return replace(settings, default_site=environment.get(SITE_VARIABLE) or settings.default_site)


def _check_interactive(command: Command) -> None:
    asks, values = getattr(command.context.command, "asks", ""), command.context.params
    if asks and (asks == "always" or not (values.get("yes") or values.get("dry_run"))):
        raise UsageError(
            "needs-a-person",
            "the command asks questions, which a schedule cannot answer",
            subject=f"hibali {command.name}",
            hint="" if asks == "always" else "Add --yes to the command.",
        )


def _check_names(command: Command, settings: Settings) -> None:
    """Check names; raises as for an unknown site, root, remote, run or pipeline."""
    for kind in (PLACES, ENDS):
        for _, text in command.texts(kind):
            read_location(text, settings)
    for _, text in command.used(READ, WRITTEN):
        read_location(text, settings)
    if any(each.type is NEW_NAME for each in command.context.command.params):
        return
    for parameter, text in command.texts(SITES):
        either = RUNS in kinds_of(parameter, command.context)
        if not either and not (text == "auto" and parameter.metavar == "SITE|auto"):
            settings.site(text)
    for _, text in command.texts(REMOTES):
        settings.remote(text)
    for parameter, text in command.texts(RUNS):
        if len(kinds_of(parameter, command.context)) == 1:
            RunStore().load(RunStore().find_id(text))
    for parameter, text in command.texts(PIPELINES):
        if len(kinds_of(parameter, command.context)) == 1:
            Catalogue().find(text)


def _check_options(common: Common, command: Command) -> None:
    """Check options; raises for conflicting ones, and for missing lists of names."""
    if command.name not in {"push", "pull", "sync"}:
        return

    options = {name: value for name, value in command.context.params.items() if name not in COMMON_NAMES}
    source, target = (options.pop(str(each.name)) for each in command.context.command.params[:2])
    for added in getattr(command.context.command, "added", {}).values():
        if added.checks:
            object_of(added.checks)(options)
    settings = replace(common, config=command.context.params.get("config") or common.config).settings()
    check_writable(transfer_request(command.name, source[0], target, with_names(options), settings).target)


def _check_files(command: Command) -> None:
    for _, text in command.used(INPUT_FILE):
        if text != "-" and "://" not in text and not Path(text).exists():
            raise missing_file(text)


def check_schedule(common: Common, name: str) -> int | None:
    """Check whether a schedule can work unattended."""
    schedule = load_schedules(common.config).one(name)
    print_problems(common, name, find_problems(common, schedule))
    common.output.info(f"{name}: all checks passed.")
    return None
