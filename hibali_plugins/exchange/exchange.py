"""Publish to and fetch from remotes; check everything before anything changes."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Literal, Protocol

from hibali.annex_key import key_of, place_of
from hibali.documents import line_of_json, read_json
from hibali.errors import (
    AccessError,
    HibaliError,
    IncompleteError,
    NotFoundError,
    RefusedError,
    TryLaterError,
)
from hibali.ledger import now
from hibali.retry import pause
from hibali.system_errors import reason_of
from hibali.text import counted, printable
from hibali_plugins.exchange.remotes.base import (
    PUBLISHED,
    KnownDigests,
    Offer,
    Reference,
    Remote,
    Snapshot,
    Upload,
    published_digest,
)
from registry.catalogue import Catalogue, Download
from registry.catalogue_folder import DESCRIPTOR
from registry.catalogue_folder import FILE as DEPRECATED
from registry.descriptor import digest_document, read_descriptor
from registry.images.images import check_image_record, copy_stream, other_image
from registry.images.record import FILE, ImageRecord, read_record
from registry.images.record import FILE as IMAGE
from registry.pipeline import Pipeline, split_reference
from registry.signature import Policy, is_signature_name

FOLDER = ".images"  # default, below a remote that is a folder or SITE:PATH
_CHUNK = 1024 * 1024


class ImageStore(Protocol):
    """Image archives at one place, each under its key; fetched ones are used only after they were hashed."""

    subject: str

    def present(self, records: Iterable[ImageRecord]) -> set[str]:
        """Return the digests of those stored there in full size. Raises `TryLaterError` where the place cannot be reached."""

    def put(self, record: ImageRecord, file: Path) -> None:
        """Store an archive there, under its key only when it is complete; raises as transfers do."""

    def get(self, record: ImageRecord, target: Path) -> None:
        """Copy an archive to `target`, resuming an earlier call that was killed; raises `NotFoundError` `image-not-there`.

        The caller checks its digest.
        """


def image_path(record: ImageRecord) -> str:
    """Return the path of an archive below the store: `xxx/yyy/KEY`."""
    return place_of(key_of(record.size, record.hex, record.extension))


def missing_image_error(record: ImageRecord, subject: str) -> NotFoundError:
    """Return the error for an archive that the store does not have."""
    return NotFoundError(
        "image-not-there",
        f"the image store does not have {record.digest}",
        subject=subject,
        hint="Ask the publisher of the pipeline to publish it again from the machine that has the image.",
    )


class FolderImageStore:
    """A plain folder, created with the first archive. Others may write there: only regular files count."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.subject = printable(os.fsencode(folder))

    def present(self, records: Iterable[ImageRecord]) -> set[str]:
        """See ImageStore."""
        with self._translated():
            return {each.digest for each in records if self._size(each) == each.size}

    def put(self, record: ImageRecord, file: Path) -> None:
        """See ImageStore. An existing file of another size is replaced."""
        target = self._folder / image_path(record)
        with self._translated():
            if not self._folder.parent.is_dir():
                raise TryLaterError("remote-unreachable", "the folder does not exist", subject=self.subject)
            target.parent.mkdir(parents=True, exist_ok=True)
            partial = target.with_name(f".{secrets.token_hex(16)}")
            try:
                with file.open("rb", buffering=0) as read, partial.open("xb") as written:
                    hashed = hashlib.sha256()
                    copy_stream(read, written, hashed)
                    written.flush()
                    os.fsync(written.fileno())
                if f"sha256:{hashed.hexdigest()}" != record.digest:
                    raise IncompleteError(
                        "image-damaged",
                        "the image stored on this machine is damaged",
                        subject=printable(os.fsencode(file)),
                    )
                partial.replace(target)
            finally:
                partial.unlink(missing_ok=True)

    def get(self, record: ImageRecord, target: Path) -> None:
        """See ImageStore."""
        partial = target.with_name(f"{target.name}.part")
        with self._translated(), self._open(record) as source:
            begun = partial.stat().st_size if partial.exists() else 0
            if _resume_copy(source, partial, begun) != record.digest and begun:
                source.seek(0)
                _resume_copy(source, partial, 0)  # the partial file was of another archive
        partial.replace(target)

    def _size(self, record: ImageRecord) -> int:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            found = (self._folder / image_path(record)).lstat()
            return found.st_size if stat.S_ISREG(found.st_mode) else -1
        return -1

    def _open(self, record: ImageRecord) -> IO[bytes]:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            stream = os.fdopen(os.open(self._folder / image_path(record), flags), "rb", buffering=0)
        except (FileNotFoundError, NotADirectoryError):
            raise missing_image_error(record, self.subject) from None
        found = os.fstat(stream.fileno())
        if not stat.S_ISREG(found.st_mode) or found.st_size != record.size:
            stream.close()
            raise RefusedError(
                "image-tampered",
                f"the file there has {found.st_size} bytes, but {record.size} were published",
                subject=self.subject,
                hint="Ask the publisher to publish it again. Nothing was stored here.",
            )
        return stream

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except HibaliError:
            raise
        except PermissionError as problem:
            raise AccessError(
                "denied", f"the folder of images: {reason_of(problem)}", subject=self.subject
            ) from None
        except OSError as problem:
            raise IncompleteError(
                "remote-failed",
                f"the folder of images cannot be used: {reason_of(problem)}",
                subject=self.subject,
            ) from None


