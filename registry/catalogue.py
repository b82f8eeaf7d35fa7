"""Keep the local catalogue of pipelines by name and version, each pinned to its digest."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from hibali.documents import read_json
from hibali.errors import HibaliError, NotFoundError, RefusedError, UsageError
from hibali.files import check_private_file, private_folder, state_folder
from hibali.ledger import Journal, now, read_records
from hibali.text import nearest, printable
from registry.catalogue_folder import (
    DESCRIPTOR,
    Deprecation,
    History,
    Pins,
    Shelf,
    read_deprecation,
    take_back,
    write_deprecation,
    writing,
)
from registry.descriptor import digest_document, make_pipeline, read_descriptor
from registry.images.images import Images
from registry.images.record import FILE as IMAGE
from registry.images.record import ImageRecord, read_record
from registry.pipeline import Pipeline, split_reference
from registry.problems import read_file_bytes
from registry.remotes.base import Arrival
from registry.search import Damaged, Overview, Summary, summarise

_TRIES = 20  # adding races with removing at most so often before we say so
_PinsRead = dict[tuple[str, str], str]


class Catalogue:
    """Pipelines by NAME@VERSION on this machine; safe to use from several processes at once.

    A version's folder appears by one rename and never changes; its pin (name, version, digest) stands in
    `pins.jsonl` beside the catalogue. What does not match its pin is refused when it is read. With `history`, changes
    are commits of a DataLad dataset.
    """

    def __init__(self, state: Path | None = None, *, history: bool = False) -> None:
        """Open the catalogue in the state folder; raises `RefusedError` where others could write it."""
        state = private_folder(state) if state else state_folder()
        self._shelf = Shelf(state)
        self._pins = Pins(state / "pins.jsonl")
        self._trust = state / "trust.jsonl"
        self._overview = Overview(state / "catalogue.index")
        self._history = History(self._shelf.folder, self._shelf.partial_folder) if history else None
        self.images = Images(state, self._shelf, self._pins, self._history)

    def add(self, source: Path | bytes, name: str | None = None, *, subject: str = "descriptor") -> Pipeline:
        """Keep a descriptor, given as a file or as its bytes, which errors call `subject`; the same content again is fine.

        Raises `DescriptorError` with every problem, and `RefusedError` `immutable-version` when other content
        has that name@version.
        """
        if isinstance(source, Path):
            source, subject = read_file_bytes(source), str(source)
        pipeline = self._keep(read_descriptor(source, subject, name))
        self._record(f"Add {pipeline.reference}\n\n{pipeline.title}\n\nsha256 {pipeline.digest}\n")
        return pipeline

    def find(self, reference: str) -> Pipeline:
        """The pipeline at NAME or NAME@VERSION; without a version the latest added.

        Raises `NotFoundError`, and `RefusedError` when what is stored is not what was added.
        """
        name, version = split_reference(reference)
        if version is not None:
            return self._read(name, version)
        versions = self._versions(name)
        if not versions:
            raise self._missing(reference, name)
        return self._read(name, versions[-1])

    def find_other_titles(self, pipeline: Pipeline) -> list[str]:
        """The authors' names of other versions that are kept under the same name, where they differ from this one's."""
        pins = self._pins.read()
        titles: dict[str, None] = {}
        for version in self._versions(pipeline.name):
            with contextlib.suppress(HibaliError):  # `list` tells what is damaged
                titles[self._glance(pipeline.name, version, pins).title] = None
        return [each for each in titles if each != pipeline.title]

    def remove(self, reference: str) -> None:
        """Forget NAME@VERSION and its pin; raises `NotFoundError`, or `UsageError` without a version."""
        name, version = split_reference(reference)
        if version is None:
            raise UsageError(
                "version-missing",
                "which version is to be removed?",
                subject=printable(reference),
                hint="Write NAME@VERSION; `hibali pipelines list` shows them.",
            )
        if (name, version) not in self._pins.read() and not self._shelf.version_folder(
            name, version
        ).exists():
            raise self._missing(reference, name)
        self.images.forget(name, version)
        self._pins.take_back(name, version)
        self._shelf.remove(name, version)
        self._record(f"Remove {name}@{version}\n")

    def deprecate(self, reference: str, deprecation: Deprecation | None) -> list[Pipeline]:
        """Say of NAME@VERSION, or of all versions of NAME, what is to be used instead; None takes that back.

        Raises `NotFoundError`.
        """
        name, version = split_reference(reference)
        found = [self._read(name, each) for each in ([version] if version else self._versions(name))]
        if not found:
            raise self._missing(reference, name)
        for each in found:
            folder = self._shelf.version_folder(each.name, each.version)
            with writing(folder):
                if deprecation is None:
                    take_back(folder)
                else:
                    write_deprecation(folder, deprecation)
        what = "Deprecate" if deprecation else "Do not deprecate"
        said = f"\n{deprecation}\n" if deprecation else ""
        self._record(f"{what} {', '.join(each.reference for each in found)}\n{said}")
        return found

    def deprecation(self, pipeline: Pipeline | Summary) -> Deprecation | None:
        """What is said of it here, else by its author."""
        said = read_deprecation(self._shelf.deprecation(pipeline.name, pipeline.version))
        if said is not None:
            return said
        doi = summarise(pipeline).doi if isinstance(pipeline, Pipeline) else pipeline.doi
        return Deprecation("" if doi == "yes" else f"doi:{doi}", "its author says so") if doi else None

    def entries(self) -> Iterator[Summary | Damaged]:
        """All that was added, by name, within a name in the order of adding; what is damaged is said so."""
        self._overview.load()
        pins = self._pins.read()
        lying = {(name, version) for name in self._shelf.names() for version in self._shelf.versions(name)}
        for name, version in sorted(_in_order(lying, pins), key=lambda each: each[0]):
            try:
                yield self._glance(name, version, pins)
            except HibaliError as error:
                yield Damaged(f"{name}@{version}", error)
        self._overview.save()

    def all(self) -> list[Pipeline]:
        """Every version, read whole; raises like `find` for the first that cannot be used."""
        pins = self._pins.read()
        return [self._read(*key, pins) for key in sorted(pins)]

    def pins(self) -> dict[tuple[str, str], str]:
        """The digest of every version that was added, by name and version."""
        return self._pins.read()

    def image(self, pipeline: Pipeline) -> ImageRecord | None:
        """What is known of its image, None where it has none; raises `RefusedError` for a record that was changed."""
        return self.images.record(pipeline.name, pipeline.version)

    def image_file(self, pipeline: Pipeline) -> Path:
        """The archive of its image; raises `NotFoundError` `image-not-here`, or `no-image-known` where it has none."""
        found = self.images.here(pipeline, self.images.require(pipeline))
        if found is None:
            raise NotFoundError(
                "image-not-here",
                "the content of its image is not on this machine",
                subject=pipeline.reference,
                hint=f"hibali pipelines image get {pipeline.reference} --from REMOTE",
            )
        return found

    def image_digests(self) -> dict[tuple[str, str], str]:
        """The digest of each version's image, `sha256:HEX`, by name and version; those without one are left out."""
        return self._pins.images()

    def beside(self, name: str, version: str) -> dict[str, Path]:
        """The files that lie beside a descriptor, by their names in the version's folder."""
        return self._shelf.beside(name, version)

    def take(self, arrivals: Sequence[Arrival], message: str) -> None:
        """Keep versions that came from elsewhere and were judged, with what lies beside them; one commit for all.

        Raises `RefusedError` `immutable-version` like `add`.
        """
        for arrival in arrivals:
            pipeline = self._keep(arrival.pipeline)
            if IMAGE in arrival.beside:
                self.images.know(pipeline, read_record(arrival.beside[IMAGE], pipeline.reference))
            self._shelf.place_beside(pipeline.name, pipeline.version, arrival.beside)
        if arrivals:
            listed = "\n".join(
                f"{each.pipeline.reference} sha256 {each.pipeline.digest}" for each in arrivals
            )
            self._record(f"{message}\n\n{listed}\n")

    def sign(self, pipeline: Pipeline, file: str, signature: bytes) -> None:
        """Keep a signature of it."""
        self._shelf.place_beside(pipeline.name, pipeline.version, {file: signature})
        self._record(f"Sign {pipeline.reference}\n")

    def trust(self, reference: str) -> Pipeline:
        """Consent to running this very content without a container, as this account."""
        pipeline = self.find(reference)
        if not self.is_trusted(pipeline.digest):
            record = {"kind": "trust", "digest": pipeline.digest, "reference": pipeline.reference}
            with Journal(self._trust) as journal:
                journal.append({"schema": 1, **record, "at": now()}, durable=True)
        return pipeline

    def is_trusted(self, digest: str) -> bool:
        """Whether somebody consented to running the content of this digest."""
        check_private_file(self._trust, "the record of trusted pipelines")
        return any(
            record.get("kind") == "trust" and record.get("digest") == digest
            for record in read_records(self._trust)
        )

    def _keep(self, pipeline: Pipeline) -> Pipeline:
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
            if self._shelf.place(pipeline):
                self._pins.add(name, version, pipeline.digest)
                with contextlib.suppress(OSError):  # another process removed it again
                    self._overview.note(self._shelf.descriptor(name, version), summarise(pipeline))
                self._overview.save()
                return pipeline
        raise RefusedError(
            "catalogue-busy", "another process keeps changing this entry", subject=pipeline.reference
        )

    def _glance(self, name: str, version: str, pins: _PinsRead) -> Summary:
        """The summary of what lies there; raises like `find`."""
        file = self._shelf.descriptor(name, version)
        try:
            found = self._overview.summary(
                name, version, file, lambda: summarise(self._read(name, version, pins))
            )
        except OSError:
            raise self._missing(f"{name}@{version}", name) from None
        if found.digest != pins.get((name, version)):
            return summarise(self._read(name, version, pins))  # which says what is wrong
        return found

    def _read(self, name: str, version: str, pins: _PinsRead | None = None) -> Pipeline:
        path = Path(self._shelf.descriptor(name, version))
        try:
            raw = read_file_bytes(path)
        except NotFoundError:
            raise self._missing(f"{name}@{version}", name) from None
        pinned = (self._pins.read() if pins is None else pins).get((name, version))
        if pinned is None:
            raise RefusedError(
                "unpinned-pipeline",
                "this lies in the catalogue, but was not added to it",
                subject=f"{name}@{version}",
                hint="Add its file again: hibali pipelines add FILE",
            )
        found = _digest_of(raw)
        if found != pinned:
            raise RefusedError(
                "changed-pipeline",
                f"the stored descriptor was changed: it has digest {found or 'none'}, but {pinned} was added",
                subject=f"{name}@{version}",
                hint=f"Look at {path}; then remove this version and add the right file.",
            )
        return make_pipeline(read_json(raw, str(path)), raw, name)

    def _held_digest(self, name: str, version: str) -> str | None:
        """The digest of what lies there, `''` for what is no descriptor; None: nothing does."""
        try:
            return _digest_of(read_file_bytes(Path(self._shelf.descriptor(name, version))))
        except NotFoundError:
            return None

    def _versions(self, name: str) -> list[str]:
        """Of one name, the latest added last."""
        lying = {(name, version) for version in self._shelf.versions(name)}
        return [version for _, version in _in_order(lying, self._pins.read())]

    def _record(self, message: str) -> None:
        if self._history is not None:
            self._history.record(message)

    def _missing(self, reference: str, name: str) -> NotFoundError:
        near = nearest(name, self._shelf.names())
        hint = f"Did you mean {near}? " if near else ""
        return NotFoundError(
            "no-such-pipeline",
            "no such pipeline in the catalogue",
            subject=printable(reference),
            hint=f"{hint}`hibali pipelines list` shows what there is; `hibali pipelines add FILE` adds one.",
        )


def _in_order(lying: set[tuple[str, str]], pins: _PinsRead) -> list[tuple[str, str]]:
    """Those without a pin, then the pinned ones in the order of adding."""
    pinned = [each for each in pins if each in lying]
    return sorted(lying.difference(pinned)) + pinned


def _digest_of(raw: bytes) -> str:
    try:
        return digest_document(read_json(raw, DESCRIPTOR))
    except UsageError:
        return ""


def _immutable(pipeline: Pipeline, held: str) -> RefusedError:
    return RefusedError(
        "immutable-version",
        f"this version is in the catalogue with other content: digest {held or 'none'} there, {pipeline.digest} here",
        subject=pipeline.reference,
        hint="Raise `tool-version` in the descriptor, or add it under another --name.",
    )
