"""Write and read small whole files of sites, in one request for all that several threads want at the same time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from hibali.config.kinds import kind_of
from hibali.errors import HibaliError, NotFoundError, is_lost
from hibali.locations import Location, check_writable
from hibali_api.calls import Call
from hibali_plugins.filesystem.grouping import Group
from hibali_plugins.filesystem.os_errors import NoSuchFileError, as_os_error
from hibali_plugins.filesystem.site_files import SiteFiles
from transfers.model.entry import Entry, Kind
from transfers.model.store import Store
from transfers.model.units import PACK_BYTES, Problem
from transfers.planning.protected_roots import check_root_exists
from transfers.remote.connection import error_from
from transfers.stores.agent_store import NEEDS_TRANSFER
from transfers.stores.open_store import open_store

File = tuple[str, bytes]  # path and content
_Part = tuple[bytes, bytes]  # name and content

_FETCHED_BYTES = 4 * PACK_BYTES
_ELSEWISE = Problem(NEEDS_TRANSFER, "")
_TRANSFERRED = {NEEDS_TRANSFER, "locked"}
_MISSING = "vanished"


class SmallFiles:
    """Files of at most `PACK_BYTES`, by text paths, SITE/PATH. Use it from any thread."""

    def __init__(self, files: SiteFiles) -> None:
        self._files = files
        self._writes = Group[File, Problem | HibaliError | None](
            self._store, lambda file: len(file[1]), PACK_BYTES
        )
        self._reads = Group[str, bytes | Problem | HibaliError](self._fetch, lambda _: 0, PACK_BYTES)

    def write(self, files: Sequence[File]) -> list[File]:
        """Write small files, hashed at both ends and on disk at the site when this returns.

        Returns:
            Those with which nothing happened, because they are too large or need a transfer.
        """
        small = [each for each in files if len(each[1]) <= PACK_BYTES]
        left = [each for each in files if len(each[1]) > PACK_BYTES]
        for file, found in zip(small, self._writes.call(small), strict=True):
            if isinstance(found, Problem) and found.code in _TRANSFERRED:
                left.append(file)
            elif found is not None:
                raise _raised(found, file[0])
        return left

    def read(self, path: str) -> bytes | None:
        """Return the content of one version of a small file; None if it has to be read in another way."""
        found = self._reads.call([path])[0]
        if isinstance(found, bytes):
            return found
        if isinstance(found, HibaliError) or found.code == _MISSING:
            raise _raised(found, path)
        return None

    def _store(self, files: Sequence[File]) -> list[Any]:
        def store_in(folder: Location, store: Store, parts: Sequence[_Part]) -> Sequence[Problem | None]:
            now = time.time_ns()
            entries = [(Entry(name, Kind.FILE, len(content), now), content) for name, content in parts]
            try:
                return store.store_files(entries)
            except NotFoundError:  # the folder is missing
                check_root_exists(folder, store, open_store)
                store.make_root()
            return store.store_files(entries)

        return self._files.repeatable(lambda call: self._by_folder(call, files, store_in, check_writable))

    def _fetch(self, paths: Sequence[str]) -> list[Any]:
        def fetch_in(_: Location, store: Store, parts: Sequence[_Part]) -> Sequence[bytes | Problem]:
            try:
                return store.fetch_files([name for name, _ in parts], _FETCHED_BYTES)
            except NotFoundError as problem:
                return [Problem(_MISSING, problem.message)] * len(parts)

        files = [(path, b"") for path in paths]
        return self._files.repeatable(lambda call: self._by_folder(call, files, fetch_in))

    def _by_folder(
        self,
        call: Call,
        files: Sequence[File],
        act: Callable[[Location, Store, Sequence[_Part]], Sequence[Any]],
        check: Callable[[Location], None] = lambda _: None,
    ) -> list[Any]:
        """Make one request for each folder; return the answer, or a `HibaliError`, for each file."""
        answers: list[Any] = [_ELSEWISE] * len(files)
        folders: dict[tuple[str, str], list[tuple[int, Location]]] = {}
        for number, (path, _) in enumerate(files):
            try:
                location = self._files.location(call, path)
                check(location)
            except HibaliError as problem:
                answers[number] = problem
                continue
            if location.name and "/" in location.path and not kind_of(location.site).has_keys:
                key = location.site.name, location.parent.path
                folders.setdefault(key, []).append((number, location))
        for parts in folders.values():
            named = [(location.name, files[number][1]) for number, location in parts]
            for (number, _), answer in zip(parts, self._act_in(parts[0][1].parent, act, named), strict=True):
                answers[number] = answer
        return answers

    def _act_in(
        self,
        folder: Location,
        act: Callable[[Location, Store, Sequence[_Part]], Sequence[Any]],
        parts: Sequence[_Part],
    ) -> Sequence[Any]:
        """Make a request for files of one folder. Raises only the error of a lost connection."""
        try:
            with self._files.small_files(folder) as store:
                return act(folder, store, parts) if store.can(Store.store_files) else [_ELSEWISE] * len(parts)
        except HibaliError as problem:
            if is_lost(problem):
                raise
            return [problem] * len(parts)


def _raised(found: Problem | HibaliError, path: str) -> HibaliError:
    """Return the error of a file, as an OSError."""
    if isinstance(found, HibaliError):
        return as_os_error(found)
    if found.code == _MISSING:
        return NoSuchFileError("no-such-place", "no file or folder with that name exists", subject=path)
    return as_os_error(error_from(found.code, found.message, path))
