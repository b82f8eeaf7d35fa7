"""What an input is, file by file, hashed where it lies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hibali.errors import IncompleteError, RefusedError
from hibali.events import Listener
from hibali.locations import Location
from hibali.sites import Site
from hibali.text import printable
from runs.book import Book
from runs.bundles.members import member_of
from runs.identity import identify_at_site, identify_elsewhere, identify_local
from runs.left import find_content
from runs.prepare import Input
from runs.reference import read_named
from runs.sweeps.sweep import part_of
from transfers.far import Far
from transfers.inventory import Inventory, Wanted
from transfers.places import open_store


@dataclass(frozen=True, slots=True)
class Content:
    """The regular files of an input: sha256 and size by their names in a bundle (`runs.bundles.members`)."""

    files: dict[str, tuple[str, int]]
    folder: bool

    @property
    def size(self) -> int:
        """Of all files together."""
        return sum(size for _, size in self.files.values())

    @property
    def digests(self) -> dict[str, str]:
        """The sha256 of each file alone."""
        return {member: digest for member, (digest, _) in self.files.items()}


def take_content(each: Input, place: Location, tell: Listener) -> Content:
    """Hash an input where it lies.

    Raises `NotFoundError`, `IncompleteError` where a file could not be read, and `RefusedError` where a folder has more
    than regular files and folders: nobody could say whether another one is the same.
    """
    name = each.name.encode("utf-8", "surrogateescape")
    files: dict[str, tuple[str, int]] = {}
    with Inventory(Wanted(place), tell) as stock:
        tree = stock.tree
        if tree.links.count or tree.specials:
            raise RefusedError(
                "input-has-links",
                "there are symlinks or special files in this folder",
                about=printable(place.text),
                hint="Make a copy that has none (cp -rL), and run with that.",
            )
        for hashed in stock.hashed():
            path = name if tree.single else name + b"/" + hashed.entry.path
            files[member_of(each.number, path)] = (hashed.digest, hashed.entry.size)
        if stock.failures:
            raise IncompleteError(
                "unreadable-input", f"{stock.failures} of its files could not be read", about=place.text
            )
        return Content(files, folder=not tree.single)


def check_unchanged(
    each: Input, place: Location, recorded: str, site: Site, content: Content, open_far: Callable[[], Far]
) -> None:
    """Raise `RefusedError` where an input is not what it was when the run of `site` began, as `recorded` says."""
    kind = recorded.partition(":")[0]
    if kind == "sha256":
        now = ",".join(f"sha256:{digest}" for digest in content.digests.values())
    elif kind == "tree":
        now = identify_local(Path(place.path)).text
    elif kind == "run":
        now = _now_left(recorded, place.site, content)
    elif place.site == site and not place.typed_local:
        now = identify_at_site(open_far(), place)[0].text
    else:
        store = open_store(place)
        try:
            now = identify_elsewhere(place, store.stat()).text
        finally:
            store.close()
    if now != recorded:
        raise RefusedError(
            "input-changed",
            f"the input {each.id} is not what it was when the run began",
            about=printable(place.text),
            hint="Run it again with what is there now, and bundle that run.",
        )


def _now_left(recorded: str, site: Site, content: Content) -> str:
    """The same identity where the output of another run is as that run left it, and is what was hashed; else another one."""
    named = read_named(recorded)
    run = part_of(Book().load(named.reference.run), named.reference.task) if named else None
    found = find_content(run, site, named) if run and named else None
    same = found is not None and sorted(found.files.values()) == sorted(content.digests.values())
    return recorded if same else ""
