"""Asking a site what it is and what works there, without leaving anything behind."""

from __future__ import annotations

from dataclasses import dataclass, field

from hibali.errors import AccessError, HibaliError, NotFoundError
from hibali.events import Listener, ignore
from hibali.plugins import load
from hibali.sites import Site, SshSettings
from transfers.agent_far import AgentFar
from transfers.far import Far
from transfers.sftp_client import Client

_PROGRAMS = {
    "slurm": ("sbatch", "squeue", "scancel"),
    "direct": ("sh", "setsid"),
    "podman": ("podman",),
    "docker": ("docker",),
    "apptainer": ("apptainer",),
    "singularity": ("singularity",),
    "charliecloud": ("ch-run", "ch-convert"),
    "bubblewrap": ("bwrap", "tar"),
    "sarus": ("sarus",),
    "bare": (),
}


@dataclass(slots=True)
class SiteReport:
    """What was found, by name, and what is wrong."""

    facts: dict[str, str | int | bool] = field(default_factory=dict)
    problems: list[HibaliError] = field(default_factory=list)


def programs_of(word: str) -> tuple[str, ...]:
    """The programs that a scheduler or container runtime is asked by, as far as they are known; the main one first."""
    return _PROGRAMS.get(word, ())


def check_site(site: Site, tell: Listener = ignore) -> SiteReport:
    """Reach the site and look at what its configuration says of it; raises nothing but a bug."""
    report = SiteReport()
    try:
        if site.ssh is not None and site.ssh.auth == "gsi":
            report.facts["proxy"] = _look_at_proxy(site, site.ssh)
        if site.kind in {"ssh", "local"}:
            far, logins = reach_machine(site, report, tell)
            try:
                _check_machine(site, far, report)
            finally:
                far.close()
            report.facts["logins"] = logins
        else:
            load("transfers.stores", site.kind).check(site, report.facts, tell=tell)
    except HibaliError as problem:
        report.problems.append(problem)
    if site.kind != "globus" and site.globus is not None and site.globus.client is not None:
        _check_collection(site, report, tell)
    return report


def _check_collection(site: Site, report: SiteReport, tell: Listener) -> None:
    """The collection of a site that is reached in another way, too."""
    try:
        load("transfers.stores", "globus").check(site, report.facts, tell=tell)
    except HibaliError as problem:
        report.problems.append(problem)


def _look_at_proxy(site: Site, settings: SshSettings) -> str:
    """How long it is valid; looked at even where a kept login needs none."""
    from hibali.proxy import ready_proxy, seconds_left, show_time

    return f"valid for {show_time(seconds_left(ready_proxy(settings.proxy, about=site.name).path))}"


def reach_machine(site: Site, report: SiteReport, tell: Listener) -> tuple[Far, int]:
    """The machine there, and how many logins it took; where `auto` found only SFTP, the agent is tried again."""
    module = load("transfers.stores", site.kind)

    def with_agent() -> tuple[Far, int]:
        connection, logins = module.connect(site, tell=tell)
        return AgentFar(connection), logins

    if site.kind != "ssh":
        return with_agent()
    report.facts["transport"] = "agent"
    from transfers.transport import forget, open_either, sftp_far

    def with_sftp(client: Client, logins: int) -> tuple[Far, int]:
        report.facts["transport"] = "sftp"
        return sftp_far(site, client), logins

    forget(site)
    return open_either(site, bulk=False, with_agent=with_agent, with_sftp=with_sftp, tell=tell)


def _check_machine(site: Site, far: Far, report: SiteReport) -> None:
    report.facts.update({name: fact for name, fact in far.facts().items() if fact})
    for name, path in site.roots.items():
        _check_folder(site, far, report, f"root {name}", path, needed=True)
    _check_folder(site, far, report, "work", site.work, needed=False)
    words = [site.scheduler.name if site.scheduler else "direct", site.container]
    programs = [program for word in words for program in programs_of(word)]
    if not isinstance(far, AgentFar):
        return  # behind a gate only an answer shows that a word is allowed, and asking is not for free
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


def _check_folder(site: Site, far: Far, report: SiteReport, what: str, path: str, *, needed: bool) -> None:
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
