"""Create a bundle: gather inputs, decide its contents, then write it as one file."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from hibali import __version__
from hibali.config.model import Site, local_site
from hibali.config.settings import Settings
from hibali.documents import MAXIMUM_BYTES
from hibali.errors import IncompleteError, NotFoundError, RefusedError, UsageError
from hibali.events import Failed, Listener, ignore
from hibali.files import private_folder, state_folder
from hibali.locations import Location, read_location
from hibali.system_errors import reason_of
from hibali.text import counted, printable
from hibali_plugins.bundles.archive import (
    BLOCK,
    DESCRIPTOR,
    IMAGE,
    INPUTS,
    INVOCATION,
    LARGEST_TEXT,
    LONGEST,
    MANIFEST,
    METADATA,
    MOST_MEMBERS,
    OUTPUTS,
    RECORD,
    ArchiveWriter,
    member_of,
    path_of,
)
from hibali_plugins.bundles.crate import Described, write_metadata
from hibali_plugins.bundles.read import OutputFacts, PackedInput, Record, RunFacts, write_record
from registry.images.record import ImageRecord
from registry.images.record import write_record as write_image_record
from registry.invocation import Invocation
from registry.pipeline import Pipeline
from runs.identity import identify_elsewhere, identify_for_nodes, identify_local, split_part
from runs.inputs import list_inputs
from runs.model import Input, Run
from runs.outputs import OutputDigests, find_content, read_output_identity
from runs.records import part_of
from runs.stage import Synchroniser
from runs.store import RunStore
from transfers.inventory import Inventory, InventoryRequest
from transfers.manifest import write_line
from transfers.model.rules import Rules
from transfers.remote.host import RemoteHost
from transfers.stores.open_store import open_store
from transfers.stores.open_views import fetch_content


@dataclass(frozen=True, slots=True)
class Content:
    """The regular files of an input: sha256 and size by their names in a bundle (`hibali_plugins.bundles.archive`)."""

    files: dict[str, tuple[str, int]]
    folder: bool

    @property
    def size(self) -> int:
        """The size of all files together, in bytes."""
        return sum(size for _, size in self.files.values())

    @property
    def digests(self) -> dict[str, str]:
        """The sha256 of each file."""
        return {member: digest for member, (digest, _) in self.files.items()}


def hash_input(each: Input, place: Location, on_event: Listener) -> Content:
    """Hash an input at its location.

    Raises `NotFoundError`, `IncompleteError` if a file could not be read, and `RefusedError` if a folder
    contains entries other than regular files and folders, which cannot be compared.
    """
    name = each.name.encode("utf-8", "surrogateescape")
    files: dict[str, tuple[str, int]] = {}
    with Inventory(InventoryRequest(place), on_event) as stock:
        tree = stock.tree
        if tree.links.count or tree.specials:
            raise RefusedError(
                "input-has-links",
                "the folder contains symlinks or special files",
                subject=printable(place.text),
                hint="Copy it without them (cp -rL) and run with the copy.",
            )
        for hashed in stock.hashed():
            path = name if tree.single else name + b"/" + hashed.entry.path
            files[member_of(each.number, path)] = (hashed.digest, hashed.entry.size)
        if stock.failures:
            raise IncompleteError(
                "unreadable-input", f"{counted(stock.failures, 'file')} could not be read", subject=place.text
            )
        return Content(files, folder=not tree.single)


def check_unchanged(
    each: Input,
    place: Location,
    recorded: str,
    site: Site,
    content: Content,
    open_host: Callable[[], RemoteHost],
) -> None:
    """Raise `RefusedError` if an input changed since the run of `site` began (`recorded`)."""
    kind = recorded.partition(":")[0]
    if kind == "sha256":
        now = ",".join(f"sha256:{digest}" for digest in content.digests.values())
    elif kind == "tree":
        now = identify_local(Path(place.path)).text
    elif kind == "run":
        now = _current_identity(recorded, place.site, content)
    elif place.site == site and not place.typed_local:
        now = identify_for_nodes(open_host(), site, place)[0].text
    else:
        with contextlib.closing(open_store(place)) as store:
            now = identify_elsewhere(place, store).text
    if now != recorded:
        raise RefusedError(
            "input-changed",
            f"the input {each.id} has changed since the run started",
            subject=printable(place.text),
            hint="Run the pipeline again with the present input and bundle that run.",
        )


def _current_identity(recorded: str, site: Site, content: Content) -> str:
    """Return `recorded` if it is another run's unchanged output and was hashed; else another identity."""
    named = read_output_identity(recorded)
    run = part_of(RunStore().load(named.reference.run), named.reference.task) if named else None
    found = find_content(run, site, named) if run and named else None
    same = found is not None and sorted(found.files.values()) == sorted(content.digests.values())
    return recorded if same else ""


