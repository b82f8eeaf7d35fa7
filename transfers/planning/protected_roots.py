"""Protect read-only roots, and folders that are never removed."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing

from hibali.config.kinds import kind_of
from hibali.config.model import Site
from hibali.errors import NotFoundError, RefusedError
from hibali.files import state_folder
from hibali.locations import Location, path_at, work_path
from hibali.text import printable
from transfers.agent.identity import INSIDE, SAME, Identity, child, mounts_below, relation, this_machine
from transfers.agent.protocol import is_in
from transfers.model.identities import AMAZON, host_name, identity_of_bucket, identity_of_url
from transfers.model.store import Store
from transfers.planning.actions import Action


def check_read_only_roots(target: Location, root_path: bytes, store: Store) -> None:
    """Raise `RefusedError` if `root_path` (absolute, at the site) is in or above a read-only root.

    Paths are resolved by a `store` of the site, because `$NAME`, `~` and symlinks can lead elsewhere.
    """
    site = target.site
    roots = [site.roots[name].encode("utf-8", "surrogateescape") for name in site.read_only]
    if not roots:
        return
    path = root_path
    if store.can(Store.identify):
        path, *roots = store.resolved([root_path, *roots])[1:]
    for name, root in zip(site.read_only, roots, strict=True):
        if not root:
            raise NotFoundError(
                "vanished",
                f"the path of the root @{name}, which is configured as read-only, has a variable that is not set there",
                subject=target.text,
                hint=f"Correct roots.{name} of sites.{site.name}.",
            )
        relation = path_relation(path, root)
        if relation is not None:
            raise RefusedError(
                "read-only-root",
                f"this path is {relation} the root @{name}, which is configured as read-only",
                subject=target.text,
                hint=f"Name another target, or remove the root from sites.{site.name}.read_only.",
            )


def check_mounts(deletions: Iterable[Action], target: Store, subject: str) -> None:
    """Raise `RefusedError` if anything to delete is on another filesystem than the target's root."""
    top = target.stat()
    points = [below for identity in target.identities() for below in mounts_below(identity)]
    for action in deletions:
        entry = action.entry
        point = next((point for point in points if is_in(entry.path, point)), b"")
        if point or (top is not None and entry.device and entry.device != top.device):
            raise mounted_error(point or entry.path, subject)


def mounted_error(path: bytes, subject: str) -> RefusedError:
    """Return the error for a deletion on a filesystem that is mounted at `path`; b"": at the subject itself."""
    position = f"at {printable(path)}" if path else "here"
    return RefusedError(
        "another-filesystem",
        f"another filesystem is mounted {position}",
        subject=subject,
        hint="Nothing was changed. Unmount it, remove its contents separately, or leave it out of a transfer with --exclude.",
    )


def check_root_exists(
    target: Location, store: Store, open_place: Callable[[Location], Store], missing: int | None = None
) -> None:
    """Raise `NotFoundError` if the configured root of a target does not exist: it may not be mounted, or is misspelled.

    Args:
        target: a folder that does not exist.
        store: a store of the target's site.
        open_place: opens the root where the store is not on a host.
        missing: how many of the last names of the target do not exist, if that is known already.
    """
    roots = [(path, name) for name, path in target.site.roots.items() if _is_below(target, path)]
    if target.typed_local or not store.facts.folders or not roots:
        return
    path, name = max(roots, key=lambda root: len(root[0]))
    root = path.encode("utf-8", "surrogateescape")
    below = _count_names(target.raw) - _count_names(root)
    if missing is not None and missing <= below and b".." not in target.raw.split(b"/"):
        return
    if store.can(Store.identify):
        found = store.identify([root])[0]
        exists = found is None or found["missing"] == 0
    else:
        with closing(open_place(path_at(target.site, root))) as opened:
            exists = opened.stat() is not None
    if not exists:
        raise NotFoundError(
            "no-such-folder",
            f"the root {path} does not exist, so nothing was written; is it mounted?",
            subject=target.text,
            hint=f"To create it: hibali mkdir {target.site.name}:@{name}",
        )


def _count_names(path: bytes) -> int:
    return len([name for name in os.path.normpath(path).split(b"/") if name])


def is_root(location: Location) -> bool:
    """Return whether a location is a configured root itself."""
    return location.path.rstrip("/") in {path.rstrip("/") for path in location.site.roots.values()}


def _is_below(target: Location, root: str) -> bool:
    return path_relation(target.raw, root.encode("utf-8", "surrogateescape")) == "in"


def path_relation(path: bytes, root: bytes) -> str | None:
    """Return the relation of a path to a root: "in", "above", or None."""
    path, root = path.rstrip(b"/") + b"/", root.rstrip(b"/") + b"/"
    if path.startswith(root):
        return "in"
    return "above" if root.startswith(path) else None


