"""Launch a run: stage inputs, write files, submit once; the same command resumes from any step."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from hibali import __version__
from hibali.errors import IncompleteError, TryLaterError
from hibali.events import Listener, Noted, ignore
from hibali.ledger import new_identifier, not_started
from hibali.locks import Claim
from hibali.text import as_bytes, as_text, path_fields, printable
from runs.adopt import write_run_manifest
from runs.cache.entries import expected_wait
from runs.clean import make_work_folder
from runs.containers.base import Started
from runs.dependencies import check_needs, jobs_to_come_after
from runs.images import SiteImages, find_image
from runs.inputs import Identity, identify_at_site
from runs.model import Input, Output, Pilot, Run, State, ignore_run
from runs.prepare import Prepared
from runs.request import Request, job_proxy, prepare_request, run_key
from runs.resources import show_value
from runs.reuse import Reuse, known_content
from runs.script import FILE, PROXY
from runs.send import send
from runs.stage import Cache, Carrier, open_cache
from runs.store import RunStore, runs_of
from runs.submit import cancel_begun, cancel_unsubmitted
from transfers.remote.host import RemoteHost

Fields = list[dict[str, Any]]  # Asked.to_fields()


def record_resources(run_store: RunStore, run: Run, now: Fields, on_event: Listener) -> None:
    """What a job asks for is no part of a run's key, so that a run is continued whatever is asked for now."""
    before = recorded_resources(run_store, run.id)
    if before is None or _values(before) == _values(now):
        return
    if run.job or run.state.ended:
        on_event(
            Noted(
                f"run {run.id} was submitted with {_shown(before)}, and goes on so; --new starts one with {_shown(now)}"
            )
        )
    else:
        run_store.note(run.id, "resources", {"resources": now})


def recorded_resources(run_store: RunStore, run_id: str) -> Fields | None:
    """What the job of a run was to ask for when that was said last; None for a run that an older version began."""
    for record in reversed(run_store.records(run_id)):
        found = record.get("resources")
        if isinstance(found, list):
            return found
    return None


def _values(wishes: Sequence[dict[str, Any]]) -> list[tuple[Any, Any]]:
    """Who said so makes no other job."""
    return [(each.get("name"), each.get("value")) for each in wishes]


def _shown(wishes: Sequence[dict[str, Any]]) -> str:
    words = [f"{name} {show_value(str(name), value)}" for name, value in _values(wishes)]
    return ", ".join(words) or "what the site gives"


def write_run_files(host: RemoteHost, prepared: Prepared, proxy: bytes = b"") -> None:
    """Copies first, then what the job needs, the script last; all of it again is the same. `proxy` is that of the job."""
    folder = as_bytes(prepared.folder)
    _write_copies(host, prepared, folder)
    for path, content in prepared.configuration_files.items():
        target = folder + b"/work/" + as_bytes(path)
        host.make_folder(target.rpartition(b"/")[0])
        host.put(target, as_bytes(content))
    command = as_bytes(prepared.command_path)
    host.make_folder(command.rpartition(b"/")[0])
    host.put(command, as_bytes(prepared.command))
    if prepared.fast:
        host.put(folder + b"/fast.sh", as_bytes(prepared.fast))
    if prepared.required:
        host.put(folder + f"/{FILE}".encode("ascii"), as_bytes(prepared.required))
    if proxy:
        host.put(folder + PROXY, proxy)  # 0600 from its creation, as all that is put
    host.put(folder + b"/start", as_bytes(prepared.start))
    host.put(folder + b"/job.sh", as_bytes(prepared.job_script), executable=True)


def _write_copies(host: RemoteHost, prepared: Prepared, folder: bytes) -> None:
    """All private copies of inputs or none: a copy that was cut short is never taken for one."""
    final = folder + b"/inputs"
    if not prepared.copies or host.stat(final) is not None:
        return
    partial = final + b"-" + secrets.token_hex(8).encode("ascii")
    for each in prepared.copies:
        target = partial + as_bytes(each.target).removeprefix(final)
        host.make_folder(target.rpartition(b"/")[0])
        host.copy(as_bytes(each.source), target)
    host.move(partial, final)
    if host.stat(final) is None:
        raise IncompleteError("not-copied", "the inputs could not be put in place", subject=printable(final))


def launch(
    request: Request,
    host: RemoteHost,
    run_store: RunStore,
    carrier: Carrier,
    *,
    reuse: Reuse | None = None,
    began: Callable[[Run], None] = ignore_run,
    on_event: Listener = ignore,
) -> Run:
    """The run of this request, submitted: a new one, or the one of the same line whose end nobody was told.

    It is CANCELLED instead where that was wished meanwhile, and waits where the queue has no room for it (`Run.waits`). With `reuse`, one
    that already computed the same stands for it. `began` is called as soon as its identifier is known. Everything is in the ledger before it happens.
    """
    wishes = request.ask().to_fields()
    placed, identities = _locate(request, host)
    texts = [identity.text for identity in identities]
    key = _key(request, texts)
    with ExitStack() as turns:
        if request.line:
            turns.enter_context(_claimed(run_store, request.line, on_event))
            _check_line(request, run_store)
        turns.enter_context(_claimed(run_store, key, on_event))
        run = None if request.new else run_store.find_unreported(key)
        if reuse is not None and (run is None or run.state is State.SUCCEEDED):
            run = reuse.find(request, identities) or run
        pilot = _ask_for_pilot(request, host, run)
        if run is None:
            check_needs(host, request.scheduler, run_store, request.waiting.needs)
            contents = reuse.contents(request, identities) if reuse else map(known_content, identities)
            run = _begin(request, placed, identities, contents, run_store, key)
        began(run)
        if not run.results.reused:
            record_resources(run_store, run, wishes, on_event)
        if run.sweep is not None:
            from runs.pilot.setup import record_pilot

            run = record_pilot(run_store, run, pilot, on_event, wanted=bool(request.allocations))
        if _is_sent(run) or run.state.ended:
            return run
        if run.submission.cancelled and run.sweep is None:
            return (
                cancel_begun(host, request.scheduler, run_store, run)
                if run.submission.begun
                else cancel_unsubmitted(run_store, run)
            )
        return _send(
            replace(request, inputs=tuple(placed)), identities, run, host, run_store, carrier, on_event
        )


