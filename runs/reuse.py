"""Reuse an earlier run with the same pipeline, inputs and image whose outputs still exist, at its site or in a collected copy."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from hibali.config.model import local_site
from hibali.config.settings import Settings
from hibali.documents import canonical_digest
from hibali.errors import HibaliError, NotFoundError
from hibali.events import Listener, Noted, ignore
from hibali.ledger import new_identifier
from hibali.locations import Location
from hibali.text import printable
from registry.images.archive import read_archive
from registry.invocation import Invocation, check_invocation
from registry.pipeline import Pipeline
from runs.collect import collected_files, protection, pull_files
from runs.containers.base import load_container
from runs.identity import Identity, identify_local
from runs.images import first_image, read_image_id
from runs.model import FROM_RUN, Run, State
from runs.outputs import content_of_place, find_content, inspect_outputs, moved_outputs, read_output_identity
from runs.records import part_of
from runs.request import Request
from runs.run_index import RunFilter, find_run_ids
from runs.services.base import ServiceContainer
from runs.store import RunStore
from transfers.engine.request import SaveOptions
from transfers.history.journal import Receipt

_Result = TypeVar("_Result")


class Reuse:
    """Searches the ledger for a run to reuse. Sites that cannot be queried are reported and skipped."""

    def __init__(self, settings: Settings, run_store: RunStore, on_event: Listener = ignore) -> None:
        self._settings = settings
        self._run_store = run_store
        self._on_event = on_event
        self._contents: dict[str, str] = {}

    def find(self, request: Request, identities: Sequence[Identity]) -> Run | None:
        """Return the latest successful run with the same pipeline, values and contents of inputs, whose outputs still exist."""
        for run, record in self._candidates(request):
            same = self._same_inputs(request, identities, record)
            if same and self._same_tool(request, run, record):
                if self._outputs_exist(run):
                    return replace(run, results=replace(run.results, reused=True))
                if find_collected_copy(run, self._run_store) is not None:
                    return replace(run, results=replace(run.results, reused=True, from_copy=True))
        return None

    def contents(self, request: Request, identities: Sequence[Identity]) -> list[str]:
        """Return the content of each input, hashed at its site if it is unknown; "" if it cannot be determined."""
        return [self._content_now(request, number, each) for number, each in enumerate(identities)]

    def _candidates(self, request: Request) -> Iterator[tuple[Run, dict[str, Any]]]:
        """Yield the candidates by the ledger alone, the latest first."""
        values = _values_digest(request.workload.invocation)
        names = [[each.id, each.name, each.below] for each in request.workload.inputs]
        same = RunFilter(
            states=(State.SUCCEEDED,), pipeline_digest=request.workload.pipeline.digest, single=True
        )
        for run in self._run_store.load_all(reversed(find_run_ids(same))):
            record = self._run_store.records(run.id)[0]
            inputs = record.get("inputs", ())
            if [[each["id"], each["name"], each.get("below", "")] for each in inputs] != names:
                continue
            if _values_before(request.workload.pipeline, record) == values:
                yield run, record

    def _same_inputs(
        self, request: Request, identities: Sequence[Identity], record: Mapping[str, Any]
    ) -> bool:
        """Compare identities, which always mean the same content; if they differ, compare contents."""
        for number, (identity, known) in enumerate(zip(identities, record["inputs"], strict=True)):
            if identity.text == known["identity"]:
                continue
            then = self._content_then(known)
            if not then or then != self._content_now(request, number, identity):
                return False
        return True

    def _content_then(self, known: Mapping[str, Any]) -> str:
        identity = str(known["identity"])
        if identity.startswith(FROM_RUN):
            return str(known.get("content") or self._content_of_output(identity))
        if identity.startswith(("sha256:", "tree:")):
            return identity
        return str(known.get("content", ""))

    def _content_now(self, request: Request, number: int, identity: Identity) -> str:
        if identity.content:
            return identity.content
        if identity.text.startswith(FROM_RUN):
            return self._content_of_output(identity.text)
        place = request.workload.locations[number]
        if place.site.kind not in {"ssh", "local"}:
            return ""  # hashing would require a download of whole objects
        if identity.text not in self._contents:
            content = self._try(place.text, lambda: content_of_place(place))
            self._contents[identity.text] = content.text if content else ""
        return self._contents[identity.text]

    def _content_of_output(self, text: str) -> str:
        if text not in self._contents:
            self._contents[text] = self._try(text, lambda: self._hash_output(text)) or ""
        return self._contents[text]

    def _hash_output(self, text: str) -> str:
        """Return the content of an output now, if it did not change since the run ended."""
        named = read_output_identity(text)
        run = part_of(self._run_store.load(named.reference.run), named.reference.task) if named else None
        if named is None or run is None or run.state is not State.SUCCEEDED:
            return ""
        content = find_content(run, self._settings.site(run.site), named)
        return content.text if content else ""

    def _same_tool(self, request: Request, run: Run, record: Mapping[str, Any]) -> bool:
        """Compare images; a tool without a container is known by its site and prologue alone, and reused only there."""
        if not request.compute.container.isolates:
            same_place = (run.site, run.placement.container) == (
                request.compute.site.name,
                request.compute.container.name,
            )
            return same_place and record.get("prologue", []) == list(request.compute.settings.prologue)
        if run.placement.container == ServiceContainer.name:  # the image that the service used is not known
            return False
        if not load_container(run.placement.container).isolates:
            return False
        return _wanted_image(request) in {"", run.placement.image.removeprefix("sha256:")}

    def _outputs_exist(self, run: Run) -> bool:
        """Return whether all outputs are at the run's site, unmodified."""
        existing = self._try(
            run.id,
            lambda: inspect_outputs(run, self._settings.site(run.site), run.spec.outputs, hashed=False),
        )
        return existing is not None and not existing.problems and not existing.changed

    def _try(self, subject: str, call: Callable[[], _Result]) -> _Result | None:
        try:
            return call()
        except NotFoundError:
            return None
        except HibaliError as problem:
            self._on_event(Noted(f"{printable(subject)} cannot be reused: {problem.message}"))
            return None


