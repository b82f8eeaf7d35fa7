"""Places that are never removed, whatever name they are given."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from hibali.errors import RefusedError
from hibali.folders import state_folder
from hibali.locations import Location, work_path
from hibali.sites import Site
from transfers.contents import Resolves
from transfers.guarded import lies
from transfers.store import Store


def check_named(location: Location) -> None:
    """Raise `RefusedError` for what is never removed by its very name: a whole site, and what hibali keeps beside data."""
    if _is_whole(location):
        raise _refused(location, "this is a site's root")
    if b".hibali" in location.raw.split(b"/"):
        raise RefusedError(
            "own-name",
            "hibali keeps its locks and journals under this name",
            about=location.text,
            hint="They go with the folder around them.",
        )


def _is_whole(location: Location) -> bool:
    if location.bucket is not None:
        own_prefix = location.site.s3.prefix.strip("/") if location.site.s3 else ""
        return location.path in {"", own_prefix}
    return location.path == "/" or "/" not in location.path  # `~` or `$NAME`


def check_unprotected(location: Location, above: Store, sites: Iterable[Site]) -> None:
    """Raise `RefusedError` where a place that must stay is here or below: a root, a work folder, the home folder, our own state.

    `above` is the folder that holds the place. Both sides are compared without symlinks.
    """
    if not isinstance(above, Resolves):
        return  # keys mean what they say
    kept = list(_kept(location.site, sites))
    asked: list[bytes] = []
    for path, _ in kept:
        raw = path.encode("utf-8", "surrogateescape")
        asked += [raw, raw.rpartition(b"/")[0] or b"/"]
    folder, *found = above.resolved(asked)
    here = folder.rstrip(b"/") + b"/" + location.name
    for position, (_, words) in enumerate(kept):
        place, holds = found[position * 2 : position * 2 + 2]
        # a root that is a symlink stands under its own name, too
        named = holds.rstrip(b"/") + b"/" + asked[position * 2].rpartition(b"/")[2]
        if place and (lies(place, here) == "in" or (holds and named == here)):
            raise _refused(location, f"{words} is here or below")


def _kept(site: Site, sites: Iterable[Site]) -> Iterator[tuple[str, str]]:
    yield "~", "the home folder"
    for other in [site, *(one for one in sites if one.name != site.name and _is_same_machine(one, site))]:
        for name, path in other.roots.items():
            yield path, f"the root @{name} of {other.name}"
        yield work_path(other), f"the work folder of {other.name}"
    if site.kind == "local":
        yield str(state_folder()), "hibali's own state"


def _is_same_machine(one: Site, other: Site) -> bool:
    if one.kind != other.kind:
        return False
    return one.kind == "local" or (
        one.ssh is not None and other.ssh is not None and one.ssh.host == other.ssh.host
    )


def _refused(location: Location, words: str) -> RefusedError:
    return RefusedError(
        "protected-place",
        f"{words}, and is not removed",
        about=location.text,
        hint="Name what lies in it.",
    )