def _resume_copy(source: IO[bytes], partial: Path, begun: int) -> str:
    """Copy the remainder after the first `begun` bytes, which the digest of the whole file verifies."""
    hashed = hashlib.sha256()
    with partial.open("r+b" if begun else "wb", buffering=0) as written:
        while (left := begun - written.tell()) > 0 and (piece := written.read(min(left, _CHUNK))):
            hashed.update(piece)
        source.seek(written.tell())
        copy_stream(source, written, hashed)
        written.truncate()
    return f"sha256:{hashed.hexdigest()}"


Content = Literal["", "sent", "there", "stays here", "missing"]


def upload_images(
    catalogue: Catalogue, wanted: Sequence[Pipeline], store: ImageStore | None
) -> dict[Reference, Content]:
    """Upload the image of each pipeline that the store does not have, and return for each where it is now."""
    records = {
        (each.name, each.version): record for each in wanted if (record := catalogue.image(each)) is not None
    }
    if store is None:
        return dict.fromkeys(records, "stays here")
    there = store.present(records.values()) if records else set()
    contents: dict[Reference, Content] = {}
    for pipeline in wanted:
        record = records.get((pipeline.name, pipeline.version))
        if record is None:
            continue
        file = catalogue.images.local_file(pipeline, record)
        if record.digest in there:
            contents[(pipeline.name, pipeline.version)] = "there"
        elif file is None:
            contents[(pipeline.name, pipeline.version)] = "missing"
        else:
            store.put(record, file)
            there.add(record.digest)
            contents[(pipeline.name, pipeline.version)] = "sent"
    return contents


def check_known_images(
    catalogue: Catalogue,
    snapshot: Snapshot,
    known: Sequence[Offer],
    known_digests: KnownDigests,
    subject: str,
) -> None:
    """Raise where a version has a different image at the remote than here."""
    contents = image_contents(snapshot, known, known_digests)
    for offer in known:
        key = offer.name, offer.version
        pinned = catalogue.images.pinned(*key)
        if key in contents and pinned is not None and contents[key] != pinned[1]:
            there = read_record(
                next(iter(snapshot.read([offer.files[FILE]]))), f"{offer.reference} at {subject}"
            )
            raise other_image(offer.reference, pinned=pinned[0], found=there.digest, location=f"at {subject}")


def check_same_image(
    pipeline: Pipeline, here: bytes, snapshot: Snapshot, offer: Offer, content: str, subject: str
) -> None:
    """Raise where the image record here differs from the one at the remote, whose sha256 is `content`."""
    if content != hashlib.sha256(here).hexdigest():
        there = read_record(next(iter(snapshot.read([offer.files[FILE]]))), f"{offer.reference} at {subject}")
        local = read_record(here, pipeline.reference)
        raise other_image(
            pipeline.reference, pinned=local.digest, found=there.digest, location=f"at {subject}"
        )


def image_contents(
    snapshot: Snapshot, offers: Iterable[Offer], known_digests: KnownDigests
) -> dict[Reference, str]:
    """Return the sha256 of each image record at the remote; known ones are not read again."""
    selected = [each for each in offers if FILE in each.files]
    unknown = [each for each in selected if known_digests.digest(each.files[FILE]) is None]
    for offer, raw in zip(unknown, snapshot.read([each.files[FILE] for each in unknown]), strict=True):
        known_digests.add(offer.files[FILE], hashlib.sha256(raw).hexdigest())
    known_digests.save()
    return {(each.name, each.version): known_digests.digest(each.files[FILE]) or "" for each in selected}


_TRIES = 20  # attempts when other processes publish at the same time
ExchangeResult = Literal["published", "fetched", "same", "added to"]


@dataclass(frozen=True, slots=True)
class Exchanged:
    """The result for one version, and when publishing for its image, "" without one.

    `stays here`: the remote has no store for images; `missing`: it is neither there nor here.
    """

    pipeline: Pipeline
    result: ExchangeResult
    content: Content = ""


