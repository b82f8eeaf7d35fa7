"""The local catalogue of pipelines: `NAME/VERSION/descriptor.json`, each pinned to its digest elsewhere."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from hibali.errors import HibaliError, IncompleteError, NotFoundError, RefusedError, UsageError
from hibali.folders import check_private_file, private_folder, state_folder
from hibali.ledger import Journal, now, read_records, write_atomic
from hibali.strict_json import read_json
from hibali.text import printable
from registry.descriptor import digest_document, make_pipeline, read_descriptor, read_file_bytes
from registry.pipeline import Pipeline, split_reference

_FILE = "descriptor.json"
_TRIES = 20  # adding races with removing at most so often before we say so


@dataclass(frozen=True, slots=True)
class Damaged:
    """An entry that cannot be used, and why."""

    reference: str
    error: HibaliError


class Catalogue:
    """Pipelines by NAME@VERSION on this machine; safe to use from several processes at once.

    A version's folder appears by one rename and never changes; its pin (name, version, digest) stands in
    `pins.jsonl` beside the catalogue. What does not match its pin is refused when it is read.
    """

    def __init__(self, state: Path | None = None) -> None:
        """Open the catalogue in the state folder; raises `RefusedError` where others could write it."""
        self._state = private_folder(state) if state else state_folder()
        self._folder = private_folder(self._state / "catalogue")
        self._pins = self._state / "pins.jsonl"
        self._trust = self._state / "trust.jsonl"

    def add(self, source: Path | bytes, name: str | None = None) -> Pipeline:
        """Keep a descriptor, given as a file or as its bytes; the same content again is fine.

        Raises `DescriptorError` with every problem, and `RefusedError` `immutable-version` when other content
        has that name@version.
        """
        raw = source if isinstance(source, bytes) else read_file_bytes(source)
        about = "descriptor" if isinstance(source, bytes) else str(source)
        pipeline = read_descriptor(raw, about, name)
        for _ in range(_TRIES):
            held = self._held_digest(pipeline.name, pipeline.version)
            if held is not None:
                if held != pipeline.digest:
                    raise _immutable(pipeline, held)
                self._pin(pipeline)
                return self.find(pipeline.reference)
            pinned = self._read_pins().get((pipeline.name, pipeline.version), pipeline.digest)
            if pinned != pipeline.digest:
                raise _immutable(pipeline, pinned)
            if self._place(pipeline):
                self._pin(pipeline)
                return pipeline
        raise RefusedError(
            "catalogue-busy", "another process keeps changing this entry", about=pipeline.reference
        )

    def find(self, reference: str) -> Pipeline:
        """The pipeline at NAME or NAME@VERSION; without a version the latest added.

        Raises `NotFoundError`, and `RefusedError` when what is stored is not what was added.
        """
        name, version = split_reference(reference)
        if version is not None:
            return self._read(name, version)
        versions = [each for each in self._references() if each[0] == name]
        if not versions:
            raise self._missing(reference, name)
        return self._read(*versions[-1])

    def remove(self, reference: str) -> None:
        """Forget NAME@VERSION and its pin; raises `NotFoundError`, or `UsageError` without a version."""
        name, version = split_reference(reference)
        if version is None:
            raise UsageError(
                "version-missing",
                "which version is to be removed?",
                about=printable(reference),
                hint="Write NAME@VERSION; `hibali pipelines list` shows them.",
            )
        folder = self._folder / name / version
        pinned = self._read_pins().get((name, version))
        if pinned is None and not folder.exists():
            raise self._missing(reference, name)
        if pinned is not None:
            self._append(self._pins, {"kind": "unpin", "name": name, "version": version, "digest": pinned})
        with _translated(folder):
            if folder.exists():
                aside = self._partial_folder() / secrets.token_hex(16)
                folder.rename(aside)
                shutil.rmtree(aside)
            with contextlib.suppress(OSError):
                folder.parent.rmdir()

    def entries(self) -> Iterator[Pipeline | Damaged]:
        """All that was added, by name, within a name in the order of adding; what is damaged is said so."""
        for name, version in sorted(self._references(), key=lambda each: each[0]):
            try:
                yield self._read(name, version)
            except HibaliError as error:
                yield Damaged(f"{name}@{version}", error)

    def trust(self, reference: str) -> Pipeline:
        """Consent to running this very content without a container, as this account."""
        pipeline = self.find(reference)
        if not self.is_trusted(pipeline.digest):
            self._append(
                self._trust, {"kind": "trust", "digest": pipeline.digest, "reference": pipeline.reference}
            )
        return pipeline

    def is_trusted(self, digest: str) -> bool:
        """Whether somebody consented to running the content of this digest."""
        check_private_file(self._trust, "the record of trusted pipelines")
        return any(
            record.get("kind") == "trust" and record.get("digest") == digest
            for record in read_records(self._trust)
        )

    def _read(self, name: str, version: str) -> Pipeline:
        path = self._folder / name / version / _FILE
        try:
            raw = read_file_bytes(path)
        except NotFoundError:
            raise self._missing(f"{name}@{version}", name) from None
        pinned = self._read_pins().get((name, version))
        if pinned is None:
            raise RefusedError(
                "unpinned-pipeline",
                "this lies in the catalogue, but was not added to it",
                about=f"{name}@{version}",
                hint="Add its file again with `hibali pipelines add`, or remove it.",
            )
        found = _digest_of(raw)
        if found != pinned:
            raise RefusedError(
                "changed-pipeline",
                f"the stored descriptor was changed: it has digest {found or 'none'}, but {pinned} was added",
                about=f"{name}@{version}",
                hint=f"Look at {path}; then remove this version and add the right file.",
            )
        return make_pipeline(read_json(raw, str(path)), raw, name)

    def _held_digest(self, name: str, version: str) -> str | None:
        """The digest of what lies there, `''` for what is no descriptor; None: nothing does."""
        try:
            return _digest_of(read_file_bytes(self._folder / name / version / _FILE))
        except NotFoundError:
            return None

    def _place(self, pipeline: Pipeline) -> bool:
        """Let the version's folder appear whole; False when another one appeared first."""
        target = self._folder / pipeline.name / pipeline.version
        partial = private_folder(self._partial_folder() / secrets.token_hex(16))
        try:
            with _translated(target):
                write_atomic(partial / _FILE, pipeline.raw)
                private_folder(target.parent)
                try:
                    partial.rename(target)
                except (FileExistsError, FileNotFoundError):
                    return False
                except OSError:
                    if (target / _FILE).exists():
                        return False
                    raise
                _sync(target.parent)
                _sync(self._folder)
                return True
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def _pin(self, pipeline: Pipeline) -> None:
        if self._read_pins().get((pipeline.name, pipeline.version)) != pipeline.digest:
            self._append(
                self._pins,
                {
                    "kind": "pin",
                    "name": pipeline.name,
                    "version": pipeline.version,
                    "digest": pipeline.digest,
                },
            )

    def _read_pins(self) -> dict[tuple[str, str], str]:
        """Digest by name and version, in the order of adding; the first pin holds until it is taken back."""
        check_private_file(self._pins, "the record of pins")
        pins: dict[tuple[str, str], str] = {}
        for record in read_records(self._pins):
            key = (str(record.get("name")), str(record.get("version")))
            if record.get("kind") == "pin":
                pins.setdefault(key, str(record.get("digest")))
            elif record.get("kind") == "unpin":
                pins.pop(key, None)
        return pins

    def _references(self) -> list[tuple[str, str]]:
        """Names and versions that lie there: pinned ones in the order of adding, then those that are not."""
        lying = {
            (folder.parent.name, folder.name)
            for folder in self._folder.glob("*/*")
            if (folder / _FILE).exists()
        }
        pinned = [each for each in self._read_pins() if each in lying]
        return sorted(lying.difference(pinned)) + pinned

    def _append(self, path: Path, record: dict[str, str]) -> None:
        with Journal(path) as journal:
            journal.append({"schema": 1, **record, "at": now()}, durable=True)

    def _partial_folder(self) -> Path:
        return private_folder(self._state / "catalogue-partial")

    def _missing(self, reference: str, name: str) -> NotFoundError:
        known = sorted({each[0] for each in self._references()})
        near = get_close_matches(name, known, n=1)
        hint = f"Is it {near[0]}? " if near and near[0] != name else ""
        return NotFoundError(
            "no-such-pipeline",
            "no such pipeline in the catalogue",
            about=printable(reference),
            hint=f"{hint}`hibali pipelines list` shows what there is; `hibali pipelines add FILE` adds one.",
        )


def _digest_of(raw: bytes) -> str:
    try:
        return digest_document(read_json(raw, _FILE))
    except UsageError:
        return ""


def _immutable(pipeline: Pipeline, held: str) -> RefusedError:
    return RefusedError(
        "immutable-version",
        f"this version is in the catalogue with other content: digest {held or 'none'} there, {pipeline.digest} here",
        about=pipeline.reference,
        hint="Raise `tool-version` in the descriptor, or add it under another --name.",
    )


@contextlib.contextmanager
def _translated(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        raise IncompleteError(
            "catalogue-unwritable",
            f"the catalogue cannot be changed: {problem.strerror}",
            about=str(path),
            hint="Make room there and type the same line again.",
        ) from None


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
