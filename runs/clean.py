"""Remove the folders of ended runs from their site."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from hibali.config.model import Site
from hibali.errors import HibaliError, IncompleteError, RefusedError
from hibali.ledger import seconds_of
from hibali.locations import work_path
from hibali.text import printable
from runs.model import Run
from runs.store import RunStore
from transfers.remote.host import RemoteHost


class CleanResult(StrEnum):
    """The result of cleaning a run."""

    REMOVED = "removed"
    PLANNED = "planned"
    KEPT = "kept"
    FAILED = "failed"


NOT_COLLECTED = "its outputs were not collected"


@dataclass(frozen=True, slots=True)
class CleanRequest:
    """The choice of runs to remove: all that ended, or only collected ones; and their least age in seconds. Those in `needed` stay."""

    all_ended: bool = False
    older_than: float = 0.0
    needed: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Cleaned:
    """One run and the result for its folder; `because` is the reason if it was kept or could not be removed."""

    run: Run
    result: CleanResult
    because: str = ""


def reason_to_keep(run: Run, request: CleanRequest, now: datetime) -> str:
    """Return why the folder of a run stays; "" if it may be removed."""
    if run.results.cleaned:
        return "it was already removed"
    if not run.state.final:
        return f"the run has not ended: {run.state}"
    if not run.folder:
        return "it never had a folder"
    if run.id in request.needed:
        return "an unfinished run needs its outputs"
    if not run.results.collected and not request.all_ended:
        return NOT_COLLECTED
    # what is no time in an exit record counts as the present time
    if (
        now.timestamp() - (seconds_of(run.status.ended or run.created) or now.timestamp())
        < request.older_than
    ):
        return "it ended too recently"
    return ""


def needed_ids(runs: Iterable[Run]) -> frozenset[str]:
    """Return the runs that others need to start or continue, because they use the outputs in place."""
    return frozenset(each for run in runs if not run.state.ended for each in run.needs)


def plan_cleaning(runs: Iterable[Run], request: CleanRequest) -> Iterator[Cleaned]:
    """Plan the removal of each run without contacting any site."""
    now = datetime.now(UTC)
    for run in runs:
        because = reason_to_keep(run, request, now)
        yield Cleaned(run, CleanResult.KEPT if because else CleanResult.PLANNED, because)


def clean_run(host: RemoteHost, site: Site, run_store: RunStore, run: Run, request: CleanRequest) -> Cleaned:
    """Remove the folder of a run, unless it must stay; a failure is reported, and the next call retries."""
    try:
        with run_store.lock(run.key):
            run = run_store.load(run.id)
            because = reason_to_keep(run, request, datetime.now(UTC))
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
    """Remove a folder, renaming it first: a half-removed folder must not appear as a run that has not started."""
    runs = host.expand(work_path(site)) + b"/runs"
    name = run.id.encode("ascii")
    if run.folder != runs + b"/" + name:
        raise RefusedError(
            "not-its-folder",
            f"the site has another work folder now: {printable(runs)}",
            subject=f"{site.name}:{printable(run.folder)}",
        )
    aside = runs + b"/.removed-" + name
    if host.stat(aside) is not None:
        _remove_tree(host, site, aside)
    if host.stat(run.folder) is not None:
        if not _is_of(host, run):
            raise RefusedError(
                "not-its-folder",
                "no file in the folder shows that it belongs to this run",
                subject=f"{site.name}:{printable(run.folder)}",
            )
        host.move(run.folder, aside)
        if host.stat(run.folder) is not None:
            raise IncompleteError("not-removed", "the folder could not be renamed", subject=run.id)
        _remove_tree(host, site, aside)


def _is_of(host: RemoteHost, run: Run) -> bool:
    """Return whether the job script in the folder is that of the run; a run that was never staged has only its manifest."""
    script = host.get(run.folder + b"/job.sh", maximum=1 << 20)
    run_line = b"\nrun=%s\n" % run.id.encode("ascii")
    manifest = host.get(run.folder + b"/run.json", maximum=1 << 20)
    return (script is not None and run_line in script) or (
        manifest is not None and b'"id":"%s"' % run.id.encode("ascii") in manifest
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
    """Create the work folder with these folders in it, and return it, absolute; raises `RefusedError` if others can write to one."""
    work = host.expand(work_path(site))
    for path in (work, *(work + b"/" + name for name in below)):
        host.make_folder(path)
        check_private(host, site, path)
    return work


def check_work_folder(host: RemoteHost, site: Site, *below: bytes) -> bytes:
    """Return the existing work folder; raises `RefusedError` if others can write to one of these folders, and so forge runs there."""
    work = host.expand(work_path(site))
    for path in (work, *(work + b"/" + name for name in below)):
        if host.stat(path) is not None:
            check_private(host, site, path)
    return work


def check_private(host: RemoteHost, site: Site, path: bytes) -> None:
    """Raise `RefusedError` if a folder belongs to another account, or others can write to it."""
    if not host.is_private(path):
        raise RefusedError(
            "not-private",
            "this folder of the site belongs to another account, or others can write to it",
            subject=f"{site.name}:{printable(path)}",
            hint=f"If it is yours: chmod go-w {printable(path)}",
        )
