"""Set up sites and send a first file (`init`); show the steps of `doctor`."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import click

from hibali.config.edit import add_site
from hibali.config.edit_keys import set_value
from hibali.config.kinds import kind_of
from hibali.config.model import Site
from hibali.config.settings import Settings
from hibali.errors import HibaliError, NotFoundError, UsageError
from hibali.files import private_folder, state_folder, write_atomic
from hibali.subprocesses import has_terminal
from hibali.system_errors import reason_of
from hibali.text import counted, did_you_mean, printable
from hibali_cli.dialogue import read_line, terminal_as_stdout
from hibali_cli.handlers.site_check import as_access_or_later
from hibali_cli.options import Common
from hibali_cli.output import coloured, write_message
from hibali_cli.path_completion import complete_last, complete_path
from hibali_cli.progress import listening
from hibali_plugins.setup.importing import (
    NONE_FOUND,
    ImportRequest,
    add_proposals,
    ask_on_terminal,
    change_of,
    choose_proposals,
    find_sites,
    show_proposals,
)
from hibali_plugins.setup.proposals import UNSEEN
from hibali_plugins.setup.site import WantsJob, diagnose_site
from hibali_plugins.setup.sources import Proposal, name_site
from runs.doctor_steps import Step, StepList, StepStatus
from runs.site_commands import choosing, find_batch_systems

_WIDTH = max(len(status) for status in StepStatus)
_NAMES = max(map(len, ("settings", "connection", "credentials", "transport", "scheduler", "container")))
_COLOURS = {StepStatus.OK: "32", StepStatus.WARNING: "33", StepStatus.FAULT: "31", StepStatus.NOT_TRIED: "2"}


def run_checks(common: Common, site: Site, *, job: WantsJob) -> StepList:
    """Check the site and show each step as it ends."""
    checks = StepList(lambda step: _show(common, step))
    with listening(common, f"doctor {site.name}") as on_event:
        diagnose_site(checks, site, on_event, job=job)
    return checks


def check_and_show(common: Common, site: Site, *, job: WantsJob) -> int:
    """Check the site and show each step as it ends; returns 0, or raises the worst problem."""
    checks = run_checks(common, site, job=job)
    worst = checks.worst()
    if worst is not None:
        raise worst
    if common.json:
        common.output.record("end", {"count": len(checks.steps), "exit": 0})
        return 0
    warnings = sum(step.status is StepStatus.WARNING for step in checks.steps)
    remark = f", with {counted(warnings, 'warning')}" if warnings else ""
    common.output.info(f"{site.name} works{remark}.")
    if job is False and site.scheduler is not None:
        common.output.info(f"To test a job, too: hibali doctor {site.name} --job")
    return 0


def _show(common: Common, step: Step) -> None:
    if common.json:
        fields = {"name": step.name, "verdict": step.status, "found": step.found, "fix": step.fix}
        code = step.problem.code if step.problem is not None else None
        common.output.record("step", {**fields, "code": code}, flush=True)
        return
    part = f"{step.status:<{_WIDTH}}"
    if coloured(sys.stdout):
        part = f"\x1b[{_COLOURS[step.status]}m{part}\x1b[0m"
    first, *more = step.found.split("\n")
    lines = [f"{part}  {step.name:<{_NAMES}}  {printable(first)}"]
    indent = " " * (_WIDTH + _NAMES + 4)
    lines += [f"{indent}{printable(line)}" for line in more]
    if step.fix:
        lines.append(f"{indent}{printable(step.fix)}")
    common.output.text("\n".join(lines) + "\n")


_LOCAL = "this-machine"  # a code without a message
_FIRST = "hibali-first"
_FOLDER = "~/hibali-data"  # ~/hibali is a usual name for a clone or a virtual environment
_CONTENT = b"The first file that hibali sent from this account.\n"
_NONE = frozenset({"", "none", "no", "n"})

ReadLine = Callable[[str, Callable[[str], list[str]]], str]


class InitOptions(NamedTuple):
    """The options of `init`: the sites to import, the folder of a local site, the target of the first file; `yes` prompts for nothing."""

    request: ImportRequest
    here: str | None
    to: str | None
    push: bool
    yes: bool


def set_up(
    common: Common, *, here: str | None, to: str | None, no_push: bool, yes: bool, **wanted: Any
) -> int:
    """Set up sites and send a first file; returns the exit code. Raises `UsageError` where a question needs a terminal."""
    options = InitOptions(ImportRequest(**wanted), here, to, push=not no_push, yes=yes)
    interactive = not yes
    if interactive and (common.json or not has_terminal()):
        raise UsageError(
            "no-terminal",
            "questions are not possible: stdin or stderr is not a terminal, or --json was given",
            subject="hibali init",
            hint="Without questions: hibali init --yes",
        )
    proposals = _choose_proposals(common, options)
    if interactive:
        with terminal_as_stdout():
            proposals = (
                choose_sites(proposals, read_line) if proposals and not options.request.only else proposals
            )
            target, folder = choose_target(common.settings(), proposals, options, read_line)
    else:
        target, folder = options.to, options.here or _FOLDER
    added_sites = [
        site
        for _, site in add_proposals(
            common, proposals, replace=False, accept_prologue=options.request.accept_prologue
        )
    ]
    for site in added_sites:
        common.output.info(f"{site.name} was added to {common.settings().path}.")
    problems = _check_all(common, added_sites, interactive=interactive)
    if options.push:
        target = target or _local_site(common, folder, interactive=interactive)
        _send_first(common, target, {site.name for site, _ in problems})
    if problems:
        raise as_access_or_later(problems[0][1])
    return 0


def _choose_proposals(common: Common, options: InitOptions) -> list[Proposal]:
    """Return the sites to add: without questions only the named ones."""
    if options.yes and not (options.request.source or options.request.only):
        return []
    settings = common.settings()
    found = find_sites(settings, options.request, None if options.yes else ask_on_terminal(common))
    if not found:
        common.output.info(NONE_FOUND)
    chosen = choose_proposals(found, options.request.only)
    chosen = [each for each in chosen if change_of(common, each) == "added"]
    if options.yes and not common.json:
        show_proposals(common, [], chosen)
    return chosen


def choose_sites(proposals: Sequence[Proposal], read: ReadLine) -> list[Proposal]:
    """Prompt which of the proposals to add, by name or number."""
    write_message("Hosts and remotes known on this machine:")
    width = max(len(each.name) for each in proposals)
    for number, each in enumerate(proposals, start=1):
        write_message(
            f"  {number:>3}  {each.name:<{width}}  {printable(each.reached)}  ({printable(each.origin)})"
        )
    by_answer = {str(number): each for number, each in enumerate(proposals, start=1)}
    by_answer |= {each.name: each for each in proposals}
    names = [each.name for each in proposals]
    while True:
        answer = read(
            "Which ones should hibali add as sites? Names or numbers, all, or none [none]: ",
            _complete_from([*names, "all", "none"]),
        )
        parts = answer.replace(",", " ").split()
        if answer.strip().lower() in _NONE:
            return []
        if parts == ["all"]:
            return list(proposals)
        unknown = [part for part in parts if part not in by_answer]
        if not unknown:
            return list({by_answer[part].name: by_answer[part] for part in parts}.values())
        write_message(
            f"  {printable(unknown[0])} is not in the list. {did_you_mean(unknown[0], names)}".rstrip()
        )


def _complete_from(parts: Sequence[str]) -> Callable[[str], list[str]]:
    return lambda text: complete_last(text, parts)


def choose_target(
    settings: Settings, proposals: Sequence[Proposal], options: InitOptions, read: ReadLine
) -> tuple[str | None, str]:
    """Prompt for the target of the first file: a site, or None and the local folder that becomes one."""
    usual = options.here or _FOLDER
    if options.to or not options.push:
        return options.to, usual
    names = [name for name, site in settings.sites.items() if _takes_files(site)]
    names += [each.name for each in proposals if each.table["kind"] != "s3" or "bucket" in each.table["s3"]]
    alternatives = f", or one of {', '.join(names)}" if names else ""
    while True:
        answer = read(
            f"Where should hibali send a first file? A local folder{alternatives} [{usual}]: ",
            lambda text: _places(text, names),
        )
        answer = answer.strip() or usual
        if answer in names or answer.partition(":")[0] in names:
            return answer, usual
        if "/" in answer:
            return None, answer
        write_message(
            f"  Type a site, or a folder with a slash in it. {did_you_mean(answer, names)}".rstrip()
        )


def _places(text: str, names: Sequence[str]) -> list[str]:
    return [name for name in names if name.startswith(text)] + complete_path(text, Path.cwd())


def _takes_files(site: Site) -> bool:
    if site.kind == "s3":
        return site.s3 is not None and site.s3.bucket is not None
    return site.kind != "url" or (site.url or "").startswith("dav")


def _check_all(common: Common, sites: Sequence[Site], *, interactive: bool) -> list[tuple[Site, HibaliError]]:
    """Check each site, and propose its scheduler; return those that do not work, with the reasons."""
    problems = []
    for site in sites:
        checks = run_checks(common, site, job=False)
        for scheduler in (step.scheduler for step in checks.steps if step.scheduler):
            _choose_scheduler(common, site.name, scheduler, interactive=interactive)
        if kind_of(site).has_machine and site.kind != "local":
            common.output.info(f"{UNSEEN} To set them: hibali sites add --help-all")
        worst = checks.worst()
        if worst is not None:
            problems.append((site, worst))
            common.output.info(
                f"{site.name} stays in config.toml. After correcting the problem: hibali doctor {site.name}"
            )
    return problems


def _choose_scheduler(common: Common, site: str, scheduler: str, *, interactive: bool) -> None:
    """Set the scheduler that was found at a new site; without questions too, because login nodes are not for jobs."""
    question = f"Submit the jobs of {site} to {scheduler}?"
    if interactive and not click.confirm(question, default=True, err=True):
        return
    set_value(common.config, f"sites.{site}.scheduler.name", scheduler)
    if common.json:
        common.output.record("site-change", {"name": site, "change": "replaced"})
    common.output.info(
        f"Jobs of {site} are submitted to {scheduler}. To run them on its host instead: {choosing(site, 'direct')}"
    )


def _local_site(common: Common, folder: str, *, interactive: bool) -> str:
    """Return the site of a local folder, an existing or a new one. Only hibali's own proposal is created."""
    path = Path(folder).expanduser().absolute()
    settings = common.settings()
    for site in settings.sites.values():
        if site.kind == "local" and site.default_root and site.roots[site.default_root] == str(path):
            return site.name
    if folder != _FOLDER and not path.exists():
        hint = f"Is it mounted? To create it: {shlex.join(['mkdir', '-p', str(path)])}"
        raise NotFoundError("no-such-folder", "it does not exist", subject=str(path), hint=hint)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        hint = "Use another folder: hibali init --here FOLDER"
        raise UsageError("no-folder", reason_of(problem), subject=str(path), hint=hint) from None
    name = name_site(_LOCAL, settings.sites)
    table = {"kind": "local", "default_root": "data", "roots": {"data": str(path)}}
    change, site = add_site(common.config, name, table)
    if common.json:
        common.output.record("site-change", {"name": name, "change": change})
    common.output.info(f"The site {name} is the folder {path}.")
    systems = find_batch_systems(lambda names: {each: shutil.which(each) for each in names})
    for scheduler in list(systems)[:1]:
        _choose_scheduler(common, name, scheduler, interactive=interactive)
    return site.name