def publish(
    catalogue: Catalogue,
    remote: Remote,
    subject: str,
    known_digests: KnownDigests,
    wanted: Sequence[Pipeline],
    by: str,
    store: ImageStore | None = None,
) -> list[Exchanged]:
    """Publish versions at a remote, atomically where it can do that; existing ones are not changed.

    Images are uploaded before a record names them. Raises `RefusedError` `immutable-version` or `immutable-image` where
    the remote has different content under a name and version; then nothing was published.
    """
    for _ in range(_TRIES):
        snapshot = remote.take_snapshot(make=True)
        offers = snapshot.offers()
        digests = _digests(
            snapshot, (offers[key] for each in wanted if (key := _key(each)) in offers), known_digests
        )
        images = image_contents(
            snapshot, (offers[key] for each in wanted if (key := _key(each)) in offers), known_digests
        )
        uploads, done = [], []
        for pipeline in wanted:
            files = _files_of(catalogue, pipeline, by)
            there = offers.get(_key(pipeline))
            if there is not None:
                _check_same(pipeline, digests[_key(pipeline)], subject)
                if _key(pipeline) in images and IMAGE in files:
                    check_same_image(pipeline, files[IMAGE], snapshot, there, images[_key(pipeline)], subject)
                files = {name: raw for name, raw in files.items() if name not in there.files}
            result: ExchangeResult = "published" if there is None else "added to" if files else "same"
            done.append(Exchanged(pipeline, result))
            if files:
                uploads.append(Upload(pipeline.name, pipeline.version, files))
        contents = upload_images(catalogue, wanted, store)
        if not uploads or snapshot.publish(uploads, _message(uploads)):
            return [replace(each, content=contents.get(_key(each.pipeline), "")) for each in done]
        pause(0.2)
    raise TryLaterError("remote-busy", "other users are publishing there at the same time", subject=subject)


def fetch(
    catalogue: Catalogue,
    remote: Remote,
    subject: str,
    known_digests: KnownDigests,
    names: Sequence[str],
    policy: Policy,
    *,
    accept_rewritten: bool = False,
) -> list[Exchanged]:
    """Fetch versions from a remote into the catalogue; `names` are NAME or NAME@VERSION, none for all.

    Everything is checked before anything is stored: where it raises `RefusedError`, `DescriptorError` and the like, the
    catalogue is unchanged.
    """
    snapshot = remote.take_snapshot(accept_rewritten=accept_rewritten)
    offers = _choose(snapshot.offers(), names, subject)
    pins = catalogue.pins()
    known = [offer for key, offer in offers.items() if key in pins]
    for key, digest in _digests(snapshot, known, known_digests).items():
        if digest != pins[key]:
            raise _conflict(f"{key[0]}@{key[1]}", here=pins[key], there=digest, subject=subject)
    check_known_images(catalogue, snapshot, known, known_digests, subject)
    fresh = [offer for key, offer in offers.items() if key not in pins]
    downloads = [
        _check_download(offer, files, subject, policy) for offer, files in _read_files(snapshot, fresh)
    ]
    more = [offer for offer in known if _lacks(catalogue, offer)]
    added = [_check_download(offer, files, subject, policy) for offer, files in _read_files(snapshot, more)]
    catalogue.add_downloads([*downloads, *added], f"Fetch from {subject}")
    _store_digests(known_digests, zip(fresh, downloads, strict=True))
    results = {
        each.pipeline.reference: each
        for each in (*_exchanged(downloads, "fetched"), *_exchanged(added, "added to"))
    }
    return [
        results.get(offer.reference) or Exchanged(catalogue.find(offer.reference), "same")
        for offer in offers.values()
    ]


def _store_digests(known_digests: KnownDigests, accepted: Iterable[tuple[Offer, Download]]) -> None:
    """Store the digests of fetched files, so that the next call does not read them again."""
    for offer, download in accepted:
        known_digests.add(offer.files[DESCRIPTOR], download.pipeline.digest)
        if IMAGE in download.attachments:
            known_digests.add(offer.files[IMAGE], hashlib.sha256(download.attachments[IMAGE]).hexdigest())
    known_digests.save()


def _exchanged(downloads: Iterable[Download], result: ExchangeResult) -> list[Exchanged]:
    return [Exchanged(each.pipeline, result) for each in downloads]


def _check_download(offer: Offer, files: Mapping[str, bytes], subject: str, policy: Policy) -> Download:
    """Check a fetched version. Raises for an invalid or changed descriptor, and for a missing signature that the policy requires."""
    location = f"{offer.reference} at {subject}"
    pipeline = read_descriptor(files[DESCRIPTOR], location, offer.name)
    if pipeline.version != offer.version:
        raise RefusedError(
            "wrong-version",
            f"the descriptor at the remote is of version {printable(pipeline.version)}",
            subject=location,
        )
    published = published_digest(files[PUBLISHED], location) if PUBLISHED in files else None
    if published is not None and published != pipeline.digest:
        raise RefusedError(
            "tampered",
            f"the descriptor was changed at the remote: its digest is {pipeline.digest}, but {printable(published)} was published",
            subject=location,
            hint="Ask the publisher. Nothing was fetched.",
        )
    image = check_image_record(pipeline, files[IMAGE], location) if IMAGE in files else ""
    signatures = {name: raw for name, raw in files.items() if is_signature_name(name)}
    policy.check(pipeline, signatures, location, image)
    attachments = {name: raw for name, raw in files.items() if _is_attachment(name)}
    return Download(pipeline, attachments)


