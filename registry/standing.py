"""What somebody else left beside a descriptor, at remotes where the files of a version come one by one: who is first, wins."""

from __future__ import annotations

import contextlib

from hibali.errors import HibaliError, RefusedError
from hibali.text import printable
from registry.image_record import FILE as IMAGE
from registry.image_record import read_record
from registry.images import other_image
from registry.remote import PUBLISHED, Parcel, published_digest
from registry.shelf import DESCRIPTOR


def check_standing(parcel: Parcel, name: str, standing: bytes, about: str) -> None:
    """Judge a file that stands where one of the parcel was to be made, and has other content.

    Raises `RefusedError`: `immutable-version` where it is the `published.json` of other content, whose descriptor may be on its way, and
    `immutable-image` where it is the record of another image. Anything else may differ, and stays.
    """
    where = f"at {printable(about)}"
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
            about=f"{parcel.reference} {where}",
            hint=f"Whoever it was ends it with the same line again. If nobody was, remove {PUBLISHED} there; or raise `tool-version`.",
        )
