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
from runs.cache.entries import IMAGE, Name
from runs.clean import make_work_folder
from runs.containers.base import Container, Image, Started
from runs.inputs import identify_local
from runs.site_commands import SiteCommands, Turn, not_staged
from runs.stage import Cache, Carrier, open_cache
from transfers.entry import Kind
from transfers.remote.host import RemoteHost

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_READY, _RECORD = b"ready", b"staged.json"


@dataclass(frozen=True, slots=True)
class Staged:
    """An image at a site.

    `path` and `digest` are of the file or folder that it was converted to (a folder's digest is that of the tar it was unpacked
    from), both "" where the runtime keeps it by itself. `digests` are what a descriptor may pin it by besides its `id`.
    `fresh` says that this call brought it.
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
        """`work` is the site's work folder, absolute, and ours alone."""
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

    def ask(self, name: str) -> Image | None:
        """The image that the runtime's own store has under a name; raises where it does not answer."""
        words = self._container.image_words(name)
        return self._container.read_image(self._commands.ask(words), name) if words else None

    def find(self, record: ImageRecord) -> Staged | None:
        """The image of an archive, where it is ready to start and nobody touched it since."""
        if not self._container.form:
            found = self.find_name(record.id)
            return found if found and found.id == record.id else None
        return self._read_ready(self._folder_of(record.hex), record.id)

    def find_name(self, name: str) -> Staged | None:
        """What the runtime's own store has under a name or an id."""
        found = self.ask(name)
        return Staged(f"sha256:{found.id}", Started(found.id), found.digests) if found else None

    def find_id(self, identifier: str) -> Staged | None:
        """The image of that id (`sha256:HEX`), from whichever archive."""
        if not self._container.form:
            return self.find_name(identifier)
        for name in self._host.names(self._folder):
            found_there = self._read_ready(self._folder + b"/" + name, identifier)
            if found_there is not None:
                return found_there
        return None

    def stage(self, record: ImageRecord, archive: Callable[[], Path]) -> Staged:
        """The image, ready to start. `archive` gives the file here, and is called only where that has to be brought.

        One caller at a time works on an archive, the others wait for what becomes of it. Raises `UsageError` for a format
        that the runtime cannot take, `IncompleteError` where the conversion fails or there is no space for it,
        `TryLaterError` where it takes too long, `RefusedError` where what came of it is another image.
        """
        if record.format not in self._container.formats:
            raise UsageError(
                "wrong-image-kind",
                f"{self._container.name} cannot take an image as {record.format}",
                subject=record.digest,
                hint="Run it at a site whose [container] can.",
            )
        found = self.find(record)
        if found is not None:
            return found
        folder = self._folder_of(record.hex)
        with Turn(self._host, self._cache.location(folder), self._on_event) as turn:
            found = turn.wait("stage", lambda: self.find(record)) or self.find(record)
            return found or self._make(record, folder, self._bring(record, archive()), turn)

    def _folder_of(self, digest: str) -> bytes:
        return self._folder + b"/" + digest.encode("ascii")

    def _bring(self, record: ImageRecord, archive: Path) -> bytes:
        """The archive in the site's cache, after comparison with its record."""
        path = archive.absolute()
        identity, text = identify_local(path), as_text(os.fsencode(path))
        if identity.digest != record.hex:
            raise RefusedError(
                "image-differs",
                f"the archive here is sha256:{identity.digest}, its record says {record.digest}",
                subject=str(archive),
            )
        place = Location(local_site(), text, text, typed_local=True)
        return self._cache.stage_with_retries(identity, place, self._on_event)

    def _make(self, record: ImageRecord, folder: bytes, archive: bytes, turn: Turn) -> Staged:
        for left in self._host.names(folder):
            if left != b".hibali":  # the turn's own
                self._host.remove_tree(folder + b"/" + left)
        partial = folder + b"/.hibali-" + secrets.token_hex(16).encode("ascii")
        self._host.make_folder(partial, exclusive=True)
        try:
            if self._container.form:
                return self._convert(record, folder, partial, archive, turn)
            self._run_all(as_text(archive), as_text(partial + b"/none"), record)
            found = self.find(record)
            if found is None:
                raise RefusedError(
                    "image-differs", "what was loaded is not the image of the archive", subject=record.id
                )
            return replace(found, fresh=True)
        finally:
            self._leave(partial)

    def _leave(self, partial: bytes) -> None:
        """Whoever comes next removes what could not be removed now."""
        try:
            self._host.remove_tree(partial)
        except HibaliError:
            return

    def _convert(
        self, record: ImageRecord, folder: bytes, partial: bytes, archive: bytes, turn: Turn
    ) -> Staged:
        """The result with its record beside it, in a folder that appears by one rename."""
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
        self._host.make_folder(ready)  # what a conversion left beside its result stays outside
        self._host.move(partial + b"/" + form, result)
        made, mark = self._host.stat(result), self._cache.mark(result)
        if made is None or mark is None:
            raise not_staged("nothing came of it")
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
            "entrypoint": _words(facts.get("entrypoint")),
        }
        self._commands.run(
            ("sync", "-f", as_text(ready))
        )  # the record must not outlive what it describes (S19)
        self._host.put(ready + b"/" + _RECORD, canonical_json(known))
        turn.check()
        self._host.move(ready, folder + b"/" + _READY)
        found = self._read_ready(folder, record.id)
        if found is None:
            raise TryLaterError("image-not-staged", "the image was touched while it was put in place")
        return replace(found, fresh=True)

    def _read_ready(self, folder: bytes, identifier: str) -> Staged | None:
        """What was made of an archive, unless it is of another image, or anybody touched it since (S5)."""
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
        self._cache.use(Name(IMAGE, archive, self._container.name))  # before it is looked at
        return found if self._cache.mark(path) == mark else None

    def _flatten(self, archive: bytes, target: bytes, record: ImageRecord) -> dict[str, Any]:
        """One tar of the image's tree beside the result; its environment and entry point as the archive says them."""
        script = resources.files("runs").joinpath("flatten.py").read_bytes()
        python = self._site.ssh.python if self._site.ssh else "python3"
        words = (python, "-I", "-", as_text(archive), as_text(target), record.id.removeprefix("sha256:"))
        finished = self._commands.run(words, script)
        try:
            found: dict[str, Any] = json.loads(finished.stdout)
        except ValueError:
            raise not_staged("the site gave an answer that cannot be read") from None
        return found

    def _run_all(self, archive: str, result: str, record: ImageRecord) -> None:
        identifier = record.id.removeprefix("sha256:")
        for words in self._container.convert_words(archive, result, record.format, identifier):
            self._commands.run(words)


