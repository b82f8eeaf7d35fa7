"""Read an untrusted bundle: its record, every byte against its manifest, and unpack it."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from hibali.amounts import format_size
from hibali.documents import MAXIMUM_BYTES, canonical_json, read_json
from hibali.errors import HibaliError, IncompleteError, RefusedError, UsageError
from hibali.files import private_folder, state_folder, sync_folder
from hibali.system_errors import reason_of
from hibali_plugins.bundles.archive import (
    DESCRIPTOR,
    IMAGE,
    IMAGE_FILES,
    INPUTS,
    INVOCATION,
    LARGEST_TEXT,
    MANIFEST,
    METADATA,
    OUTPUTS,
    RECORD,
    Archive,
    path_of,
)
from registry.descriptor import read_descriptor
from registry.images.record import ImageRecord
from registry.images.record import read_record as read_image_record
from registry.invocation import check_invocation
from registry.pipeline import Pipeline
from registry.signature import is_signature_name
from runs.inputs import list_inputs
from transfers.manifest import read_manifest

if TYPE_CHECKING:
    import jsonschema


_LARGEST_SIGNATURE = 64 * 1024


@dataclass(frozen=True, slots=True)
class Bundle:
    """The text contents of a bundle.

    `values` is the invocation with members in place of files. `inputs` has, for each input of the record,
    the sha256 of its files by member, `outputs` that of every output by path. `content` is the sha256 of the
    manifest, and so of everything.
    """

    record: Record
    pipeline: Pipeline
    values: Mapping[str, Any]
    inputs: tuple[Mapping[str, str], ...]
    outputs: Mapping[bytes, str]
    content: str
    image: ImageRecord | None = None
    image_file: str = ""
    signatures: Mapping[str, bytes] = field(default_factory=dict)


def read_bundle(archive: Archive, name: str | None = None) -> Bundle:
    """Read and check the texts of a bundle, but not inputs and image.

    `name` replaces the pipeline's name here. Raises `RefusedError` `bad-bundle` for an invalid bundle.
    """
    try:
        return _read(archive, name)
    except HibaliError as problem:
        if problem.code == "bad-bundle":
            raise
        archive.refuse(f"{problem.subject}: {problem.message}")


def check_contents(archive: Archive, bundle: Bundle) -> None:
    """Read inputs and image, and compare them with the bundle's digests."""
    for member, digest in large_members(bundle).items():
        summed = hashlib.sha256()
        for piece in archive.pieces(member):
            summed.update(piece)
        if summed.hexdigest() != digest:
            archive.refuse(f"{member} does not match its digest")


def large_members(bundle: Bundle) -> dict[str, str]:
    """Return the sha256 of inputs and image, which are not texts, by member."""
    found = {
        name: digest
        for each, files in zip(bundle.record.inputs, bundle.inputs, strict=True)
        if each.included
        for name, digest in files.items()
    }
    if bundle.image_file and bundle.image:
        found[bundle.image_file] = bundle.image.hex
    return found


