"""Keep the local catalogue of pipelines by name and version, each pinned to its digest."""

from __future__ import annotations

import contextlib
import shlex
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hibali.config.model import CatalogueSettings
from hibali.documents import line_of_json, read_json, read_json_file
from hibali.errors import HibaliError, NotFoundError, RefusedError, UsageError
from hibali.files import check_private_file, private_folder, state_folder
from hibali.ledger import Journal, now, read_records
from hibali.plugins import if_offered
from hibali.text import nearest, printable
from registry.catalogue_folder import (
    DESCRIPTOR,
    Deprecation,
    History,
    Pins,
    VersionFolders,
    read_deprecation,
    remove_deprecation,
    write_deprecation,
    writing,
)
from registry.descriptor import digest_document, make_pipeline, read_descriptor
from registry.images.images import Images
from registry.images.record import FILE as IMAGE
from registry.images.record import ImageRecord, read_record
from registry.pipeline import Pipeline, split_reference
from registry.problems import read_file_bytes
from registry.search import Damaged, Overview, Summary, summarise

_ORIGIN = "origin.json"
_TRIES = 20  # attempts when other processes remove the entry while it is added
_PinsRead = dict[tuple[str, str], str]


def open_local_catalogue(settings: CatalogueSettings, note: Callable[[str], None]) -> Catalogue:
    """Open the catalogue, with its history unless that is turned off or git is missing, which is noted."""
    kept = settings.keep == "git"
    if kept and shutil.which("git") is None:
        note("git is not installed: the catalogue is stored without history")
        kept = False
    return Catalogue(history=kept)


def refuse_own(pipeline: Pipeline) -> None:
    """Raise `RefusedError` for a pipeline of hibali itself: consent to one of its jobs is none to other commands (S11)."""
    if pipeline.own_command:
        raise RefusedError(
            "own-pipeline",
            f"hibali's own pipeline of this title runs any command that it is given, so it cannot be trusted: only `{pipeline.own_command}` starts its jobs",
            subject=pipeline.reference,
            hint=f"To run the job, use `{pipeline.own_command}`. If it is your own pipeline, change `name` in its descriptor and add it again.",
        )


