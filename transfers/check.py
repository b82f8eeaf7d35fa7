"""Asking a site what it is and what works there, without leaving anything behind."""

from __future__ import annotations

from dataclasses import dataclass, field

from hibali.errors import AccessError, HibaliError, NotFoundError
from hibali.events import Listener, ignore
from hibali.plugins import load
from hibali.sites import Site
from transfers.agent_far import AgentFar

_PROGRAMS = {
    "slurm": ("sbatch", "squeue", "scancel"),
    "direct": ("sh", "setsid"),
    "podman": ("podman",),
    "bare": (),
}


@dataclass(slots=True)
class SiteReport:
    """What was found, by name, and what is wrong."""

    facts: dict[str, str | int | bool] = field(default_factory=dict)
    problems: list[HibaliError] = field(default_factory=list)


def check_site(site: Site, tell: Listener = ignore) -> SiteReport:
    """Reach the site and look at what its configuration says of it; raises nothing but a bug."""
    report = SiteReport()
    try:
        if site.kind in {"ssh", "local"}:
            connection, logins = load("transfers.stores", site.kind).connect(site, tell=tell)
            far = AgentFar(connection)
            try:
                _check_machine(site, far, report)
            finally:
                far.close()
            report.facts["logins"] = logins
        else:
            load("transfers.stores", site.kind).check(site, report.facts, tell=tell)
    except HibaliError as problem:
        report.problems.append(problem)
    return report


def _check_machine(site: Site, far: AgentFar, report: SiteReport) -> None:
    report.facts.update(far.facts())
    for name, path in site.roots.items():
        _check_folder(site, far, report, f"root {name}", path, needed=True)
    _check_folder(site, far, report, "work", site.work, needed=False)
    words = [site.scheduler.name if site.scheduler else "direct", site.container]
    programs = [program for word in words for program in _PROGRAMS.get(word, ())]
    for program, found in far.which(programs).items():
        report.facts[program] = found or "not found"
        if found is None:
            report.problems.append(
                NotFoundError(
                    "no-such-program",
                    f"{program} is not found there in a login without a terminal",
                    about=site.name,
                    hint="Set PATH in the account's start-up file that non-interactive shells read.",
                )
            )


def _check_folder(
    site: Site, far: AgentFar, report: SiteReport, what: str, path: str, *, needed: bool
) -> None:
    if path.startswith("@"):
        name, _, rest = path[1:].partition("/")
        path = f"{site.roots.get(name, '')}/{rest}"
    try:
        expanded = far.expand(path)
        report.facts[what] = expanded.decode("utf-8", "replace")
        if needed and far.stat(expanded) is None:
            raise NotFoundError("no-such-folder", f"the {what} is not there", about=f"{site.name}:{path}")
    except AccessError as problem:
        report.problems.append(problem)
    except NotFoundError as problem:
        report.problems.append(
            NotFoundError(
                problem.code,
                f"the {what} is not there",
                about=f"{site.name}:{path}",
                hint="Correct config.toml.",
            )
        )
