"""What the members of an image archive mean: `manifest.json` of docker, and the OCI image layout 1.0."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hibali.errors import HibaliError, RefusedError
from hibali.strict_json import read_json
from hibali.text import printable
from registry.guarded_tar import BrokenArchiveError
from registry.image_name import is_among
from registry.image_record import MOST_NAMES, is_image_name

_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_CONFIG = re.compile(r"(?:.*/)?([0-9a-f]{64})(?:\.json)?")
_HOPS = 10
_INDEXES = frozenset(
    {
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
    }
)
_CONTAINERD_NAME = "io.containerd.image.name"
_REFERENCE = "org.opencontainers.image.ref.name"


@dataclass(frozen=True, slots=True)
class Member:
    """A file of the archive: `text` is its content where that may be JSON. Or a link to another member."""

    size: int = 0
    digest: str = ""
    text: bytes = b""
    compressed: bool = False
    link: str = ""
    is_symlink: bool = False


Members = Mapping[str, Member]


@dataclass(frozen=True, slots=True)
class Saved:
    """An image that is whole. `digests` are its id and its manifest's, where there is one."""

    id: str
    names: tuple[str, ...]
    digests: frozenset[str]
    from_docker: bool


def read_saved(members: Members, name: str, about: str) -> Saved:
    """The image in an archive; of several the one called `name`. Both descriptions are checked where there are two.

    Raises `BrokenArchiveError`, `RefusedError` `image-damaged`.
    """
    layout = _read_layout(members, name, about) if "index.json" in members else None
    docker = _read_docker(members, name, about) if "manifest.json" in members else None
    if docker is None and layout is None:
        raise BrokenArchiveError("it has neither manifest.json nor index.json")
    if docker is None or layout is None:
        found = docker or layout
        assert found is not None
        return found
    if docker.id != layout.id:
        raise RefusedError(
            "image-damaged",
            f"its manifest.json is of image {docker.id}, its index.json of {layout.id}",
            about=about,
        )
    return Saved(docker.id, docker.names or layout.names, docker.digests | layout.digests, from_docker=True)


def _read_docker(members: Members, name: str, about: str) -> Saved:
    """`manifest.json`: Config, RepoTags and Layers of each image (moby, image/tarexport)."""
    listed = _json(members, "manifest.json", about)
    entries = [each for each in listed if isinstance(each, dict)] if isinstance(listed, list) else []
    entry = _choose([(_names(each.get("RepoTags")), each) for each in entries], name)
    config_name, layers = entry.get("Config"), entry.get("Layers")
    if not isinstance(config_name, str) or not isinstance(layers, list):
        raise BrokenArchiveError("its manifest.json names no Config and Layers")
    config = _resolve(members, config_name)
    expected = _CONFIG.fullmatch(config_name)
    if expected and config.digest != f"sha256:{expected[1]}":
        raise RefusedError(
            "image-damaged",
            f"its configuration has digest {config.digest}, and is called {printable(config_name)}",
            about=about,
        )
    _check_layers([_resolve(members, each) for each in layers], _diffs(config, config_name, about), about)
    return Saved(config.digest, _names(entry.get("RepoTags")), frozenset({config.digest}), from_docker=True)


def _read_layout(members: Members, name: str, about: str) -> Saved:
    """`index.json`, the manifest it names, that one's configuration and layers (OCI image layout specification)."""
    version = _json(members, "oci-layout", about)
    if not isinstance(version, dict) or not str(version.get("imageLayoutVersion")).startswith("1."):
        raise BrokenArchiveError("its oci-layout is of another version than 1")
    described = _choose([(_annotated(each), each) for each in _images(members, "index.json", about)], name)
    manifest_digest = _digest_of(described)
    manifest = _json(members, _blob(manifest_digest), about)
    config, layers = (
        manifest.get(key) if isinstance(manifest, dict) else None for key in ("config", "layers")
    )
    if not isinstance(config, dict) or not isinstance(layers, list):
        raise BrokenArchiveError("its manifest names no config and layers")
    found = []
    for each in (described, config, *layers):
        member = _resolve(members, _blob(_digest_of(each)))
        if member.size != each.get("size"):
            raise BrokenArchiveError(f"{printable(_digest_of(each))} has not the size that is said of it")
        found.append(member)
    config_digest = _digest_of(config)
    _check_layers(found[2:], _diffs(found[1], config_digest, about), about)
    digests = frozenset({config_digest, manifest_digest})
    return Saved(config_digest, _annotated(described), digests, from_docker=False)


