"""Open locations so that datasets and packs appear as plain files and folders."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Protocol

from hibali.config.model import Site
from hibali.errors import RefusedError
from hibali.events import Listener
from hibali.locations import Location
from hibali.plugins import find
from transfers.agent.protocol import OWN_FOLDER
from transfers.model.entry import Entry, Kind
from transfers.model.store import Store
from transfers.stores.open_store import open_store

PACKS_FOLDER = OWN_FOLDER + b"/packs"  # the folder of the indexes; a root that has it is packed


class Contents(Protocol):
    """The files of a folder in a dataset."""

    def is_reserved(self, path: bytes) -> bool:
        """Return whether a path belongs to the repository itself."""

    def find(self, path: bytes) -> tuple[bytes, os.stat_result] | None:
        """Return the absolute path of a file's content and its status; None if it is not on this machine."""


class Datasets(Protocol):
    """What is asked of datasets, where a git folder is around a local path; only then they are loaded."""

    def dataset_view(
        self,
        store: Store,
        location: Location,
        opener: Callable[[Location], Store],
        on_event: Listener,
        *,
        fetches: bool,
    ) -> Store:
        """Return the store, or a view of it if it is in a dataset."""

    def open_contents(self, path: bytes) -> Contents | None:
        """Return the files at and below an absolute path in a dataset; None outside of one."""

    def fetch_contents(self, path: bytes, logins: Sequence[Site]) -> None:
        """Get annexed content at and below an absolute path. Raises `IncompleteError` if some fails."""


def datasets_at(path: bytes) -> Datasets | None:
    """Return what handles datasets if a git folder is around a path of this machine."""
    found: Datasets | None = find("hibali.views", "datasets") if any(_repositories(path)) else None
    return found


def fetch_content(path: bytes, logins: Sequence[Site]) -> None:
    """Get content that git-annex stores elsewhere, at and below a path of this machine. Raises `IncompleteError`."""
    datasets = datasets_at(path)
    if datasets is not None:
        datasets.fetch_contents(path, logins)


def refuse_dataset(path: bytes, subject: str) -> None:
    """Raise `RefusedError` for a dataset without its feature: the repository's own files would count as data."""
    for folder in _repositories(path):
        annexed = (folder / ".datalad", folder / ".git" / "annex")
        if any(map(os.path.lexists, annexed)) and find("hibali.views", "datasets") is None:
            raise RefusedError(
                "cannot-delete",
                "--delete would remove files of the dataset itself, and this hibali has no datasets",
                subject=subject,
                hint="Leave out --delete, or install all of hibali. Nothing was changed.",
            )


class ViewOpener:
    """A factory of stores that shows annexed files and packed files as plain files."""

    def __init__(
        self,
        on_event: Listener,
        *,
        paced: Callable[[Location], Location] | None = None,
        datasets: bool = True,
        fetches: bool = True,
    ) -> None:
        """Keep how stores are opened.

        `paced` changes a location before it is opened. Without `datasets`, annexed files are symlinks; without
        `fetches`, their missing content is not fetched.
        """
        self._on_event = on_event
        self._paced = paced
        self._datasets = datasets
        self._fetches = fetches

    def open(self, location: Location) -> Store:
        """Open a location; in a dataset on this machine, annexed files appear with their contents."""
        store = self._open_plain(location)
        local = self._datasets and location.site.kind == "local"
        datasets = datasets_at(store.root_path) if local else None
        if datasets is None:
            return store
        return datasets.dataset_view(store, location, self._open_plain, self._on_event, fetches=self._fetches)

    def _open_plain(self, location: Location) -> Store:
        paced = location if self._paced is None else self._paced(location)
        return open_store(paced, on_event=self._on_event)

    def find(self, location: Location) -> tuple[Store, Entry | None]:
        """Return the store at a location, and the entry there, which every caller needs.

        At or in a packed root, the store is a view of the packed files.
        """
        store = self.open(location)
        try:
            found = store.stat()
            depth = self._depth(store, found, location)
        except BaseException:
            store.close()
            raise
        if depth is not None:
            return _view_of_packs(store, location)(store, location, depth, self.open)
        return store, found

    def parent(self, store: Store, location: Location) -> Store:
        """Return the parent folder of a file that `find` found in `store`."""
        return store.folder_of_file(location) or self.open(location.parent)

    def _depth(self, store: Store, found: Entry | None, location: Location) -> int | None:
        """Return the number of components below the packed root; None if there is none."""
        if store.facts.reports_packs:
            if store.packed_at is None:
                return None
            below = store.root_path[len(store.packed_at) :].strip(b"/")
            return len(below.split(b"/")) if below else 0
        if found is not None:
            return 0 if found.kind is Kind.FOLDER and is_packed(store) else None
        return self._depth_by_requests(store, location)

    def _depth_by_requests(self, store: Store, location: Location) -> int | None:
        """Find the packed root by requests to the store.

        Packed folders do not exist by themselves, so only the nearest existing folder can be the root.
        """
        depth, here = 0, location
        while here.path and here.parent.path != here.path:
            depth, here = depth + 1, here.parent
            with closing(store.beside(here) or self.open(here)) as above:
                if above.stat() is not None:
                    return depth if is_packed(above) else None
        return None


def _view_of_packs(store: Store, location: Location) -> Callable[..., tuple[Store, Entry | None]]:
    """Return what opens packed files as plain ones. Raises `RefusedError` without the feature: packs must not become plain files."""
    found: Callable[..., tuple[Store, Entry | None]] | None = find("hibali.views", "packs")
    if found is None:
        store.close()
        raise RefusedError(
            "packed-place",
            "this location is packed, and this hibali has no packs",
            subject=location.text,
            hint="Install all of hibali. Nothing was changed.",
        )
    return found


def is_packed(store: Store) -> bool:
    """Return whether there are packs at the root of a store."""
    if store.facts.reports_packs:
        return store.packed_at == store.root_path
    found = store.stat(PACKS_FOLDER)
    return found is not None and found.kind is Kind.FOLDER


def refuse_packed(store: Store, subject: str) -> None:
    """Raise `RefusedError` if the store is at or in a packed root, where plain files cannot be written."""
    if store.packed_at is not None if store.facts.reports_packs else is_packed(store):
        raise packed_root_error(subject)


def packed_root_error(subject: str) -> RefusedError:
    """Return the error for writing plain files to a packed root."""
    return RefusedError(
        "packed-place",
        "this location is packed; plain files cannot be added",
        subject=subject,
        hint="To write packs, add --pack. For plain files, name another target. Nothing was changed.",
    )


def _repositories(root_path: bytes) -> Iterator[Path]:
    """Yield the folders with a git folder around a local path, or around what it leads to."""
    path = Path(os.fsdecode(root_path))
    # a symlink of git-annex belongs to the repository around the symlink
    ends = {Path(os.path.realpath(path.parent), path.name), Path(os.path.realpath(path))}
    return (folder for end in ends for folder in (end, *end.parents) if os.path.lexists(folder / ".git"))
