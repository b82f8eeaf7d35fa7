"""Set up sites and send a first file (`init`); show the steps of `doctor`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from hibali.config.edit import add_site
from hibali.config.importers import Proposal, name_site
from hibali.config.model import Site
from hibali.config.settings import Settings
from hibali.errors import HibaliError, UsageError
from hibali.files import private_folder, state_folder, write_atomic
from hibali.subprocesses import has_terminal
from hibali.system_errors import reason_of
from hibali.text import did_you_mean, printable
from hibali_cli.handlers.pipeline_example import read_line, terminal_as_stdout
from hibali_cli.handlers.site_check import as_access_or_later
from hibali_cli.handlers.site_import import ImportRequest, change_of, choose, gather, show, take
from hibali_cli.options import Common
from hibali_cli.output import coloured, write_aside
from hibali_cli.path_completion import complete_last, complete_path
from hibali_cli.progress import listening
from runs.doctor.network import Step, StepList, Verdict

_WIDTH = max(len(verdict) for verdict in Verdict)
_NAMES = max(map(len, ("settings", "connection", "credentials", "transport", "scheduler", "container")))
_COLOURS = {Verdict.OK: "32", Verdict.WARNING: "33", Verdict.FAULT: "31", Verdict.NOT_TRIED: "2"}


def visit_and_show(common: Common, site: Site, *, job: bool) -> StepList:
    """Visit the site, and tell each step as it ends."""
    from runs.doctor.visit import visit

    walk = StepList(lambda step: _show(common, step))
    with listening(common, f"doctor {site.name}") as on_event:
        visit(walk, site, on_event, job=job)
    return walk


def look_at(common: Common, site: Site, *, job: bool) -> int:
    """Visit the site and tell each step as it ends; returns 0, or raises the worst of what is wrong."""
    walk = visit_and_show(common, site, job=job)
    worst = walk.worst()
    if worst is not None:
        raise worst
    if common.json:
        common.output.record("end", {"count": len(walk.steps), "exit": 0})
        return 0
    warnings = sum(step.verdict is Verdict.WARNING for step in walk.steps)
    told = f", with {warnings} warnings" if warnings > 1 else ", with a warning" if warnings else ""
    common.output.say(f"{site.name} works{told}.")
    if not job and site.scheduler is not None:
        common.output.say(f"A job, too? hibali doctor {site.name} --job")
    return 0


def _show(common: Common, step: Step) -> None:
    if common.json:
        fields = {"name": step.name, "verdict": step.verdict, "found": step.found, "fix": step.fix}
        code = step.problem.code if step.problem is not None else None
        common.output.record("step", {**fields, "code": code}, flush=True)
        return
    word = f"{step.verdict:<{_WIDTH}}"
    if coloured(sys.stdout):
        word = f"\x1b[{_COLOURS[step.verdict]}m{word}\x1b[0m"
    first, *more = step.found.split("\n")
    lines = [f"{word}  {step.name:<{_NAMES}}  {printable(first)}"]
    indent = " " * (_WIDTH + _NAMES + 4)
    lines += [f"{indent}{printable(line)}" for line in more]
    if step.fix:
        lines.append(f"{indent}{printable(step.fix)}")
    common.output.text("\n".join(lines) + "\n")


_LOCAL = "this-machine"  # a name that is not a word of our messages
_FIRST = "hibali-first"
_FOLDER = "~/hibali"
_CONTENT = b"The first file that hibali sent from this account.\n"
_NONE = frozenset({"", "none", "no", "n"})

Read = Callable[[str, Callable[[str], list[str]]], str]


class InitOptions(NamedTuple):
    """What was typed: where proposals come from, the folder of a site of this machine, where a first file goes, and whether to ask."""

    wanted: ImportRequest
    here: str | None
    to: str | None
    push: bool
    yes: bool


def begin(common: Common, asked: InitOptions) -> int:
    """All of it; returns the exit code. Raises `UsageError` where somebody had to be asked and nobody is there."""
    asks = not asked.yes
    if asks and (common.json or not has_terminal()):
        raise UsageError(
            "no-terminal",
            "nobody can be asked: stdin and stderr are no terminal, or --json was given",
            subject="hibali init",
            hint="Without questions: hibali init --yes",
        )
    proposals = _gather(common, asked)
    if asks:
        with terminal_as_stdout():
            proposals = ask_which(proposals, read_line) if proposals and not asked.wanted.only else proposals
            target, folder = ask_where(common.settings(), proposals, asked, read_line)
    else:
        target, folder = asked.to, asked.here or _FOLDER
    taken = [site for _, site in take(common, proposals, replace=False)]
    for site in taken:
        common.output.say(f"{site.name} is in {common.settings().path}.")
    problems = _look_at_all(common, taken)
    if asked.push:
        _send_first(common, target or _local_site(common, folder), {site.name for site, _ in problems})
    if problems:
        raise as_access_or_later(problems[0][1])
    return 0


def _gather(common: Common, asked: InitOptions) -> list[Proposal]:
    """What may be taken: without questions only what was named."""
    if asked.yes and not (asked.wanted.source or asked.wanted.only):
        return []
    settings = common.settings()
    found = gather(settings, asked.wanted)
    chosen = choose(found, asked.wanted.only)
    chosen = [each for each in chosen if change_of(common, each) == "added"]
    if asked.yes and not common.json:
        show(common, [], chosen)
    return chosen


def ask_which(proposals: Sequence[Proposal], read: Read) -> list[Proposal]:
    """Those of the proposals that somebody chose by name or number."""
    write_aside("These are known on this machine, and could be sites:")
    width = max(len(each.name) for each in proposals)
    for number, each in enumerate(proposals, start=1):
        write_aside(
            f"  {number:>3}  {each.name:<{width}}  {printable(each.reached)}  ({printable(each.origin)})"
        )
    by_word = {str(number): each for number, each in enumerate(proposals, start=1)}
    by_word |= {each.name: each for each in proposals}
    names = [each.name for each in proposals]
    while True:
        said = read(
            "Which of them are to be sites? Names or numbers, all, or none [none]: ",
            _last_of([*names, "all", "none"]),
        )
        words = said.replace(",", " ").split()
        if said.strip().lower() in _NONE:
            return []
        if words == ["all"]:
            return list(proposals)
        unknown = [word for word in words if word not in by_word]
        if not unknown:
            return list({by_word[word].name: by_word[word] for word in words}.values())
        write_aside(f"  {printable(unknown[0])} is none of them. {did_you_mean(unknown[0], names)}".rstrip())


def _last_of(words: Sequence[str]) -> Callable[[str], list[str]]:
    return lambda text: complete_last(text, words)


def ask_where(
    settings: Settings, proposals: Sequence[Proposal], asked: InitOptions, read: Read
) -> tuple[str | None, str]:
    """Where the first file goes: a site, or None and the folder of this machine that becomes one."""
    usual = asked.here or _FOLDER
    if asked.to or not asked.push:
        return asked.to, usual
    names = [name for name, site in settings.sites.items() if _takes_files(site)]
    names += [each.name for each in proposals if each.table["kind"] != "s3" or "bucket" in each.table["s3"]]
    told = f", or one of {', '.join(names)}" if names else ""
    while True:
        said = read(
            f"Where shall a first file go? A folder of this machine{told} [{usual}]: ",
            lambda text: _places(text, names),
        )
        said = said.strip() or usual
        if said in names or said.partition(":")[0] in names:
            return said, usual
        if "/" in said:
            return None, said
        write_aside(f"  A site, or a folder with a slash in it. {did_you_mean(said, names)}".rstrip())


def _places(text: str, names: Sequence[str]) -> list[str]:
    return [name for name in names if name.startswith(text)] + complete_path(text, Path.cwd())


def _takes_files(site: Site) -> bool:
    if site.kind == "s3":
        return site.s3 is not None and site.s3.bucket is not None
    return site.kind != "url" or (site.url or "").startswith("dav")


def _look_at_all(common: Common, sites: Sequence[Site]) -> list[tuple[Site, HibaliError]]:
    """Each site looked at; those that do not work, with why."""
    problems = []
    for site in sites:
        worst = visit_and_show(common, site, job=False).worst()
        if worst is not None:
            problems.append((site, worst))
            common.output.say(f"{site.name} is kept. When that is put right: hibali doctor {site.name}")
    return problems


def _local_site(common: Common, folder: str) -> str:
    """A site of a folder of this machine: the one that is there, or a new one. The folder is made."""
    path = Path(folder).expanduser().absolute()
    settings = common.settings()
    for site in settings.sites.values():
        if site.kind == "local" and site.default_root and site.roots[site.default_root] == str(path):
            return site.name
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as problem:
        hint = "Name another folder: hibali init --here FOLDER"
        raise UsageError("no-folder", reason_of(problem), subject=str(path), hint=hint) from None
    name = name_site(_LOCAL, settings.sites)
    table = {"kind": "local", "default_root": "data", "roots": {"data": str(path)}}
    change, site = add_site(common.config, name, table)
    if common.json:
        common.output.record("site-change", {"name": name, "change": change})
    common.output.say(f"{name} is {path}.")
    return site.name


def _send_first(common: Common, target: str, broken: set[str]) -> None:
    """A small file of our own sent to a site, by the very line that is told, which works again."""
    from hibali_cli.commands.transfer import push_command as push

    name = target.partition(":")[0]
    if name in broken:
        common.output.say(f"Nothing was sent: {name} does not work yet.")
        return
    common.settings().site(name)
    file = private_folder(state_folder() / "first") / "hello.txt"
    if not file.exists():
        write_atomic(file, _CONTENT)
    place = target if ":" in target else f"{name}:{_FIRST}/"
    common.output.say(shlex.join(["hibali", "push", str(file), place]))
    words = [str(file), place, *(["--config", common.config] if common.config else [])]
    words += (
        ["--json"] * common.json
        + ["--quiet"] * common.output.quiet
        + ["--no-progress"] * (not common.progress)
    )
    with push.make_context("push", words) as context:
        push.invoke(context)
    around = place.rpartition("/")[0] if "/" in place else place
    common.output.say(f"It is there, and proven. Look: hibali ls {around}")
    common.output.say(f"Now a folder of yours: hibali push FOLDER {name}:FOLDER")
