"""One fresh root at every store there is, with a second way to it and a way in that is not hibali."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import pytest

from hibali.config.settings import load_sites
from hibali.locations import Location, read_location
from hibali.plugins import built_in_words
from tests.services.processes import free_port
from tests.support.places import (
    OBJECT_STORES,
    BucketPlace,
    DavPlace,
    FolderPlace,
    GlobusPlace,
    Place,
    WebPlace,
    add_site,
    make_place,
)
from tests.support.trees import Tree
from transfers.entry import Entry
from transfers.stores.base import Store, is_partial_name
from transfers.stores.open_store import open_store

SITE = "site"
ROOT = "data set/target"


def store_words() -> list[Any]:
    """Every module of the folder; one without a place in tests/support/places.py fails by its name.

    WebDAV servers differ wherever the standard lets them: a second one is tried in all tests.
    """
    heavy = [pytest.param(word, marks=pytest.mark.heavy) for word in ("globus", "webdav-plain")]
    return [*(word for word in built_in_words("transfers.stores") if word != "globus"), *heavy]


def store_servers() -> list[Any]:
    """Every store, and S3 on all of its servers: parameters of a fixture."""
    return [word for word in store_words() if word != "s3"] + object_stores()


def object_stores() -> list[Any]:
    """S3 on all of its servers; those that take long are `heavy`."""
    heavy = pytest.mark.heavy
    return [word if word == "s3" else pytest.param(word, marks=heavy) for word in OBJECT_STORES]


@dataclass
class Subject:
    """A store under test: its root is the folder `ROOT` of a fresh place, which is the site `site`."""

    place: Place
    config: Path
    _opened: list[Store] = field(default_factory=list)

    def location(self, path: str = ROOT, site: str = SITE) -> Location:
        """A path there, as the user writes it."""
        return read_location(f"{site}:{path}", load_sites(str(self.config)))

    def open(self, path: str = ROOT) -> Store:
        """A new Store object on this root, or on another path, as another process has it; closed in the end."""
        return self.opened(self.location(path))

    def opened(self, location: Location) -> Store:
        """The store at any location; closed in the end."""
        store = open_store(location)
        self._opened.append(store)
        if self._only_read(store):
            for name in ("make_root", "write", "remove", "keep", "lock"):
                setattr(store, name, _only_read)
        return store

    def fresh(self) -> Store:
        """A new Store object with its root made."""
        store = self.open()
        if not self._only_read(store):
            store.make_root()
        else:
            self.plant({})
        return store

    @staticmethod
    def _only_read(store: Store) -> bool:
        """A collection is filled by tasks of Globus alone: tests/end_to_end/test_globus_ways.py has those."""
        return not store.facts.writable or store.facts.kind == "globus"

    def close(self) -> None:
        for store in self._opened:
            store.close()

    @property
    def folder(self) -> Path | None:
        """The root as a folder of this machine, where there is one behind the store."""
        return self.place.at(ROOT) if self._by_path() else None

    def _by_path(self) -> bool:
        """Whether the place is a folder to its store, too."""
        return isinstance(self.place, FolderPlace) and not isinstance(
            self.place, (DavPlace, GlobusPlace, WebPlace)
        )

    def plant(self, tree: Tree) -> None:
        """Put it there, not by hibali."""
        self.place.plant(ROOT, tree)

    def files(self) -> dict[bytes, bytes]:
        """The content of every file there that is not hibali's own, not read by hibali."""
        return self.place.files(ROOT)

    def read(self, name: bytes) -> bytes | None:
        """One file's content, not read by hibali; None when absent."""
        return self.place.read(ROOT, name)

    def names(self) -> set[bytes]:
        """Every name there, hibali's own ones too."""
        return self.place.names(ROOT)

    def partials(self) -> set[bytes]:
        """What stands there under partial names."""
        return {name for name in self.names() if is_partial_name(name)}

    def unreachable(self) -> Location | None:
        """The same kind of store where nothing answers; None where that cannot be."""
        if isinstance(self.place, GlobusPlace):
            return None  # tests/end_to_end/test_globus_login.py and test_globus_faults.py try that
        if self._by_path():
            return self._by_ssh("unreachable", f"Port={free_port()}")
        nobody = _nobody().replace("http", "dav") if isinstance(self.place, DavPlace) else _nobody()
        return self._added("unreachable", self.place.table().replace(self._endpoint(), nobody))

    def denied(self) -> Location | None:
        """The same store by a login that is refused; the caller spoils the key of an object store."""
        if isinstance(self.place, GlobusPlace):
            return None
        if self._by_path():
            return self._by_ssh("denied", "PubkeyAuthentication=no")
        if isinstance(self.place, WebPlace):
            self.place.server.wanted = "a login that nobody has"
        if isinstance(self.place, DavPlace):
            if self.place.dav.login is None:
                return None
            table = self.place.table().replace("'password': ", "'password': 'planted-secret' + ")
            return self._added("denied", table)
        return self.location()

    @property
    def page(self) -> int:
        """How many names come in one piece of a listing, at most."""
        return self.place.store.page if isinstance(self.place, BucketPlace) else 1000

    def secrets(self) -> list[str]:
        """What no text may ever show."""
        return [value for name, value in self.place.env.items() if "SECRET" in name]

    def _by_ssh(self, name: str, option: str) -> Location | None:
        """The site with one more option of ssh(1); None where no ssh is used."""
        given = self.place.command  # type: ignore[attr-defined]
        if not given:
            return None
        table = self.place.table().replace(json.dumps(given), json.dumps([*given, "-o", option]))
        return self._added(name, table)

    def _endpoint(self) -> str:
        return str(self.place.endpoint)  # type: ignore[attr-defined]

    def _added(self, name: str, table: str) -> Location:
        text = self.config.read_text() + f"[sites.{name}]\n{table.replace('{name}', name)}\n"
        self.config.write_text(text)
        return self.location(site=name)

    def listed(self) -> dict[bytes, Entry]:
        """What a new Store object lists."""
        return {entry.path: entry for entry in self.open().list()}


def subjects(
    word: str, request: pytest.FixtureRequest, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Subject]:
    """The subject of one test: the body of a fixture."""
    home = request.getfixturevalue("hibali_home")
    place = make_place(word, folder, request.getfixturevalue)
    for name, value in place.env.items():
        monkeypatch.setenv(name, value)
    add_site(home.config, SITE, place)
    subject = Subject(place, home.config)
    yield subject
    subject.close()
    if isinstance(place, WebPlace):
        place.server.close()


def _only_read(*words: object) -> NoReturn:
    """The rest of a test that writes says nothing of a store that is only read."""
    del words
    pytest.skip("this store is only read")


def _nobody() -> str:
    """An endpoint that nothing listens at."""
    return f"http://127.0.0.1:{free_port()}"


@contextmanager
def locked(store: Store) -> Iterator[Store]:
    """The store, held for writing where it can be."""
    lock = store.lock("test") if store.facts.locks else None
    try:
        yield store
    finally:
        if lock is not None:
            lock.release()
