"""Select a site for a run by bytes to move and expected queue time."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from hibali.config.model import Site
from hibali.errors import HibaliError, TryLaterError, UsageError
from hibali.events import Listener, ignore
from hibali.locations import Location, work_path
from runs.identity import Identity, identify_at_site
from runs.images import SiteImages
from runs.launch import request_key
from runs.model import Run
from runs.prepare import Prepared
from runs.request import Request
from runs.schedulers.base import Scheduler
from runs.stage import Cache, Synchroniser, open_cache
from runs.store import RunStore
from runs.sweeps.launch import prepare_dry_run
from transfers.model.entry import Kind
from transfers.remote.host import RemoteHost
from transfers.stores.open_store import open_store

_TRIFLE = 1 << 20  # compare whole MiB: a small script is no reason to wait a day
_MINUTE = 60.0


@dataclass(frozen=True, slots=True)
class Candidate:
    """One site with the bytes to move there and the expected seconds until a job starts (None if unknown).

    `why_not` is the reason why the site cannot run it, "" if it can; with `later` a retry may succeed.
    """

    site: str
    bytes_to_move: int | None = None
    waiting: float | None = None
    why_not: str = ""
    later: bool = False

    def to_record(self) -> dict[str, Any]:
        """Return the fields of one line of the table."""
        return {
            "site": self.site,
            "bytes_to_move": self.bytes_to_move,
            "waiting_seconds": self.waiting,
            "why_not": self.why_not,
        }


@dataclass(frozen=True, slots=True)
class Choice:
    """The chosen site, the reason, and all candidates, the best first."""

    site: str
    because: str
    candidates: tuple[Candidate, ...] = ()


def rank(candidate: Candidate) -> tuple[int, int, float, int, str]:
    """Return the key by which sites are compared: whole MiB to move, whole minutes to wait (unknown is last), bytes, name."""
    moving = candidate.bytes_to_move or 0
    waiting = math.inf if candidate.waiting is None else candidate.waiting // _MINUTE
    return bool(candidate.why_not), moving // _TRIFLE, waiting, moving, candidate.site


def choose(candidates: Sequence[Candidate]) -> Choice:
    """Return the best candidate; equal input gives the same choice. Raises `UsageError` if no site can run it, `TryLaterError` if one may later."""
    ranked = tuple(sorted(candidates, key=rank))
    able = [each for each in ranked if not each.why_not]
    if not able:
        raise no_site(ranked)
    first, others = able[0], able[1:]
    because = "no other site can run it"
    if others:
        second = others[0]
        best, next_best = rank(first), rank(second)
        if best[1] != next_best[1]:
            because = "the fewest bytes must be transferred there"
        elif best[2] != next_best[2]:
            because = "no other site needs fewer bytes, and the expected queue time is the shortest there"
        else:
            because = f"{second.site} is as good: bytes to move and queue time differ by less than 1 MiB and 1 minute"
    return Choice(first.site, because, ranked)


def no_site(candidates: Sequence[Candidate]) -> HibaliError:
    """Return the error that names all sites."""
    lines = [f"{each.site}: {each.why_not}" for each in candidates]
    message = "\n".join(["no site can run this", *(lines or ["no site is configured"])])
    if any(each.later for each in candidates):
        return TryLaterError("no-site", message, hint="Run the same command again later.", transient=False)
    return UsageError(
        "no-site",
        message,
        hint="Sites for runs have a [scheduler] or [container] table. To name a site: --site SITE",
    )


_NO_RUN = "00000000-000000-00000000"  # for a script that is never started


def can_choose(site: Site, ran_at: Collection[str] = ()) -> bool:
    """Return whether `--site auto` considers a site: one with settings for runs, or one where this pipeline ran before."""
    return not why_not_considered(site, ran_at)


def why_not_considered(site: Site, ran_at: Collection[str] = ()) -> str:
    """Return why `--site auto` does not consider a site; "" if it does."""
    if site.kind not in {"ssh", "local"}:
        return f"a site of kind {site.kind} cannot run jobs"
    if site.scheduler is not None or site.container.name != "bare" or site.name in ran_at:
        return ""
    return (
        "it has no [scheduler] or [container] table, and this pipeline has not run there yet;"
        f" to run it there: --site {site.name}"
    )


class Sizes:
    """The sizes of inputs, each determined once for all sites."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}

    def of(self, place: Location, identity: Identity) -> int:
        """Return the size of a location; of a folder the sizes in its listing."""
        if identity.size is not None:
            return identity.size
        if identity.text not in self._known:
            store = open_store(place)
            try:
                found = sum(each.size for each in store.list() if each.kind is Kind.FILE)
            finally:
                store.close()
            self._known[identity.text] = found
        return self._known[identity.text]


