"""Launching a run: inputs staged, files put, submitted once; typed again it goes on from any step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hibali import __version__
from hibali.claim import Claim
from hibali.errors import TryLaterError
from hibali.events import Listener, ignore
from hibali.ledger import new_identifier, not_started
from hibali.locations import Location, work_path
from hibali.sites import SchedulerSettings, Site
from hibali.text import path_fields
from registry.invocation import Invocation
from registry.pipeline import Pipeline
from runs.book import Book
from runs.cache_times import expected_wait
from runs.card import put_card
from runs.chain import check_needs, jobs_to_come_after
from runs.container import Container
from runs.experience import runs_of
from runs.fast import NO_MARKS, NOTHING_FAST, Fast, Marks
from runs.identity import Identity, identify_at_site
from runs.image import Pinned, find_image
from runs.job_proxy import job_proxy
from runs.pilot.pilot import Pilot
from runs.prepare import Input, Prepared, Started, Waiting, prepare, run_key
from runs.put import as_bytes, as_text, put_files
from runs.resources import Asked, check_gpus, decide_resources, find_launcher
from runs.reuse import Reuse, known_content
from runs.run import Output, Run, State, ignore_run
from runs.same_line import take_wishes
from runs.scheduler import Resources, Scheduler
from runs.send import send
from runs.site_images import SiteImages
from runs.stage import Cache, Carrier, open_cache
from runs.unsubmitted import end_begun, end_unbegun
from runs.work_folder import make_work_folder
from transfers.far import Far


@dataclass(frozen=True, slots=True)
class TaskRequest:
    """One task of a sweep: its number, what it answers beside the others, and all of its answers, checked."""

    number: int
    values: Mapping[str, Any]
    invocation: Invocation


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked for, checked: the pipeline, its answers, and where to run it.

    `places` has for each of `inputs` where it lies, and `identities` what is known of it without asking the
    site (None for one that is at the site itself). `image` is what `--image` said, `pinned` the catalogue's own,
    `wanted` what a job is to ask for whatever the author and the site say. `line` is the key of the same line for whichever site,
    where one of several was chosen. `asked` is how the line was typed on this machine, for whoever is to type it again (runs.dataset).
    `after` are the runs that were named to come first, `waiting` is what the job waits for. With `tasks` it is a sweep: `inputs` are
    then the files of all of them, and `invocation` has what all of them answer, not checked by itself; what goes to fast storage is
    said by `marks`, in the place of `fast`. `origin` is the run that is to be run again, all of it or these tasks. With `allocations`
    the tasks go by a pilot, in so many one after the other at most. With `proxy` the job has one for GSI, whose content was made before
    the site was asked anything (runs.job_proxy).
    """

    pipeline: Pipeline
    invocation: Invocation
    inputs: tuple[Input, ...]
    places: tuple[Location, ...]
    identities: tuple[Identity | None, ...]
    site: Site
    scheduler: Scheduler
    container: Container
    name: str = ""
    image: str = ""
    pinned: Pinned | None = None
    new: bool = False
    fast: Fast = NOTHING_FAST
    marks: Marks = NO_MARKS
    line: str = ""
    asked: Mapping[str, Any] = field(default_factory=dict)
    wanted: Resources = field(default_factory=Resources)
    after: tuple[str, ...] = ()
    waiting: Waiting = field(default_factory=Waiting)
    tasks: tuple[TaskRequest, ...] = ()
    origin: str = ""
    allocations: int = 0
    proxy: bool = False
    proxy_content: bytes = field(default=b"", repr=False)

    @property
    def settings(self) -> SchedulerSettings:
        """The site's defaults for jobs."""
        return self.site.scheduler or SchedulerSettings()

    def ask(self) -> Asked:
        """What the job asks for; raises `RefusedError` and `UsageError` for what the site cannot give."""
        asked = decide_resources(self.pipeline.resources, self.settings, self.wanted)
        check_gpus(asked.resources, self.site.gpus, self.container, self.site.name)
        find_launcher(asked.resources, self.settings)
        return asked


