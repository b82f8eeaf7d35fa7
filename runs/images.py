"""Find, stage and convert the container image of a run at its site."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

from hibali.config.model import Site, local_site
from hibali.documents import canonical_json, read_json
from hibali.errors import HibaliError, NotFoundError, RefusedError, TryLaterError, UsageError
from hibali.events import Listener, Noted, ignore
from hibali.ledger import Journal, ledger_folder, now, read_records
from hibali.locations import Location
from hibali.text import as_text, printable
from registry.images.archive import read_archive
from registry.images.record import ImageRecord, wanted_digests
from registry.pipeline import Pipeline
from runs.cache import IMAGE, Name
from runs.clean import make_work_folder
from runs.containers.base import Container, Image, Started
from runs.identity import identify_local
from runs.model import Carrier
from runs.site_commands import SiteCommands, SiteLock, not_staged
from runs.stage import Cache, open_cache
from transfers.model.entry import Kind
from transfers.remote.host import RemoteHost

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_READY, _RECORD = b"ready", b"staged.json"


@dataclass(frozen=True, slots=True)
class Staged:
    """An image at a site.

    `path` and `digest` are those of the file or folder that it was converted to (a folder's digest is that of the tar it was unpacked
    from), both "" if the runtime keeps it by itself. `digests` may be pinned by a descriptor, besides its `id`. `fresh`: this call staged it.
    """

    id: str
    started: Started
    digests: tuple[str, ...] = ()
    path: str = ""
    digest: str = ""
    fresh: bool = False


class SiteImages:
    """The images of one runtime at one site: `WORK/images/RUNTIME/SHA256-OF-THE-ARCHIVE/ready` each."""

    def __init__(
        self,
        host: RemoteHost,
        site: Site,
        container: Container,
        work: bytes,
        cache: Cache,
        on_event: Listener = ignore,
    ) -> None:
        """`work` is the site's work folder, absolute, and private to this account."""
        self._host = host
        self._site = site
        self._commands = SiteCommands(host, site)
        self._container = container
        self._folder = b"%b/images/%b" % (work, container.name.encode("ascii"))
        self._cache = cache
        self._on_event = on_event

    @property
    def site(self) -> str:
        """The site's name."""
        return self._site.name

    def query(self, name: str) -> Image | None:
        """Return the image that the runtime's own store has under a name; raises if the runtime does not answer."""
        argv = self._container.image_argv(name)
        return self._container.read_image(self._commands.query(argv), name) if argv else None

    def find(self, record: ImageRecord) -> Staged | None:
        """Return the image of an archive, if it is ready to start and was not modified since."""
        if not self._container.form:
            found = self.find_name(record.id)
            return found if found and found.id == record.id else None
        return self._read_ready(self._folder_of(record.hex), record.id)

    def find_name(self, name: str) -> Staged | None:
        """Return the image that the runtime's own store has under a name or an id."""
        found = self.query(name)
        return Staged(f"sha256:{found.id}", Started(found.id), found.digests) if found else None

    def find_id(self, identifier: str) -> Staged | None:
        """Return the image with that id (`sha256:HEX`), from any archive."""
        if not self._container.form:
            return self.find_name(identifier)
        for name in self._host.names(self._folder):
            found_there = self._read_ready(self._folder + b"/" + name, identifier)
            if found_there is not None:
                return found_there
        return None

    def stage(self, record: ImageRecord, archive: Callable[[], Path]) -> Staged:
        """Stage an image; `archive` returns the local file, and is called only if it must be copied.

        One process at a time stages an archive, the others wait for it.

        Raises:
            UsageError: The runtime cannot use the format.
            IncompleteError: The conversion failed, or there is no space for it.
            TryLaterError: The conversion reached its time limit.
            RefusedError: The result is another image.
        """
        if record.format not in self._container.formats:
            raise UsageError(
                "wrong-image-kind",
                f"{self._container.name} cannot use an image of the format {record.format}",
                subject=record.digest,
                hint="Run it at a site whose [container] supports this format.",
            )
        found = self.find(record)
        if found is not None:
            return found
        folder = self._folder_of(record.hex)
        with SiteLock(self._host, self._cache.location(folder), self._on_event) as lock:
            found = lock.wait("stage", lambda: self.find(record)) or self.find(record)
            return found or self._make(record, folder, self._stage_archive(record, archive()), lock)

    def _folder_of(self, digest: str) -> bytes:
        return self._folder + b"/" + digest.encode("ascii")

    def _stage_archive(self, record: ImageRecord, archive: Path) -> bytes:
        """Return the archive in the site's cache, after comparison with its record."""
        path = archive.absolute()
        identity, text = identify_local(path), as_text(os.fsencode(path))
        if identity.digest != record.hex:
            raise RefusedError(
                "image-differs",
                f"the local archive is sha256:{identity.digest}, but its record has {record.digest}",
                subject=str(archive),
            )
        # the catalogue's git-annex has it behind a symlink, which only the feature of datasets copies as a file
        real = as_text(os.fsencode(path.resolve()))
        place = Location(local_site(), real, text, typed_local=True)
        return self._cache.stage_with_retries(identity, place, self._on_event)

    def _make(self, record: ImageRecord, folder: bytes, archive: bytes, lock: SiteLock) -> Staged:
        for left in self._host.names(folder):
            if left != b".hibali":  # the lock itself
                self._host.remove_tree(folder + b"/" + left)
        partial = folder + b"/.hibali-" + secrets.token_hex(16).encode("ascii")
        self._host.make_folder(partial, exclusive=True)
        try:
            if self._container.form:
                return self._convert(record, folder, partial, archive, lock)
            self._run_all(as_text(archive), as_text(partial + b"/none"), record)
            found = self.find(record)
            if found is None:
                raise RefusedError(
                    "image-differs", "the loaded image is not the image of the archive", subject=record.id
                )
            return replace(found, fresh=True)
        finally:
            self._leave(partial)

    def _leave(self, partial: bytes) -> None:
        """Ignore a failed removal, which the next process repeats."""
        try:
            self._host.remove_tree(partial)
        except HibaliError:
            return

    def _convert(
        self, record: ImageRecord, folder: bytes, partial: bytes, archive: bytes, lock: SiteLock
    ) -> Staged:
        """Convert an archive, and write the result with its record into a folder that appears by one rename."""
        form = self._container.form.encode("ascii")
        source, facts, digest = archive, {}, ""
        self._on_event(
            Noted(f"{self._site.name}: converting the image for {self._container.name}, once for all runs")
        )
        if self._container.flattens:
            source = partial + b"/flat.tar"
            facts = self._flatten(archive, source, record)
            digest = self._host.digest(source)
        self._run_all(as_text(source), as_text(partial + b"/" + form), record)
        ready = partial + b"/" + _READY
        result = ready + b"/" + form
        self._host.make_folder(ready)  # without other files of the conversion
        self._host.move(partial + b"/" + form, result)
        made, mark = self._host.stat(result), self._cache.mark(result)
        if made is None or mark is None:
            raise not_staged("the conversion created no file")
        if made.kind is Kind.FILE:
            digest = self._host.digest(result)
        known = {
            "schema": 1,
            "kind": "staged-image",
            "archive": record.digest,
            "id": record.id,
            "digest": f"sha256:{digest}",
            "mark": mark,
            "environment": _environment(facts.get("environment")),
            "entrypoint": _arguments(facts.get("entrypoint")),
        }
        # the record must not outlive what it describes (S19)
        self._commands.run(("sync", "-f", as_text(ready)))
        self._host.put(ready + b"/" + _RECORD, canonical_json(known))
        lock.check()
        self._host.move(ready, folder + b"/" + _READY)
        found = self._read_ready(folder, record.id)
        if found is None:
            raise TryLaterError(
                "image-not-staged", "the image was modified while it was moved to its final name"
            )
        return replace(found, fresh=True)

    def _read_ready(self, folder: bytes, identifier: str) -> Staged | None:
        """Return the converted image of an archive, unless it is another image or was modified (S5)."""
        ready = folder + b"/" + _READY
        content = self._host.get(ready + b"/" + _RECORD)
        try:
            known: Any = read_json(content, as_text(ready)) if content else None
            if not isinstance(known, dict) or known["id"] != identifier:
                return None
            path = ready + b"/" + self._container.form.encode("ascii")
            started = Started(as_text(path), known["environment"], tuple(known["entrypoint"]))
            digest, mark = str(known["digest"]), known["mark"]
        except (HibaliError, LookupError, TypeError):
            return None
        found = Staged(identifier, started, path=as_text(path), digest=digest)
        archive = folder.rpartition(b"/")[2].decode("ascii", "replace")
        self._cache.use(Name(IMAGE, archive, self._container.name))  # before it is checked
        return found if self._cache.mark(path) == mark else None

    def _flatten(self, archive: bytes, target: bytes, record: ImageRecord) -> dict[str, Any]:
        """Write the image's tree as one tar file; its environment and entry point are those of the archive."""
        script = resources.files("runs").joinpath("flatten.py").read_bytes()
        python = self._site.ssh.python if self._site.ssh else "python3"
        argv = (python, "-I", "-", as_text(archive), as_text(target), record.id.removeprefix("sha256:"))
        finished = self._commands.run(argv, script)
        try:
            found: dict[str, Any] = json.loads(finished.stdout)
        except (ValueError, RecursionError):
            raise not_staged("the site sent an invalid reply") from None
        return found

    def _run_all(self, archive: str, result: str, record: ImageRecord) -> None:
        identifier = record.id.removeprefix("sha256:")
        for argv in self._container.convert_argv(archive, result, record.format, identifier):
            self._commands.run(argv)