def _read(archive: Archive, name: str | None) -> Bundle:
    manifest = archive.read(MANIFEST, LARGEST_TEXT)
    sums = _sums(manifest, MANIFEST)
    texts = dict(_checked_texts(archive, sums))
    for needed in (METADATA, RECORD, DESCRIPTOR, INVOCATION):
        if needed not in texts:
            archive.refuse(f"{needed} is missing")
    record = read_record(texts[RECORD], RECORD)
    pipeline = read_descriptor(texts[DESCRIPTOR], DESCRIPTOR, name or record.name)
    if (pipeline.digest, pipeline.version) != (record.digest, record.version):
        archive.refuse(f"its descriptor has digest {pipeline.digest}, but {RECORD} names {record.digest}")
    values = read_json(texts[INVOCATION], INVOCATION)
    image = read_image_record(texts[IMAGE], IMAGE) if IMAGE in texts else None
    image_file = next((each for each in IMAGE_FILES if each in archive.members), "")
    if image_file and (image is None or image_file != f"image{image.extension}"):
        archive.refuse(f"{IMAGE} does not describe {image_file}")
    if image_file and image and sums.get(image_file.encode()) != image.hex:
        archive.refuse(f"{IMAGE} and {MANIFEST} have different digests of {image_file}")
    bundle = Bundle(
        record=record,
        pipeline=pipeline,
        values=values,
        inputs=_inputs(archive, record, _sums(texts.get(INPUTS, b""), INPUTS)),
        outputs=_sums(texts.get(OUTPUTS, b""), OUTPUTS),
        content=hashlib.sha256(manifest).hexdigest(),
        image=image,
        image_file=image_file,
        signatures={each: raw for each, raw in texts.items() if is_signature_name(each)},
    )
    named_inputs = list_inputs(check_invocation(pipeline, values))
    if [(each.id, each.text) for each in named_inputs] != [(each.id, each.member) for each in record.inputs]:
        archive.refuse(f"{INVOCATION} and {RECORD} list different inputs")
    held = {member for member in archive.members if path_of(member) is not None}
    if held != {member for member in large_members(bundle) if path_of(member) is not None}:
        archive.refuse(f"its input files differ from those that {RECORD} lists")
    return bundle


def _checked_texts(archive: Archive, sums: Mapping[bytes, str]) -> Iterator[tuple[str, bytes]]:
    """Yield every text in the manifest; other members are inputs, the image, or invalid."""
    for member in archive.members:
        digest = sums.get(member.encode("ascii"))
        if member == MANIFEST or path_of(member) is not None:
            continue
        if digest is None:
            archive.refuse(f"{MANIFEST} does not list {member}")
        if member in IMAGE_FILES:
            continue
        most = _LARGEST_SIGNATURE if is_signature_name(member) else LARGEST_TEXT
        raw = archive.read(
            member, MAXIMUM_BYTES if member in {RECORD, DESCRIPTOR, INVOCATION, IMAGE} else most
        )
        if hashlib.sha256(raw).hexdigest() != digest:
            archive.refuse(f"{member} does not match its digest")
        yield member, raw
    lacking = next((path for path in sums if os.fsdecode(path) not in archive.members), None)
    if lacking is not None:
        archive.refuse(f"{os.fsdecode(lacking)} is missing")


def _inputs(archive: Archive, record: Record, sums: Mapping[bytes, str]) -> tuple[Mapping[str, str], ...]:
    """Return the files of each input by member, if manifest and record agree."""
    found: list[dict[str, str]] = [{} for _ in record.inputs]
    for path, digest in sums.items():
        member = os.fsdecode(path)
        number = (path_of(member) or (len(found), b""))[0]
        if number >= len(found):
            archive.refuse(f"{INPUTS} lists files that belong to no input")
        found[number][member] = digest
    for number, (each, files) in enumerate(zip(record.inputs, found, strict=True)):
        name = path_of(each.member)
        if name is None or name[0] != number or b"/" in name[1]:
            archive.refuse(f"{RECORD} has an invalid member name for input {number}")
        single = each.type == "file"
        if len(files) != each.files or (single and files.keys() != {each.member}):
            archive.refuse(f"{RECORD} and {INPUTS} disagree about {each.member}")
        if not single and not all(member.startswith(each.member + "/") for member in files):
            archive.refuse(f"{INPUTS} lists files outside {each.member}")
        if _nests(files):
            archive.refuse(f"{each.member} has a file and a folder with the same name")
    return tuple(found)


def _nests(names: Iterable[str]) -> bool:
    """Return whether one name is located below another: in this order it would be the next one."""
    ordered = sorted(names, key=lambda name: name.replace("/", "\0"))
    return any(below.startswith(name + "/") for name, below in pairwise(ordered))


def _sums(raw: bytes, name: str) -> dict[bytes, str]:
    return read_manifest(io.BytesIO(raw), name).digests if raw else {}