SMALL = 100 * 1024 * 1024  # bytes of this machine's inputs that are included by default
_OTHERS = 1000  # maximum number of members that are not inputs
Include = Literal["small", "all", "none"]


@dataclass(frozen=True, slots=True)
class HashedInput:
    """An input, its location, and its content."""

    input: Input
    place: Location
    content: Content


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of a bundle. `published` is RFC 3339; `outputs`, `run` and `image_id` belong to an ended run.

    `image_file` is the archive of `image`, if it is included.
    """

    pipeline: Pipeline
    invocation: Invocation
    inputs: Sequence[HashedInput]
    published: str
    agent: str
    run: Run | None = None
    image_id: str = ""
    outputs: OutputDigests | None = None
    image: ImageRecord | None = None
    image_file: Path | None = None
    signatures: Mapping[str, bytes] = field(default_factory=dict)
    include: Include = "small"


def decide_record(parts: Parts) -> Record:
    """Return the bundle's record. Raises `RefusedError` for a name that is too long."""
    included = _choose(parts)
    inputs = []
    for hashed_input in parts.inputs:
        member = _member(hashed_input.input)
        is_included = hashed_input.input.number in included
        inputs.append(
            PackedInput(
                id=hashed_input.input.id,
                member=member,
                type="folder" if hashed_input.content.folder else "file",
                files=len(hashed_input.content.files),
                bytes=hashed_input.content.size,
                included=is_included,
                location="" if is_included else _shown_location(hashed_input.place),
            )
        )
        for name in hashed_input.content.files:
            if len(name) > LONGEST:
                raise _too_much("the name is too long for a bundle", name[:200])
    if sum(each.files for each in inputs if each.included) > MOST_MEMBERS - _OTHERS:
        raise _too_much(f"a bundle can have at most {MOST_MEMBERS} files", "--with-inputs")
    return Record(
        hibali=__version__,
        name=parts.pipeline.name,
        version=parts.pipeline.version,
        digest=parts.pipeline.digest,
        inputs=tuple(inputs),
        run=None if parts.run is None else run_facts(parts.run, parts.image_id),
        outputs=None if parts.outputs is None else output_facts(parts.outputs),
    )


def _too_much(message: str, subject: str) -> RefusedError:
    return RefusedError(
        "too-much", message, subject=subject, hint="Pack the files into one archive and run with that."
    )


def _choose(parts: Parts) -> set[int]:
    """Return the numbers of the inputs that the bundle includes."""
    if parts.include == "all":
        return {hashed_input.input.number for hashed_input in parts.inputs}
    here = [hashed_input for hashed_input in parts.inputs if hashed_input.place.typed_local]
    if parts.include == "none" or sum(hashed_input.content.size for hashed_input in here) > SMALL:
        return set()
    return {hashed_input.input.number for hashed_input in here}


def _member(each: Input) -> str:
    return member_of(each.number, each.name.encode("utf-8", "surrogateescape"))


def _shown_location(place: Location) -> str:
    """Return the location that recipients of the bundle see."""
    return place.text if not place.typed_local else place.path


def run_facts(run: Run, image: str) -> RunFacts:
    """Return the facts of a run; `image` is the id of the image that it used, or ""."""
    return RunFacts(
        id=run.id,
        site=run.site,
        scheduler=run.placement.scheduler,
        container=run.placement.container,
        state=str(run.state),
        reason=run.status.reason,
        host=run.status.host,
        image=f"sha256:{image}" if image else "",
        exit_code=run.status.exit_code,
        created=run.created,
        started=run.status.started,
        ended=run.status.ended,
    )


def output_facts(outputs: OutputDigests) -> OutputFacts:
    """Return the totals and the problems of the outputs."""
    return OutputFacts(len(outputs.files), outputs.size, tuple(_problem(each) for each in outputs.problems))


def _problem(each: Failed) -> dict[str, str]:
    return {"path": printable(each.path), "code": each.code, "message": each.message}


