"""Use files at the sites of hibali as inputs and outputs of Snakemake, as hibali://SITE/PATH."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_storage_plugins.common import Operation
from snakemake_interface_storage_plugins.io import IOCacheStorageInterface, Mtime, get_constant_prefix
from snakemake_interface_storage_plugins.settings import StorageProviderSettingsBase
from snakemake_interface_storage_plugins.storage_object import (
    StorageObjectGlob,
    StorageObjectRead,
    StorageObjectWrite,
)
from snakemake_interface_storage_plugins.storage_provider import (
    ExampleQuery,
    QueryType,
    StorageProviderBase,
    StorageQueryValidationResult,
)

import hibali
from hibali.retry import growing_intervals, pause
from hibali_plugins.filesystem.filesystem import HibaliFileSystem
from snakemake_storage_plugin_hibali.queries import (
    PROTOCOL,
    Listings,
    find_problem,
    folder_of,
    folders_above,
    local_suffix,
    path_of,
    place_of,
)

Info = Mapping[str, Any]

_LOCKED_SECONDS = 900.0


@contextmanager
def explained() -> Iterator[None]:
    """Raise hibali's errors as Snakemake prints them, with what to do next."""
    try:
        yield
    except hibali.HibaliError as problem:
        raise WorkflowError(str(problem)) from problem


@dataclass
class StorageProviderSettings(StorageProviderSettingsBase):
    """Only the settings that every storage has: hibali's are in config.toml, or the file that HIBALI_CONFIG names."""


class StorageProvider(StorageProviderBase):
    """All sites of hibali. Connections are kept, so that each site needs one login."""

    def __post_init__(self) -> None:
        """See StorageProviderBase."""
        self.files = HibaliFileSystem()
        self._listings = Listings()
        self._unlisted: set[str] = set()  # folders of which a part cannot be read

    @classmethod
    def example_queries(cls) -> list[ExampleQuery]:
        """See StorageProviderBase."""
        return [
            ExampleQuery(
                "hibali://juwels/scans/a.nii.gz", "A path relative to the site's root", QueryType.ANY
            ),
            ExampleQuery("hibali://juwels//p/scratch/scans/a.nii.gz", "An absolute path", QueryType.ANY),
            ExampleQuery("hibali://archive/bucket/{subject}.txt", "A key of an object store", QueryType.ANY),
        ]

    @classmethod
    def is_valid_query(cls, query: str) -> StorageQueryValidationResult:
        """See StorageProviderBase."""
        problem = find_problem(query)
        return StorageQueryValidationResult(query, problem is None, problem)

    def use_rate_limiter(self) -> bool:
        """See StorageProviderBase: hibali itself limits logins, so that requests are limited only on demand."""
        return self.settings is not None and self.settings.max_requests_per_second is not None

    def default_max_requests_per_second(self) -> float:
        """See StorageProviderBase; used only with a rate of the user."""
        return float(self.settings.max_requests_per_second)

    def rate_limiter_key(self, query: str, operation: Operation) -> str:
        """See StorageProviderBase."""
        del operation
        return path_of(query).partition("/")[0]

    def find(self, path: str) -> Info | None:
        """Return what is at SITE/PATH, None if there is nothing. Raises `WorkflowError` if that is not known."""
        with explained(), suppress(FileNotFoundError):
            return self.files.info(path)
        return None

    def fill(self, cache: IOCacheStorageInterface, path: str) -> None:
        """Fill the cache for SITE/PATH and the files near it, with one request or none."""
        known, key, folder = cache.exists_in_storage, self._cache_key(path), folder_of(path)
        if folder and folder not in self._unlisted:
            if not self._is_listed(cache, folder):
                self._list(cache, folder)
            if self._is_listed(cache, folder):
                known.setdefault(key, False)
                return
        _note(cache, key, self.find(path))

    def _list(self, cache: IOCacheStorageInterface, folder: str) -> None:
        """List a folder, or with everything below it one in which several folders were listed before."""
        chosen = self._listings.choose(folder)
        whole = chosen != folder
        try:
            found = self._read(chosen, whole=whole)
        except (hibali.AccessError, hibali.IncompleteError):  # a part cannot be read: ask for each file
            self._unlisted.add(folder)
            return
        for path, info in found.items():
            _note(cache, self._cache_key(path), info)
        cache.exists_in_storage[_mark(self._cache_key(chosen), whole=whole)] = True

    def _read(self, folder: str, *, whole: bool) -> Mapping[str, Info]:
        """Return what is in a folder by its path, nothing if there is no such folder."""
        with suppress(FileNotFoundError):
            if whole:
                return dict(self.files.find(folder, withdirs=True, detail=True))
            return {info["name"]: info for info in self.files.ls(folder, detail=True)}
        return {}

    def _is_listed(self, cache: IOCacheStorageInterface, folder: str) -> bool:
        known = cache.exists_in_storage
        return _mark(self._cache_key(folder), whole=False) in known or any(
            _mark(self._cache_key(each), whole=True) in known for each in (folder, *folders_above(folder))
        )

    def _cache_key(self, path: str) -> str:
        return str(self.local_prefix / local_suffix(path))