def unpack(archive: Archive, bundle: Bundle, site: str) -> Path:
    """Unpack inputs and image under their original names into a folder of the state folder.

    The folder is the same for the same bundle and site. One process at a time. The contents are verified
    again while they are written. Raises `RefusedError` if the disk is full.
    """
    final = _folder(bundle, site)
    parent = final.parent
    if final.is_dir():
        return final
    wanted = sum(archive.members[member].file_size for member in large_members(bundle))
    free = shutil.disk_usage(parent).free
    if wanted > free:
        raise RefusedError(
            "no-space",
            f"its files need {format_size(wanted)}, but only {format_size(free)} are free",
            subject=str(parent),
            hint="Free some space there, or set HIBALI_STATE to a folder on a larger disk.",
        )
    partial = parent / f".{final.name}"
    shutil.rmtree(partial, ignore_errors=True)  # left by a killed process
    private_folder(partial)
    try:
        for each in bundle.record.inputs:
            if each.included and each.type == "folder":
                (partial / _path_here(each.member)).mkdir(mode=0o700, parents=True)
        for member, digest in large_members(bundle).items():
            _write(archive, member, digest, partial / _path_here(member))
        sync_folder(partial)
        partial.rename(final)
        sync_folder(parent)
    except OSError as problem:
        raise IncompleteError("not-unpacked", reason_of(problem), subject=str(parent)) from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return final


def remove_unpacked(bundle: Bundle, site: str) -> None:
    """Remove the folder of `unpack`."""
    shutil.rmtree(_folder(bundle, site), ignore_errors=True)


def _folder(bundle: Bundle, site: str) -> Path:
    return private_folder(state_folder() / "bundles") / f"{bundle.content}-{site}"


def below(files: Mapping[str, str]) -> dict[bytes, str]:
    """Return the digests by path in the input itself, b"" for a single file of any name."""
    return {
        found[1].partition(b"/")[2]: digest
        for member, digest in files.items()
        if (found := path_of(member)) is not None
    }


def place_of(folder: Path, each: PackedInput) -> Path:
    """Return the path of an included input in the folder from `unpack`."""
    return folder / _path_here(each.member)


def _path_here(member: str) -> Path:
    """Return the original path; the image keeps its member's name."""
    found = path_of(member)
    return Path(member) if found is None else Path("inputs", str(found[0]), *os.fsdecode(found[1]).split("/"))


def _write(archive: Archive, member: str, digest: str, path: Path) -> None:
    """Write a member; no name can leave the folder, which is new, private, and has no links."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    summed = hashlib.sha256()
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with io.FileIO(os.open(path, flags, 0o600), "w") as stream:
        for piece in archive.pieces(member):
            summed.update(piece)
            view = memoryview(piece)
            while view:
                view = view[stream.write(view) :]
        os.fsync(stream.fileno())
    if summed.hexdigest() != digest:
        archive.refuse(f"{member} does not match its digest")


_TEXT = {"type": "string"}
_COUNT = {"type": "integer", "minimum": 0}


def _object(needed: Mapping[str, Any], more: Mapping[str, Any] | None = None) -> dict[str, Any]:
    return {"type": "object", "properties": {**needed, **(more or {})}, "required": list(needed)}


def _or_null(schema: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [{"type": "null"}, schema]}


_INPUT = {
    "id": _TEXT,
    "member": _TEXT,
    "type": {"enum": ["file", "folder"]},
    "files": _COUNT,
    "bytes": _COUNT,
    "included": {"type": "boolean"},
}
_RUN = dict.fromkeys(("id", "site", "scheduler", "container", "state"), _TEXT)
_RUN_MORE: dict[str, Any] = {
    **dict.fromkeys(("reason", "host", "created", "started", "ended"), _TEXT),
    # it becomes `--image`, which would read other text as a file name
    "image": {"type": "string", "pattern": r"^(sha256:[0-9a-f]{64})?\Z"},
}
_PROBLEM = _object({"path": _TEXT, "code": _TEXT, "message": _TEXT})
_SCHEMA = _object(
    {
        "schema": {"const": 1},
        "kind": {"const": "bundle"},
        "hibali": _TEXT,
        "pipeline": _object(
            {"name": _TEXT, "version": _TEXT, "digest": {"type": "string", "pattern": "^[0-9a-f]{64}$"}}
        ),
        "inputs": {"type": "array", "items": _object(_INPUT, {"location": _TEXT})},
        "run": _or_null(_object(_RUN, {**_RUN_MORE, "exit_code": _or_null({"type": "integer"})})),
        "outputs": _or_null(
            _object({"files": _COUNT, "bytes": _COUNT}, {"problems": {"type": "array", "items": _PROBLEM}})
        ),
    }
)
_Facts = TypeVar("_Facts")


@dataclass(frozen=True, slots=True)
class PackedInput:
    """An input of the invocation: `member` is its name in the bundle, or in inputs.sha256 if not `included`.

    `type` is `file` or `folder`. `location` is where an input that is not included was located, else "".
    """

    id: str
    member: str
    type: str
    files: int
    bytes: int
    included: bool
    location: str = ""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """The facts of the bundle's run. Times are RFC 3339, "" if unknown; `image` is `sha256:ID` or ""."""

    id: str
    site: str
    scheduler: str
    container: str
    state: str
    reason: str = ""
    host: str = ""
    image: str = ""
    exit_code: int | None = None
    created: str = ""
    started: str = ""
    ended: str = ""


