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
from runs.images import SiteImages
from runs.inputs import Identity, identify_at_site
from runs.launch import request_key
from runs.model import Run
from runs.prepare import Prepared
from runs.request import Request, show_prepared
from runs.stage import Cache, Synchroniser, open_cache
from runs.store import RunStore
from runs.sweeps.launch import show_tasks
from transfers.entry import Kind
from transfers.remote.host import RemoteHost
from transfers.stores.open_store import open_store

_TRIFLE = 1 << 20  # whole MiB count: a script of some lines is no reason to wait a day
_MINUTE = 60.0


@dataclass(frozen=True, slots=True)
class Candidate:
    """One site as it was looked at: bytes that are not there yet, seconds until a job would start (None: nobody can tell).

    `why_not` says in words why the run cannot be there, "" where it can; with `later` it may be another time.
    """

    site: str
    bytes_to_move: int | None = None
    waiting: float | None = None
    why_not: str = ""
    later: bool = False

    def to_record(self) -> dict[str, Any]:
        """The fields of one line of the table."""
        return {
            "site": self.site,
            "bytes_to_move": self.bytes_to_move,
            "waiting_seconds": self.waiting,
            "why_not": self.why_not,
        }


@dataclass(frozen=True, slots=True)
class Choice:
    """The site that was chosen, why in words, and all that were looked at, the best first."""

    site: str
    because: str
    candidates: tuple[Candidate, ...] = ()


def rank(candidate: Candidate) -> tuple[int, int, float, int, str]:
    """What a site is judged by: whole MiB to move, whole minutes to wait (unknown is last), the bytes, its name."""
    moving = candidate.bytes_to_move or 0
    waiting = math.inf if candidate.waiting is None else candidate.waiting // _MINUTE
    return bool(candidate.why_not), moving // _TRIFLE, waiting, moving, candidate.site


def choose(candidates: Sequence[Candidate]) -> Choice:
    """The best of them, the same whenever it is asked. Raises `UsageError` where none can, `TryLaterError` where one may later."""
    ranked = tuple(sorted(candidates, key=rank))
    able = [each for each in ranked if not each.why_not]
    if not able:
        raise no_site(ranked)
    first, others = able[0], able[1:]
    because = "no other site can run it"
    if others:
        second = others[0]
        mine, theirs = rank(first), rank(second)
        if mine[1] != theirs[1]:
            because = "the least has to move there"
        elif mine[2] != theirs[2]:
            because = "as little has to move as elsewhere, and it waits least"
        else:
            because = "nothing tells it from the next but bytes below a MiB, seconds, and its name"
    return Choice(first.site, because, ranked)


def no_site(candidates: Sequence[Candidate]) -> HibaliError:
    """The error that names all of them."""
    lines = [f"{each.site}: {each.why_not}" for each in candidates]
    message = "\n".join(["no site can run this", *(lines or ["no site is configured"])])
    if any(each.later for each in candidates):
        return TryLaterError("no-site", message, hint="The same line asks again.", transient=False)
    return UsageError(
        "no-site",
        message,
        hint="Sites that can run something have a [scheduler] or a [container] table; or name them with --site.",
    )


_NO_RUN = "00000000-000000-00000000"  # of a script that nobody is going to start


def can_choose(site: Site, ran_at: Collection[str] = ()) -> bool:
    """Whether `--site auto` considers a site: one that says how jobs are run there, or one among those where this pipeline ran before."""
    return not why_not_considered(site, ran_at)


def why_not_considered(site: Site, ran_at: Collection[str] = ()) -> str:
    """Why `--site auto` does not consider a site; "" where it does."""
    if site.kind not in {"ssh", "local"}:
        return f"a site of kind {site.kind} has no machine to run anything"
    if site.scheduler is not None or site.container.name != "bare" or site.name in ran_at:
        return ""
    return (
        "it has no [scheduler] or [container] table, and this pipeline has not run there yet;"
        f" to run it there: --site {site.name}"
    )


class Sizes:
    """The bytes of inputs, each counted once however many sites are looked at."""

    def __init__(self) -> None:
        self._known: dict[str, int] = {}

    def of(self, place: Location, identity: Identity) -> int:
        """Of a folder at a site or in a store all that its listing shows."""
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
class Looked:
    """A site that was looked at, and a run of the same line that is under way there."""

    candidate: Candidate
    run: Run | None = None


def look_at(
    request: Request,
    open_host: Callable[[], RemoteHost],
    sizes: Sizes,
    run_store: RunStore,
    on_event: Listener = ignore,
) -> Looked:
    """The site of a request as a candidate. What it cannot do is said in the candidate, never raised."""
    site = request.site
    try:
        _shown(request)  # refuses what can never be there, before anybody is asked
        host = open_host()
    except HibaliError as problem:
        return Looked(_unable(site, problem))
    try:
        run = None if request.new else run_store.find_unreported(request_key(request, host))
        if run is not None:
            return Looked(Candidate(site.name), run)
        moving = _bytes_to_move(request, host, sizes, on_event)
        return Looked(Candidate(site.name, moving, _waiting(request, host)))
    except HibaliError as problem:
        return Looked(_unable(site, problem))
    finally:
        host.close()


def _shown(request: Request) -> Prepared:
    """What would be put there; of a sweep the first of its tasks, whose job is as any other's."""
    return show_tasks(request, _NO_RUN).prepared if request.tasks else show_prepared(request, _NO_RUN)


def _unable(site: Site, problem: HibaliError) -> Candidate:
    words = f"{problem.message} ({problem.subject})" if problem.subject else problem.message
    later = isinstance(problem, TryLaterError)
    return Candidate(site.name, why_not=" ".join(words.split()), later=later)


def _bytes_to_move(request: Request, host: RemoteHost, sizes: Sizes, on_event: Listener) -> int:
    """Of inputs and image. Nothing is made there: a work folder that is not there holds nothing."""
    work = host.expand(work_path(request.site))
    cache = open_cache(host, request.site, work, Synchroniser(), on_event)
    total = 0
    for each, place, identity in zip(request.inputs, request.places, request.identities, strict=True):
        if each.in_place:
            continue  # what a run leaves there, perhaps later
        if identity is None:
            identify_at_site(host, place)
        else:
            size = sizes.of(place, identity)
            total += max(0, size - cache.size_at_site(replace(identity, size=size)))
    return total + _image_bytes(request, host, work, cache, on_event)


def _image_bytes(request: Request, host: RemoteHost, work: bytes, cache: Cache, on_event: Listener) -> int:
    """Of the image that the catalogue pins, where the site has not got it."""
    if request.pinned is None:
        return 0
    record = request.pinned.record
    images = SiteImages(host, request.site, request.container, work, cache, on_event)
    if images.find(record) is not None:
        return 0
    archive = Identity(record.digest, record.hex, {b"": record.hex}, record.size)
    return max(0, record.size - cache.size_at_site(archive))


def _waiting(request: Request, host: RemoteHost) -> float | None:
    """Seconds until a job such as this would start, as the scheduler foretells it when it is asked once."""
    scheduler = request.scheduler
    words = scheduler.start_words()
    if not words:
        return None if words is None else 0.0
    script = _shown(request).job_script.encode("utf-8", "surrogateescape")
    return scheduler.read_start(host.run(words, stdin=script), datetime.now(UTC))
