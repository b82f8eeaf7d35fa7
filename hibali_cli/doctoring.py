"""The steps of `doctor` as people and programs see them, and how the command ends."""

from __future__ import annotations

import sys

from hibali.config.model import Site
from hibali.text import printable
from hibali_cli.options import Common
from hibali_cli.output import coloured
from hibali_cli.progress import listening
from runs.doctor.network import Step, Verdict, Walk

_WIDTH = max(len(verdict) for verdict in Verdict)
_NAMES = max(map(len, ("settings", "connection", "credentials", "transport", "scheduler", "container")))
_COLOURS = {Verdict.OK: "32", Verdict.WARNING: "33", Verdict.FAULT: "31", Verdict.NOT_TRIED: "2"}


def visit_and_show(common: Common, site: Site, *, job: bool) -> Walk:
    """Visit the site, and tell each step as it ends."""
    from runs.doctor.visit import visit

    walk = Walk(lambda step: _show(common, step))
    with listening(common, f"doctor {site.name}") as tell:
        visit(walk, site, tell, job=job)
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