def open_images(
    host: RemoteHost, site: Site, container: Container, carrier: Carrier, on_event: Listener = ignore
) -> SiteImages:
    """Return the images of a site's runtime, and create its work folder if needed."""
    work = make_work_folder(host, site, b"cache", b"images")
    cache = open_cache(host, site, work, carrier, on_event)
    return SiteImages(host, site, container, work, cache, on_event)


def _environment(listed: Any) -> Mapping[str, str]:
    """Return the image's environment, without names that are not valid variables."""
    pairs = (text.partition("=") for text in _arguments(listed))
    return {name: value for name, equals, value in pairs if equals and _NAME.fullmatch(name)}


def _arguments(listed: Any) -> list[str]:
    """Return arguments of an image's configuration, without those that contain NUL bytes."""
    values = listed if isinstance(listed, list) else []
    return [argument for argument in values if isinstance(argument, str) and "\0" not in argument]


_DIGEST = re.compile(r"(?:sha256:)?([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class Pinned:
    """The image that the catalogue pins for a pipeline; `file` returns the local archive, or raises `NotFoundError`."""

    record: ImageRecord
    file: Callable[[], Path]


def find_image(
    pipeline: Pipeline, container: Container, images: SiteImages, image_option: str, pinned: Pinned | None
) -> Staged:
    """Return the image to start, staged at the site; one without an id for a container without images.

    Args:
        pipeline: The pipeline.
        container: The site's container.
        images: The images at the site.
        image_option: The value of `--image`: `sha256:...` for an image at the site or the pinned one, else a local archive. "" means the pinned
            image, or without one the image that the runtime has under the descriptor's name.
        pinned: The image that the catalogue pins.

    Raises:
        HibaliError: The image does not exist, is not the expected one, or cannot be staged.
    """
    if not container.isolates:
        if image_option:
            raise UsageError(
                "no-image", f"{container.name} runs without images", subject=printable(image_option)
            )
        return Staged("", Started(""))
    name = container.image_name(pipeline.container)
    wanted = read_image_id(image_option)
    if wanted:
        identifier = f"sha256:{wanted}"
        staged = images.find_id(identifier)
        if staged is None and pinned is not None and pinned.record.id == identifier:
            staged = images.stage(pinned.record, pinned.file)
        found = _require(staged, image_option)
        if pinned is None or found.id != pinned.record.id:  # a pinned image was compared when it was added
            _compare(pipeline, name, (found.id, *found.digests))
    elif image_option:
        found = stage_archive(pipeline, name, images, Path(image_option))
    elif pinned is not None:
        found = stage_pinned(name, images, pinned)
    else:
        before = first_image(pipeline, images.site, name)
        staged = images.find_name(name)
        if staged is None and before is not None:  # staged with --image by an earlier command
            staged = images.find_id(f"sha256:{before}")
        found = _require(staged, name)
        _compare(pipeline, name, (found.id, *found.digests))
    accepted = bool(image_option) or pinned is not None
    _compare_pin(pipeline, images.site, name, found.id.removeprefix("sha256:"), accepted=accepted)
    return found


def stage_pinned(name: str, images: SiteImages, pinned: Pinned) -> Staged:
    """Stage the catalogue's image; raises `RefusedError` if another image has one of its names at the site."""
    for each in sorted({name, *pinned.record.names}):
        staged = images.find_name(each)
        if staged is not None and staged.id != pinned.record.id:
            raise RefusedError(
                "image-differs",
                f"{each} is {staged.id} at the site, but the catalogue pins {pinned.record.id}",
                subject=images.site,
                hint="Remove or rename that image there, or name the one to start: --image sha256:ID.",
            )
    return images.stage(pinned.record, pinned.file)


def stage_archive(pipeline: Pipeline, name: str, images: SiteImages, archive: Path) -> Staged:
    """Stage the image of an archive, unless that was done before."""
    held = read_archive(archive, name)
    _compare(pipeline, name, (held.record.id, *held.digests))
    staged = images.stage(held.record, lambda: archive)
    _compare_pin(pipeline, images.site, name, staged.id.removeprefix("sha256:"), accepted=True)
    return staged


def _require(found: Staged | None, name: str) -> Staged:
    if found is None:
        raise NotFoundError(
            "no-image",
            "the image is not at the site",
            subject=name,
            hint="Add it to the catalogue (pipelines image add), or name an archive of `docker save`: --image ARCHIVE",
        )
    return found


def _compare(pipeline: Pipeline, name: str, digests: Iterable[str]) -> None:
    """Require that a digest in the descriptor is one of the image's; the first of these is its id."""
    known = list(digests)
    for wanted in wanted_digests(pipeline.container):
        if wanted not in known:
            raise RefusedError(
                "image-differs",
                f"the image is {known[0]}, but the descriptor requires {wanted}",
                subject=name,
                hint="Name the right image: --image ARCHIVE",
            )


def read_image_id(image_option: str) -> str | None:
    """Return the 64 hexadecimal digits of an id in `--image`; None for an archive."""
    found = _DIGEST.fullmatch(image_option)
    return found[1] if found else None


def first_image(pipeline: Pipeline, site: str, name: str) -> str | None:
    """Return the image that a pipeline was last accepted to start under this name at a site, 64 hexadecimal digits."""
    pinned: str | None = None
    for record in read_records(_pins_file()):
        if (record.get("site"), record.get("pipeline"), record.get("name")) == (site, pipeline.digest, name):
            pinned = record.get("image")
    return pinned


def _pins_file() -> Path:
    return ledger_folder("runs") / "images.pins"


def _compare_pin(pipeline: Pipeline, site: str, name: str, image: str, *, accepted: bool) -> None:
    """Require the first image that was started under a name, because the name may be moved to another image at any time."""
    pinned = first_image(pipeline, site, name)
    if pinned == image:
        return
    if pinned is not None and not accepted:
        raise RefusedError(
            "image-changed",
            f"{name} was sha256:{pinned} when this pipeline first ran there, and is now sha256:{image}",
            subject=site,
            hint=f"To accept the new image: --image sha256:{image}",
        )
    with contextlib.closing(Journal(_pins_file())) as journal:
        record = {"site": site, "pipeline": pipeline.digest, "name": name, "image": image}
        journal.append({"schema": 1, "kind": "image", "at": now(), **record}, durable=True)
