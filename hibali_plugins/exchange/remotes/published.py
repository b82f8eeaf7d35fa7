"""Refuse to publish over files of a remote that have other content."""

from __future__ import annotations

import contextlib

from hibali.errors import (
    HibaliError,
    RefusedError,
)
from hibali.text import printable
from hibali_plugins.exchange.remotes.base import PUBLISHED, Upload, published_digest
from registry.catalogue_folder import DESCRIPTOR
from registry.images.images import other_image
from registry.images.record import FILE as IMAGE
from registry.images.record import read_record


def check_existing_file(upload: Upload, name: str, existing: bytes, subject: str) -> None:
    """Check a file of the remote that exists with different content under the name of an uploaded one.

    Raises `RefusedError`: `immutable-version` where it is the `published.json` of other content, whose descriptor another process may be uploading, and
    `immutable-image` where it is the record of another image. Any other file may differ and is not changed.
    """
    location = f"at {printable(subject)}"
    if name == PUBLISHED and DESCRIPTOR in upload.files:
        _check_published(upload, existing, location)
    if name == IMAGE:
        local, remote_digest = read_record(upload.files[IMAGE], upload.reference).digest, "no image"
        with contextlib.suppress(HibaliError):
            remote_digest = read_record(existing, location).digest
        raise other_image(upload.reference, pinned=local, found=remote_digest, location=location)


def _check_published(upload: Upload, existing: bytes, location: str) -> None:
    local, remote_digest = published_digest(upload.files[PUBLISHED], location), ""
    with contextlib.suppress(HibaliError):
        remote_digest = published_digest(existing, location)
    if remote_digest != local:
        raise RefusedError(
            "immutable-version",
            f"another user started to publish different content under this version: digest {printable(remote_digest) or 'none'} at the remote, {local} here",
            subject=f"{upload.reference} {location}",
            hint=f"They complete it by running the same command again. If no other user is publishing it, remove {PUBLISHED} there, or raise `tool-version`.",
        )
