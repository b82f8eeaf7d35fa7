"""Which image a run starts: by its id, after comparison with what was named, given or used before (S11)."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from pathlib import Path

from hibali.errors import NotFoundError, RefusedError, TryLaterError, UsageError
from hibali.ledger import Journal, ledger_folder, now, read_records
from hibali.text import printable
from registry.image_archive import read_archive
from registry.pipeline import Pipeline
from runs.container import Container, Image
from transfers.far import Far

_DIGEST = re.compile(r"(?:sha256:)?([0-9a-f]{64})")
_LOAD_SECONDS = 3600.0


def find_image(
    pipeline: Pipeline,
    container: Container,
    far: Far,
    site: str,
    given: str,
    bring: Callable[[Path], bytes],
) -> str:
    """The id of the image to start, which is at the site when this returns; "" for a container without images.

    `given` is what `--image` said: "" for the one of the descriptor's name, `sha256:...` for exactly that
    one, else an archive here, which `bring` stages. Raises `NotFoundError`, `RefusedError`, `UsageError`.
    """
    if not container.isolates:
        if given:
            raise UsageError("no-image", f"{container.name} runs without images", about=printable(given))
        return ""
    name = container.image_name(pipeline.container)
    wanted = _DIGEST.fullmatch(given)
    if given and wanted is None:
        found = _from_archive(Path(given), name, container, far, bring)
    else:
        found = _require(_ask(container, far, f"sha256:{wanted[1]}" if wanted else name), given or name)
    _compare(pipeline, name, found)
    _compare_pin(pipeline, site, name, found, accepted=bool(given))
    return found.id


def _require(found: Image | None, name: str) -> Image:
    if found is None:
        raise NotFoundError(
            "no-image",
            "the image is not at the site",
            about=name,
            hint="Bring it along: --image ARCHIVE (made by `docker save` or `podman save`).",
        )
    return found


def _ask(container: Container, far: Far, name: str) -> Image | None:
    return container.read_image(far.run(container.image_words(name)))


def _from_archive(
    archive: Path, name: str, container: Container, far: Far, bring: Callable[[Path], bytes]
) -> Image:
    """The image of an archive, loaded there unless it was before."""
    identifier = read_archive(archive, name).record.id.removeprefix("sha256:")
    found = _ask(container, far, f"sha256:{identifier}")
    if found is None:
        path = bring(archive)
        words = container.load_words(path.decode("utf-8", "surrogateescape"))
        finished = far.run(words, timeout=_LOAD_SECONDS)
        if finished.exit_code != 0:
            said = printable(finished.stderr.strip()[-500:])
            raise TryLaterError(
                "image-not-loaded", f"the image could not be loaded: {said}", about=str(archive)
            )
        found = _ask(container, far, f"sha256:{identifier}")
    if found is None or found.id != identifier:
        raise RefusedError(
            "image-differs", "what was loaded is not the image of the archive", about=str(archive)
        )
    return found


def _compare(pipeline: Pipeline, name: str, found: Image) -> None:
    """A digest that the descriptor names must be one of the image's."""
    hash_given = pipeline.container.hash if pipeline.container else ""
    for text in (name.partition("@")[2], hash_given):
        match = _DIGEST.fullmatch(text)
        if match and match[1] != found.id and f"sha256:{match[1]}" not in found.digests:
            raise RefusedError(
                "image-differs",
                f"the image at the site is sha256:{found.id}, the descriptor wants {printable(text)}",
                about=name,
                hint="Bring the right one along with --image ARCHIVE.",
            )


def _compare_pin(pipeline: Pipeline, site: str, name: str, found: Image, *, accepted: bool) -> None:
    """A name may be pointed at another image at any time: the first one stays until told otherwise."""
    path = ledger_folder("runs") / "images.pins"
    pinned = None
    for record in read_records(path):
        if (record.get("site"), record.get("pipeline"), record.get("name")) == (site, pipeline.digest, name):
            pinned = record.get("image")
    if pinned == found.id:
        return
    if pinned is not None and not accepted:
        raise RefusedError(
            "image-changed",
            f"{name} was sha256:{pinned} when this pipeline first ran there, and is now sha256:{found.id}",
            about=site,
            hint=f"If that is meant: --image sha256:{found.id}",
        )
    with contextlib.closing(Journal(path)) as journal:
        record = {"site": site, "pipeline": pipeline.digest, "name": name, "image": found.id}
        journal.append({"schema": 1, "kind": "image", "at": now(), **record}, durable=True)


def used_image(site: str, pipeline_digest: str) -> str:
    """The id of the image that this content was last started with at a site, 64 hexadecimal digits; "" for none."""
    found = ""
    for record in read_records(ledger_folder("runs") / "images.pins"):
        if (record.get("site"), record.get("pipeline")) == (site, pipeline_digest):
            found = str(record.get("image"))
    return found
