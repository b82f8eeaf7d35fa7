"""Which image a run starts: by its id, after comparison with what was named, given, pinned or used before (S11)."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from hibali.errors import NotFoundError, RefusedError, UsageError
from hibali.ledger import Journal, ledger_folder, now, read_records
from hibali.text import printable
from registry.image_archive import read_archive
from registry.image_name import wanted_digests
from registry.image_record import ImageRecord
from registry.pipeline import Pipeline
from runs.container import Container
from runs.prepare import Started
from runs.site_images import SiteImages, Staged

_DIGEST = re.compile(r"(?:sha256:)?([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class Pinned:
    """The image that the catalogue has beside a pipeline; `file` gives the archive here, or raises `NotFoundError`."""

    record: ImageRecord
    file: Callable[[], Path]


def find_image(
    pipeline: Pipeline, container: Container, images: SiteImages, given: str, pinned: Pinned | None
) -> Staged:
    """The image to start, which is at the site when this returns; one without an id for a container without images.

    `given` is what `--image` said: `sha256:...` for exactly that one, at the site or `pinned`, else an archive here; "" for the one that is `pinned`, or
    where there is none the one that the runtime has under the descriptor's name. Raises `NotFoundError`, `RefusedError`,
    `UsageError`, and what staging raises.
    """
    if not container.isolates:
        if given:
            raise UsageError("no-image", f"{container.name} runs without images", about=printable(given))
        return Staged("", Started(""))
    name = container.image_name(pipeline.container)
    wanted = read_image_id(given)
    if wanted:
        identifier = f"sha256:{wanted}"
        there = images.find_id(identifier)
        if there is None and pinned is not None and pinned.record.id == identifier:
            there = images.stage(pinned.record, pinned.file)
        found = _require(there, given)
        if pinned is None or found.id != pinned.record.id:  # which was compared when it was added
            _compare(pipeline, name, (found.id, *found.digests))
    elif given:
        found = stage_archive(pipeline, name, images, Path(given))
    elif pinned is not None:
        found = stage_pinned(name, images, pinned)
    else:
        found = _require(images.find_name(name), name)
        _compare(pipeline, name, (found.id, *found.digests))
    accepted = bool(given) or pinned is not None
    _compare_pin(pipeline, images.site, name, found.id.removeprefix("sha256:"), accepted=accepted)
    return found


def stage_pinned(name: str, images: SiteImages, pinned: Pinned) -> Staged:
    """The catalogue's image at the site; raises `RefusedError` where one of its names there is another image's."""
    for each in sorted({name, *pinned.record.names}):
        there = images.find_name(each)
        if there is not None and there.id != pinned.record.id:
            raise RefusedError(
                "image-differs",
                f"{each} is {there.id} at the site, and the catalogue pins {pinned.record.id}",
                about=images.site,
                hint="Remove or rename that image there, or name the one to start: --image sha256:ID.",
            )
    return images.stage(pinned.record, pinned.file)


def stage_archive(pipeline: Pipeline, name: str, images: SiteImages, archive: Path) -> Staged:
    """The image of an archive that was given, staged unless it was before."""
    held = read_archive(archive, name)
    _compare(pipeline, name, (held.record.id, *held.digests))
    return images.stage(held.record, lambda: archive)


def _require(found: Staged | None, name: str) -> Staged:
    if found is None:
        raise NotFoundError(
            "no-image",
            "the image is not at the site",
            about=name,
            hint="Add it to the catalogue (pipelines image add), or bring it along: --image ARCHIVE (of `docker save`).",
        )
    return found


def _compare(pipeline: Pipeline, name: str, digests: Iterable[str]) -> None:
    """A digest that the descriptor names must be one of the image's, of which the first is its id."""
    known = list(digests)
    for wanted in wanted_digests(pipeline.container):
        if wanted not in known:
            raise RefusedError(
                "image-differs",
                f"the image is {known[0]}, the descriptor wants {wanted}",
                about=name,
                hint="Bring the right one along with --image ARCHIVE.",
            )


def read_image_id(given: str) -> str | None:
    """The 64 hexadecimal digits of what `--image` names by its id; None for an archive."""
    found = _DIGEST.fullmatch(given)
    return found[1] if found else None


def first_image(pipeline: Pipeline, site: str, name: str) -> str | None:
    """The image that a pipeline was last accepted to start under this name at a site, 64 hexadecimal digits."""
    pinned: str | None = None
    for record in read_records(_pins_file()):
        if (record.get("site"), record.get("pipeline"), record.get("name")) == (site, pipeline.digest, name):
            pinned = record.get("image")
    return pinned


def _pins_file() -> Path:
    return ledger_folder("runs") / "images.pins"


def _compare_pin(pipeline: Pipeline, site: str, name: str, image: str, *, accepted: bool) -> None:
    """A name may be pointed at another image at any time: the first one stays until told otherwise."""
    pinned = first_image(pipeline, site, name)
    if pinned == image:
        return
    if pinned is not None and not accepted:
        raise RefusedError(
            "image-changed",
            f"{name} was sha256:{pinned} when this pipeline first ran there, and is now sha256:{image}",
            about=site,
            hint=f"If that is meant: --image sha256:{image}",
        )
    with contextlib.closing(Journal(_pins_file())) as journal:
        record = {"site": site, "pipeline": pipeline.digest, "name": name, "image": image}
        journal.append({"schema": 1, "kind": "image", "at": now(), **record}, durable=True)
