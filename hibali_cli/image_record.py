"""How the image of a pipeline is shown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hibali_cli.options import Common

if TYPE_CHECKING:
    from registry.catalogue import Catalogue
    from registry.images.record import ImageRecord
    from registry.pipeline import Pipeline


def image_fields(record: ImageRecord, *, here: bool) -> dict[str, Any]:
    """What is known of an image, and whether its content is on this machine."""
    return {
        "digest": record.digest,
        "size": record.size,
        "format": record.format,
        "id": record.id,
        "names": list(record.names),
        "here": here,
    }


def image_words(record: ImageRecord, *, here: bool) -> str:
    """The same in a line."""
    names = f" {', '.join(record.names)}" if record.names else ""
    where = "here" if here else "not here"
    return f"{record.digest} ({record.format}, {record.size} bytes, {where}){names}"


def tell_image(
    common: Common, catalogue: Catalogue, pipeline: Pipeline, record: ImageRecord, change: str
) -> None:
    """What became of an image."""
    here = catalogue.images.here(pipeline, record) is not None
    if common.json:
        told = {"name": pipeline.name, "version": pipeline.version, **image_fields(record, here=here)}
        common.output.record("image", {**told, "change": change})
    else:
        common.output.line(record.digest)
        common.output.say(f"{pipeline.reference}: image {change}")