@dataclass(frozen=True, slots=True)
class CollectedCopy:
    """All outputs of a run in a local folder; `files` are their paths there."""

    folder: Path
    files: tuple[bytes, ...]
    size: int


def find_collected_copy(run: Run, run_store: RunStore) -> CollectedCopy | None:
    """Return the latest folder into which all outputs were collected at once, if each still has its content."""
    for folder, moved in collected_files(run, run_store):
        found = moved_outputs(run, moved)
        if not found.problems and all(_holds(folder, *each) for each in found.digests.items()):
            return CollectedCopy(folder, tuple(found.files), found.size)
    return None


def _holds(folder: Path, path: bytes, digest: str) -> bool:
    try:
        return identify_local(folder / os.fsdecode(path)).text == f"sha256:{digest}"
    except HibaliError:
        return False


def copy_collected(
    run: Run,
    run_store: RunStore,
    collected: CollectedCopy,
    target: Location,
    saving: SaveOptions,
    on_event: Listener = ignore,
) -> Receipt:
    """Copy collected outputs of a run into another folder and verify them; nothing is copied if it is the same folder."""
    source = Location(local_site(), str(collected.folder), str(collected.folder), typed_local=True)
    if target.typed_local and _same_folder(collected.folder, target):
        count = len(collected.files)
        name = new_identifier()
        return Receipt(
            name, "collect", source.text, target.text, files=count, bytes=collected.size, files_kept=count
        )
    protect = protection(run, run_store, target, saving, lambda _: 0)
    return pull_files("collect", source, target, collected.files, saving, on_event, protect=protect)


def _same_folder(folder: Path, target: Location) -> bool:
    return folder.resolve() == Path(os.fsdecode(target.raw)).resolve()


def _values_digest(invocation: Invocation) -> str:
    """Return a digest of all values but files, which are compared by content."""
    values = {name: each for name, each in invocation.values.items() if name not in invocation.file_ids}
    return canonical_digest({"values": values, "files": sorted(invocation.file_ids)})


def _values_before(pipeline: Pipeline, record: Mapping[str, Any]) -> str:
    try:
        return _values_digest(check_invocation(pipeline, record.get("invocation")))
    except HibaliError:
        return ""


def _wanted_image(request: Request) -> str:
    """Return the id of the image to start, 64 hexadecimal digits; "" if only the site knows it."""
    name = request.compute.container.image_name(request.workload.pipeline.container)
    if request.image:
        image_id = read_image_id(request.image)
        return image_id or read_archive(Path(request.image), name).record.id.removeprefix("sha256:")
    if request.pinned is not None:
        return request.pinned.record.id.removeprefix("sha256:")
    return first_image(request.workload.pipeline, request.compute.site.name, name) or ""
