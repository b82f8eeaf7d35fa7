"""Read and write the record of a pipeline's container image, and compare image names."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, get_args

from hibali.documents import JsonProblemError, canonical_json, read_json
from hibali.errors import RefusedError
from registry.pipeline import Container

DIGEST = re.compile(r"(?:sha256:)?([0-9a-f]{64})")
_HUBS = frozenset({"", "docker.io", "index.docker.io", "registry.hub.docker.com", "registry-1.docker.io"})
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*://")


def wanted_name(container: Container | None) -> str:
    """Return the image that a descriptor names, as for `docker pull`; "" where it names none, or one of another kind."""
    if container is None or not container.image:
        return ""
    image = container.image.removeprefix("docker://")
    from_docker = image != container.image or container.index.startswith("docker://")
    if _SCHEME.match(image) or (container.kind != "docker" and not from_docker):
        return ""
    index = _SCHEME.sub("", container.index, count=1).strip("/").removesuffix("/v1").removesuffix("/v2")
    return image if index in _HUBS else f"{index}/{image}"


def wanted_digests(container: Container | None) -> tuple[str, ...]:
    """Return every digest, `sha256:HEX`, to which a descriptor pins its image."""
    if container is None:
        return ()
    texts = (container.image.partition("@")[2], container.hash)
    return tuple(f"sha256:{match[1]}" for text in texts if (match := DIGEST.fullmatch(text)))


def is_among(name: str, names: Iterable[str]) -> bool:
    """Return whether an image with these names in an archive is the one called `name`.

    podman names images that were built here localhost/NAME, docker NAME.
    """
    wanted = _normal(name)
    return any(wanted in {_normal(each), _normal(each.removeprefix("localhost/"))} for each in names)


def _normal(name: str) -> tuple[str, str]:
    """Split into the repository with its registry, and the tag (distribution/reference, ParseNormalizedNamed)."""
    bare = name.partition("@")[0]
    first, slash, path = bare.partition("/")
    has_host = slash and ("." in first or ":" in first or first == "localhost")
    registry, path = (first, path) if has_host else ("docker.io", bare)
    if registry in _HUBS:
        registry = "docker.io"
        path = path if "/" in path else f"library/{path}"
    repository, _, tag = path.partition(":")
    return f"{registry}/{repository}", tag or "latest"


FILE = "image.json"
Format = Literal["docker-archive", "oci-archive", "sif"]
MOST_NAMES = 100

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,511}")
_KEYS = {"schema", "kind", "digest", "size", "format", "id", "names"}
_EXTENSIONS: dict[Format, str] = {"docker-archive": ".tar", "oci-archive": ".tar", "sif": ".sif"}


@dataclass(frozen=True, slots=True)
class ImageRecord:
    """An image as one archive.

    `digest` is `sha256:HEX` of the archive's bytes and `size` their number. `id` is `sha256:HEX` of the image's configuration,
    which runtimes call the image id (OCI image specification, "ImageID"); of a SIF it is the digest again.
    `names` are what the archive calls the image, as REPOSITORY:TAG.
    """

    digest: str
    size: int
    format: Format
    id: str
    names: tuple[str, ...] = ()

    @property
    def hex(self) -> str:
        """The sha256 of the archive in hexadecimal."""
        return self.digest.removeprefix("sha256:")

    @property
    def extension(self) -> str:
        """The extension of image files, compressed or not; it follows from the record."""
        return _EXTENSIONS[self.format]


def write_record(record: ImageRecord) -> bytes:
    """Write the record: canonical JSON (RFC 8785) and a newline."""
    return (
        canonical_json(
            {
                "schema": 1,
                "kind": "image",
                "digest": record.digest,
                "size": record.size,
                "format": record.format,
                "id": record.id,
                "names": list(record.names),
            }
        )
        + b"\n"
    )


def read_record(raw: bytes, subject: str) -> ImageRecord:
    """Read a record from untrusted bytes; raises `RefusedError` `bad-image-record` for anything `write_record` would not write."""
    try:
        found = read_json(raw, subject)
    except JsonProblemError as problem:
        raise _bad(problem.message, subject) from None
    if not isinstance(found, dict) or set(found) != _KEYS:
        raise _bad(f"it needs exactly the keys {', '.join(sorted(_KEYS))}", subject)
    reason = _wrong(found)
    if reason:
        raise _bad(reason, subject)
    record = ImageRecord(
        digest=found["digest"],
        size=found["size"],
        format=found["format"],
        id=found["id"],
        names=tuple(found["names"]),
    )
    if write_record(record) != raw:
        raise _bad("it is not canonical JSON with a newline", subject)
    return record


def is_image_name(name: Any) -> bool:
    """Return whether it is a valid image reference, without spaces or control characters."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def _wrong(found: dict[str, Any]) -> str:
    """Return the first problem of the values; "" where all are valid."""
    if type(found["schema"]) is not int or found["schema"] != 1 or found["kind"] != "image":
        return "it is not an image record of schema 1"
    for key in ("digest", "id"):
        if not isinstance(found[key], str) or not _DIGEST.fullmatch(found[key]):
            return f"{key} is not sha256: and 64 hexadecimal digits"
    if type(found["size"]) is not int or not 0 < found["size"] < 1 << 53:
        return "size is not a number of bytes"
    if found["format"] not in get_args(Format):
        return f"format is not one of {', '.join(get_args(Format))}"
    if found["format"] == "sif" and found["id"] != found["digest"]:
        return "the id of a SIF must be its digest"
    names = found["names"]
    if not isinstance(names, list) or len(names) > MOST_NAMES or not all(map(is_image_name, names)):
        return "names are not valid image names"
    return "" if names == sorted(set(names)) else "names are not sorted, or not unique"


def _bad(reason: str, subject: str) -> RefusedError:
    return RefusedError("bad-image-record", f"this is not a valid image record: {reason}", subject=subject)
