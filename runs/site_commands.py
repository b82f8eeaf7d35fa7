"""Find the programs of a site, run commands there as its jobs would, and lock a folder there."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Self, TypeVar

from hibali.config.model import SchedulerSettings, Site
from hibali.errors import IncompleteError, TryLaterError, UsageError
from hibali.events import Listener, Noted, ignore
from hibali.locations import Location
from hibali.plugins import plugin_names
from hibali.retry import growing_intervals, pause
from hibali.text import one_line
from runs.containers.base import load_container, require_program
from runs.schedulers.base import Scheduler, load_scheduler
from runs.script import checked_prologue
from transfers.model.leases import record_of
from transfers.model.store import Lock
from transfers.remote.host import CommandResult, KnowsPrograms, RemoteHost
from transfers.stores.open_store import open_store

_CONVERT_SECONDS = 3600.0
_NO_SPACE = (b"no space left on device", b"disk quota exceeded")


def programs_of(site: Site) -> list[str]:
    """Return the programs that the site's scheduler and container need; none for an unknown scheduler or container."""
    found: list[str] = []
    with contextlib.suppress(UsageError):
        found += load_scheduler(site.scheduler.name if site.scheduler else "direct").programs
    with contextlib.suppress(UsageError):
        found += load_container(site.container.name).programs
    return found


class SiteCommands:
    """Commands on a site's login node; the error of a failed command has its output."""

    def __init__(self, host: RemoteHost, site: Site) -> None:
        self._host = host
        self._site = site

    def query(self, argv: Sequence[str]) -> CommandResult:
        """Run a query and return its result, regardless of its exit code."""
        return self._host.run(self._after_prologue(argv))

    def run(self, argv: Sequence[str], stdin: bytes = b"") -> CommandResult:
        """Run one step of a conversion, in the C locale, so that its error messages are known.

        Raises `UsageError` if there is no such program, `IncompleteError` if it fails or there is no space, `TryLaterError` if it was killed.
        """
        finished = self._host.run(
            self._after_prologue(("env", "LC_ALL=C", *argv)), stdin=stdin, timeout=_CONVERT_SECONDS
        )
        if finished.exit_code == 0:
            return finished
        program = next(argument for argument in argv if argument != "env" and "=" not in argument)
        require_program(program, finished)
        stderr = one_line(finished.stderr)
        if any(text in finished.stderr.lower() for text in _NO_SPACE):
            raise IncompleteError(
                "no-space",
                f"there is not enough space to convert the image: {stderr}",
                subject=f"{self._site.name}:{self._site.work}",
                hint="Free space there, or set another `work` folder for the site; then run the same command again.",
            )
        if finished.exit_code < 0:
            raise TryLaterError(
                "image-not-staged",
                f"{program} was killed by signal {-finished.exit_code} (the time limit is 1 hour): {stderr}",
                subject=self._site.name,
            )
        raise not_staged(f"{program}: {stderr}")

    def _after_prologue(self, argv: Sequence[str]) -> tuple[str, ...]:
        prologue = (self._site.scheduler or SchedulerSettings()).prologue
        if not prologue:
            return tuple(argv)
        lines = "\n".join(("{", checked_prologue(prologue), "} >&2", 'exec "$@"'))
        return ("bash", "-l", "-c", lines, "hibali", *argv)


def not_staged(reason: str) -> IncompleteError:
    """Return the error for an image that could not be staged."""
    return IncompleteError("image-not-staged", f"the image could not be converted: {reason}")


Found = TypeVar("Found")

_LONGEST_WAIT = 5.0
_PATIENCE = 2 * 3600.0


class SiteLock:
    """A lock from `wait` to the end of its `with`; the lock of a process that died is broken as for any target (S6)."""

    def __init__(self, host: RemoteHost, location: Location, on_event: Listener = ignore) -> None:
        """`location` is a folder of the site, which is created when the lock is acquired."""
        self._host = host
        self._lock_file = location.path.encode("utf-8", "surrogateescape") + b"/.hibali/lock"
        self._subject = location.text
        self._on_event = on_event
        self._store = open_store(location, on_event=on_event)
        self._lock: Lock | None = None
        self._token: object = None

    def wait(self, operation: str, find: Callable[[], Found | None]) -> Found | None:
        """Wait for the lock; return None when it is acquired, or the result of `find`: work of another process."""
        intervals = growing_intervals(0.2, _LONGEST_WAIT)
        waited = 0.0
        while True:
            try:
                self._lock = self._store.lock(operation, make=True)
            except TryLaterError as problem:
                if problem.code != "locked" or waited > _PATIENCE:
                    raise
                if not waited:
                    self._on_event(Noted(f"{self._subject}: {problem.message}; waiting for it"))
            else:
                self._token = self._read()
                return None
            seconds = intervals.next_pause()
            pause(seconds)
            waited += seconds
            found = find()
            if found is not None:
                return found

    def check(self) -> None:
        """Raise `TryLaterError` if the lock was lost."""
        if self._token is None or self._read() != self._token:
            raise TryLaterError(
                "lease-lost",
                "the lock was lost, so hibali stopped writing",
                subject=self._subject,
                hint="Run the same command again to resume.",
                transient=False,
            )

    def _read(self) -> object:
        return record_of(self._host.get(self._lock_file) or b"").get("token")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._lock is not None:
            self._lock.release()
        self._store.close()


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
