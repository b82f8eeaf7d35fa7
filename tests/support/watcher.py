"""List a target repeatedly and read what changed, to check that only whole files are ever visible."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Mapping
from typing import Self

from tests.support.backends import Backend
from tests.support.trees import sha256

_PARTIAL = re.compile(rb"(.*/)?\.hibali-[0-9a-f]{32}")


class Watcher:
    """Watch `path` in a thread; `right` has the valid sha256 digests of each name."""

    def __init__(self, backend: Backend, path: str, right: Mapping[bytes, set[str]]) -> None:
        self._backend = backend
        self._path = path
        self._right = right
        self._seen: dict[bytes, object] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.wrong: list[str] = []
        self.reads = 0
        self.listings = 0
        self.problem: BaseException | None = None
        self._waiting: tuple[int, Callable[[], None]] | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *details: object) -> None:
        self._stop.set()
        self._thread.join()
        self.list_once()
        assert self.problem is None, self.problem
        assert not self.wrong, self.wrong[:5]
        assert self.listings > 1

    def when(self, count: int, act: Callable[[], None]) -> None:
        """Call `act` once, when `count` files have final names."""
        self._waiting = (count, act)

    def _watch(self) -> None:
        try:
            while not self._stop.is_set():
                began = time.monotonic()
                self.list_once()
                time.sleep(0.02 + (time.monotonic() - began) / 2)  # leave processor time to hibali
        except BaseException as problem:  # noqa: BLE001 - raised in the test's own thread
            self.problem = problem

    def list_once(self) -> int:
        """List once, read new or changed files, and return the number of files with final names."""
        now = self._backend.versions(self._path)
        final = {
            name: version
            for name, version in now.items()
            if not _PARTIAL.fullmatch(name) and not name.startswith(b".hibali/")
        }
        if self._waiting is not None and len(final) >= self._waiting[0]:
            act = self._waiting[1]
            self._waiting = None
            act()
        for name, version in final.items():
            if self._seen.get(name) != version:
                self._seen[name] = version
                self._check(name)
        self.listings += 1
        return len(final)

    def _check(self, name: bytes) -> None:
        content = self._backend.read(self._path, name)
        self.reads += 1
        if content is not None and sha256(content) not in self._right.get(name, ()):
            self.wrong.append(f"{name!r}: {len(content)} bytes with the content of no valid version")
