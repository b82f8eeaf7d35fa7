"""Launching a run: inputs staged, files put, submitted once; typed again it goes on from any step."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hibali.errors import RefusedError
from hibali.events import Listener, ignore
from hibali.ledger import new_identifier
from hibali.locations import Location, work_path
from hibali.retry import with_retries
from hibali.sites import SchedulerSettings, Site, local_site
from hibali.text import path_fields, printable
from registry.invocation import Invocation
from registry.pipeline import Pipeline
from runs.book import Book
from runs.container import Container
from runs.image import find_image
from runs.prepare import Input, Prepared, prepare, run_key
from runs.put import as_text, put_files
from runs.run import Run, State, ignore_run
from runs.scheduler import Scheduler
from runs.stage import Cache, Carrier, Identity, identify_at_site, identify_local
from runs.submit import SETTLING_SECONDS, submit_once
from transfers.entry import Kind
from transfers.far import Far


@dataclass(frozen=True, slots=True)
class Request:
    """What was asked for, checked: the pipeline, its answers, and where to run it.

    `places` has for each of `inputs` where it lies, and `identities` what is known of it without asking the
    site (None for one that is at the site itself). `image` is what `--image` said.
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
    trial = _prepare(request, placed, run_id, f"/{run_id}", image="")
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
    work = far.expand(work_path(request.site))
    folder = work + b"/runs/" + run.id.encode("ascii")
    for each in (work, work + b"/runs", work + b"/cache"):
        _make_private(far, each, request.site.name)
    far.make_folder(folder + b"/work")
    bring = _Stager(request.site, far, work, carrier, tell)
    staged = bring.inputs(request, identities)
    image = find_image(
        request.pipeline, request.container, far, request.site.name, request.image, bring.image_archive
    )
    prepared = _prepare(request, staged, run.id, as_text(folder), image=image)
    if image:
        book.note(run.id, "image", {"id": image})
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


def _make_private(far: Far, path: bytes, site: str) -> None:
    """Ours alone to write, or nothing starts: who can write there chooses what runs (S4)."""
    far.make_folder(path)
    found = far.stat(path)
    if found is None or found.kind is not Kind.FOLDER or (found.mode >= 0 and found.mode & 0o022):
        raise RefusedError(
            "not-private",
            "others can write to this folder of the site",
            about=f"{site}:{printable(path)}",
            hint=f"There: chmod go-w {printable(path)}",
        )


class _Stager:
    """Brings files of this machine and of other sites to the run's site."""

    def __init__(self, site: Site, far: Far, work: bytes, carrier: Carrier, tell: Listener) -> None:
        self._tell = tell
        self._cache = Cache(
            far,
            site.name,
            work,
            lambda path: Location(site, as_text(path), f"{site.name}:{as_text(path)}"),
            carrier,
        )

    def inputs(self, request: Request, identities: Sequence[Identity]) -> list[Input]:
        """The inputs with their absolute paths at the site, where they lie when this returns."""
        staged = []
        for each, place, identity in zip(request.inputs, request.places, identities, strict=True):
            source = each.source if each.in_place else as_text(self._bring(identity, place))
            staged.append(replace(each, source=source))
        return staged

    def image_archive(self, archive: Path) -> bytes:
        """Where the archive of an image lies at the site."""
        path = archive.absolute()
        text = as_text(os.fsencode(path))
        return self._bring(identify_local(path), Location(local_site(), text, text, typed_local=True))

    def _bring(self, identity: Identity, place: Location) -> bytes:
        """Two runs may stage the same at once: whoever comes second waits for the lease."""
        return with_retries(
            lambda: self._cache.bring(identity, place, self._tell),
            about=place.text,
            attempts=6,
            tell=self._tell,
        )


def _prepare(request: Request, inputs: Sequence[Input], run_id: str, folder: str, *, image: str) -> Prepared:
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
    return _prepare(request, inputs, run_id, folder, image="IMAGE" if request.container.isolates else "")