@dataclass(frozen=True, slots=True)
class SiteAssessment:
    """A site as a candidate, or the unfinished run of the same command there."""

    candidate: Candidate
    run: Run | None = None


def assess_site(
    request: Request,
    open_host: Callable[[], RemoteHost],
    sizes: Sizes,
    run_store: RunStore,
    on_event: Listener = ignore,
) -> SiteAssessment:
    """Assess the site of a request as a candidate. Errors become part of the candidate and are never raised."""
    site = request.compute.site
    try:
        _shown(request)  # refuse an impossible request before a connection is made
        host = open_host()
    except HibaliError as problem:
        return SiteAssessment(_unable(site, problem))
    try:
        run = None if request.new else run_store.find_unreported(request_key(request, host))
        if run is not None:
            return SiteAssessment(Candidate(site.name), run)
        moving = _bytes_to_move(request, host, sizes, on_event)
        return SiteAssessment(Candidate(site.name, moving, _waiting(request, host)))
    except HibaliError as problem:
        return SiteAssessment(_unable(site, problem))
    finally:
        host.close()


def _shown(request: Request) -> Prepared:
    """Prepare the run for the site; of a sweep the first task, because all of them have equal jobs."""
    return prepare_dry_run(request, _NO_RUN).prepared


def _unable(site: Site, problem: HibaliError) -> Candidate:
    text = f"{problem.message} ({problem.subject})" if problem.subject else problem.message
    later = isinstance(problem, TryLaterError)
    return Candidate(site.name, why_not=" ".join(text.split()), later=later)


def _bytes_to_move(request: Request, host: RemoteHost, sizes: Sizes, on_event: Listener) -> int:
    """Return the bytes of inputs and image that are missing at the site. Nothing is created there."""
    work = host.expand(work_path(request.compute.site))
    cache = open_cache(host, request.compute.site, work, Synchroniser(), on_event)
    total = 0
    for each, place, identity in zip(
        request.workload.inputs, request.workload.locations, request.workload.identities, strict=True
    ):
        if each.in_place:
            continue  # an output that a run creates there, perhaps later
        if identity is None:
            identify_at_site(host, place)
        else:
            size = sizes.of(place, identity)
            total += max(0, size - cache.size_at_site(replace(identity, size=size)))
    return total + _image_bytes(request, host, work, cache, on_event)


def _image_bytes(request: Request, host: RemoteHost, work: bytes, cache: Cache, on_event: Listener) -> int:
    """Return the size of the pinned image, if the site does not have it."""
    if request.pinned is None:
        return 0
    record = request.pinned.record
    images = SiteImages(host, request.compute.site, request.compute.container, work, cache, on_event)
    if images.find(record) is not None:
        return 0
    archive = Identity(record.digest, record.hex, {b"": record.hex}, record.size)
    return max(0, record.size - cache.size_at_site(archive))


def _waiting(request: Request, host: RemoteHost) -> float | None:
    """Return the seconds until such a job would start, as the scheduler predicts."""
    scheduler = request.compute.scheduler
    if not isinstance(scheduler, Scheduler):
        return None
    argv = scheduler.start_argv()
    if not argv:
        return None if argv is None else 0.0
    script = _shown(request).job_script.encode("utf-8", "surrogateescape")
    return scheduler.read_start(host.run(argv, stdin=script), datetime.now(UTC))
