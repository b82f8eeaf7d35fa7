"""Names of container images: when two of them, written differently, mean the same one."""

from __future__ import annotations

import re
from collections.abc import Iterable

from registry.pipeline import Container

DIGEST = re.compile(r"(?:sha256:)?([0-9a-f]{64})")
_HUBS = frozenset({"", "docker.io", "index.docker.io", "registry.hub.docker.com", "registry-1.docker.io"})
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*://")


def wanted_name(container: Container | None) -> str:
    """The image that a descriptor names, as `docker pull` would be told; "" where it names none, or none of that kind."""
    if container is None or not container.image:
        return ""
    image = container.image.removeprefix("docker://")
    from_docker = image != container.image or container.index.startswith("docker://")
    if _SCHEME.match(image) or (container.kind != "docker" and not from_docker):
        return ""
    index = _SCHEME.sub("", container.index, count=1).strip("/").removesuffix("/v1").removesuffix("/v2")
    return image if index in _HUBS else f"{index}/{image}"


def wanted_digests(container: Container | None) -> tuple[str, ...]:
    """Every digest, `sha256:HEX`, that a descriptor pins its image to."""
    if container is None:
        return ()
    texts = (container.image.partition("@")[2], container.hash)
    return tuple(f"sha256:{match[1]}" for text in texts if (match := DIGEST.fullmatch(text)))


def is_among(name: str, names: Iterable[str]) -> bool:
    """Whether an archive that calls its image by these names holds the one called `name`.

    podman calls what was built here localhost/NAME where docker says NAME.
    """
    wanted = _normal(name)
    return any(wanted in {_normal(each), _normal(each.removeprefix("localhost/"))} for each in names)


def _normal(name: str) -> tuple[str, str]:
    """The repository with its registry, and the tag (distribution/reference, ParseNormalizedNamed)."""
    bare = name.partition("@")[0]
    first, slash, rest = bare.partition("/")
    has_host = slash and ("." in first or ":" in first or first == "localhost")
    registry, path = (first, rest) if has_host else ("docker.io", bare)
    if registry in _HUBS:
        registry = "docker.io"
        path = path if "/" in path else f"library/{path}"
    repository, _, tag = path.partition(":")
    return f"{registry}/{repository}", tag or "latest"
