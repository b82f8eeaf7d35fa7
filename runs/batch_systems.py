"""Find the batch system of a host by its programs, so that a job runs on a login node only where the user chose that."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence

from hibali.config.model import Site
from hibali.errors import UsageError
from hibali.plugins import plugin_names
from runs.schedulers.base import Scheduler, load_scheduler
from transfers.remote.host import KnowsPrograms, RemoteHost

Which = Callable[[Sequence[str]], Mapping[str, str | None]]


def find_batch_systems(which: Which) -> dict[str, str]:
    """Return the schedulers that seem to be installed, each with its program for submitting, the most likely first.

    Several have a `qsub`: the one with the largest share of its other programs comes first.
    """
    schedulers = _schedulers()
    found = which(sorted({program for each in schedulers for program in _programs(each)}))
    shares = {
        each: sum(found.get(program) is not None for program in _programs(each)) / len(_programs(each))
        for each in schedulers
        if found.get(each.programs[0]) is not None
    }
    likely = sorted(shares, key=lambda each: -shares[each])
    return {each.name: each.programs[0] for each in likely}


def _schedulers() -> list[Scheduler]:
    found = []
    for name in plugin_names("runs.schedulers"):
        with contextlib.suppress(UsageError):  # a plugin that cannot be imported
            found.append(load_scheduler(name))
    return [each for each in found if each.name != "direct" and each.programs]


def _programs(scheduler: Scheduler) -> set[str]:
    return {*scheduler.programs, *scheduler.commands}


def is_direct(site: Site) -> bool:
    """Return whether jobs of the site are processes on its host."""
    return site.scheduler is None or site.scheduler.name == "direct"


def choosing(site: str, scheduler: str) -> str:
    """Return the command that sets the scheduler of a site."""
    return f"hibali config set sites.{site}.scheduler.name {scheduler}"


def check_scheduler_chosen(site: Site, host: RemoteHost) -> None:
    """Raise `UsageError` for an ssh site with a batch system but no scheduler: its job would run on the login node."""
    if site.ssh is None or site.scheduler is not None or not isinstance(host, KnowsPrograms):
        return
    for scheduler, program in find_batch_systems(host.which).items():
        raise UsageError(
            "scheduler-not-set",
            f"the site has no scheduler, but {program} is installed there: the job would run on the login node",
            subject=site.name,
            hint=f"To submit jobs to {scheduler}: `{choosing(site.name, scheduler)}`. "
            f"To run them on that host: `{choosing(site.name, 'direct')}`",
        )
