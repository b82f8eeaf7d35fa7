"""Reading a bundle that nobody vouches for: every byte checked against its manifest before anything of it is used."""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from hibali.errors import HibaliError
from hibali.strict_json import MAXIMUM_BYTES, read_json
from registry.descriptor import read_descriptor
from registry.image_record import ImageRecord
from registry.image_record import read_record as read_image_record
from registry.invocation import check_invocation
from registry.pipeline import Pipeline
from registry.signature import is_signature_name
from runs.bundles.archive import Archive
from runs.bundles.members import (
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
    path_of,
)
from runs.bundles.record import Record, read_record
from runs.prepare import list_inputs
from transfers.manifest import read_manifest

_LARGEST_SIGNATURE = 64 * 1024


@dataclass(frozen=True, slots=True)
class Bundle:
    """What stands in a bundle, as far as it is text.

    `values` are the answers with members in the place of files. `inputs` has for each of the record's the sha256 of its
    files by their members, `outputs` that of every output by its path. `content` is the sha256 of the manifest, and so of all.
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
    """The texts of a bundle, each checked; inputs and image are not read. `name` is what its pipeline is to be called here.

    Raises `RefusedError` `bad-bundle` for whatever is not right in it.
    """
    try:
        return _read(archive, name)
    except HibaliError as problem:
        if problem.code == "bad-bundle":
            raise
        archive.refuse(f"{problem.about}: {problem.message}")


def check_contents(archive: Archive, bundle: Bundle) -> None:
    """Read inputs and image, and compare them with what the bundle says of them."""
    for member, digest in large_members(bundle).items():
        summed = hashlib.sha256()
        for piece in archive.pieces(member):
            summed.update(piece)
        if summed.hexdigest() != digest:
            archive.refuse(f"{member} is not what its digest says")


def large_members(bundle: Bundle) -> dict[str, str]:
    """The sha256 of inputs and image, which are not texts, by their members."""
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
            archive.refuse(f"it has no {needed}")
    record = read_record(texts[RECORD], RECORD)
    pipeline = read_descriptor(texts[DESCRIPTOR], DESCRIPTOR, name or record.name)
    if (pipeline.digest, pipeline.version) != (record.digest, record.version):
        archive.refuse(f"its descriptor has the digest {pipeline.digest}, and it says {record.digest}")
    values = read_json(texts[INVOCATION], INVOCATION)
    image = read_image_record(texts[IMAGE], IMAGE) if IMAGE in texts else None
    image_file = next((each for each in IMAGE_FILES if each in archive.members), "")
    if image_file and (image is None or image_file != f"image{image.extension}"):
        archive.refuse(f"nothing says what {image_file} is")
    if image_file and image and sums.get(image_file.encode()) != image.hex:
        archive.refuse(f"{IMAGE} and {MANIFEST} do not say the same of {image_file}")
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
    asked = list_inputs(check_invocation(pipeline, values))
    if [(each.id, each.text) for each in asked] != [(each.id, each.member) for each in record.inputs]:
        archive.refuse(f"{INVOCATION} and {RECORD} do not speak of the same inputs")
    held = {member for member in archive.members if path_of(member) is not None}
    if held != {member for member in large_members(bundle) if path_of(member) is not None}:
        archive.refuse("the inputs in it are not those that it speaks of")
    return bundle


def _checked_texts(archive: Archive, sums: Mapping[bytes, str]) -> Iterator[tuple[str, bytes]]:
    """Every member that the manifest speaks of but the image; what it does not speak of is an input or nothing."""
    for member in archive.members:
        digest = sums.get(member.encode("ascii"))
        if member == MANIFEST or path_of(member) is not None:
            continue
        if digest is None:
            archive.refuse(f"{MANIFEST} does not speak of {member}")
        if member in IMAGE_FILES:
            continue
        most = _LARGEST_SIGNATURE if is_signature_name(member) else LARGEST_TEXT
        raw = archive.read(
            member, MAXIMUM_BYTES if member in {RECORD, DESCRIPTOR, INVOCATION, IMAGE} else most
        )
        if hashlib.sha256(raw).hexdigest() != digest:
            archive.refuse(f"{member} is not what its digest says")
        yield member, raw
    lacking = next((path for path in sums if os.fsdecode(path) not in archive.members), None)
    if lacking is not None:
        archive.refuse(f"{os.fsdecode(lacking)} is missing")


def _inputs(archive: Archive, record: Record, sums: Mapping[bytes, str]) -> tuple[Mapping[str, str], ...]:
    """The files of each input by their members, as the manifest has them and the record counts them."""
    found: list[dict[str, str]] = [{} for _ in record.inputs]
    for path, digest in sums.items():
        member = os.fsdecode(path)
        number = (path_of(member) or (len(found), b""))[0]
        if number >= len(found):
            archive.refuse(f"{INPUTS} speaks of files that are no inputs")
        found[number][member] = digest
    for number, (each, files) in enumerate(zip(record.inputs, found, strict=True)):
        name = path_of(each.member)
        if name is None or name[0] != number or b"/" in name[1]:
            archive.refuse(f"what it says of the input {number} is no name of it")
        single = each.type == "file"
        if len(files) != each.files or (single and files.keys() != {each.member}):
            archive.refuse(f"{RECORD} and {INPUTS} do not say the same of {each.member}")
        if not single and not all(member.startswith(each.member + "/") for member in files):
            archive.refuse(f"{INPUTS} names files that do not lie in {each.member}")
        if _nests(files):
            archive.refuse(f"a file of {each.member} is a folder as well")
    return tuple(found)


def _nests(names: Iterable[str]) -> bool:
    """Whether one name lies below another: in this order it would be the next one."""
    ordered = sorted(names, key=lambda name: name.replace("/", "\0"))
    return any(below.startswith(name + "/") for name, below in pairwise(ordered))


def _sums(raw: bytes, name: str) -> dict[bytes, str]:
    return read_manifest(io.BytesIO(raw), name).digests if raw else {}
