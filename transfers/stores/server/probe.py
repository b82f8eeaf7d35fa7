"""Probe once what a server or a filesystem supports, and store the result for the next call."""

from __future__ import annotations

import contextlib
import json
import secrets
import threading
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

from hibali.errors import AccessError, HibaliError, IncompleteError, NotFoundError
from hibali.files import private_folder, read_regular, state_folder, write_atomic
from hibali.ledger import now
from transfers.model.entry import Verification
from transfers.model.facts import Facts
from transfers.stores.server.files import Exclusive, Files, Put, Traits
from transfers.stores.server.locks import PROBE
from transfers.stores.server.own_files import Own, below
from transfers.stores.server.records import PIECE_BYTES, Found

LONG_NAME = 300  # bytes: longer than filesystems of servers may allow


class Seen(Protocol):
    """A dataclass of the observed behavior of a server."""

    @property
    def refuses(self) -> tuple[str, ...]:
        """Characters that names must not contain."""

    __dataclass_fields__: ClassVar[dict[str, Any]]


_Seen = TypeVar("_Seen", bound=Seen)
_Result = TypeVar("_Result")


def recall(seen: type[_Seen], site: str, table: str, name: str, endpoint: str) -> _Seen | None:
    """Return the stored probe result of `name` (such as a bucket) at this endpoint, or None."""
    found = _read(_file(site)).get(table)
    record = found.get(name) if isinstance(found, dict) else None
    if (
        not isinstance(record, dict)
        or record.get("endpoint") != endpoint
        or not isinstance(record.get("honours"), dict)
    ):
        return None
    try:
        known = seen(**record["honours"])
        return replace(known, refuses=tuple(known.refuses))
    except TypeError:
        return None


def remember(seen: Seen, site: str, table: str, name: str, endpoint: str) -> None:
    """Store a probe result for the next call; if that fails, the server is probed again."""
    path = _file(site)
    record = _read(path)
    stored = record.get(table)
    results = stored if isinstance(stored, dict) else {}
    results[name] = {"endpoint": endpoint, "at": now(), "honours": asdict(seen)}
    with contextlib.suppress(OSError):
        write_atomic(
            path, json.dumps({**record, table: results, "schema": 1}, indent=1).encode("ascii") + b"\n"
        )


def add_facts(seen: Seen, facts: dict[str, str | int | bool]) -> None:
    """Add a probe result to the facts that `hibali sites check` shows."""
    for name, value in asdict(seen).items():
        facts[name.replace("_", " ")] = value if not isinstance(value, tuple) else " ".join(map(repr, value))


def _file(site: str) -> Path:
    return private_folder(state_folder() / "sites") / f"{site}.json"