def _send_first(common: Common, target: str, broken: set[str]) -> None:
    """Send a small file to a site with a push command that is shown and can be repeated."""
    name = target.partition(":")[0]
    if name in broken:
        common.output.info(f"No file was sent: {name} does not work yet.")
        return
    common.settings().site(name)
    file = private_folder(state_folder() / "first") / "hello.txt"
    if not file.exists():
        write_atomic(file, _CONTENT)
    place = target if ":" in target else f"{name}:{_FIRST}/"
    common.output.info(shlex.join(["hibali", "push", str(file), place]))
    parts = [str(file), place, *(["--config", common.config] if common.config else [])]
    parts += (
        ["--json"] * common.json
        + ["--quiet"] * common.output.quiet
        + ["--no-progress"] * (not common.progress)
    )
    root = click.get_current_context().find_root()
    push = cast("click.Group", root.command).get_command(root, "push")
    assert push is not None
    with push.make_context("push", parts) as context:
        push.invoke(context)
    around = place.rpartition("/")[0] if "/" in place else place
    common.output.info(f"The file was sent and verified. To list it: hibali ls {around}")
    common.output.info(f"To send one of your folders: hibali push FOLDER {name}:FOLDER")


def check_on_request(common: Common, name: str, *, job: bool | None) -> int | None:
    """Check a site step by step, and a job on request; return the exit code."""
    site = common.settings().site(name)
    runs_jobs = kind_of(site).has_machine
    if job and not runs_jobs:
        raise click.UsageError(f"A site of kind {site.kind} cannot run jobs.")
    can_prompt = runs_jobs and site.scheduler is not None and not common.json and has_terminal()
    if job is None and can_prompt:
        question = f"Also run a test job of one minute at {name}?"
        return check_and_show(common, site, job=lambda: click.confirm(question, err=True))
    return check_and_show(common, site, job=bool(job))
