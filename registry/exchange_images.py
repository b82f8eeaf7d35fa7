"""Images when pipelines are exchanged: contents go to a shelf before records name them, and a record never changes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Literal

from registry.catalogue import Catalogue
from registry.image_record import FILE, read_record
from registry.image_shelf import ImageShelf
from registry.images import check_names, other_image
from registry.pipeline import Pipeline
from registry.remote import Look, Offer, Reference
from registry.seen import Seen

Content = Literal["", "sent", "there", "stays here", "missing"]


def leave_contents(
    catalogue: Catalogue, wanted: Sequence[Pipeline], shelf: ImageShelf | None
) -> dict[Reference, Content]:
    """Have the content of each image lie at a shelf, and say of each where it is now; what lies there is not moved."""
    records = {
        (each.name, each.version): record for each in wanted if (record := catalogue.image(each)) is not None
    }
    if shelf is None:
        return dict.fromkeys(records, "stays here")
    there = shelf.present(records.values()) if records else set()
    contents: dict[Reference, Content] = {}
    for pipeline in wanted:
        record = records.get((pipeline.name, pipeline.version))
        if record is None:
            continue
        file = catalogue.images.here(pipeline, record)
        if record.digest in there:
            contents[(pipeline.name, pipeline.version)] = "there"
        elif file is None:
            contents[(pipeline.name, pipeline.version)] = "missing"
        else:
            shelf.put(record, file)
            there.add(record.digest)
            contents[(pipeline.name, pipeline.version)] = "sent"
    return contents


def judge_image(pipeline: Pipeline, raw: bytes, where: str) -> str:
    """The digest of the image that a record tells of; raises for a record that is none, or is of another image."""
    record = read_record(raw, where)
    check_names(pipeline, record, where)
    return record.digest


def check_known_images(
    catalogue: Catalogue, look: Look, known: Sequence[Offer], seen: Seen, about: str
) -> None:
    """Raise where a version that is here with an image has another one there."""
    contents = image_contents(look, known, seen)
    for offer in known:
        key = offer.name, offer.version
        pinned = catalogue.images.pinned(*key)
        if key in contents and pinned is not None and contents[key] != pinned[1]:
            there = read_record(next(iter(look.read([offer.files[FILE]]))), f"{offer.reference} at {about}")
            raise other_image(offer.reference, pinned=pinned[0], found=there.digest, where=f"at {about}")


def check_same_image(
    pipeline: Pipeline, here: bytes, look: Look, offer: Offer, content: str, about: str
) -> None:
    """Raise where the record of an image here is not the one there, of which `content` is the sha256."""
    if content != hashlib.sha256(here).hexdigest():
        there = read_record(next(iter(look.read([offer.files[FILE]]))), f"{offer.reference} at {about}")
        ours = read_record(here, pipeline.reference)
        raise other_image(pipeline.reference, pinned=ours.digest, found=there.digest, where=f"at {about}")


def image_contents(look: Look, offers: Iterable[Offer], seen: Seen) -> dict[Reference, str]:
    """The sha256 of each record of an image there; those whose content was seen before are not read again."""
    asked = [each for each in offers if FILE in each.files]
    unknown = [each for each in asked if seen.digest(each.files[FILE]) is None]
    for offer, raw in zip(unknown, look.read([each.files[FILE] for each in unknown]), strict=True):
        seen.add(offer.files[FILE], hashlib.sha256(raw).hexdigest())
    seen.save()
    return {(each.name, each.version): seen.digest(each.files[FILE]) or "" for each in asked}
