"""Publishing to and fetching from a remote: what is to go, whether it may, and all of it checked before anything changes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from hibali.errors import HibaliError, NotFoundError, RefusedError, TryLaterError
from hibali.ledger import now
from hibali.retry import pause
from hibali.strict_json import line_of_json, read_json
from hibali.text import printable
from registry.catalogue import Catalogue
from registry.deprecation import FILE as DEPRECATED
from registry.descriptor import read_descriptor
from registry.exchange_images import (
    Content,
    check_known_images,
    check_same_image,
    image_contents,
    judge_image,
    leave_contents,
)
from registry.image_record import FILE as IMAGE
from registry.image_shelf import ImageShelf
from registry.pipeline import Pipeline
from registry.remote import PUBLISHED, Arrival, Look, Offer, Parcel, Reference, Remote, published_digest
from registry.seen import Seen
from registry.shelf import DESCRIPTOR
from registry.signature import Policy, is_signature_name

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
    about: str,
    seen: Seen,
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
                _check_same(pipeline, digests[_key(pipeline)], about)
                if _key(pipeline) in images and IMAGE in files:
                    check_same_image(pipeline, files[IMAGE], look, there, images[_key(pipeline)], about)
                files = {name: raw for name, raw in files.items() if name not in there.files}
            fate: Fate = "published" if there is None else "added to" if files else "same"
            done.append(Exchanged(pipeline, fate))
            if files:
                parcels.append(Parcel(pipeline.name, pipeline.version, files))
        contents = leave_contents(catalogue, wanted, shelf)
        if not parcels or look.publish(parcels, _message(parcels)):
            return [replace(each, content=contents.get(_key(each.pipeline), "")) for each in done]
        pause(0.2)
    raise TryLaterError("remote-busy", "others keep publishing there at the same time", about=about)


def fetch(
    catalogue: Catalogue,
    remote: Remote,
    about: str,
    seen: Seen,
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
    offers = _choose(look.offers(), names, about)
    pins = catalogue.pins()
    known = [offer for key, offer in offers.items() if key in pins]
    for key, digest in _digests(look, known, seen).items():
        if digest != pins[key]:
            raise _conflict(f"{key[0]}@{key[1]}", here=pins[key], there=digest, about=about)
    check_known_images(catalogue, look, known, seen, about)
    fresh = [offer for key, offer in offers.items() if key not in pins]
    arrived = [_judge(offer, files, about, policy) for offer, files in _read_files(look, fresh)]
    more = [offer for offer in known if _lacks(catalogue, offer)]
    added = [_judge(offer, files, about, policy) for offer, files in _read_files(look, more)]
    catalogue.take([*arrived, *added], f"Fetch from {about}")
    _remember(seen, zip(fresh, arrived, strict=True))
    fates = {
        each.pipeline.reference: each for each in (*_told(arrived, "fetched"), *_told(added, "added to"))
    }
    return [
        fates.get(offer.reference) or Exchanged(catalogue.find(offer.reference), "same")
        for offer in offers.values()
    ]


def _remember(seen: Seen, taken: Iterable[tuple[Offer, Arrival]]) -> None:
    """What was read now is not read again by the next call."""
    for offer, arrival in taken:
        seen.add(offer.files[DESCRIPTOR], arrival.pipeline.digest)
        if IMAGE in arrival.beside:
            seen.add(offer.files[IMAGE], hashlib.sha256(arrival.beside[IMAGE]).hexdigest())
    seen.save()


def _told(arrivals: Iterable[Arrival], fate: Fate) -> list[Exchanged]:
    return [Exchanged(each.pipeline, fate) for each in arrivals]


def _judge(offer: Offer, files: Mapping[str, bytes], about: str, policy: Policy) -> Arrival:
    """Raises for a descriptor that is none, that is not what was published, or that lacks a signature that is asked for."""
    where = f"{offer.reference} at {about}"
    pipeline = read_descriptor(files[DESCRIPTOR], where, offer.name)
    if pipeline.version != offer.version:
        raise RefusedError(
            "wrong-version", f"the descriptor there is of version {printable(pipeline.version)}", about=where
        )
    said = published_digest(files[PUBLISHED], where) if PUBLISHED in files else None
    if said is not None and said != pipeline.digest:
        raise RefusedError(
            "tampered",
            f"the descriptor was changed there: it has digest {pipeline.digest}, but {printable(said)} was published",
            about=where,
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


def _digests(look: Look, offers: Iterable[Offer], seen: Seen) -> dict[Reference, str]:
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


def _choose(offers: Mapping[Reference, Offer], names: Sequence[str], about: str) -> dict[Reference, Offer]:
    from registry.pipeline import split_reference

    if not names:
        return dict(sorted(offers.items()))
    chosen: dict[Reference, Offer] = {}
    for each in names:
        name, version = split_reference(each)
        found = {key: offer for key, offer in offers.items() if key[0] == name and version in {None, key[1]}}
        if not found:
            raise NotFoundError(
                "not-published", "the remote has no such pipeline", about=f"{printable(each)} at {about}"
            )
        chosen.update(sorted(found.items()))
    return chosen


def _check_same(pipeline: Pipeline, digest: str, about: str) -> None:
    if digest != pipeline.digest:
        raise _conflict(pipeline.reference, here=pipeline.digest, there=digest, about=about)


def _conflict(reference: str, *, here: str, there: str, about: str) -> RefusedError:
    return RefusedError(
        "immutable-version",
        f"{about} has other content under this version: digest {there or 'none'} there, {here} here",
        about=reference,
        hint="A version never changes. Whoever is wrong raises `tool-version`; ask before you believe either.",
    )


def _message(parcels: Sequence[Parcel]) -> str:
    listed = "\n".join(f"- {each.reference}: {', '.join(sorted(each.files))}" for each in parcels)
    what = parcels[0].reference if len(parcels) == 1 else f"{len(parcels)} pipelines"
    return f"Publish {what}\n\n{listed}\n"


def _key(pipeline: Pipeline) -> Reference:
    return pipeline.name, pipeline.version