class Catalogue:
    """Pipelines by NAME@VERSION on this machine; safe to use from several processes at once.

    A version's folder appears by one rename and never changes; its pin (name, version, digest) is stored in
    `pins.jsonl`, outside the folder of the catalogue. Content that does not match its pin is refused when it is read. With `history`, changes
    are commits of a DataLad dataset.
    """

    def __init__(self, state: Path | None = None, *, history: bool = False) -> None:
        """Open the catalogue in the state folder; raises `RefusedError` where others could write it."""
        state = private_folder(state) if state else state_folder()
        self._folders = VersionFolders(state)
        self._pins = Pins(state / "pins.jsonl")
        self._trust = state / "trust.jsonl"
        self._overview = Overview(state / "catalogue.index")
        self._history = History(self._folders.folder, self._folders.partial_folder) if history else None
        self.images = Images(state, self._folders, self._pins, self._history)

    def add(
        self, source: Path | bytes, name: str | None = None, *, subject: str = "descriptor", origin: str = ""
    ) -> Pipeline:
        """Store a descriptor, given as a file or as its bytes, which errors call `subject`; adding the same content again is no error.

        `origin` is where exactly this content is stored; the first one is kept.

        Raises `DescriptorError` with every problem, and `RefusedError` `immutable-version` when different content
        has that name@version.
        """
        if name is not None and name.startswith("-"):
            raise UsageError(
                "unusable-pipeline-name",
                "a name must not begin with a dash, because commands would read it as an option",
                subject=printable(name),
                hint=f"--name {shlex.quote(name.lstrip('-') or 'NAME')}",
            )
        if isinstance(source, Path):
            source, subject = read_file_bytes(source), str(source)
        pipeline = self._store(read_descriptor(source, subject, name))
        if origin:
            record = line_of_json({"schema": 1, "origin": origin}).encode() + b"\n"
            self._folders.add_attachments(pipeline.name, pipeline.version, {_ORIGIN: record})
        self._record(
            f"Add {pipeline.reference}\n\n{pipeline.title}\n\nsha256 {pipeline.digest}\n{origin}".rstrip()
            + "\n"
        )
        return pipeline

    def origin(self, pipeline: Pipeline) -> str:
        """Return where its content came from, "" if that was not recorded."""
        file = self.attachments(pipeline.name, pipeline.version).get(_ORIGIN)
        with contextlib.suppress(HibaliError):
            found = read_json_file(file) if file else None
            return str(found.get("origin", "")) if isinstance(found, dict) else ""
        return ""

    def find(self, reference: str) -> Pipeline:
        """Return the pipeline at NAME or NAME@VERSION; without a version, the one added last.

        Raises `NotFoundError`, and `RefusedError` when the stored descriptor differs from the added one.
        """
        name, version = split_reference(reference)
        if version is not None:
            return self._read(name, version)
        versions = self._versions(name)
        if not versions:
            raise self._missing(reference, name)
        return self._read(name, versions[-1])

    def find_other_titles(self, pipeline: Pipeline) -> list[str]:
        """Return the titles of other versions stored under the same name, where they differ from this one's."""
        pins = self._pins.read()
        titles: dict[str, None] = {}
        for version in self._versions(pipeline.name):
            with contextlib.suppress(HibaliError):  # `list` names damaged entries
                titles[self._summary_of(pipeline.name, version, pins).title] = None
        return [each for each in titles if each != pipeline.title]

    def remove(self, reference: str) -> None:
        """Remove NAME@VERSION and its pin; raises `NotFoundError`, or `UsageError` without a version."""
        name, version = split_reference(reference)
        if version is None:
            raise UsageError(
                "version-missing",
                "a version is required",
                subject=printable(reference),
                hint="Write NAME@VERSION. `hibali pipelines list` shows the versions.",
            )
        if (name, version) not in self._pins.read() and not self._folders.version_folder(
            name, version
        ).exists():
            raise self._missing(reference, name)
        self.images.forget(name, version)
        self._pins.unpin(name, version)
        self._folders.remove(name, version)
        self._record(f"Remove {name}@{version}\n")

    def deprecate(self, reference: str, deprecation: Deprecation | None) -> list[Pipeline]:
        """Deprecate NAME@VERSION, or all versions of NAME; None withdraws the deprecation.

        Raises `NotFoundError`.
        """
        name, version = split_reference(reference)
        found = [self._read(name, each) for each in ([version] if version else self._versions(name))]
        if not found:
            raise self._missing(reference, name)
        for each in found:
            folder = self._folders.version_folder(each.name, each.version)
            with writing(folder):
                if deprecation is None:
                    remove_deprecation(folder)
                else:
                    write_deprecation(folder, deprecation)
        action = "Deprecate" if deprecation else "Do not deprecate"
        note = f"\n{deprecation}\n" if deprecation else ""
        self._record(f"{action} {', '.join(each.reference for each in found)}\n{note}")
        return found

    def deprecation(self, pipeline: Pipeline | Summary) -> Deprecation | None:
        """Return its deprecation: the one recorded here, else the author's."""
        recorded = read_deprecation(self._folders.deprecation(pipeline.name, pipeline.version))
        if recorded is not None:
            return recorded
        doi = summarise(pipeline).doi if isinstance(pipeline, Pipeline) else pipeline.doi
        return Deprecation("" if doi == "yes" else f"doi:{doi}", "deprecated by its author") if doi else None

    def entries(self) -> Iterator[Summary | Damaged]:
        """Return all entries sorted by name, and within a name in the order of adding; damaged ones as `Damaged`."""
        self._overview.load()
        pins = self._pins.read()
        stored = {
            (name, version) for name in self._folders.names() for version in self._folders.versions(name)
        }
        for name, version in sorted(_in_order(stored, pins), key=lambda each: each[0]):
            try:
                yield self._summary_of(name, version, pins)
            except HibaliError as error:
                yield Damaged(f"{name}@{version}", error)
        self._overview.save()

    def all(self) -> list[Pipeline]:
        """Read every version in full; raises like `find` for the first that cannot be used."""
        pins = self._pins.read()
        return [self._read(*key, pins) for key in sorted(pins)]

    def pins(self) -> dict[tuple[str, str], str]:
        """Return the digest of every version that was added, by name and version."""
        return self._pins.read()

    def image(self, pipeline: Pipeline) -> ImageRecord | None:
        """Return the record of its image, None where it has none; raises `RefusedError` for a record that was changed."""
        return self.images.record(pipeline.name, pipeline.version)

    def image_file(self, pipeline: Pipeline) -> Path:
        """Return the archive of its image; raises `NotFoundError` `image-not-here`, or `no-image-known` where it has none."""
        found = self.images.local_file(pipeline, self.images.require(pipeline))
        if found is None:
            raise NotFoundError(
                "image-not-here",
                "the image is not stored on this machine",
                subject=pipeline.reference,
                hint=if_offered(
                    "pipelines.image.get", f"hibali pipelines image get {pipeline.reference} --from REMOTE"
                ),
            )
        return found

    def image_digests(self) -> dict[tuple[str, str], str]:
        """Return the digest of each version's image, `sha256:HEX`, by name and version, of those that have one."""
        return self._pins.images()

    def attachments(self, name: str, version: str) -> dict[str, Path]:
        """Return the version's other files (signatures, image record ...), by their names in its folder."""
        return self._folders.attachments(name, version)

    def add_downloads(self, downloads: Sequence[Download], message: str) -> None:
        """Store fetched and checked versions with their attachments, in one commit.

        Raises `RefusedError` `immutable-version` like `add`.
        """
        for download in downloads:
            pipeline = self._store(download.pipeline)
            if IMAGE in download.attachments:
                self.images.add_record(pipeline, read_record(download.attachments[IMAGE], pipeline.reference))
            self._folders.add_attachments(pipeline.name, pipeline.version, download.attachments)
        if downloads:
            listed = "\n".join(
                f"{each.pipeline.reference} sha256 {each.pipeline.digest}" for each in downloads
            )
            self._record(f"{message}\n\n{listed}\n")

    def sign(self, pipeline: Pipeline, file: str, signature: bytes) -> None:
        """Store a signature of it."""
        self._folders.add_attachments(pipeline.name, pipeline.version, {file: signature})
        self._record(f"Sign {pipeline.reference}\n")

    def trust(self, reference: str) -> Pipeline:
        """Record the consent to run exactly this content without a container, as this account; raises what `refuse_own` does."""
        pipeline = self.find(reference)
        refuse_own(pipeline)
        if not self.is_trusted(pipeline):
            record = {"kind": "trust", "digest": pipeline.digest, "reference": pipeline.reference}
            with Journal(self._trust) as journal:
                journal.append({"schema": 1, **record, "at": now()}, durable=True)
        return pipeline

    def is_trusted(self, pipeline: Pipeline) -> bool:
        """Return whether the user consented to running this content; earlier versions stored consent to hibali's own."""
        check_private_file(self._trust, "the record of trusted pipelines")
        return not pipeline.own_command and any(
            record.get("kind") == "trust" and record.get("digest") == pipeline.digest
            for record in read_records(self._trust)
        )

    def _store(self, pipeline: Pipeline) -> Pipeline:
        name, version = pipeline.name, pipeline.version
        for _ in range(_TRIES):
            held = self._held_digest(name, version)
            if held is not None:
                if held != pipeline.digest:
                    raise _immutable(pipeline, held)
                self._pins.add(name, version, pipeline.digest)
                return self._read(name, version)
            pinned = self._pins.read().get((name, version), pipeline.digest)
            if pinned != pipeline.digest:
                raise _immutable(pipeline, pinned)
            if self._folders.place(pipeline):
                self._pins.add(name, version, pipeline.digest)
                with contextlib.suppress(OSError):  # another process removed it again
                    self._overview.note(self._folders.descriptor(name, version), summarise(pipeline))
                self._overview.save()
                return pipeline
        raise RefusedError(
            "catalogue-busy", "another process keeps changing this entry", subject=pipeline.reference
        )

    def _summary_of(self, name: str, version: str, pins: _PinsRead) -> Summary:
        """Return the summary of a stored version; raises like `find`."""
        file = self._folders.descriptor(name, version)
        try:
            found = self._overview.summary(
                name, version, file, lambda: summarise(self._read(name, version, pins))
            )
        except OSError:
            raise self._missing(f"{name}@{version}", name) from None
        if found.digest != pins.get((name, version)):
            return summarise(self._read(name, version, pins))  # its error names the cause
        return found

    def _read(self, name: str, version: str, pins: _PinsRead | None = None) -> Pipeline:
        path = Path(self._folders.descriptor(name, version))
        try:
            raw = read_file_bytes(path, of_state=True)
        except NotFoundError:
            raise self._missing(f"{name}@{version}", name) from None
        pinned = (self._pins.read() if pins is None else pins).get((name, version))
        if pinned is None:
            raise RefusedError(
                "unpinned-pipeline",
                "this version exists in the catalogue folder, but it was not added by hibali",
                subject=f"{name}@{version}",
                hint="Add its file again: hibali pipelines add FILE",
            )
        found = _digest_of(raw)
        if found != pinned:
            raise RefusedError(
                "changed-pipeline",
                f"the stored descriptor was changed: it has digest {found or 'none'}, but {pinned} was added",
                subject=f"{name}@{version}",
                hint=f"Check {path}, then remove this version and add the right file.",
            )
        return make_pipeline(read_json(raw, str(path)), raw, name)

    def _held_digest(self, name: str, version: str) -> str | None:
        """Return the digest of the stored descriptor, `''` for one that cannot be read, None where none is stored."""
        try:
            file = Path(self._folders.descriptor(name, version))
            return _digest_of(read_file_bytes(file, of_state=True))
        except NotFoundError:
            return None

    def _versions(self, name: str) -> list[str]:
        """Return the versions of one name, the one added last at the end."""
        stored = {(name, version) for version in self._folders.versions(name)}
        return [version for _, version in _in_order(stored, self._pins.read())]

    def _record(self, message: str) -> None:
        if self._history is not None:
            self._history.record(message)

    def _missing(self, reference: str, name: str) -> NotFoundError:
        suggestion = nearest(name, self._folders.names())
        hint = f"Did you mean {suggestion}? " if suggestion else ""
        return NotFoundError(
            "no-such-pipeline",
            "the catalogue has no such pipeline",
            subject=printable(reference),
            hint=f"{hint}To add one: `hibali pipelines add FILE`. To list all: hibali pipelines list",
        )


def _in_order(stored: set[tuple[str, str]], pins: _PinsRead) -> list[tuple[str, str]]:
    """Sort: first those without a pin, then the pinned ones in the order of adding."""
    pinned = [each for each in pins if each in stored]
    return sorted(stored.difference(pinned)) + pinned


def _digest_of(raw: bytes) -> str:
    try:
        return digest_document(read_json(raw, DESCRIPTOR))
    except UsageError:
        return ""


def _immutable(pipeline: Pipeline, held: str) -> RefusedError:
    return RefusedError(
        "immutable-version",
        f"the catalogue holds this version with different content: its digest is {held or 'none'}, that of the new file {pipeline.digest}",
        subject=pipeline.reference,
        hint="Raise `tool-version` in the descriptor, or add it under another name with --name.",
    )


@dataclass(frozen=True, slots=True)
class Download:
    """A fetched and checked version, with its attachments by name: signatures, deprecation, image record."""

    pipeline: Pipeline
    attachments: Mapping[str, bytes]
