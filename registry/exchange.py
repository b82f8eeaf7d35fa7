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
from hibali.text import printable
from registry.catalogue import Catalogue
from registry.catalogue_folder import DESCRIPTOR
from registry.catalogue_folder import FILE as DEPRECATED
from registry.descriptor import read_descriptor
from registry.images.images import check_names, other_image
from registry.images.record import FILE, ImageRecord, read_record
from registry.images.record import FILE as IMAGE
from registry.pipeline import Pipeline
from registry.remotes.base import (
    PUBLISHED,
    Arrival,
    KnownDigests,
    Look,
    Offer,
    Parcel,
    Reference,
    Remote,
    published_digest,
)
from registry.signature import Policy, is_signature_name


def check_standing(parcel: Parcel, name: str, standing: bytes, subject: str) -> None:
    """Judge a file that stands where one of the parcel was to be made, and has other content.

    Raises `RefusedError`: `immutable-version` where it is the `published.json` of other content, whose descriptor may be on its way, and
    `immutable-image` where it is the record of another image. Anything else may differ, and stays.
    """
    where = f"at {printable(subject)}"
    if name == PUBLISHED and DESCRIPTOR in parcel.files:
        _check_published(parcel, standing, where)
    if name == IMAGE:
        ours, theirs = read_record(parcel.files[IMAGE], parcel.reference).digest, "no image"
        with contextlib.suppress(HibaliError):
            theirs = read_record(standing, where).digest
        raise other_image(parcel.reference, pinned=ours, found=theirs, where=where)


def _check_published(parcel: Parcel, standing: bytes, where: str) -> None:
    ours, theirs = published_digest(parcel.files[PUBLISHED], where), ""
    with contextlib.suppress(HibaliError):
        theirs = published_digest(standing, where)
    if theirs != ours:
        raise RefusedError(
            "immutable-version",
            f"somebody began to publish other content under this version: digest {printable(theirs) or 'none'} there, {ours} here",
            subject=f"{parcel.reference} {where}",
            hint=f"Whoever it was ends it with the same line again. If nobody was, remove {PUBLISHED} there; or raise `tool-version`.",
        )


FOLDER = ".images"  # below a remote that is a folder or SITE:PATH, where nothing else is said
_CHUNK = 1024 * 1024


class ImageShelf(Protocol):
    """Contents at one place, each under its key; what is taken from there is believed only after it was hashed."""

    subject: str

    def present(self, records: Iterable[ImageRecord]) -> set[str]:
        """The digests of those that lie there, whole by their size. Raises `TryLaterError` where the place cannot be reached."""

    def put(self, record: ImageRecord, file: Path) -> None:
        """Leave a content there, under its key only when it is whole; raises as moving data does."""

    def get(self, record: ImageRecord, target: Path) -> None:
        """Lay a content at `target`, going on where an earlier call was killed; raises `NotFoundError` `image-not-there`.

        Its digest is for the caller to check.
        """


def shelf_place(record: ImageRecord) -> str:
    """Where a content lies below a shelf: `xxx/yyy/KEY`."""
    return place_of(key_of(record.size, record.hex, record.extension))


def not_there(record: ImageRecord, subject: str) -> NotFoundError:
    """The error for a content that a shelf has not."""
    return NotFoundError(
        "image-not-there",
        f"the content of the image {record.digest} is not there",
        subject=subject,
        hint="Ask whoever published the pipeline to publish it again from where the image is.",
    )