def launch(
    request: Request,
    far: Far,
    book: Book,
    carrier: Carrier,
    *,
    reuse: Reuse | None = None,
    began: Callable[[Run], None] = ignore_run,
    tell: Listener = ignore,
) -> Run:
    """The run of this request, submitted: a new one, or the one of the same line whose end nobody was told.

    It is CANCELLED instead where that was wished meanwhile, and waits where the queue has no room for it (`Run.waits`). With `reuse`, one
    that already computed the same stands for it. `began` is called as soon as its identifier is known. Everything is in the ledger before it happens.
    """
    wishes = request.ask().to_fields()
    placed, identities = _locate(request, far)
    texts = [identity.text for identity in identities]
    key = _key(request, texts)
    with ExitStack() as turns:
        if request.line:
            turns.enter_context(_claimed(book, request.line, tell))
            _check_line(request, book)
        turns.enter_context(_claimed(book, key, tell))
        run = None if request.new else book.find_unreported(key)
        if reuse is not None and (run is None or run.state is State.SUCCEEDED):
            run = reuse.find(request, identities) or run
        pilot = _ask_for_pilot(request, far, run)
        if run is None:
            check_needs(far, request.scheduler, book, request.waiting.needs)
            contents = reuse.contents(request, identities) if reuse else map(known_content, identities)
            run = _begin(request, placed, identities, contents, book, key)
        began(run)
        if not run.reused:
            take_wishes(book, run, wishes, tell)
        if run.sweep is not None:
            from runs.pilot.ready import settle_pilot

            run = settle_pilot(book, run, pilot, tell, wanted=bool(request.allocations))
        if _is_sent(run) or run.state.ended:
            return run
        if run.cancelled and run.sweep is None:
            return end_begun(far, request.scheduler, book, run) if run.submitting else end_unbegun(book, run)
        return _send(replace(request, inputs=tuple(placed)), identities, run, far, book, carrier, tell)


def _ask_for_pilot(request: Request, far: Far, run: Run | None) -> Pilot | None:
    """The pilot that a sweep is to have, `run` where it was begun before. Raises where it cannot, before there is any trace of it."""
    if not request.allocations or (run is not None and run.sweep is not None and run.sweep.chunks):
        return None
    from runs.pilot.ready import prepare_pilot

    return prepare_pilot(request, far)


def _is_sent(run: Run) -> bool:
    return bool(run.job) and (run.sweep is None or not run.sweep.unsent())


def _key(request: Request, identities: Sequence[str]) -> str:
    if request.tasks or request.origin:
        from runs.sweeps.launch import sweep_key

        return sweep_key(request, identities)
    return run_key(
        request.pipeline, request.invocation, identities, request.site.name, request.name, request.after
    )


def request_key(request: Request, far: Far) -> str:
    """The key of a request at its site, which is asked only where inputs lie there."""
    return _key(request, [identity.text for identity in _locate(request, far)[1]])


def _claimed(book: Book, key: str, tell: Listener) -> Claim:
    """The turn of a key. Raises `RefusedError` where the ledger cannot be written: then nothing has begun."""
    try:
        return book.claim(key, tell=tell)
    except OSError as problem:
        raise not_started(problem, Path(str(problem.filename or "runs"))) from None


def _check_line(request: Request, book: Book) -> None:
    """Between the choice of a site and now the same line may have been typed elsewhere, and another site chosen."""
    run = None if request.new else book.find_unreported(request.line)
    if run is not None and run.site != request.site.name:
        raise TryLaterError(
            "chosen-elsewhere",
            f"the same line was started at {run.site} at this moment",
            about=run.id,
            hint="Type it again: it goes on there.",
            transient=False,
        )


def _locate(request: Request, far: Far) -> tuple[list[Input], list[Identity]]:
    """Inputs that are at the site already get their path there; all get an identity."""
    placed: list[Input] = []
    identities: list[Identity] = []
    for each, place, known in zip(request.inputs, request.places, request.identities, strict=True):
        if known is None:
            identity, path = identify_at_site(far, place)
            source = path.decode("utf-8", "surrogateescape")
            placed.append(replace(each, in_place=True, source=source))
            identities.append(identity)
        else:
            placed.append(each)
            identities.append(known)
    return placed, identities


def _begin(
    request: Request,
    placed: Sequence[Input],
    identities: Sequence[Identity],
    contents: Iterable[str],
    book: Book,
    key: str,
) -> Run:
    """Decide everything once with no folder yet: what cannot be prepared must not be in the ledger."""
    run_id = new_identifier()
    outputs: tuple[Output, ...] = ()
    more: dict[str, Any] = {"origin": request.origin} if request.origin else {}
    if request.proxy:
        more["proxy"] = True
    if request.tasks:
        from runs.sweeps.launch import begin_tasks

        more |= begin_tasks(request, placed, run_id)
    else:
        outputs = prepare_request(request, placed, run_id, f"/{run_id}", image=Started("")).outputs
    return book.begin(
        run_id,
        key,
        {
            "pipeline": request.pipeline.reference,
            "pipeline_digest": request.pipeline.digest,
            "site": request.site.name,
            "name": request.name,
            "scheduler": request.scheduler.name,
            "container": request.container.name,
            "hibali": __version__,
            "invocation": dict(request.invocation.given),
            "asked": dict(request.asked),
            "resources": request.ask().to_fields(),
            "after": list(request.after),
            "hold": request.waiting.hold,
            "inputs": [
                # where it lay and what it was, for whoever asks later: an answer may be a relative path
                {
                    "id": each.id,
                    "name": each.name,
                    "text": each.text,
                    "location": place.path if place.typed_local else place.text,
                    "identity": identity.text,
                    "content": content,
                }
                for each, place, identity, content in zip(
                    placed, request.places, identities, contents, strict=True
                )
            ],
            "prologue": list(request.settings.prologue),
            "outputs": [
                {
                    "id": each.id,
                    "path": each.path,
                    "optional": each.optional,
                    "is_list": each.is_list,
                    "is_pattern": each.is_pattern,
                }
                for each in outputs
            ],
            **more,
        },
        line=request.line,
    )


