"""Looking at a site before a run is there: what is there already, and how long a job would wait."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from hibali.errors import HibaliError, TryLaterError
from hibali.events import Listener, ignore
from hibali.locations import Location, work_path
from hibali.sites import Site
from runs.book import Book
from runs.carry import Synchroniser
from runs.choose import Candidate
from runs.identity import Identity, identify_at_site
from runs.launch import Request, request_key, show_prepared
from runs.prepare import Prepared
from runs.run import Run
from runs.scheduler import Foretells
from runs.site_images import SiteImages
from runs.stage import Cache, open_cache
from runs.sweeps.launch import show_tasks
from transfers.entry import Kind
from transfers.far import Far
from transfers.places import open_store

_NO_RUN = "00000000-000000-00000000"  # of a script that nobody is going to start


def can_choose(site: Site, ran_at: Collection[str] = ()) -> bool:
    """Whether `--site auto` considers a site: one that says how jobs are run there, or one among those where this pipeline ran before."""
    return not why_not_considered(site, ran_at)


def why_not_considered(site: Site, ran_at: Collection[str] = ()) -> str:
    """Why `--site auto` does not consider a site; "" where it does."""
    if site.kind not in {"ssh", "local"}:
        return f"a site of kind {site.kind} has no machine to run anything"
    if site.scheduler is not None or site.container != "bare" or site.name in ran_at:
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
    request: Request, open_far: Callable[[], Far], sizes: Sizes, book: Book, tell: Listener = ignore
) -> Looked:
    """The site of a request as a candidate. What it cannot do is said in the candidate, never raised."""
    site = request.site
    try:
        _shown(request)  # refuses what can never be there, before anybody is asked
        far = open_far()
    except HibaliError as problem:
        return Looked(_unable(site, problem))
    try:
        run = None if request.new else book.find_unreported(request_key(request, far))
        if run is not None:
            return Looked(Candidate(site.name), run)
        moving = _bytes_to_move(request, far, sizes, tell)
        return Looked(Candidate(site.name, moving, _waiting(request, far)))
    except HibaliError as problem:
        return Looked(_unable(site, problem))
    finally:
        far.close()


def _shown(request: Request) -> Prepared:
    """What would be put there; of a sweep the first of its tasks, whose job is as any other's."""
    return show_tasks(request, _NO_RUN).prepared if request.tasks else show_prepared(request, _NO_RUN)


def _unable(site: Site, problem: HibaliError) -> Candidate:
    words = f"{problem.message} ({problem.about})" if problem.about else problem.message
    later = isinstance(problem, TryLaterError)
    return Candidate(site.name, why_not=" ".join(words.split()), later=later)


def _bytes_to_move(request: Request, far: Far, sizes: Sizes, tell: Listener) -> int:
    """Of inputs and image. Nothing is made there: a work folder that is not there holds nothing."""
    work = far.expand(work_path(request.site))
    cache = open_cache(far, request.site, work, Synchroniser(), tell)
    total = 0
    for each, place, identity in zip(request.inputs, request.places, request.identities, strict=True):
        if each.in_place:
            continue  # what a run leaves there, perhaps later
        if identity is None:
            identify_at_site(far, place)
        else:
            size = sizes.of(place, identity)
            total += max(0, size - cache.size_there(replace(identity, size=size)))
    return total + _image_bytes(request, far, work, cache, tell)


def _image_bytes(request: Request, far: Far, work: bytes, cache: Cache, tell: Listener) -> int:
    """Of the image that the catalogue pins, where the site has not got it."""
    if request.pinned is None:
        return 0
    record = request.pinned.record
    images = SiteImages(far, request.site, request.container, work, cache, tell)
    if images.find(record) is not None:
        return 0
    archive = Identity(record.digest, record.hex, {b"": record.hex}, record.size)
    return max(0, record.size - cache.size_there(archive))


def _waiting(request: Request, far: Far) -> float | None:
    """Seconds until a job such as this would start, as the scheduler foretells it when it is asked once."""
    scheduler = request.scheduler
    if not isinstance(scheduler, Foretells):
        return None
    words = scheduler.start_words()
    if not words:
        return 0.0
    script = _shown(request).job_script.encode("utf-8", "surrogateescape")
    return scheduler.read_start(far.run(words, stdin=script), datetime.now(UTC))
