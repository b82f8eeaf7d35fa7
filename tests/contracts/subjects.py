"""Create an empty root at every store, opened again as by another process, and accessed without hibali."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import pytest

from hibali.config.settings import load_sites
from hibali.locations import Location, read_location
from hibali.plugins import built_in_names
from tests.services.processes import free_port
from tests.services.session import REPOSITORY
from tests.support.backends import DAV_SERVERS, OBJECT_STORES, Backend, add_site, make_backend
from tests.support.trees import Tree
from transfers.model.entry import Entry
from transfers.model.facts import is_partial_name
from transfers.model.store import Store
from transfers.stores.open_store import open_store

SITE = "site"
ROOT = "data set/target"
CLOUDS = (
    "fsspec-s3",
    "fsspec-gcs",
    "fsspec-azure",
    "fsspec-webhdfs",
    "fsspec-xrootd",
)  # filesystems of fsspec with a server
FLAT = frozenset({"zenodo"})  # without folders, which all tests have: tests/plugins/archives/test_drafts.py
QUICK = frozenset({"local", "ssh", "s3", "fsspec-memory"})


def store_words() -> list[Any]:
    """Return every module of the folder; one that tests/support/backends.py lacks fails with its name.

    Those that are most used, or quick, are not `heavy`. WebDAV servers differ where the standard allows it: there are three.
    """
    words = [
        *(word for word in built_in_names("transfers.stores") if word not in FLAT),
        *stores_there(*DAV_SERVERS, "fsspec-memory", "cbrain-s3", "unicore-uftp", *CLOUDS),
    ]
    return [word if word in QUICK else pytest.param(word, marks=pytest.mark.heavy) for word in words]


def stores_there(*words: str) -> list[str]:
    """Return those whose kind of site is not in a folder of hibali_plugins that was removed."""
    kinds = {word: word.partition("-")[0] for word in words} | dict.fromkeys(DAV_SERVERS, "url")
    return [word for word in words if kinds[word] in built_in_names("transfers.stores")]


def store_servers(*, agents: bool = True) -> list[Any]:
    """Return every store, and S3 on all of its servers, as parameters of a fixture.

    Without `agents`, an ssh site is `heavy`, because a local one runs the same agent.
    """
    ssh = "ssh" if agents else pytest.param("ssh", marks=pytest.mark.heavy)
    words = [word for word in store_words() if word != "s3"]
    return [ssh if word == "ssh" else word for word in words] + object_stores()


def object_stores() -> list[Any]:
    """Return S3 on all of its servers; slow ones are `heavy`."""
    heavy = pytest.mark.heavy
    return [word if word == "s3" else pytest.param(word, marks=heavy) for word in OBJECT_STORES]


@dataclass
class Subject:
    """A store under test: its root is the folder `ROOT` of an empty backend, which is the site `site`."""

    backend: Backend
    config: Path
    _opened: list[Store] = field(default_factory=list)

    def location(self, path: str = ROOT, site: str = SITE) -> Location:
        """Return a path there, as the user writes it."""
        prefix = getattr(self.backend, "prefix", "")
        return read_location(f"{site}:{prefix}{path}", load_sites(str(self.config)))

    def open(self, path: str = ROOT) -> Store:
        """Return a new Store object on this root or on another path, as in another process; closed at the
        end."""
        return self.opened(self.location(path))

    def opened(self, location: Location) -> Store:
        """Return the store at any location; closed at the end."""
        store = open_store(location)
        self._opened.append(store)
        if self._only_read(store):
            for name in ("make_root", "write", "remove", "keep", "lock"):
                setattr(store, name, _only_read)
        return store

    def fresh(self) -> Store:
        """Return a new Store object with its root created."""
        store = self.open()
        if not self._only_read(store):
            store.make_root()
        else:
            self.plant({})
        return store

    @staticmethod
    def _only_read(store: Store) -> bool:
        """Return whether it is only read here; tests/plugins/globus/test_transfers.py, test_cbrain.py and test_drafts.py test what they write."""
        return not store.facts.writable or store.facts.kind in {"globus", "cbrain", "openneuro"}

    def close(self) -> None:
        for store in self._opened:
            store.close()

    @property
    def folder(self) -> Path | None:
        """The root as a folder of this machine, if the store has one."""
        return self.backend.at(ROOT) if self.backend.by_path else None  # type: ignore[attr-defined]

    def plant(self, tree: Tree) -> None:
        """Create the tree there without hibali."""
        self.backend.plant(ROOT, tree)

    def files(self) -> dict[bytes, bytes]:
        """Return the content of every file there that is not hibali's own, read without hibali."""
        return self.backend.files(ROOT)

    def read(self, name: bytes) -> bytes | None:
        """Return one file's content, read without hibali; None if absent."""
        return self.backend.read(ROOT, name)

    def names(self) -> set[bytes]:
        """Return every name there, including hibali's own."""
        return self.backend.names(ROOT)

    def partials(self) -> set[bytes]:
        """Return the partial files there."""
        return {name for name in self.names() if is_partial_name(name)}

    def manifest(self) -> set[bytes]:
        """Return the digest manifest and its folder, the only names of hibali that stay beside data, where the store has them."""
        stays = {b".hibali", b".hibali/manifest.jsonl"}
        names = self.names()
        return names & stays if self.folder is None and b".hibali/manifest.jsonl" in names else set()

    def kill_writer(self, folder: Path, units: int) -> None:
        """Write the files of a folder in another process, which kills itself after this many units."""
        words = [sys.executable, "-m", "tests.support.killed_writer"]
        ended = subprocess.run(
            [*words, os.environ["HIBALI_CONFIG"], self.location().text, folder, str(units)],
            cwd=REPOSITORY,
            env=self.environment(),
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()

    def environment(self) -> dict[str, str]:
        """Return the environment of another process: hibali has hidden the secrets of this one."""
        folders = [str(REPOSITORY), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        return {**os.environ, **self.backend.env, "PYTHONPATH": os.pathsep.join(folders)}

    def unreachable(self) -> Location | None:
        """Return the same kind of store where no server answers; None if impossible."""
        table = self.backend.unreachable_table(free_port())
        return None if table is None else self._added("unreachable", table)

    def denied(self) -> Location | None:
        """Return the same store with a refused login; for an object store the caller changes the key."""
        table = self.backend.denied_table()
        if table is None:
            return None
        return self.location() if table == self.backend.table() else self._added("denied", table)

    @property
    def page(self) -> int:
        """The largest number of names in one page of a listing."""
        return self.backend.page

    def secrets(self) -> list[str]:
        """Return the texts that must never be shown."""
        return [value for name, value in self.backend.env.items() if "SECRET" in name]

    def _added(self, name: str, table: str) -> Location:
        text = self.config.read_text() + f"[sites.{name}]\n{table.replace('{name}', name)}\n"
        self.config.write_text(text)
        return self.location(site=name)

    def listed(self) -> dict[bytes, Entry]:
        """Return the listing of a new Store object."""
        return {entry.path: entry for entry in self.open().list()}


def subjects(
    word: str, request: pytest.FixtureRequest, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Subject]:
    """Yield the subject of one test: the body of a fixture."""
    home = request.getfixturevalue("hibali_home")
    backend = make_backend(word, folder, request.getfixturevalue)
    for name, value in backend.env.items():
        monkeypatch.setenv(name, value)
    add_site(home.config, SITE, backend)
    subject = Subject(backend, home.config)
    yield subject
    subject.close()
    backend.close()


def _only_read(*words: object) -> NoReturn:
    """Skip the rest of a test that writes, for a read-only store."""
    del words
    pytest.skip("this store is only read")


@contextmanager
def locked(store: Store) -> Iterator[Store]:
    """Yield the store, locked for writing if it supports locks."""
    lock = store.lock("test") if store.facts.locks else None
    try:
        yield store
    finally:
        if lock is not None:
            lock.release()
