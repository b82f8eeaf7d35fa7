"""Paths of a site as those of its collection, and the names that Globus can be told; pure."""

from __future__ import annotations

from hibali.sites import Site
from transfers.agent.identity import Identity
from transfers.overlap import identity_of_keys

LINE_ENDS = (b"\n", b"\r")  # no path of a submission may have one


def path_in_collection(site: Site, path: str) -> str | None:
    """Where the collection has what stands at `path` of the site's filesystem; None where it is outside of it.

    `path` is absolute and without `..`, or begins with `~`, which is the collection's own idea of home for a site that is
    reached by Globus alone. The longest of the site's `paths` counts; without any, both sides see the same paths.
    """
    assert site.globus is not None
    if path == "~" or path.startswith("~/"):
        return f"/{path}" if site.kind == "globus" else None
    if not site.globus.paths:
        return path
    for there, within in sorted(site.globus.paths.items(), key=lambda pair: -len(pair[0])):
        base = there.rstrip("/")
        if path == base or path.startswith(f"{base}/") or not base:
            rest = path[len(base) :].strip("/")
            return f"{within.rstrip('/')}/{rest}" if rest else within
    return None


def identity_of_collection(collection: str, path: str) -> Identity:
    """See transfers.overlap; `path` is in the collection."""
    return identity_of_keys(f"globus {collection.lower()}", path.encode("utf-8", "surrogateescape"))


def identity_at(site: Site, where: bytes) -> list[Identity]:
    """The same for `where` of a site's own filesystem, where the site has a collection that shows it."""
    if site.globus is None:
        return []
    path = path_in_collection(site, where.decode("utf-8", "surrogateescape"))
    return [] if path is None else [identity_of_collection(site.globus.collection, path)]


def below(root: str, path: bytes) -> str:
    """The path in the collection of a name below `root`; raises UnicodeDecodeError for one that Globus cannot be told."""
    return root.rstrip("/") + "/" + path.decode("utf-8") if path else root


def can_be_told(path: bytes) -> bool:
    """Whether Globus can be told this name: its API speaks UTF-8, and takes no line ends."""
    if any(end in path for end in LINE_ENDS):
        return False
    try:
        path.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
