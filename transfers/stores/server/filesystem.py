"""Probe what a filesystem supports, once, and adapt the store and its lock to that."""

from __future__ import annotations

import contextlib
import secrets
import threading
from abc import abstractmethod
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from hibali.errors import AccessError, HibaliError, IncompleteError, NotFoundError
from transfers.model.entry import Verification
from transfers.model.facts import Facts
from transfers.stores.server.files import Exclusive, Files, Put, Traits
from transfers.stores.server.lease import Held, Lease
from transfers.stores.server.locks import PROBE, FileLock, find_file_lock
from transfers.stores.server.own_files import Own, below
from transfers.stores.server.probe import LONG_NAME, recall, refused_characters, remember, run_probe
from transfers.stores.server.records import PIECE_BYTES, Found

_TABLE = "filesystems"  # of the stored probe results
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
_LINUX_NAME = 255  # bytes
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


class Filesystem(Files):
    """The files of a filesystem, whose lock is a file and whose support is probed."""

    support: FilesystemSupport | None = None

    @property
    @abstractmethod
    def implementation(self) -> str:
        """The name of what implements it; what is probed is remembered for this name."""

    @property
    @abstractmethod
    def renames(self) -> bool:
        """Whether `move` renames a file, instead of copying it."""

    @abstractmethod
    def full(self, path: bytes) -> str:
        """Return a path as the filesystem writes it."""

    @property
    def address(self) -> str:
        """See Files."""
        return f"{self.implementation} {self.full(b'')}"

    def recall(self, site: str) -> None:
        """See Files. The filesystem of a Linux machine (`Traits.posix`) is not probed."""
        if self.traits.posix:
            self.support = support_of_machine(self.traits)
        else:
            self.support = recall(FilesystemSupport, site, _TABLE, self.implementation, self.full(b""))

    def probe(self, site: str, root: bytes) -> None:
        """See Files."""
        if not self.traits.posix:
            self.support = probe_filesystem(self, root)
            remember(self.support, site, _TABLE, self.implementation, self.full(b""))

    def hold(self, root: bytes, operation: str, seconds: int) -> Lease:
        """See Files."""
        how = Exclusive(self.support.exclusive if self.support else "")
        return FileLock(self, root, operation, how, seconds)

    def find_lock(self, folder: bytes) -> Held | None:
        """See Files."""
        return find_file_lock(self, folder)

    def facts(self, root: bytes, read_verification: Verification, *, read_back: bool) -> Facts:
        """See Files. A filesystem that was not probed has those that its kind promises."""
        traits = self.traits
        seen = self.support or FilesystemSupport(
            writable=True,
            put=traits.put,
            exclusive=traits.exclusive or Exclusive.CREATE,
            versions=True,
            folders=not traits.keys,
            file_and_folder=traits.keys,
            name_bytes=255,
        )
        around = len(self.full(root).encode("utf-8", "surrogateescape")) + 1
        return Facts(
            kind=traits.kind,
            read_verification=read_verification,
            write_verification=self.written(read_back=read_back),
            folders=seen.folders,
            file_and_folder=seen.file_and_folder,
            links=False,
            modes=seen.versions,
            mtimes=seen.versions,
            locks=seen.locks,
            swaps=traits.swaps and (seen.put != Put.RENAMED or seen.replaces),
            name_bytes=seen.name_bytes,
            path_bytes=max((_KEY_BYTES if traits.keys else _PATH_BYTES) - around, 1),
            utf8_names=True,
            folds_case=seen.folds_case,
            segment_bytes=PIECE_BYTES,
            refuses=tuple(character.encode() for character in seen.refuses),
            writable=seen.writable,
            # adlfs lists no keys below that of an object, so that they would seem to be deleted
            complete=not traits.keys or (self.support is not None and self.support.file_and_folder),
            known=self.support is not None,
        )


def probe_filesystem(files: Filesystem, root: bytes) -> FilesystemSupport:
    """Probe the filesystem in the existing folder `root`. Raise connection errors.

    If writing is denied, nothing else can be probed.
    """
    probe = _Probe(files, root)
    return run_probe(probe.run_and_clean, probe.stopped)


class _Probe:
    """One probe; listings skip its names, so leftovers of a crash do not appear in them."""

    def __init__(self, files: Filesystem, root: bytes) -> None:
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
        refused = set(self._files.traits.refuses)
        if refused.isdisjoint(b"?"):
            tried[b"x?x#x"] = b"#"  # some implementations take both together for parts of a URL
        long, longest, upper = b"l" * LONG_NAME, b"l" * _LINUX_NAME, b"UPPER"
        names = [name for name in tried if refused.isdisjoint(name)]
        names += [long, longest, upper]
        with ThreadPoolExecutor(self._files.traits.threads, thread_name_prefix="probe") as pool:
            kept = {
                name for name, is_kept in zip(names, pool.map(self._keeps, names), strict=True) if is_kept
            }
        self._files.put(self._path(upper), _FIRST)
        return {
            "refuses": tuple(dict.fromkeys(refused_characters(tried, kept))),
            # XRootD lists a name of 255 bytes without its last one
            "name_bytes": 0 if long in kept else _LINUX_NAME - (longest not in kept),
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
