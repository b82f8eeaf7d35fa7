"""One running globus-url-copy: one connection to the server, and its pieces one after the other."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hibali.shell import Process
from transfers.gridftp_lines import HERE, Fit, list_line, mapped, url_of, words
from transfers.store import Unit

_DONE = b"226 "  # RFC 959: closing data connection, requested file action successful


@dataclass(frozen=True, slots=True)
class Direction:
    """Between which files the bytes go: both functions tell an absolute path, here and at the site.

    `paths` map those of the site to the server's. With `up` they go there. `proxy` is the
    one to log in with, None for whatever the program finds.
    """

    url: str
    paths: Mapping[str, str]
    up: bool
    here: Callable[[Unit], bytes]
    there: Callable[[Unit], bytes]
    proxy: Path | None = None

    def line(self, unit: Unit) -> str:
        """The line of a list that carries this piece."""
        here = url_of(HERE, self.here(unit))
        there = url_of(self.url, mapped(self.there(unit), self.paths))
        return list_line(here, there, unit) if self.up else list_line(there, here, unit)


class Copying:
    """It says of each piece in its turn that it is there, then that all has ended."""

    def __init__(
        self,
        pieces: Sequence[Unit],
        direction: Direction,
        chosen: Fit,
        passed: Callable[[Copying], None],
        ended: Callable[[Copying], None],
    ) -> None:
        """`passed` hears that further pieces are there, `ended` comes last; both from other threads. Raises `NotFoundError`."""
        self.pieces = pieces
        self.done = 0
        self.exit_code = 0
        self._up = direction.up
        self._passed = passed
        self._ended = ended
        self._seen = self._there = 0
        self._rest = b""
        self._folder = tempfile.TemporaryDirectory(prefix="hibali-")
        told = Path(self._folder.name) / "list"
        told.write_text("".join(map(direction.line, pieces)), encoding="ascii")
        environment = {**os.environ, "LC_ALL": "C"}
        if direction.proxy is not None:
            environment["X509_USER_PROXY"] = str(direction.proxy)
        try:
            self._process = Process(words(str(told), chosen), environment, hear=self._take, tethered=True)
        except BaseException:
            self._folder.cleanup()
            raise
        threading.Thread(target=self._wait, name="gridftp", daemon=True).start()

    def _take(self, chunk: bytes) -> None:
        """What the server answers stands at the beginning of a line."""
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        seen = self._seen + sum(line.startswith(_DONE) for line in lines)
        if seen == self._seen:
            return
        self._seen = seen
        # A server has sent all before we have written all.
        self._tell(seen if self._up else seen - 1)

    def _tell(self, count: int) -> None:
        if count > self._there:
            self._there = min(count, len(self.pieces))
            self._passed(self)

    def take_passed(self) -> Sequence[Unit]:
        """The pieces that came since this was asked last, which makes them `done`; one thread's own."""
        before, self.done = self.done, self._there
        return self.pieces[before : self.done]

    def _wait(self) -> None:
        while self._process.stdout.read(4096):
            pass
        self.exit_code = self._process.end()
        self._folder.cleanup()
        if self.exit_code == 0:
            self._tell(len(self.pieces))
        self._ended(self)

    @property
    def errors(self) -> bytes:
        """The end of what it said; complete once it has ended."""
        return self._process.errors

    def kill(self) -> None:
        """End it now; `ended` is called all the same."""
        self._process.kill()