def _is_attachment(name: str) -> bool:
    """Return whether a remote file can be an attachment of a version: its name has one of three exact forms (S1)."""
    return name in {DEPRECATED, IMAGE} or is_signature_name(name)


def _lacks(catalogue: Catalogue, offer: Offer) -> bool:
    """Return whether the remote has an attachment that is missing here."""
    here = catalogue.attachments(offer.name, offer.version)
    return any(_is_attachment(name) and name not in here for name in offer.files)


def _files_of(catalogue: Catalogue, pipeline: Pipeline, by: str) -> dict[str, bytes]:
    record = {"schema": 1, "kind": "published", "name": pipeline.name, "version": pipeline.version}
    line = line_of_json({**record, "digest": pipeline.digest, "by": by, "at": now()})
    attachments = catalogue.attachments(pipeline.name, pipeline.version)
    return {
        DESCRIPTOR: pipeline.raw,
        PUBLISHED: line.encode() + b"\n",
        **{name: path.read_bytes() for name, path in attachments.items() if _is_attachment(name)},
    }


def _digests(
    snapshot: Snapshot, offers: Iterable[Offer], known_digests: KnownDigests
) -> dict[Reference, str]:
    """Return the digest of each descriptor at the remote; known ones are not read again."""
    selected = list(offers)
    unknown = [each for each in selected if known_digests.digest(each.files[DESCRIPTOR]) is None]
    contents = snapshot.read([each.files[DESCRIPTOR] for each in unknown])
    for offer, raw in zip(unknown, contents, strict=True):
        known_digests.add(offer.files[DESCRIPTOR], _digest_of(raw, offer))
    known_digests.save()
    return {
        (each.name, each.version): known_digests.digest(each.files[DESCRIPTOR]) or "" for each in selected
    }


def _digest_of(raw: bytes, offer: Offer) -> str:
    """Return the digest of an untrusted descriptor; "" for an invalid one."""
    try:
        return digest_document(read_json(raw, offer.reference))
    except HibaliError:
        return ""


def _read_files(snapshot: Snapshot, offers: Sequence[Offer]) -> list[tuple[Offer, dict[str, bytes]]]:
    wanted = [
        (offer, name)
        for offer in offers
        for name in sorted(offer.files)
        if name in {DESCRIPTOR, PUBLISHED} or _is_attachment(name)
    ]
    contents = snapshot.read([offer.files[name] for offer, name in wanted])
    found: dict[str, tuple[Offer, dict[str, bytes]]] = {}
    for (offer, name), raw in zip(wanted, contents, strict=True):
        found.setdefault(offer.reference, (offer, {}))[1][name] = raw
    return list(found.values())


def _choose(offers: Mapping[Reference, Offer], names: Sequence[str], subject: str) -> dict[Reference, Offer]:
    if not names:
        return dict(sorted(offers.items()))
    chosen: dict[Reference, Offer] = {}
    for each in names:
        name, version = split_reference(each)
        found = {key: offer for key, offer in offers.items() if key[0] == name and version in {None, key[1]}}
        if not found:
            raise NotFoundError(
                "not-published",
                "the remote has no such pipeline",
                subject=f"{printable(each)} at {subject}",
                hint=f"To publish it there: hibali pipelines publish {printable(each)} --to {subject}",
            )
        chosen.update(sorted(found.items()))
    return chosen


def _check_same(pipeline: Pipeline, digest: str, subject: str) -> None:
    if digest != pipeline.digest:
        raise _conflict(pipeline.reference, here=pipeline.digest, there=digest, subject=subject)


def _conflict(reference: str, *, here: str, there: str, subject: str) -> RefusedError:
    return RefusedError(
        "immutable-version",
        f"{subject} has different content under this version: its digest is {there or 'none'} there and {here} here",
        subject=reference,
        hint="A version never changes. Find out which one is right; the author of the other one has to raise `tool-version`.",
    )


def _message(uploads: Sequence[Upload]) -> str:
    listed = "\n".join(f"- {each.reference}: {', '.join(sorted(each.files))}" for each in uploads)
    subject = uploads[0].reference if len(uploads) == 1 else counted(len(uploads), "pipeline")
    return f"Publish {subject}\n\n{listed}\n"


def _key(pipeline: Pipeline) -> Reference:
    return pipeline.name, pipeline.version
