"""What stands in a bundle, decided before a byte of it is written; pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from hibali import __version__
from hibali.errors import RefusedError, UsageError
from hibali.events import Failed
from hibali.locations import Location
from hibali.strict_json import MAXIMUM_BYTES
from hibali.text import printable
from registry.image_record import ImageRecord
from registry.image_record import write_record as write_image_record
from registry.invocation import Invocation
from registry.pipeline import Pipeline
from runs.bundles.contents import Content
from runs.bundles.crate import write_metadata
from runs.bundles.described import Described
from runs.bundles.members import (
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
    member_of,
)
from runs.bundles.outputs import Left
from runs.bundles.record import LeftFacts, PackedInput, Record, RunFacts, write_record
from runs.prepare import Input
from runs.run import Run
from transfers.manifest import write_line

SMALL = 100 * 1024 * 1024  # bytes of inputs of this machine that are taken along unasked
_OTHERS = 1000  # members that are no inputs, at most
Include = Literal["small", "all", "none"]


@dataclass(frozen=True, slots=True)
class Given:
    """One input, the place where it lies, and what it is."""

    input: Input
    place: Location
    content: Content


@dataclass(frozen=True, slots=True)
class Parts:
    """What a bundle is made of. `published` is RFC 3339; `left`, `run` and its `image_id` are of a run that has ended.

    `image_file` is the archive of `image`, to be taken along.
    """

    pipeline: Pipeline
    invocation: Invocation
    inputs: Sequence[Given]
    published: str
    agent: str
    run: Run | None = None
    image_id: str = ""
    left: Left | None = None
    image: ImageRecord | None = None
    image_file: Path | None = None
    signatures: Mapping[str, bytes] = field(default_factory=dict)
    include: Include = "small"


def decide_record(parts: Parts) -> Record:
    """What the bundle says of itself. Raises `RefusedError` for a name that is too long."""
    included = _choose(parts)
    inputs = []
    for given in parts.inputs:
        member = _member(given.input)
        takes_along = given.input.number in included
        inputs.append(
            PackedInput(
                id=given.input.id,
                member=member,
                type="folder" if given.content.folder else "file",
                files=len(given.content.files),
                bytes=given.content.size,
                included=takes_along,
                location="" if takes_along else _where(given.place),
            )
        )
        for name in given.content.files:
            if len(name) > LONGEST:
                raise _too_much("this name is too long for a bundle", name[:200])
    if sum(each.files for each in inputs if each.included) > MOST_MEMBERS - _OTHERS:
        raise _too_much(f"a bundle holds at most {MOST_MEMBERS} files", "--with-inputs")
    return Record(
        hibali=__version__,
        name=parts.pipeline.name,
        version=parts.pipeline.version,
        digest=parts.pipeline.digest,
        inputs=tuple(inputs),
        run=None if parts.run is None else run_facts(parts.run, parts.image_id),
        outputs=None if parts.left is None else left_facts(parts.left),
    )


def _too_much(message: str, about: str) -> RefusedError:
    return RefusedError(
        "too-much", message, about=about, hint="Pack what is many into one file, and run with that."
    )


def _choose(parts: Parts) -> set[int]:
    """The numbers of the inputs that travel in the bundle."""
    if parts.include == "all":
        return {given.input.number for given in parts.inputs}
    here = [given for given in parts.inputs if given.place.typed_local]
    if parts.include == "none" or sum(given.content.size for given in here) > SMALL:
        return set()
    return {given.input.number for given in here}


def _member(each: Input) -> str:
    return member_of(each.number, each.name.encode("utf-8", "surrogateescape"))


def _where(place: Location) -> str:
    """Where whoever has the bundle may ask for it."""
    return place.text if not place.typed_local else place.path


def run_facts(run: Run, image: str) -> RunFacts:
    """How a run went; `image` is the id of the one that was started, or ""."""
    return RunFacts(
        id=run.id,
        site=run.site,
        scheduler=run.scheduler,
        container=run.container,
        state=str(run.state),
        reason=run.reason,
        host=run.host,
        image=f"sha256:{image}" if image else "",
        exit_code=run.exit_code,
        created=run.created,
        started=run.started,
        ended=run.ended,
    )


def left_facts(left: Left) -> LeftFacts:
    """How much it left, and what is wrong with the rest."""
    return LeftFacts(len(left.files), left.size, tuple(_problem(each) for each in left.problems))


def _problem(each: Failed) -> dict[str, str]:
    return {"path": printable(each.path), "code": each.code, "message": each.message}


def decide_texts(parts: Parts, record: Record) -> dict[str, bytes]:
    """Every member but inputs and image, in the order in which they stand there."""
    inputs = {name: facts for given in parts.inputs for name, facts in given.content.files.items()}
    left = parts.left.files if parts.left else {}
    texts = {
        RECORD: write_record(record),
        DESCRIPTOR: parts.pipeline.raw,
        INVOCATION: _answers(parts, record),
        **({IMAGE: write_image_record(parts.image)} if parts.image else {}),
        **dict(sorted(parts.signatures.items())),
        **(
            {INPUTS: manifest_of((name.encode("ascii"), inputs[name][0]) for name in inputs)}
            if inputs
            else {}
        ),
        **({OUTPUTS: manifest_of((path, left[path][0]) for path in sorted(left))} if left else {}),
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
        dict(sorted(left.items())),
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
    """Names and digests as sha256sum writes them."""
    return b"".join(write_line(path, digest) for path, digest in lines)


def _answers(parts: Parts, record: Record) -> bytes:
    """The answers as they were given, with the members of the bundle in the place of files, defaults too."""
    values = dict(parts.invocation.given)
    members = [each.member for each in record.inputs]
    for identifier, answer in parts.invocation.file_inputs():
        own = [
            member
            for member, given in zip(members, parts.inputs, strict=True)
            if given.input.id == identifier
        ]
        values[identifier] = own[0] if isinstance(answer, str) else own
    try:
        return (json.dumps(values, indent=2, allow_nan=False) + "\n").encode("ascii")
    except ValueError:
        raise UsageError("not-text", "an answer cannot be written as JSON", about=INVOCATION) from None


def image_name(image: ImageRecord) -> str:
    """The member that holds an image."""
    return f"image{image.extension}"