def check_named(location: Location) -> None:
    """Raise `RefusedError` for names that are never removed: a whole site, and hibali's own files."""
    if is_whole(location):
        raise _refused(location, "this is a site's root")
    if b".hibali" in location.raw.split(b"/"):
        raise RefusedError(
            "own-name",
            "hibali stores its locks and journals under this name",
            subject=location.text,
            hint="They are removed together with the folder that contains them.",
        )


def is_whole(location: Location) -> bool:
    """Return whether a location is a site's root, a bucket, a home folder or a variable alone."""
    if location.bucket is not None:
        own_prefix = location.site.s3.prefix.strip("/") if location.site.s3 else ""
        return location.path in {"", own_prefix}
    return location.path == "/" or "/" not in location.path  # `~` or `$NAME`


def check_unprotected(
    location: Location, above: Store, sites: Iterable[Site], *, link: bool = False
) -> Identity | None:
    """Raise `RefusedError` if a protected folder is at or below the location.

    Protected are roots, work folders, the home folder and hibali's state. `above` is the parent folder;
    `link` means that the entry is a symlink. Identities are compared by device and inode, mounts and services
    (transfers.agent.identity), so that other names of a root are found. Returns the entry's identity on a
    host, else None.
    """
    if not above.can(Store.identify):
        for place in (child(one, location.name) for one in above.identities()):
            for service, description in _service_roots(sites):
                if relation(service, place) in {SAME, INSIDE}:
                    raise _refused(location, f"{description} is at or below this path")
        return None
    (folder,) = above.identities()
    protected = list(_protected_paths(location.site, sites, here=folder["machine"] == this_machine()))
    paths = [above.root_path.rstrip(b"/") + b"/" + location.name]
    for path, _ in protected:
        raw = path.encode("utf-8", "surrogateescape")
        # a root can be a symlink, which is protected, too, by its parent folder and name
        paths += [raw, raw.rpartition(b"/")[0] or b"/" if b"/" in raw else raw]
    here, *found = above.identify(paths)
    for position, (path, description) in enumerate(protected):
        root, holds = found[position * 2 : position * 2 + 2]
        named = path.encode("utf-8", "surrogateescape").rpartition(b"/")[2] == location.name
        if link:
            stays = named and _is(holds, folder, {SAME})
        else:
            stays = _is(root, here, {SAME, INSIDE}) or _is(holds, here, {SAME, INSIDE})
        if stays:
            raise _refused(location, f"{description} is at or below this path")
    return here


def _is(one: Identity | None, other: Identity | None, relations: set[str]) -> bool:
    return one is not None and other is not None and relation(one, other) in relations


def _service_roots(sites: Iterable[Site]) -> Iterator[tuple[Identity, str]]:
    for site in sites:
        description = f"the root of {site.name}"
        if site.s3 is not None and site.s3.bucket:
            url = AMAZON if site.s3.endpoint == "aws" else site.s3.endpoint
            yield identity_of_bucket(url, site.s3.bucket, site.s3.prefix.encode()), description
        elif site.url:
            yield identity_of_url(site.url, b""), description


def _protected_paths(site: Site, sites: Iterable[Site], *, here: bool) -> Iterator[tuple[str, str]]:
    """Yield protected paths as in config.toml with a description; `here` if `site` is this machine."""
    yield "~", "the home folder"
    if here:
        yield str(state_folder()), "hibali's own state"
    # for a local path, `site` is not from config.toml, where a site can have the same name
    for other in [site, *sites]:
        if not kind_of(other).has_work_folder:
            continue
        same = _is_same_machine(other, site) or (here and _is_here(other))
        for name, path in other.roots.items():
            # Two hosts may share a filesystem, where a root has the same path.
            if same or (path.startswith("/") and other.kind == site.kind):
                yield path, f"the root @{name} of {other.name}"
        if same:
            yield work_path(other), f"the work folder of {other.name}"


def _is_same_machine(one: Site, other: Site) -> bool:
    if one.ssh is None or other.ssh is None:
        return one.kind == other.kind
    from hibali.ssh.sessions import address_of  # start-up: only for ssh

    return one.ssh.host == other.ssh.host or address_of(one.ssh) == address_of(other.ssh)


def _is_here(site: Site) -> bool:
    """Return whether a site is this machine, by its host name."""
    if site.ssh is None:
        return site.kind == "local"
    from hibali.ssh.sessions import address_of  # start-up: only for ssh

    name = host_name(address_of(site.ssh)[0])
    return name in {"localhost", socket.gethostname().lower(), socket.getfqdn().lower()}


def _refused(location: Location, description: str) -> RefusedError:
    return RefusedError(
        "protected-place",
        f"{description}; hibali never removes it",
        subject=location.text,
        hint="To remove its contents, name them.",
    )