def _ask_for_pilot(request: Request, host: RemoteHost, run: Run | None) -> Pilot | None:
    """The pilot that a sweep is to have, `run` where it was begun before. Raises where it cannot, before there is any trace of it."""
    if not request.allocations or (run is not None and run.sweep is not None and run.sweep.chunks):
        return None
    from runs.pilot.setup import prepare_pilot

    return prepare_pilot(request, host)


def _is_sent(run: Run) -> bool:
    return bool(run.job) and (run.sweep is None or not run.sweep.unsubmitted())


def _key(request: Request, identities: Sequence[str]) -> str:
    if request.tasks or request.origin:
        from runs.sweeps.launch import sweep_key

        return sweep_key(request, identities)
    return run_key(
        request.pipeline, request.invocation, identities, request.site.name, request.name, request.after
    )


def request_key(request: Request, host: RemoteHost) -> str:
    """The key of a request at its site, which is asked only where inputs lie there."""
    return _key(request, [identity.text for identity in _locate(request, host)[1]])


def _claimed(run_store: RunStore, key: str, on_event: Listener) -> Claim:
    """The turn of a key. Raises `RefusedError` where the ledger cannot be written: then nothing has begun."""
    try:
        return run_store.claim(key, on_event=on_event)
    except OSError as problem:
        raise not_started(problem, Path(str(problem.filename or "runs"))) from None


def _check_line(request: Request, run_store: RunStore) -> None:
    """Between the choice of a site and now the same line may have been typed elsewhere, and another site chosen."""
    run = None if request.new else run_store.find_unreported(request.line)
    if run is not None and run.site != request.site.name:
        raise TryLaterError(
            "chosen-elsewhere",
            f"the same line was started at {run.site} at this moment",
            subject=run.id,
            hint="Type it again: it goes on there.",
            transient=False,
        )


def _locate(request: Request, host: RemoteHost) -> tuple[list[Input], list[Identity]]:
    """Inputs that are at the site already get their path there; all get an identity."""
    placed: list[Input] = []
    identities: list[Identity] = []
    for each, place, known in zip(request.inputs, request.places, request.identities, strict=True):
        if known is None:
            identity, path = identify_at_site(host, place)
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
    run_store: RunStore,
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
    return run_store.begin(
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
    host: RemoteHost,
    run_store: RunStore,
    carrier: Carrier,
    on_event: Listener,
) -> Run:
    work = make_work_folder(host, request.site, b"runs", b"cache", b"images")
    folder = work + b"/runs/" + run.id.encode("ascii")
    host.make_folder(folder if request.tasks else folder + b"/work")
    request = replace(
        request, proxy=run.submission.proxy
    )  # as it was begun, however the line that goes on with it was typed
    if run.state is State.PREPARED:
        write_run_manifest(host, folder, run_store, run)
    cache = open_cache(host, request.site, work, carrier, on_event)
    staged = _bring_inputs(request, identities, cache, run.id, on_event)
    images = SiteImages(host, request.site, request.container, work, cache, on_event)
    image = find_image(request.pipeline, request.container, images, request.image, request.pinned)
    if request.tasks:
        from runs.sweeps.launch import stage_tasks
        from runs.sweeps.send import send_chunks

        request = replace(request, inputs=tuple(staged))
        run = stage_tasks(request, run, host, run_store, as_text(folder), image, cache)
        return send_chunks(host, request.scheduler, run_store, run, request.site.limits, on_event=on_event)
    jobs = jobs_to_come_after(host, request.scheduler, run_store, run, request.waiting.needs)
    if isinstance(jobs, Run):
        return jobs
    request = replace(request, waiting=replace(request.waiting, jobs=jobs, hold=run.submission.hold))
    prepared = prepare_request(request, staged, run.id, as_text(folder), image=image.started)
    if image.id:
        run_store.note(run.id, "image", {"id": image.id.removeprefix("sha256:")})
    if run.state is State.PREPARED:
        run = run_store.note(run.id, "staged", path_fields(folder, "folder"))
    return send(
        host,
        request.scheduler,
        run_store,
        run,
        words=prepared.submit,
        put=lambda: write_run_files(host, prepared, job_proxy(request)),
        limits=request.site.limits,
        on_event=on_event,
    )


def _bring_inputs(
    request: Request, identities: Sequence[Identity], cache: Cache, run_id: str, on_event: Listener
) -> list[Input]:
    """The inputs with their absolute paths at the site, where they lie when this returns, held there by the run."""
    cache.hold(run_id, identities)
    staged = []
    for each, place, identity in zip(request.inputs, request.places, identities, strict=True):
        source = (
            each.source if each.in_place else as_text(cache.stage_with_retries(identity, place, on_event))
        )
        staged.append(replace(each, source=source))
    if request.site.purge is not None:
        wait = expected_wait(runs_of(request.pipeline.digest), request.site.name)
        paths = {f"the input {each.id} ({each.text})": as_bytes(each.source) for each in staged}
        cache.warn_of_purge(paths, wait)
    return staged