def decide_texts(parts: Parts, record: Record) -> dict[str, bytes]:
    """Return every member but inputs and image, in the archive's order."""
    inputs = {
        name: facts for hashed_input in parts.inputs for name, facts in hashed_input.content.files.items()
    }
    outputs = parts.outputs.files if parts.outputs else {}
    texts = {
        RECORD: write_record(record),
        DESCRIPTOR: parts.pipeline.raw,
        INVOCATION: _invocation_text(parts, record),
        **({IMAGE: write_image_record(parts.image)} if parts.image else {}),
        **dict(sorted(parts.signatures.items())),
        **(
            {INPUTS: manifest_of((name.encode("ascii"), inputs[name][0]) for name in inputs)}
            if inputs
            else {}
        ),
        **({OUTPUTS: manifest_of((path, outputs[path][0]) for path in sorted(outputs))} if outputs else {}),
    }
    image_file = image_name(parts.image) if parts.image and parts.image_file else ""
    sums = {name: hashlib.sha256(content).hexdigest() for name, content in texts.items()}
    if image_file and parts.image:
        sums[image_file] = parts.image.hex
    described = Described(
        record,
        parts.pipeline,
        {name: len(content) for name, content in texts.items()},
        parts.published,
        parts.agent,
        inputs,
        dict(sorted(outputs.items())),
        parts.image,
        image_file,
    )
    metadata = write_metadata(described)
    sums[METADATA] = hashlib.sha256(metadata).hexdigest()
    manifest = manifest_of((name.encode("ascii"), sums[name]) for name in sorted(sums))
    for name, content in texts.items():
        most = MAXIMUM_BYTES if name in {RECORD, INVOCATION} else LARGEST_TEXT
        if len(content) > most:
            raise _too_much(f"it would have more than {most} bytes: there are too many files", name)
    return {METADATA: metadata, MANIFEST: manifest, **texts}


def manifest_of(lines: Iterable[tuple[bytes, str]]) -> bytes:
    """Format names and digests as sha256sum does."""
    return b"".join(write_line(path, digest) for path, digest in lines)


def _invocation_text(parts: Parts, record: Record) -> bytes:
    """Return the invocation with the bundle's members in place of files."""
    values = dict(parts.invocation.as_written)
    members = [each.member for each in record.inputs]
    for identifier, value in parts.invocation.file_inputs():
        own = [
            member
            for member, hashed_input in zip(members, parts.inputs, strict=True)
            if hashed_input.input.id == identifier
        ]
        values[identifier] = own[0] if isinstance(value, str) else own
    try:
        return (json.dumps(values, indent=2, allow_nan=False) + "\n").encode("ascii")
    except ValueError:
        raise UsageError("not-text", "an input value cannot be written as JSON", subject=INVOCATION) from None


def image_name(image: ImageRecord) -> str:
    """Return the member name of an image."""
    return f"image{image.extension}"


def recorded_values(run: Run, run_store: RunStore, pipeline: Pipeline) -> Any:
    """Return the original invocation of a run.

    Raises `RefusedError` if its pipeline has changed since, `UsageError` for a sweep.
    """
    require_single(run)
    check_pipeline(run, pipeline)
    return _prepared_record(run, run_store).get("invocation")


def require_single(run: Run) -> None:
    """Raise `UsageError` for a sweep, which has the outputs of many tasks."""
    if run.sweep is not None:
        raise UsageError(
            "no-single-run",
            "this needs a single run, but the run is a sweep",
            subject=run.id,
            hint="Start the task as a run of its own and name that run.",
        )


def check_pipeline(run: Run, pipeline: Pipeline) -> None:
    """Raise `RefusedError` if this is not the pipeline that was run."""
    if pipeline.digest != run.spec.pipeline_digest:
        raise RefusedError(
            "other-pipeline",
            f"the run used the descriptor with sha256 {run.spec.pipeline_digest}, but the catalogue has {pipeline.digest}",
            subject=run.spec.pipeline,
            hint="Add the descriptor that the run used: hibali pipelines add FILE",
        )


def inputs_of_run(
    run: Run,
    run_store: RunStore,
    invocation: Invocation,
    settings: Settings,
    site: Site,
    open_host: Callable[[], RemoteHost],
    on_event: Listener,
) -> list[HashedInput]:
    """Return the inputs of a run, hashed at their present locations.

    Raises `RefusedError` if one changed since, `NotFoundError` if one is missing, or if its location was not
    recorded.
    """
    recorded = _prepared_record(run, run_store).get("inputs")
    named_inputs = _whole_inputs(invocation)
    if not isinstance(recorded, list) or len(recorded) != len(named_inputs):
        raise NotFoundError(
            "inputs-not-recorded",
            "the ledger does not record the locations of this run's inputs",
            subject=run.id,
            hint="Run the pipeline again with this version and bundle that run.",
        )
    found = []
    for each, known in zip(named_inputs, recorded, strict=True):
        place = read_location(str(known["location"]), settings, literal=True)
        hashed_input = _hash_at(replace(each, name=str(known["name"])), place, on_event)
        check_unchanged(
            hashed_input.input, place, str(known["identity"]), site, hashed_input.content, open_host
        )
        found.append(hashed_input)
    return found


