"""Store files in a folder of this machine: the kind of site `box`."""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path
from typing import Any

from hibali.config.kinds import SiteOption, StoreKind
from hibali.config.schema import setting, table, text, whole
from hibali.errors import IncompleteError, NotFoundError
from hibali.events import Listener, ignore
from hibali.locations import Location
from transfers.model.entry import Entry, Kind, Verification
from transfers.model.facts import Facts, is_partial_name, unsafe_component
from transfers.model.store import Store
from transfers.model.units import Committed, Item, Payload, Problem, Space, Unit


@table
class BoxSettings:
    """The table [sites.NAME.box]."""

    folder: str = setting(text(r"/.*", "an absolute path"), doc="the folder that is the box")
    most_files: int = setting(whole(), default=1000, doc="how many files it takes")


KIND = StoreKind(
    settings=BoxSettings,
    has_keys=True,
    address=lambda site: str(site.own.folder),
    options=(SiteOption("box", "box.folder", "FOLDER", "A folder that is a box.", chooses=True),),
    example=("hibali sites add crate --box /data/box", "A box."),
)


def open_store(location: Location, *, on_event: Listener = ignore) -> BoxStore:
    """Open the box, or a folder in it."""
    del on_event
    return BoxStore(location.site.own, location.path)


class BoxStore(Store):
    """Files below one folder; links, modes and locks are not kept."""

    facts = Facts(
        kind="box",
        read_verification=Verification.DIGEST,
        write_verification=Verification.DIGEST,
        links=False,
        modes=False,
        locks=False,
    )
    logins = 0
    limited_by = None
    wire_bytes = 0

    def __init__(self, settings: BoxSettings, path: str) -> None:
        self._settings = settings
        self._root = Path(settings.folder) / path
        self.root_path = os.fsencode(self._root)

    def _path(self, path: bytes) -> Path:
        if path and unsafe_component(path):
            raise IncompleteError("unsafe-name", "this cannot be a path", subject=os.fsdecode(path))
        return self._root / os.fsdecode(path)

    def stat(self, path: bytes = b"") -> Entry | None:
        """See Store."""
        try:
            found = self._path(path).lstat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        if self._path(path).is_dir():
            return Entry(path, Kind.FOLDER)
        return Entry(path, Kind.FILE, found.st_size, found.st_mtime_ns)

    def list(self, *, shallow: bool = False) -> Iterator[Entry]:
        """See Store."""
        if self.stat() is None:
            raise NotFoundError("no-such-place", "the box has no such folder", subject=str(self._root))
        found = self._root.glob("*" if shallow else "**/*")
        paths = (os.fsencode(each.relative_to(self._root)) for each in found)
        entries = (self.stat(path) for path in paths if not is_partial_name(path))
        yield from sorted((entry for entry in entries if entry is not None), key=lambda entry: entry.order)

    def read(self, units: Iterable[Unit]) -> Iterator[Payload]:
        """See Store."""
        for unit in units:
            payload = Payload(unit, b"", [], [])
            for item in unit.items:
                content = self._path(item.entry.path).read_bytes() if item.carries else b""
                payload.digests.append(hashlib.sha256(content).hexdigest() if item.carries else None)
                payload.verifications.append(Verification.DIGEST)
                content = content[unit.offset : unit.offset + unit.length] if unit.segment else content
                payload.sizes.append(len(content))
                payload.data = bytes(payload.data) + content
            yield payload

    def write(self, payloads: Iterable[Payload]) -> Generator[Committed, None, None]:
        """See Store: a file gets its name when it is complete and its checksum is right."""
        partial = b""
        for payload in payloads:
            start = 0
            for position, item in enumerate(payload.unit.items):
                data = bytes(payload.data[start : start + payload.sizes[position]])
                start += payload.sizes[position]
                if position in payload.problems:
                    continue
                partial = partial + data if payload.unit.segment else data
                if payload.unit.last:
                    yield self._commit(item, partial, payload.digests[position])
                    partial = b""

    def _commit(self, item: Item, content: bytes, expected: str | None) -> Committed:
        final = self._path(item.entry.path)
        if item.entry.kind is Kind.FOLDER:
            final.mkdir(parents=True, exist_ok=True)
            return Committed(item, None, Verification.DIGEST)
        digest = hashlib.sha256(content).hexdigest()
        if expected is not None and digest != expected:
            return Committed(
                item,
                None,
                Verification.NONE,
                problem=Problem("corrupt", "it arrived damaged", retryable=True),
            )
        if sum(entry.kind is Kind.FILE for entry in self.list()) >= self._settings.most_files:
            return Committed(item, None, Verification.NONE, problem=Problem("box-full", "the box is full"))
        final.parent.mkdir(parents=True, exist_ok=True)
        partial = final.with_name(f".hibali-{secrets.token_hex(16)}")
        with partial.open("xb") as file:
            file.write(content)
            os.fsync(file.fileno())
        os.utime(partial, ns=(item.entry.mtime_ns, item.entry.mtime_ns))
        partial.replace(final)
        return Committed(item, digest, Verification.DIGEST)

    def digest(self, entries: Iterable[Entry]) -> Iterator[tuple[Entry, str | None, Problem | None]]:
        """See Store."""
        for entry in entries:
            yield entry, hashlib.sha256(self._path(entry.path).read_bytes()).hexdigest(), None

    def remove(self, entries: Iterable[Entry]) -> Iterator[tuple[Entry, Problem | None]]:
        """See Store."""
        for entry in entries:
            path, now = self._path(entry.path), self.stat(entry.path)
            if now is not None and (now.kind, now.size) != (entry.kind, entry.size):
                yield entry, Problem("changed", "it changed since it was listed")
                continue
            if now is not None:
                path.rmdir() if now.kind is Kind.FOLDER else path.unlink()
            yield entry, None

    def make_root(self) -> None:
        """See Store."""
        self._root.mkdir(parents=True, exist_ok=True)

    def lock(self, operation: str, *, make: bool = False) -> Any:
        """See Store: `facts.locks` says that there is none."""
        raise NotImplementedError

    def expect(self, size: int) -> None:
        """See Store: nothing has to be opened."""

    def begun(self, item: Item) -> int:
        """See Store: nothing is kept of what was interrupted."""
        del item
        return 0

    def space(self) -> Space:
        """See Store."""
        return Space(None, None)

    def close(self) -> None:
        """See Store: nothing is open."""