def _send(
    request: Request,
    identities: Sequence[Identity],
    run: Run,
    far: Far,
    book: Book,
    carrier: Carrier,
    tell: Listener,
) -> Run:
    work = make_work_folder(far, request.site, b"runs", b"cache", b"images")
    folder = work + b"/runs/" + run.id.encode("ascii")
    far.make_folder(folder if request.tasks else folder + b"/work")
    request = replace(
        request, proxy=run.proxy
    )  # as it was begun, however the line that goes on with it was typed
    if run.state is State.PREPARED:
        put_card(far, folder, book, run)
    cache = open_cache(far, request.site, work, carrier, tell)
    staged = _bring_inputs(request, identities, cache, run.id, tell)
    images = SiteImages(far, request.site, request.container, work, cache, tell)
    image = find_image(request.pipeline, request.container, images, request.image, request.pinned)
    if request.tasks:
        from runs.sweeps.launch import stage_tasks
        from runs.sweeps.send import send_chunks

        request = replace(request, inputs=tuple(staged))
        run = stage_tasks(request, run, far, book, as_text(folder), image, cache)
        return send_chunks(far, request.scheduler, book, run, request.site.limits, tell=tell)
    jobs = jobs_to_come_after(far, request.scheduler, book, run, request.waiting.needs)
    if isinstance(jobs, Run):
        return jobs
    request = replace(request, waiting=replace(request.waiting, jobs=jobs, hold=run.hold))
    prepared = prepare_request(request, staged, run.id, as_text(folder), image=image.started)
    if image.id:
        book.note(run.id, "image", {"id": image.id.removeprefix("sha256:")})
    if run.state is State.PREPARED:
        run = book.note(run.id, "staged", path_fields(folder, "folder"))
    return send(
        far,
        request.scheduler,
        book,
        run,
        words=prepared.submit,
        put=lambda: put_files(far, prepared, job_proxy(request)),
        limits=request.site.limits,
        tell=tell,
    )


def _bring_inputs(
    request: Request, identities: Sequence[Identity], cache: Cache, run_id: str, tell: Listener
) -> list[Input]:
    """The inputs with their absolute paths at the site, where they lie when this returns, held there by the run."""
    cache.hold(run_id, identities)
    staged = []
    for each, place, identity in zip(request.inputs, request.places, identities, strict=True):
        source = each.source if each.in_place else as_text(cache.bring_patiently(identity, place, tell))
        staged.append(replace(each, source=source))
    if request.site.purge is not None:
        wait = expected_wait(runs_of(request.pipeline.digest), request.site.name)
        paths = {f"the input {each.id} ({each.text})": as_bytes(each.source) for each in staged}
        cache.warn_of_purge(paths, wait)
    return staged


def prepare_request(
    request: Request, inputs: Sequence[Input], run_id: str, folder: str, *, image: Started, number: int = 0
) -> Prepared:
    """See `prepare`; what is asked for comes from the request."""
    return prepare(
        request.pipeline,
        request.invocation,
        inputs,
        run=run_id,
        folder=folder,
        settings=request.settings,
        scheduler=request.scheduler,
        container=request.container,
        image=image,
        waiting=request.waiting,
        number=number,
        fast=request.fast,
        wanted=request.wanted,
        gpus=request.site.gpus,
        site=request.site.name,
        proxy=request.proxy,
    )


def show_prepared(request: Request, run_id: str) -> Prepared:
    """What a run would put at the site, without asking the site anything: paths there stand as configured."""
    folder = f"{work_path(request.site)}/runs/{run_id}"
    return prepare_request(request, shown_inputs(request), run_id, folder, image=shown_image(request))


def shown_inputs(request: Request) -> list[Input]:
    """The inputs as far as they are known without asking the site."""
    return [
        each
        if each.in_place
        else replace(each, in_place=known is None, source=place.path if known is None else "")
        for each, place, known in zip(request.inputs, request.places, request.identities, strict=True)
    ]


def shown_image(request: Request) -> Started:
    """What stands for the image where none was looked for."""
    return Started("IMAGE" if request.container.isolates else "")
