"""Launching a run: inputs staged, files put, submitted once; typed again it goes on from any step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from hibali import __version__
from hibali.events import Listener, ignore
from hibali.ledger import new_identifier
from hibali.locations import Location, work_path
from hibali.sites import SchedulerSettings, Site
from hibali.text import path_fields
from registry.invocation import Invocation
from registry.pipeline import Pipeline
from runs.book import Book
from runs.container import Container
from runs.image import Pinned, find_image
from runs.prepare import Input, Prepared, Started, prepare, run_key
from runs.put import as_text, put_files
from runs.run import Run, State, ignore_run
from runs.scheduler import Scheduler
from runs.site_images import SiteImages
from runs.stage import Cache, Carrier, Identity, at_site, identify_at_site
from runs.submit import SETTLING_SECONDS, submit_once
from runs.work_folder import make_work_folder
from transfers.far import Far


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked for, checked: the pipeline, its answers, and where to run it.

    `places` has for each of `inputs` where it lies, and `identities` what is known of it without asking the
    site (None for one that is at the site itself). `image` is what `--image` said, `pinned` the catalogue's own.
    `asked` is how the line was typed on this machine, for whoever is to type it again (runs.dataset).
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
    asked: Mapping[str, Any] = field(default_factory=dict)

    @property
    def settings(self) -> SchedulerSettings:
        """The site's defaults for jobs."""
        return self.site.scheduler or SchedulerSettings()


def launch(
    request: Request,
    far: Far,
    book: Book,
    carrier: Carrier,
    *,
    began: Callable[[Run], None] = ignore_run,
    settling: float = SETTLING_SECONDS,
    tell: Listener = ignore,
) -> Run:
    """The run of this request, submitted: a new one, or the one of the same line whose end nobody was told.

    `began` is called as soon as its identifier is known. Everything is in the ledger before it happens.
    """
    placed, identities = _locate(request, far)
    texts = [identity.text for identity in identities]
    key = run_key(request.pipeline, request.invocation, texts, request.site.name, request.name)
    with book.claim(key, tell=tell):
        run = None if request.new else book.find_unreported(key)
        if run is None:
            run = _begin(request, placed, identities, book, key)
        began(run)
        if run.job or run.state.ended:
            return run
        return _send(
            replace(request, inputs=tuple(placed)), identities, run, far, book, carrier, settling, tell
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
    request: Request, placed: Sequence[Input], identities: Sequence[Identity], book: Book, key: str
) -> Run:
    """Decide everything once with no folder yet: what cannot be prepared must not be in the ledger."""
    run_id = new_identifier()
    trial = _prepare(request, placed, run_id, f"/{run_id}", image=Started(""))
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
            "inputs": [
                # where it lay and what it was, for whoever asks later: an answer may be a relative path
                {
                    "id": each.id,
                    "name": each.name,
                    "location": place.path if place.typed_local else place.text,
                    "identity": identity.text,
                }
                for each, place, identity in zip(placed, request.places, identities, strict=True)
            ],
            "outputs": [
                {
                    "id": each.id,
                    "path": each.path,
                    "optional": each.optional,
                    "is_list": each.is_list,
                    "is_pattern": each.is_pattern,
                }
                for each in trial.outputs
            ],
        },
    )


def _send(
    request: Request,
    identities: Sequence[Identity],
    run: Run,
    far: Far,
    book: Book,
    carrier: Carrier,
    settling: float,
    tell: Listener,
) -> Run:
    work = make_work_folder(far, request.site, b"runs", b"cache", b"images")
    folder = work + b"/runs/" + run.id.encode("ascii")
    far.make_folder(folder + b"/work")
    cache = Cache(far, request.site.name, work, at_site(request.site), carrier)
    staged = _bring_inputs(request, identities, cache, tell)
    images = SiteImages(far, request.site, request.container, work, cache, tell)
    image = find_image(request.pipeline, request.container, images, request.image, request.pinned)
    prepared = _prepare(request, staged, run.id, as_text(folder), image=image.started)
    if image.id:
        book.note(run.id, "image", {"id": image.id.removeprefix("sha256:")})
    if run.state is State.PREPARED:
        run = book.note(run.id, "staged", path_fields(folder, "folder"))
    book.note(run.id, "submitting")
    job = submit_once(
        far,
        request.scheduler,
        run=run.id,
        folder=folder,
        words=prepared.submit,
        since=run.created[:10],
        put=lambda: put_files(far, prepared),
        settling=settling,
        tell=tell,
    )
    return book.note(run.id, "submitted", {"job": job})


def _bring_inputs(
    request: Request, identities: Sequence[Identity], cache: Cache, tell: Listener
) -> list[Input]:
    """The inputs with their absolute paths at the site, where they lie when this returns."""
    staged = []
    for each, place, identity in zip(request.inputs, request.places, identities, strict=True):
        source = each.source if each.in_place else as_text(cache.bring_patiently(identity, place, tell))
        staged.append(replace(each, source=source))
    return staged


def _prepare(
    request: Request, inputs: Sequence[Input], run_id: str, folder: str, *, image: Started
) -> Prepared:
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
    )


def show_prepared(request: Request, run_id: str) -> Prepared:
    """What a run would put at the site, without asking the site anything: paths there stand as configured."""
    folder = f"{work_path(request.site)}/runs/{run_id}"
    inputs = [
        replace(each, in_place=known is None, source=place.path if known is None else "")
        for each, place, known in zip(request.inputs, request.places, request.identities, strict=True)
    ]
    return _prepare(
        request, inputs, run_id, folder, image=Started("IMAGE" if request.container.isolates else "")
    )
