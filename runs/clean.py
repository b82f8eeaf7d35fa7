"""Remove the folders of ended runs from their site."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from hibali.config.model import Site
from hibali.errors import HibaliError, IncompleteError, RefusedError
from hibali.locations import work_path
from hibali.text import printable
from runs.model import Run
from runs.store import RunStore
from transfers.remote.host import RemoteHost


class CleanResult(StrEnum):
    """What becomes of a run's folder."""

    REMOVED = "removed"
    PLANNED = "planned"
    KEPT = "kept"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class CleanRequest:
    """Which runs may go: all that ended, or only those whose outputs were collected; and how long ago at least, in seconds.

    Those in `needed` stay.
    """

    all_ended: bool = False
    older_than: float = 0.0
    needed: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Cleaned:
    """One run and what became of its folder; `because` says why it was kept, or not removed."""

    run: Run
    fate: CleanResult
    because: str = ""


def why_kept(run: Run, wanted: CleanRequest, now: datetime) -> str:
    """Why the folder of a run stays; "" where it may go. Pure."""
    if run.results.cleaned:
        return "it was removed before"
    if not run.state.final:
        return f"the run is not over: {run.state}"
    if not run.folder:
        return "it never had a folder"
    if run.id in wanted.needed:
        return "a run that is not over needs what it left"
    if not run.results.collected and not wanted.all_ended:
        return "its outputs were not collected"
    if (now - _time_of(run.status.ended or run.created)).total_seconds() < wanted.older_than:
        return "it ended too lately"
    return ""


def _time_of(text: str) -> datetime:
    """A time of the ledger or of an exit record; one that is none was now."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return datetime.now(UTC)
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def needed_ids(runs: Iterable[Run]) -> frozenset[str]:
    """The runs without which others cannot start or go on: their outputs are used where they lie. Pure."""
    return frozenset(each for run in runs if not run.state.ended for each in run.needs)


def plan_cleaning(runs: Iterable[Run], wanted: CleanRequest) -> Iterator[Cleaned]:
    """What would become of each; nothing is asked of any site."""
    now = datetime.now(UTC)
    for run in runs:
        because = why_kept(run, wanted, now)
        yield Cleaned(run, CleanResult.KEPT if because else CleanResult.PLANNED, because)


def clean_run(host: RemoteHost, site: Site, run_store: RunStore, run: Run, wanted: CleanRequest) -> Cleaned:
    """Remove the folder of a run, unless it may not go after all; a failure is told and left for the next call."""
    try:
        with run_store.claim(run.key):
            run = run_store.load(run.id)
            because = why_kept(run, wanted, datetime.now(UTC))
            if because:
                return Cleaned(run, CleanResult.KEPT, because)
            _remove(host, site, run)
            return Cleaned(run_store.note(run.id, "cleaned"), CleanResult.REMOVED)
    except RefusedError as problem:
        if problem.code in {"foreign-symlink", "leaves-root"}:
            raise
        return Cleaned(run, CleanResult.KEPT, problem.message)
    except IncompleteError as problem:
        return Cleaned(run, CleanResult.FAILED, problem.message)


def _remove(host: RemoteHost, site: Site, run: Run) -> None:
    """Out of the way by one rename first: what is half removed must not look like a run that has not started."""
    runs = host.expand(work_path(site)) + b"/runs"
    name = run.id.encode("ascii")
    if run.folder != runs + b"/" + name:
        raise RefusedError(
            "not-its-folder",
            f"the site keeps runs elsewhere now: {printable(runs)}",
            subject=f"{site.name}:{printable(run.folder)}",
        )
    aside = runs + b"/.removed-" + name
    if host.stat(aside) is not None:
        _remove_tree(host, site, aside)
    if host.stat(run.folder) is not None:
        if not _is_of(host, run):
            raise RefusedError(
                "not-its-folder",
                "what stands there does not say that it is of this run",
                subject=f"{site.name}:{printable(run.folder)}",
            )
        host.move(run.folder, aside)
        if host.stat(run.folder) is not None:
            raise IncompleteError("not-removed", "it could not be taken out of the way", subject=run.id)
        _remove_tree(host, site, aside)


def _is_of(host: RemoteHost, run: Run) -> bool:
    """Whether its job script is that of the run; one that was never made ready has only its card."""
    script = host.get(run.folder + b"/job.sh", maximum=1 << 20)
    told = b"\nrun=%s\n" % run.id.encode("ascii")
    card = host.get(run.folder + b"/run.json", maximum=1 << 20)
    return (script is not None and told in script) or (
        card is not None and b'"id":"%s"' % run.id.encode("ascii") in card
    )


def _remove_tree(host: RemoteHost, site: Site, path: bytes) -> None:
    try:
        host.remove_tree(path)
    except IncompleteError:
        raise
    except HibaliError as problem:
        if int(problem.exit) in {4, 5}:
            raise
        raise IncompleteError(
            problem.code, problem.message, subject=f"{site.name}:{printable(path)}"
        ) from None


def make_work_folder(host: RemoteHost, site: Site, *below: bytes) -> bytes:
    """The work folder, absolute, made with these folders in it; raises `RefusedError` where others can write to one."""
    work = host.expand(work_path(site))
    for path in (work, *(work + b"/" + name for name in below)):
        host.make_folder(path)
        check_private(host, site, path)
    return work


def check_work_folder(host: RemoteHost, site: Site, *below: bytes) -> bytes:
    """The same of what exists already: `RefusedError` where others can write to one, and so leave runs of their own there."""
    work = host.expand(work_path(site))
    for path in (work, *(work + b"/" + name for name in below)):
        if host.stat(path) is not None:
            check_private(host, site, path)
    return work


def check_private(host: RemoteHost, site: Site, path: bytes) -> None:
    """Raise `RefusedError` where a folder is not ours, or others can write to it."""
    if not host.is_private(path):
        raise RefusedError(
            "not-private",
            "this folder of the site belongs to another account, or others can write to it",
            subject=f"{site.name}:{printable(path)}",
            hint=f"If it is yours: chmod go-w {printable(path)}",
        )
