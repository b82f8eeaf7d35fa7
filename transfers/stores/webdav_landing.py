"""One file at a WebDAV server from its partial name to its final one: read back, then moved (S1, S18)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from hibali.errors import HibaliError, IncompleteError
from transfers.agent import own_names
from transfers.entry import Entry, Kind
from transfers.kept_lease import KeptLease, NoLock
from transfers.store import Item, Problem
from transfers.stores.webdav_files import Files
from transfers.stores.webdav_known import Found, date_of, header_seconds, known_word
from transfers.stores.webdav_own import below
from transfers.stores.webdav_probe import MODIFIED, TIME_HEADER, Honours
from transfers.stores.webdav_removing import Removing
from transfers.stores.webdav_xml import KNOWN

CORRUPT = Problem("corrupt", "what is read back differs from what was sent", again=True)
_CHANGED = Problem("target-changed", "it is no longer what the plan saw at the target, and was left alone")
_FOLDER = Problem("folder-in-the-way", "a folder of that name stands at the target")
_ROUNDS = 3


class Refused(Exception):  # noqa: N818  # one item's problem on its way up
    """An item that will not land."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.code)
        self.problem = problem


@dataclass(slots=True)
class Place:
    """Where files land, for one `write`. `aside` are folders that made room, to be purged at the end."""

    files: Files
    removing: Removing
    honours: Honours
    holder: KeptLease | NoLock
    root: bytes
    seed: bytes
    path_of: Callable[[bytes], bytes]
    read_back: bool
    aside: list[bytes] = field(default_factory=list)
    left: bool = False  # something may stay under a partial name
    _made: set[bytes] = field(default_factory=set)
    _making: threading.Lock = field(default_factory=threading.Lock)

    def name_for(self, path: bytes, what: bytes = b"") -> bytes:
        """The whole partial path beside `path`; `what` tells apart several for one path."""
        folder = path.rpartition(b"/")[0]
        return below(self.root, below(folder, own_names.partial_name(self.seed, what + path)))

    def headers_of(self, entry: Entry) -> dict[str, str]:
        """What goes with a PUT."""
        if self.honours.times != "header":
            return {}
        return {TIME_HEADER: str(header_seconds(entry.mtime_ns))}

    def make_folders(self, path: bytes) -> None:
        """The folders above a path below the root, made where they are missing; raises for a file among them."""
        parts = path.split(b"/")[:-1]
        for count in range(1, len(parts) + 1):
            folder = b"/".join(parts[:count])
            with self._making:
                if folder not in self._made:
                    self.files.make_folder(self.path_of(folder))
                    self._made.add(folder)

    def make_folder(self, item: Item) -> None:
        """The folder of an item; a file in its way goes where that was agreed."""
        if item.clear and item.replaces is not None and item.replaces.kind is not Kind.FOLDER:
            self.holder.check()
            problem = self.removing.remove_file(self.path_of(item.entry.path), item.replaces)
            if problem is not None:
                raise Refused(problem)
        self.make_folders(item.entry.path + b"/")

    def finish(self, item: Item, name: bytes, digest: str) -> Found:
        """What was put under `name` is read back, gets its time, and then its name. Raises `Refused`, `HibaliError`."""
        entry = item.entry
        if self.honours.times == "proppatch":
            self.files.set_property(name, MODIFIED, date_of(entry.mtime_ns))
        tag = self._look_back(entry, name, digest)
        kept = bool(tag) and self.honours.properties
        if kept and not self.files.set_property(name, KNOWN, known_word(entry, digest, tag)):
            raise Refused(Problem("no-property", "the server did not keep its time and digest"))
        self.holder.check()
        self._move(item, name, digest)
        return Found(folder=False, size=entry.size, mtime_ns=entry.mtime_ns, tag=tag, digest=digest)

    def _look_back(self, entry: Entry, name: bytes, digest: str) -> str:
        """The tag of what stands under the partial name, once it is what was sent."""
        if self.read_back:
            found, size, tag = self.files.digest(name, entry.size)
            if (found, size) != (digest, entry.size):
                raise Refused(CORRUPT)
            return tag
        there = self.files.look(name)
        if there is None or there.size != entry.size:
            raise Refused(CORRUPT)
        return there.tag

    def _move(self, item: Item, name: bytes, digest: str) -> None:
        """The final name. MOVE over something deletes it first (RFC 4918, 9.9.3), folders with all they hold: so it is looked at."""
        to = self.path_of(item.entry.path)
        looked = item.exact or item.replaces is not None
        for _ in range(_ROUNDS):
            there = self.files.look(to) if looked else None
            problem = self._unfit(item, there)
            if problem is not None:
                raise Refused(problem)
            if there is not None and there.folder:
                self._set_aside(item, to)
                there = None
            if self._moved(name, to, there, digest, item.entry.size):
                return
            looked = True
        raise Refused(_CHANGED)

    def _unfit(self, item: Item, there: Found | None) -> Problem | None:
        """Why what stands there may not be replaced."""
        if there is None:
            return None
        if there.folder:
            agreed = item.replaces is not None and item.replaces.kind is Kind.FOLDER and item.clear
            return None if agreed else _FOLDER
        if item.exact and (item.replaces is None or not there.is_still(item.replaces)):
            return _CHANGED
        return None

    def _moved(self, name: bytes, to: bytes, there: Found | None, digest: str, size: int) -> bool:
        """Whether it has its name; False where something else came to stand there since it was looked at."""
        headers = {}
        if there is not None and self.honours.if_tag and not there.tag.startswith("@"):
            headers["If"] = f'<{self.files.wire.address(to)}> (["{there.tag}"])'
        status = self.files.move(name, to, headers, overwrite=there is not None)
        if status == 404 and self.files.digest(to, size)[0] != digest:
            # A MOVE whose answer was lost finds nothing more to move the second time.
            raise IncompleteError(
                "corrupt", "it vanished before it had its name", about=self.files.about, transient=True
            )
        return status != 412

    def _set_aside(self, item: Item, path: bytes) -> None:
        """A folder that agreed to make room goes under a name of ours and is purged at the end."""
        aside = self.name_for(item.entry.path, b"aside/")
        if self.files.move(path, aside, {}, overwrite=False) < 300:
            self.aside.append(aside)
            with self._making:
                gone = item.entry.path + b"/"
                self._made = {made for made in self._made if not (made + b"/").startswith(gone)}

    def drop(self, name: bytes) -> None:
        """Remove what will not land; what cannot be removed is left for the next run, which knows its name."""
        try:
            self.files.delete(name)
        except HibaliError:
            self.left = True

    def purge(self) -> None:
        """What was set aside goes, with all it holds."""
        for path in self.aside:
            self.files.delete(path, folder=True)
        self.aside.clear()