def _read(path: Path) -> dict[str, Any]:
    try:
        record = json.loads(read_regular(path))
    except (OSError, ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


def run_probe(probe: Callable[[], _Result], stopped: threading.Event) -> _Result:
    """Run a probe in a separate thread, so that an interruption waits for its cleanup.

    Otherwise a PUT could complete after the cleanup. `stopped` is set when the wait is over.
    """
    with ThreadPoolExecutor(1, thread_name_prefix="probe") as thread:
        try:
            return thread.submit(probe).result()
        finally:
            stopped.set()


def refused_characters(tried: Mapping[bytes, bytes], found: Collection[bytes]) -> tuple[str, ...]:
    """Return characters of `tried` names that were not found; U+0001 represents other control characters."""
    lacking = [character.decode() for name, character in tried.items() if name not in found]
    if "\x01" in lacking:
        lacking = sorted({*lacking, *map(chr, range(1, 32))} - ({"\t", "\n", "\r"} - set(lacking)))
    return tuple(lacking)


TABLE = "filesystems"  # of the stored probe results
_FIRST, _OTHER = b"hibali tests this server\n", b"and tests it again here\n\n"  # of the same length
_ODD = (
    b"\\",
    b"\n",
    b"\r",
    b"\t",
    b"\x01",
    b"\x7f",
    b":",
    b"*",
    b"?",
    b'"',
    b"<",
    b"|",
    b"[",
    b"{",
    b"#",
    b"%",
    b"+",
    b";",
    b"=",
    b"~",
    b" ",
)
_KEY_BYTES, _PATH_BYTES = 1024, 4000  # of a whole key or path
_NAME_SECONDS = 10.0  # some implementations retry for minutes if a server fails on a name
_ENDS = (b" ", b".")  # characters that some servers cut off at the end of a name


@dataclass(frozen=True, slots=True)
class FilesystemSupport:
    """What a filesystem supports, as probed; the default is nothing.

    `replaces` is whether a rename replaces a file; `versions` whether a replaced file can be told apart.
    """

    writable: bool = False
    put: str = ""
    exclusive: str = ""
    replaces: bool = False
    versions: bool = False
    ranges: bool = False
    folders: bool = False
    file_and_folder: bool = False
    folds_case: bool = False
    name_bytes: int = 0
    refuses: tuple[str, ...] = ()

    @property
    def locks(self) -> bool:
        """Whether only one client can create a file."""
        return self.exclusive != ""


def facts_of(
    support: FilesystemSupport | None,
    traits: Traits,
    read_verification: Verification,
    *,
    read_back: bool,
) -> Facts:
    """Return the store's facts; for a filesystem that was not probed, those that its kind promises."""
    seen = support or FilesystemSupport(
        writable=True,
        put=traits.put,
        exclusive=traits.exclusive or Exclusive.CREATE,
        versions=True,
        folders=not traits.keys,
        file_and_folder=traits.keys,
        name_bytes=255,
    )
    return Facts(
        kind=traits.kind,
        read_verification=read_verification,
        write_verification=Verification.DIGEST if read_back else Verification.SIZE,
        folders=seen.folders,
        file_and_folder=seen.file_and_folder,
        links=False,
        modes=seen.versions,
        mtimes=seen.versions,
        locks=seen.locks,
        swaps=traits.swaps and (seen.put != Put.RENAMED or seen.replaces),
        name_bytes=seen.name_bytes,
        path_bytes=_KEY_BYTES if traits.keys else _PATH_BYTES,
        utf8_names=True,
        folds_case=seen.folds_case,
        segment_bytes=PIECE_BYTES,
        refuses=tuple(character.encode() for character in seen.refuses),
        writable=seen.writable,
        # adlfs lists no keys below that of an object, so that they would seem to be deleted
        complete=not traits.keys or (support is not None and support.file_and_folder),
        known=support is not None,
        removes_trees=True,
    )


def support_of_machine(traits: Traits) -> FilesystemSupport:
    """Return what the filesystem of a Linux machine supports (`Traits.posix`): that is certain, so it is not probed."""
    return FilesystemSupport(
        writable=True,
        put=traits.put,
        exclusive=traits.exclusive,
        replaces=True,
        versions=True,
        ranges=True,
        folders=True,
        name_bytes=255,
        refuses=tuple(chr(each) for each in traits.refuses),
    )


def probe_filesystem(files: Files, root: bytes) -> FilesystemSupport:
    """Probe the filesystem in the existing folder `root`. Raise connection errors.

    If writing is denied, nothing else can be probed.
    """
    probe = _Probe(files, root)
    return run_probe(probe.run_and_clean, probe.stopped)


class _Probe:
    """One probe; listings skip its names, so leftovers of a crash do not appear in them."""

    def __init__(self, files: Files, root: bytes) -> None:
        self._files = files
        self._root = root
        self._all = below(root, PROBE)
        self._folder = self._all + b"/" + secrets.token_hex(8).encode("ascii")
        self.stopped = threading.Event()

    def run_and_clean(self) -> FilesystemSupport:
        """Run the probe and remove its files. Raise `CancelledError` once `stopped` is set."""
        try:
            self._files.make_folder(self._folder)
            return self._run()
        except AccessError as problem:
            if problem.code != "denied":
                raise
            return FilesystemSupport()
        except IncompleteError as problem:
            if problem.code not in {"not-supported", "refused-by-server"}:
                raise
            return FilesystemSupport()
        finally:
            self._clean()

    def _clean(self) -> None:
        with contextlib.suppress(HibaliError):
            self._files.remove_tree(self._folder)
            if not self._listed(self._all):
                self._files.remove_folder(self._all)
            Own(self._files, self._root).remove_folder()

    def _listed(self, folder: bytes) -> dict[bytes, Found]:
        try:
            return dict(self._files.children(folder))
        except NotFoundError:  # where folders exist only as parts of keys
            return {}

    def _path(self, name: bytes) -> bytes:
        if self.stopped.is_set():
            raise CancelledError
        return self._folder + b"/" + name

    def _content(self, name: bytes) -> bytes | None:
        return self._files.read_small(self._path(name), 1024)

    def _run(self) -> FilesystemSupport:
        first, other = self._path(b"a"), self._path(b"b")
        self._files.put(first, _FIRST)
        before = self._files.stat(first)
        self._files.put(other, _OTHER)
        if (self._content(b"a"), self._content(b"b")) != (_FIRST, _OTHER) or before is None:
            return FilesystemSupport()
        replaces = self._replaces()
        put = self._files.traits.put or self._find_put(replaces=replaces)
        if put is Put.RENAMED and replaces is None:
            put = Put.UNKNOWN
        exclusive = self._exclusive(replaces=replaces)
        names = self._names()
        return FilesystemSupport(
            writable=put is not Put.UNKNOWN,
            put=str(put),
            exclusive=str(exclusive),
            replaces=replaces is True,
            versions=self._versions(before),
            ranges=bytes(self._files.get(first, offset=3, length=5).content) == _FIRST[3:8],
            folders=self._folders(),
            file_and_folder=self._file_and_folder(),
            **names,
        )

    def _versions(self, before: Found) -> bool:
        """Return whether listing and query agree on the tag, and the tag changes with the content."""
        path = self._path(b"a")
        listed = self._listed(self._folder).get(b"a")
        if not before.tag or listed is None:
            return False
        if listed.tag.startswith("@"):
            return listed.tag == before.tag  # times change, but not within their resolution
        self._files.put(path, _FIRST[::-1])
        after = self._files.stat(path)
        self._files.put(path, _FIRST)
        return listed.tag == before.tag and after is not None and after.tag != before.tag

    def _replaces(self) -> bool | None:
        """Return whether a rename replaces a file; None if a file cannot be renamed at all."""
        if self._files.traits.keys or not self._files.renames:
            return None
        old, new = self._path(b"old"), self._path(b"new")
        self._files.put(old, _FIRST)
        try:
            self._files.move(old, new)
        except HibaliError:
            return None
        if self._content(b"new") != _FIRST or self._content(b"old") is not None:
            return None
        self._files.put(old, _OTHER)
        with contextlib.suppress(HibaliError):
            self._files.move(old, new)
        return self._content(b"new") == _OTHER and self._content(b"old") is None

    def _find_put(self, *, replaces: bool | None) -> Put:
        """Return how an unknown filesystem can put files so that half a file is never seen."""
        if replaces is not None:
            return Put.RENAMED
        path = self._path(b"streamed")
        with self._files.upload(path, 0) as upload:
            if not upload.discards:
                return Put.UNKNOWN
            for _ in range(3):  # more than the buffer, so that the server has got some of it
                upload.write(b"\0" * PIECE_BYTES)
            if self._files.stat(path) is not None:
                return Put.UNKNOWN
        return Put.UNKNOWN if self._files.stat(path) is not None else Put.STREAMED

    def _exclusive(self, *, replaces: bool | None) -> Exclusive:
        """Return how only one of several clients creates a file, where the filesystem is known to decide it."""
        how = self._files.traits.exclusive
        if how is Exclusive.NONE:
            return Exclusive.RENAME if replaces is False else Exclusive.NONE
        path = self._path(b"exclusive")
        try:
            if how is Exclusive.FOLDER:
                works = self._files.claim_folder(path) and not self._files.claim_folder(path)
                self._files.release_folder(path)
            else:
                works = (
                    self._files.create(path, _FIRST, how)
                    and not self._files.create(path, _OTHER, how)
                    and self._content(b"exclusive") == _FIRST
                )
        except IncompleteError:
            works = False
        return how if works else Exclusive.NONE

    def _folders(self) -> bool:
        """Return whether an empty folder is kept and listed."""
        if self._files.traits.keys:
            return False
        self._files.make_folder(self._path(b"folder"))
        found = self._listed(self._folder).get(b"folder")
        return found is not None and found.folder

    def _file_and_folder(self) -> bool:
        """Return whether a key that is also the beginning of others is listed together with them."""
        if not self._files.traits.keys:
            return False
        self._files.put(self._path(b"both"), _FIRST)
        self._files.put(self._path(b"both/x"), _FIRST)
        listed = [found.folder for name, found in self._files.children(self._folder) if name == b"both"]
        below_it = self._listed(self._path(b"both"))
        self._files.delete(self._path(b"both/x"))
        return listed == [False, True] and list(below_it) == [b"x"]

    def _names(self) -> dict[str, Any]:
        tried = {b"x" + odd + (b"41x" if odd == b"%" else b"x"): odd for odd in _ODD}
        tried |= {b"x" + end: end for end in _ENDS if b"x" + end not in tried}
        tried[b"x?x#x"] = b"#"  # some implementations take both together for parts of a URL
        long, upper = b"l" * LONG_NAME, b"UPPER"
        refused = set(self._files.traits.refuses)
        names = [name for name in tried if refused.isdisjoint(name)]
        names += [long, upper]
        with ThreadPoolExecutor(self._files.traits.threads, thread_name_prefix="probe") as pool:
            kept = {
                name for name, is_kept in zip(names, pool.map(self._keeps, names), strict=True) if is_kept
            }
        self._files.put(self._path(upper), _FIRST)
        return {
            "refuses": tuple(dict.fromkeys(refused_characters(tried, kept))),
            "name_bytes": 0 if long in kept else 255,
            "folds_case": self._files.stat(self._path(upper.lower())) is not None,
        }

    def _keeps(self, name: bytes) -> bool:
        """Return whether a file can have this name; each has a folder of its own, because a name can break its listing."""
        folder = self._path(secrets.token_hex(8).encode("ascii"))
        path = folder + b"/" + name
        try:
            self._files.make_folder(folder)
            if self._files.traits.put is Put.RENAMED:
                self._files.put(folder + b"/part", _FIRST)
                self._files.move(folder + b"/part", path)
            else:
                self._files.put(path, _FIRST, seconds=_NAME_SECONDS)
            listed = self._files.children(folder, seconds=_NAME_SECONDS)
            return [one for one, _ in listed] == [name] and self._files.read_small(path, 1024) == _FIRST
        except HibaliError:
            return False
        finally:
            with contextlib.suppress(HibaliError):
                self._files.delete(path)
