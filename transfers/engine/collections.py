"""Map paths of a site to its Globus collection, which shows the same files under other names."""

from __future__ import annotations

from dataclasses import replace

from hibali.config.model import Site
from hibali.config.settings import Settings
from hibali.locations import Location
from transfers.agent.identity import Identity
from transfers.model.identities import identity_of_keys


def path_in_collection(site: Site, path: str) -> str | None:
    """Map a path of the site's filesystem to its collection; return None if the collection lacks it.

    `path` is absolute and without `..`, or starts with `~`: the collection's home folder, for sites that only
    Globus reaches. The longest match in the site's `paths` applies; without `paths`, the paths are identical.
    """
    assert site.globus is not None
    if path == "~" or path.startswith("~/"):
        return f"/{path}" if site.kind == "globus" else None
    if not site.globus.paths:
        return path
    for site_path, collection_path in sorted(site.globus.paths.items(), key=lambda pair: -len(pair[0])):
        base = site_path.rstrip("/")
        if path == base or path.startswith(f"{base}/") or not base:
            rest = path[len(base) :].strip("/")
            return f"{collection_path.rstrip('/')}/{rest}" if rest else collection_path
    return None


def collection_path(site: Site, path: bytes) -> str | None:
    """Map a path of the site's filesystem; return None for a site without a collection, or what Globus cannot name."""
    if site.globus is None:
        return None
    try:
        return path_in_collection(site, path.decode("utf-8"))
    except UnicodeDecodeError:
        return None


def identity_of_collection(collection: str, path: str) -> Identity:
    """Return the identity of a path in the collection (see transfers.planning.overlap)."""
    return identity_of_keys(f"globus {collection.lower()}", path.encode("utf-8", "surrogateescape"))


def identity_at(site: Site, root_path: bytes) -> list[Identity]:
    """Return the identity of a path in the site's filesystem, if the site's collection contains it."""
    if site.globus is None:
        return []
    path = path_in_collection(site, root_path.decode("utf-8", "surrogateescape"))
    return [] if path is None else [identity_of_collection(site.globus.collection, path)]


def with_local_collection(location: Location, settings: Settings) -> Location:
    """Return the location with this machine's collection, if a local site with a globus table contains it."""
    if not location.typed_local:
        return location
    for site in settings.sites.values():
        if (
            site.kind == "local"
            and site.globus is not None
            and collection_path(site, location.raw) is not None
        ):
            limits = replace(location.site.limits, globus_tasks=site.limits.globus_tasks)
            globus = replace(site.globus, of=site.name)
            return replace(location, site=replace(location.site, globus=globus, limits=limits))
    return location