@dataclass(frozen=True, slots=True)
class OutputFacts:
    """The outputs' totals, and `problems` with `path`, `code` and `message` of missing outputs."""

    files: int
    bytes: int
    problems: Sequence[Mapping[str, str]] = field(default=())


@dataclass(frozen=True, slots=True)
class Record:
    """The content of bundle.json. `name` and `version` are the catalogue's; without a run, no outputs."""

    hibali: str
    name: str
    version: str
    digest: str
    inputs: tuple[PackedInput, ...]
    run: RunFacts | None = None
    outputs: OutputFacts | None = None

    def to_fields(self) -> dict[str, Any]:
        """Return the JSON fields, without `schema` and `kind`."""
        return {
            "hibali": self.hibali,
            "pipeline": {"name": self.name, "version": self.version, "digest": self.digest},
            "inputs": [asdict(each) for each in self.inputs],
            "run": None if self.run is None else asdict(self.run),
            "outputs": None
            if self.outputs is None
            else {**asdict(self.outputs), "problems": [dict(each) for each in self.outputs.problems]},
        }


def write_record(record: Record) -> bytes:
    """Return canonical JSON (RFC 8785) and a newline."""
    return canonical_json({"schema": 1, "kind": "bundle", **record.to_fields()}) + b"\n"


def read_record(raw: bytes, subject: str) -> Record:
    """Parse an untrusted record; raises `UsageError`."""
    found = read_json(raw, subject)
    problem = next(_validator().iter_errors(found), None)
    if problem is not None:
        raise UsageError("bad-record", f"{problem.json_path}: {problem.message[:200]}", subject=subject)
    return Record(
        hibali=found["hibali"],
        name=found["pipeline"]["name"],
        version=found["pipeline"]["version"],
        digest=found["pipeline"]["digest"],
        inputs=tuple(_read_facts(PackedInput, each) for each in found["inputs"]),
        run=None if found["run"] is None else _read_facts(RunFacts, found["run"]),
        outputs=None if found["outputs"] is None else _read_facts(OutputFacts, found["outputs"]),
    )


def _read_facts(kind: type[_Facts], found: Mapping[str, Any]) -> _Facts:
    """Build a record of the known fields; later versions may have more."""
    return kind(**{name: found[name] for name in kind.__slots__ if name in found})  # type: ignore[attr-defined]


@cache
def _validator() -> jsonschema.Draft202012Validator:
    import jsonschema  # start-up: slow

    return jsonschema.Draft202012Validator(_SCHEMA)
