"""Open locations so that datasets and packs appear as plain files and folders."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing
from importlib import import_module
from pathlib import Path

from hibali.errors import RefusedError
from hibali.events import Listener
from hibali.locations import Location
from hibali.plugins import find
from transfers.agent.protocol import OWN_FOLDER
from transfers.model.entry import Entry, Kind
from transfers.model.store import Store
from transfers.stores.open_store import open_store

PACKS_FOLDER = OWN_FOLDER + b"/packs"  # the folder of the indexes; a root that has it is packed
_DATASETS = "transfers.datasets.view", "dataset_view"


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
        if not self._datasets or location.site.kind != "local" or not _in_repository(store.root_path):
            return store
        module, name = _DATASETS  # loaded only where a cheap test finds that it applies
        view: Store = getattr(import_module(module), name)(
            store, location, self._open_plain, self._on_event, fetches=self._fetches
        )
        return view

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
        if found is None and store.facts.machine and not store.facts.reports_packs:  # closed by `_depth`
            store = self.open(location)
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
        store.release_session()
        return self._depth_by_requests(location)

    def _depth_by_requests(self, location: Location) -> int | None:
        """Find the packed root by requests to the store.

        Packed folders do not exist by themselves, so only the nearest existing folder can be the root.
        """
        depth, here = 0, location
        while here.path and here.parent.path != here.path:
            depth, here = depth + 1, here.parent
            with closing(self.open(here)) as above:
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


def _in_repository(root_path: bytes) -> bool:
    """Return whether a git folder is around a local path, or around what it leads to."""
    path = Path(os.fsdecode(root_path))
    # a symlink of git-annex belongs to the repository around the symlink
    ends = {Path(os.path.realpath(path.parent), path.name), Path(os.path.realpath(path))}
    return any(os.path.lexists(folder / ".git") for end in ends for folder in (end, *end.parents))