def _images(members: Members, name: str, about: str, depth: int = 0) -> list[dict[str, Any]]:
    """Descriptors of the images of an index, and of the indexes in it; attestations of buildx are none."""
    index = _json(members, name, about)
    listed = index.get("manifests") if isinstance(index, dict) else None
    found: list[dict[str, Any]] = []
    for each in listed if isinstance(listed, list) else ():
        if not isinstance(each, dict):
            raise BrokenArchiveError("its index is not of images")
        annotations = each.get("annotations")
        if isinstance(annotations, dict) and "vnd.docker.reference.type" in annotations:
            continue
        if each.get("mediaType") not in _INDEXES:
            found.append(each)
        elif depth < 2:
            inner = _images(members, _blob(_digest_of(each)), about, depth + 1)
            found += [{**image, "annotations": image.get("annotations") or annotations} for image in inner]
    return found


def _choose(images: list[tuple[tuple[str, ...], dict[str, Any]]], name: str) -> dict[str, Any]:
    named = [each for names, each in images if name and is_among(name, names)]
    chosen = named or [each for _, each in images]
    if len(chosen) == 1:
        return chosen[0]
    if not chosen:
        raise BrokenArchiveError("it holds no image")
    raise BrokenArchiveError(
        f"it holds {len(images)} images, not one of the name {name}"
        if name
        else f"it holds {len(images)} images"
    )


def _check_layers(layers: list[Member], diffs: list[str], about: str) -> None:
    """Raise where they are not the layers that the configuration names: as many, and each uncompressed one with its digest."""
    if len(layers) != len(diffs):
        raise BrokenArchiveError(f"it has {len(layers)} layers, and its configuration names {len(diffs)}")
    for layer, diff in zip(layers, diffs, strict=True):
        if not layer.compressed and layer.digest != diff:
            raise RefusedError(
                "image-damaged",
                f"a layer has digest {layer.digest}, and the configuration names {diff}",
                about=about,
                hint="The archive was changed or damaged; make it anew.",
            )


def _diffs(config: Member, name: str, about: str) -> list[str]:
    """The digests of the uncompressed layers (OCI image configuration, rootfs.diff_ids)."""
    found = _parse(config.text, name, about)
    rootfs = found.get("rootfs") if isinstance(found, dict) else None
    diffs = rootfs.get("diff_ids") if isinstance(rootfs, dict) else None
    if not isinstance(diffs, list) or not all(
        isinstance(each, str) and _DIGEST.fullmatch(each) for each in diffs
    ):
        raise BrokenArchiveError("its configuration is not of an image")
    return diffs


def _resolve(members: Members, name: Any) -> Member:
    """The file of that name; docker's archives link to layers that they hold once."""
    where = name if isinstance(name, str) else ""
    for _ in range(_HOPS):
        found = members.get(posixpath.normpath(where))
        if found is None:
            raise BrokenArchiveError(f"{printable(where)} is missing in it")
        if not found.link:
            return found
        where = posixpath.join(posixpath.dirname(where), found.link) if found.is_symlink else found.link
    raise BrokenArchiveError("its links go in circles")


def _annotated(described: dict[str, Any]) -> tuple[str, ...]:
    """The names that an index gives an image; a reference may also be a tag alone, which is no name."""
    found = described.get("annotations")
    annotations = found if isinstance(found, dict) else {}
    given = [annotations.get(key) for key in (_CONTAINERD_NAME, _REFERENCE)]
    whole = [each for each in given if isinstance(each, str) and (":" in each or "/" in each)]
    return _names(whole[:1])


def _names(listed: Any) -> tuple[str, ...]:
    names = listed if isinstance(listed, list) else []
    if len(names) > MOST_NAMES or not all(map(is_image_name, names)):
        raise BrokenArchiveError("it has names that no image can have")
    return tuple(sorted(set(names)))


def _digest_of(described: Any) -> str:
    digest = described.get("digest") if isinstance(described, dict) else None
    if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
        raise BrokenArchiveError("it names something by another digest than sha256")
    return digest


def _blob(digest: str) -> str:
    return digest.replace("sha256:", "blobs/sha256/")


def _json(members: Members, name: str, about: str) -> Any:
    return _parse(_resolve(members, name).text, name, about)


def _parse(text: bytes, name: str, about: str) -> Any:
    try:
        return read_json(text, f"{about}: {printable(name)}")
    except HibaliError as problem:
        raise BrokenArchiveError(f"{printable(name)}: {problem.message}") from None