def inputs_of_invocation(invocation: Invocation, settings: Settings, on_event: Listener) -> list[HashedInput]:
    """Return the inputs that an invocation names, relative to the current folder, hashed in place."""
    found = []
    for each in _whole_inputs(invocation):
        place = read_location(each.text, settings)
        name = place.name.decode("utf-8", "surrogateescape") or "input"
        found.append(_hash_at(replace(each, name=name), real_place(place), on_event))
    return found


def _whole_inputs(invocation: Invocation) -> list[Input]:
    """Return the inputs of an invocation. Raises `UsageError` for a part of a folder, of which a bundle would have another content."""
    found = list_inputs(invocation)
    for each in found:
        if split_part(each.text)[1]:
            raise UsageError(
                "bad-input",
                "a part of a folder cannot be bundled; name the folder",
                subject=printable(each.text),
            )
    return found


def real_place(place: Location) -> Location:
    """Resolve symlinks of a local path, and get content that git-annex stores elsewhere."""
    if not place.typed_local:
        return place
    fetch_content(place.raw, place.logins)
    real = os.path.realpath(place.raw).decode("utf-8", "surrogateescape")
    return replace(place, path=real, slash=False)


def _hash_at(each: Input, place: Location, on_event: Listener) -> HashedInput:
    return HashedInput(each, place, hash_input(each, place, on_event))


def _prepared_record(run: Run, run_store: RunStore) -> dict[str, Any]:
    return next(record for record in run_store.records(run.id) if record.get("kind") == "prepared")


def create_bundle(parts: Parts, target: Path, on_event: Listener = ignore) -> Record:
    """Write the bundle; equal parts make equal bytes. Raises `RefusedError` if an input changed meanwhile."""
    record = decide_record(parts)
    texts = decide_texts(parts, record)
    with _local_copies(parts, record, on_event) as copies, ArchiveWriter(target) as archive:
        for name, content in texts.items():
            archive.add(name, len(content), [content])
        for hashed_input, each in zip(parts.inputs, record.inputs, strict=True):
            if each.included and hashed_input.content.folder:
                archive.add_folder(each.member)
            if each.included:
                _add_input(archive, hashed_input, copies[hashed_input.input.number])
        if parts.image_file is not None and parts.image is not None:
            name = image_name(parts.image)
            found = archive.add(name, parts.image.size, _read(parts.image_file))
            _require_same(name, found, parts.image.hex)
        archive.commit()
    return record


@contextlib.contextmanager
def _local_copies(parts: Parts, record: Record, on_event: Listener) -> Iterator[dict[int, Path]]:
    """Yield the local path of each included input; those of sites are pulled first, and removed at the end."""
    places: dict[int, Path] = {}
    name = f"create-{hashlib.sha256(write_record(record)).hexdigest()}"
    scratch = state_folder() / "bundles" / name
    with RunStore().lock(name, on_event=on_event):
        for hashed_input, each in zip(parts.inputs, record.inputs, strict=True):
            if not each.included:
                continue
            number = hashed_input.input.number
            if hashed_input.place.typed_local:
                places[number] = Path(os.fsdecode(hashed_input.place.raw))
                continue
            private_folder(private_folder(scratch.parent) / name)
            places[number] = private_folder(scratch / str(number)) / "input"
            text = str(places[number])
            here = Location(local_site(), text, text, typed_local=True)
            Synchroniser().copy(hashed_input.place, here, on_event, Rules(checksum=True))
        yield places
        shutil.rmtree(scratch, ignore_errors=True)  # after a failure the same command resumes


def _add_input(archive: ArchiveWriter, hashed_input: HashedInput, here: Path) -> None:
    for member, (digest, size) in hashed_input.content.files.items():
        found = path_of(member)
        assert found is not None
        below = found[1].partition(b"/")[2]
        path = here / os.fsdecode(below) if below else here
        _require_same(printable(os.fsencode(path)), archive.add(member, size, _read(path)), digest)


def _read(path: Path) -> Iterator[bytes]:
    try:
        with io.FileIO(path) as stream:
            while piece := stream.read(BLOCK):
                yield piece
    except OSError as problem:
        raise RefusedError(
            "input-changed",
            f"the input can no longer be read: {reason_of(problem)}",
            subject=printable(os.fsencode(path)),
        ) from None


def _require_same(subject: str, found: str, digest: str) -> None:
    if found != digest:
        raise RefusedError(
            "input-changed",
            "the input changed while the bundle was being written",
            subject=subject,
            hint="Wait until the input no longer changes, then run the same command again.",
        )