def _while_locked(act: Callable[[], object]) -> None:
    """Call `act`, again and again while another job sends a file to the same folder, which has one lock."""
    intervals, waited = growing_intervals(0.2, 5.0), 0.0
    while True:
        try:
            act()
            return
        except hibali.TryLaterError as problem:
            if problem.code != "locked" or waited >= _LOCKED_SECONDS:
                raise
        seconds = intervals.next_pause() * random.uniform(0.5, 1.5)  # noqa: S311  # jobs that began together
        waited += seconds
        pause(seconds)


def _mark(key: str, *, whole: bool) -> str:
    """Return the key under which the cache knows that a folder was listed."""
    return f"{key}/{'**' if whole else '*'}"


def _note(cache: IOCacheStorageInterface, key: str, info: Info | None) -> None:
    """Write what is known of a file into the cache; of a folder only that it exists."""
    cache.exists_in_storage[key] = info is not None
    if info is not None and not _is_folder(info):
        cache.mtime[key] = Mtime(storage=_time(info))
        cache.size[key] = info["size"]
        cache.checksum[key] = _checksum(info)


def _is_folder(info: Info) -> bool:
    return bool(info["type"] == "directory")


def _time(info: Info) -> float:
    """Return the time of the last change, 0 at a site that has no times."""
    return float(info.get("mtime", 0.0))


def _checksum(info: Info) -> str | None:
    return f"sha256:{info['sha256']}" if "sha256" in info else None


class StorageObject(StorageObjectRead, StorageObjectWrite, StorageObjectGlob):
    """A file or folder at a site."""

    provider: StorageProvider

    @property
    def _path(self) -> str:
        return path_of(self.query)

    def _require(self) -> Info:
        with explained():
            return dict(self.provider.files.info(self._path))

    def local_suffix(self) -> str:
        """See StorageObjectBase."""
        return local_suffix(self._path)

    async def inventory(self, cache: IOCacheStorageInterface) -> None:
        """See StorageObjectRead; a job that Snakemake started has no time for listings, and asks for its own files."""
        if self.cache_key() not in cache.exists_in_storage and getattr(cache, "remaining_wait_time", 1) > 0:
            with explained():
                self.provider.fill(cache, self._path)

    def get_inventory_parent(self) -> str | None:
        """See StorageObjectRead: the cache has an entry for each file that is missing, instead of one for its folder."""
        return None

    def cleanup(self) -> None:
        """See StorageObjectRead; Snakemake removes the local copy."""

    def exists(self) -> bool:
        """See StorageObjectRead."""
        return self.provider.find(self._path) is not None

    def mtime(self) -> float:
        """Return the time of the last change; of a folder, that of its newest file."""
        info = self._require()
        return max(map(_time, self._files_below()), default=_time(info)) if _is_folder(info) else _time(info)

    def size(self) -> int:
        """See StorageObjectRead."""
        return int(self._require()["size"])

    def checksum(self) -> str | None:
        """Return the sha256 that the site recorded for this content, None if it has none."""
        return _checksum(self._require())

    def local_footprint(self) -> int:
        """See StorageObjectRead."""
        info = self._require()
        return sum(each["size"] for each in self._files_below()) if _is_folder(info) else int(info["size"])

    def _files_below(self) -> list[Info]:
        with explained():
            return list(self.provider.files.find(self._path, detail=True).values())

    def retrieve_object(self) -> None:
        """Fetch the file or folder, verified; its local copy is never older than the file itself."""
        with explained():
            hibali.pull(place_of(self._path), self.local_path())
        local, time = self.local_path(), self.mtime()
        if local.stat().st_mtime < time:  # an object store has another time in its listing
            os.utime(local, (time, time))

    def store_object(self) -> None:
        """Send the local file or folder, verified."""
        with explained():
            _while_locked(lambda: hibali.push(self.local_path(), place_of(self._path)))

    def remove(self) -> None:
        """Remove the file or folder, if it exists."""
        info = self.provider.find(self._path)
        if info is not None:
            with explained():
                hibali.rm(place_of(self._path), recursive=_is_folder(info), max_delete="100%")

    def list_candidate_matches(self) -> Iterable[str]:
        """Return everything below the folder that the query names before its first wildcard."""
        folder = path_of(get_constant_prefix(self.query, strip_incomplete_parts=True)).rstrip("/")
        if not folder_of(f"{folder}/*"):
            raise WorkflowError(f"{self.query}: name a folder before the first wildcard")
        with explained():
            found = self.provider.files.find(folder, withdirs=True)
        return [f"{PROTOCOL}{path}" for path in found if path != folder]