class FolderShelf:
    """A plain folder, made when the first content comes. Others may write there: whatever is no regular file is none."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.subject = printable(os.fsencode(folder))

    def present(self, records: Iterable[ImageRecord]) -> set[str]:
        """See ImageShelf."""
        with self._translated():
            return {each.digest for each in records if self._size(each) == each.size}

    def put(self, record: ImageRecord, file: Path) -> None:
        """See ImageShelf. Who finds something of another size there puts this one in its place."""
        target = self._folder / shelf_place(record)
        with self._translated():
            if not self._folder.parent.is_dir():
                raise TryLaterError("remote-unreachable", "there is no such folder now", subject=self.subject)
            target.parent.mkdir(parents=True, exist_ok=True)
            partial = target.with_name(f".{secrets.token_hex(16)}")
            try:
                with file.open("rb", buffering=0) as read, partial.open("xb") as written:
                    hashed = hashlib.sha256()
                    _copy(read, written, hashed)
                    written.flush()
                    os.fsync(written.fileno())
                if f"sha256:{hashed.hexdigest()}" != record.digest:
                    raise IncompleteError(
                        "image-damaged",
                        "the image's content here is damaged",
                        subject=printable(os.fsencode(file)),
                    )
                partial.replace(target)
            finally:
                partial.unlink(missing_ok=True)

    def get(self, record: ImageRecord, target: Path) -> None:
        """See ImageShelf."""
        partial = target.with_name(f"{target.name}.part")
        with self._translated(), self._open(record) as source:
            begun = partial.stat().st_size if partial.exists() else 0
            if _go_on(source, partial, begun) != record.digest and begun:
                source.seek(0)
                _go_on(source, partial, 0)  # what lay here was of something else
        partial.replace(target)

    def _size(self, record: ImageRecord) -> int:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            found = (self._folder / shelf_place(record)).lstat()
            return found.st_size if stat.S_ISREG(found.st_mode) else -1
        return -1

    def _open(self, record: ImageRecord) -> IO[bytes]:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            stream = os.fdopen(os.open(self._folder / shelf_place(record), flags), "rb", buffering=0)
        except (FileNotFoundError, NotADirectoryError):
            raise not_there(record, self.subject) from None
        found = os.fstat(stream.fileno())
        if not stat.S_ISREG(found.st_mode) or found.st_size != record.size:
            stream.close()
            raise RefusedError(
                "image-tampered",
                f"what lies there has {found.st_size} bytes, but {record.size} were published",
                subject=self.subject,
                hint="Ask whoever published it to publish it again; nothing was kept.",
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


def _go_on(source: IO[bytes], partial: Path, begun: int) -> str:
    """Copy what is missing behind the first `begun` bytes, which are compared by the digest of all."""
    hashed = hashlib.sha256()
    with partial.open("r+b" if begun else "wb", buffering=0) as written:
        while (left := begun - written.tell()) > 0 and (piece := written.read(min(left, _CHUNK))):
            hashed.update(piece)
        source.seek(written.tell())
        _copy(source, written, hashed)
        written.truncate()
    return f"sha256:{hashed.hexdigest()}"


def _copy(source: IO[bytes], target: IO[bytes], hashed: hashlib._Hash) -> None:
    while piece := source.read(_CHUNK):
        hashed.update(piece)
        view = memoryview(piece)
        while view:
            view = view[target.write(view) :]


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
    catalogue: Catalogue, look: Look, known: Sequence[Offer], seen: KnownDigests, subject: str
) -> None:
    """Raise where a version that is here with an image has another one there."""
    contents = image_contents(look, known, seen)
    for offer in known:
        key = offer.name, offer.version
        pinned = catalogue.images.pinned(*key)
        if key in contents and pinned is not None and contents[key] != pinned[1]:
            there = read_record(next(iter(look.read([offer.files[FILE]]))), f"{offer.reference} at {subject}")
            raise other_image(offer.reference, pinned=pinned[0], found=there.digest, where=f"at {subject}")


def check_same_image(
    pipeline: Pipeline, here: bytes, look: Look, offer: Offer, content: str, subject: str
) -> None:
    """Raise where the record of an image here is not the one there, of which `content` is the sha256."""
    if content != hashlib.sha256(here).hexdigest():
        there = read_record(next(iter(look.read([offer.files[FILE]]))), f"{offer.reference} at {subject}")
        ours = read_record(here, pipeline.reference)
        raise other_image(pipeline.reference, pinned=ours.digest, found=there.digest, where=f"at {subject}")


def image_contents(look: Look, offers: Iterable[Offer], seen: KnownDigests) -> dict[Reference, str]:
    """The sha256 of each record of an image there; those whose content was seen before are not read again."""
    asked = [each for each in offers if FILE in each.files]
    unknown = [each for each in asked if seen.digest(each.files[FILE]) is None]
    for offer, raw in zip(unknown, look.read([each.files[FILE] for each in unknown]), strict=True):
        seen.add(offer.files[FILE], hashlib.sha256(raw).hexdigest())
    seen.save()
    return {(each.name, each.version): seen.digest(each.files[FILE]) or "" for each in asked}


_TRIES = 20  # others who publish at the same time are let go first so often
Fate = Literal["published", "fetched", "same", "added to"]


@dataclass(frozen=True, slots=True)
class Exchanged:
    """What became of one version, and when publishing of its image's content, "" without one.

    `stays here`: the remote has no place for it; `missing`: it is neither there nor here.
    """

    pipeline: Pipeline
    fate: Fate
    content: Content = ""


def publish(
    catalogue: Catalogue,
    remote: Remote,
    subject: str,
    seen: KnownDigests,
    wanted: Sequence[Pipeline],
    by: str,
    shelf: ImageShelf | None = None,
) -> list[Exchanged]:
    """Leave versions at a remote, all in one step where it knows steps; what is there already stays as it is.

    Contents of images go to the shelf before anything names them. Raises `RefusedError` `immutable-version` or `immutable-image` where
    other content is there under a name and version, and then nothing was published.
    """
    for _ in range(_TRIES):
        look = remote.look(make=True)
        offers = look.offers()
        digests = _digests(look, (offers[key] for each in wanted if (key := _key(each)) in offers), seen)
        images = image_contents(look, (offers[key] for each in wanted if (key := _key(each)) in offers), seen)
        parcels, done = [], []
        for pipeline in wanted:
            files = _files_of(catalogue, pipeline, by)
            there = offers.get(_key(pipeline))
            if there is not None:
                _check_same(pipeline, digests[_key(pipeline)], subject)
                if _key(pipeline) in images and IMAGE in files:
                    check_same_image(pipeline, files[IMAGE], look, there, images[_key(pipeline)], subject)
                files = {name: raw for name, raw in files.items() if name not in there.files}
            fate: Fate = "published" if there is None else "added to" if files else "same"
            done.append(Exchanged(pipeline, fate))
            if files:
                parcels.append(Parcel(pipeline.name, pipeline.version, files))
        contents = leave_contents(catalogue, wanted, shelf)
        if not parcels or look.publish(parcels, _message(parcels)):
            return [replace(each, content=contents.get(_key(each.pipeline), "")) for each in done]
        pause(0.2)
    raise TryLaterError("remote-busy", "others keep publishing there at the same time", subject=subject)


def fetch(
    catalogue: Catalogue,
    remote: Remote,
    subject: str,
    seen: KnownDigests,
    names: Sequence[str],
    policy: Policy,
    *,
    accept_rewritten: bool = False,
) -> list[Exchanged]:
    """Take versions from a remote into the catalogue; `names` are NAME or NAME@VERSION, none for all.

    Everything is read and judged before anything is kept: raises `RefusedError`, `DescriptorError` and the like, and then
    the catalogue is as it was.
    """
    look = remote.look(accept_rewritten=accept_rewritten)
    offers = _choose(look.offers(), names, subject)
    pins = catalogue.pins()
    known = [offer for key, offer in offers.items() if key in pins]
    for key, digest in _digests(look, known, seen).items():
        if digest != pins[key]:
            raise _conflict(f"{key[0]}@{key[1]}", here=pins[key], there=digest, subject=subject)
    check_known_images(catalogue, look, known, seen, subject)
    fresh = [offer for key, offer in offers.items() if key not in pins]
    arrived = [_judge(offer, files, subject, policy) for offer, files in _read_files(look, fresh)]
    more = [offer for offer in known if _lacks(catalogue, offer)]
    added = [_judge(offer, files, subject, policy) for offer, files in _read_files(look, more)]
    catalogue.take([*arrived, *added], f"Fetch from {subject}")
    _remember(seen, zip(fresh, arrived, strict=True))
    fates = {
        each.pipeline.reference: each for each in (*_told(arrived, "fetched"), *_told(added, "added to"))
    }
    return [
        fates.get(offer.reference) or Exchanged(catalogue.find(offer.reference), "same")
        for offer in offers.values()
    ]


def _remember(seen: KnownDigests, taken: Iterable[tuple[Offer, Arrival]]) -> None:
    """What was read now is not read again by the next call."""
    for offer, arrival in taken:
        seen.add(offer.files[DESCRIPTOR], arrival.pipeline.digest)
        if IMAGE in arrival.beside:
            seen.add(offer.files[IMAGE], hashlib.sha256(arrival.beside[IMAGE]).hexdigest())
    seen.save()


def _told(arrivals: Iterable[Arrival], fate: Fate) -> list[Exchanged]:
    return [Exchanged(each.pipeline, fate) for each in arrivals]


def _judge(offer: Offer, files: Mapping[str, bytes], subject: str, policy: Policy) -> Arrival:
    """Raises for a descriptor that is none, that is not what was published, or that lacks a signature that is asked for."""
    where = f"{offer.reference} at {subject}"
    pipeline = read_descriptor(files[DESCRIPTOR], where, offer.name)
    if pipeline.version != offer.version:
        raise RefusedError(
            "wrong-version",
            f"the descriptor there is of version {printable(pipeline.version)}",
            subject=where,
        )
    said = published_digest(files[PUBLISHED], where) if PUBLISHED in files else None
    if said is not None and said != pipeline.digest:
        raise RefusedError(
            "tampered",
            f"the descriptor was changed there: it has digest {pipeline.digest}, but {printable(said)} was published",
            subject=where,
            hint="Ask whoever published it; nothing was fetched.",
        )
    image = judge_image(pipeline, files[IMAGE], where) if IMAGE in files else ""
    signatures = {name: raw for name, raw in files.items() if is_signature_name(name)}
    policy.check(pipeline, signatures, where, image)
    beside = {name: raw for name, raw in files.items() if _is_kept(name)}
    return Arrival(pipeline, beside)


def _is_kept(name: str) -> bool:
    """Whether a file of a remote may lie beside a descriptor here: three exact shapes, none of which leads anywhere (S1)."""
    return name in {DEPRECATED, IMAGE} or is_signature_name(name)


def _lacks(catalogue: Catalogue, offer: Offer) -> bool:
    """Whether something lies beside the descriptor there that does not lie here."""
    here = catalogue.beside(offer.name, offer.version)
    return any(_is_kept(name) and name not in here for name in offer.files)


def _files_of(catalogue: Catalogue, pipeline: Pipeline, by: str) -> dict[str, bytes]:
    record = {"schema": 1, "kind": "published", "name": pipeline.name, "version": pipeline.version}
    told = line_of_json({**record, "digest": pipeline.digest, "by": by, "at": now()})
    beside = catalogue.beside(pipeline.name, pipeline.version)
    return {
        DESCRIPTOR: pipeline.raw,
        PUBLISHED: told.encode() + b"\n",
        **{name: path.read_bytes() for name, path in beside.items() if _is_kept(name)},
    }


def _digests(look: Look, offers: Iterable[Offer], seen: KnownDigests) -> dict[Reference, str]:
    """The digest of each descriptor there; those whose content was seen before are not read again."""
    asked = list(offers)
    unknown = [each for each in asked if seen.digest(each.files[DESCRIPTOR]) is None]
    contents = look.read([each.files[DESCRIPTOR] for each in unknown])
    for offer, raw in zip(unknown, contents, strict=True):
        seen.add(offer.files[DESCRIPTOR], _digest_of(raw, offer))
    seen.save()
    return {(each.name, each.version): seen.digest(each.files[DESCRIPTOR]) or "" for each in asked}


def _digest_of(raw: bytes, offer: Offer) -> str:
    """Of a descriptor nobody vouches for; "" for what is none."""
    from registry.descriptor import digest_document

    try:
        return digest_document(read_json(raw, offer.reference))
    except HibaliError:
        return ""


def _read_files(look: Look, offers: Sequence[Offer]) -> list[tuple[Offer, dict[str, bytes]]]:
    wanted = [
        (offer, name)
        for offer in offers
        for name in sorted(offer.files)
        if name in {DESCRIPTOR, PUBLISHED} or _is_kept(name)
    ]
    contents = look.read([offer.files[name] for offer, name in wanted])
    found: dict[str, tuple[Offer, dict[str, bytes]]] = {}
    for (offer, name), raw in zip(wanted, contents, strict=True):
        found.setdefault(offer.reference, (offer, {}))[1][name] = raw
    return list(found.values())


def _choose(offers: Mapping[Reference, Offer], names: Sequence[str], subject: str) -> dict[Reference, Offer]:
    from registry.pipeline import split_reference

    if not names:
        return dict(sorted(offers.items()))
    chosen: dict[Reference, Offer] = {}
    for each in names:
        name, version = split_reference(each)
        found = {key: offer for key, offer in offers.items() if key[0] == name and version in {None, key[1]}}
        if not found:
            raise NotFoundError(
                "not-published", "the remote has no such pipeline", subject=f"{printable(each)} at {subject}"
            )
        chosen.update(sorted(found.items()))
    return chosen


def _check_same(pipeline: Pipeline, digest: str, subject: str) -> None:
    if digest != pipeline.digest:
        raise _conflict(pipeline.reference, here=pipeline.digest, there=digest, subject=subject)


def _conflict(reference: str, *, here: str, there: str, subject: str) -> RefusedError:
    return RefusedError(
        "immutable-version",
        f"{subject} has other content under this version: digest {there or 'none'} there, {here} here",
        subject=reference,
        hint="A version never changes. Whoever is wrong raises `tool-version`; ask before you believe either.",
    )


def _message(parcels: Sequence[Parcel]) -> str:
    listed = "\n".join(f"- {each.reference}: {', '.join(sorted(each.files))}" for each in parcels)
    what = parcels[0].reference if len(parcels) == 1 else f"{len(parcels)} pipelines"
    return f"Publish {what}\n\n{listed}\n"


def _key(pipeline: Pipeline) -> Reference:
    return pipeline.name, pipeline.version