def open_images(
    host: RemoteHost, site: Site, container: Container, carrier: Carrier, on_event: Listener = ignore
) -> SiteImages:
    """The images of a site's runtime, in its work folder, which is made where it is not there."""
    work = make_work_folder(host, site, b"cache", b"images")
    cache = open_cache(host, site, work, carrier, on_event)
    return SiteImages(host, site, container, work, cache, on_event)


def _environment(listed: Any) -> Mapping[str, str]:
    """What an image says of its environment, as far as that can be variables."""
    pairs = (text.partition("=") for text in _words(listed))
    return {name: value for name, equals, value in pairs if equals and _NAME.fullmatch(name)}


def _words(listed: Any) -> list[str]:
    """Words of an image's configuration; one with a NUL byte can be no word."""
    words = listed if isinstance(listed, list) else []
    return [word for word in words if isinstance(word, str) and "\0" not in word]


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
            raise UsageError("no-image", f"{container.name} runs without images", subject=printable(given))
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
                subject=images.site,
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
            subject=name,
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
                subject=name,
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
            subject=site,
            hint=f"If that is meant: --image sha256:{image}",
        )
    with contextlib.closing(Journal(_pins_file())) as journal:
        record = {"site": site, "pipeline": pipeline.digest, "name": name, "image": image}
        journal.append({"schema": 1, "kind": "image", "at": now(), **record}, durable=True)
