"""Keep the journal of partial names and incomplete large files."""

import binascii
import contextlib
import json
import os
import stat
import threading
import time
from typing import Any, Dict, List, Optional, Tuple

from transfers.agent import protocol
from transfers.agent.protocol import UnsafeNameError
from transfers.agent.safe_path import Root
from transfers.agent.writing import purge

_JOURNAL = b"journal"
_LIMIT = 64 * 1024
_SEEDS = 1000  # as many as fit the limit: seeds of that many killed operations in a row


def journal_path(folder: bytes) -> bytes:
    """Return the path of the journal of the target at `folder` (b"" is the root)."""
    own = protocol.OWN_FOLDER + b"/" + _JOURNAL
    return folder + b"/" + own if folder else own


def read_seeds(root: Root, folder: bytes = b"") -> List[bytes]:
    """Return the seeds that unfinished operations left in `folder`, the newest first.

    A journal of another account is ignored: it could make hibali treat the user's files as partial.
    """
    try:
        return [binascii.unhexlify(seed) for seed in _read(root, folder)["seeds"]]
    except (ValueError, KeyError, TypeError):
        return []


def last_call(root: Root) -> str:
    """Return the mark of the call that received files here last; empty if not recorded."""
    return str(_read(root, b"").get("call", ""))


def _read(root: Root, folder: bytes) -> Dict[str, Any]:
    try:
        descriptor = root.open_file(journal_path(folder))
    except OSError:
        return {}
    try:
        if os.fstat(descriptor).st_uid != os.geteuid():
            return {}
        record = json.loads(os.read(descriptor, _LIMIT).decode("ascii"))
    except (OSError, ValueError, RecursionError):
        return {}
    finally:
        os.close(descriptor)
    return record if isinstance(record, dict) else {}


def open_seed(root: Root, call: str = "") -> Tuple[bytes, bool]:
    """Return a new durable seed for a transfer of this `call`, and whether there were earlier ones.

    Each holder of the lock has its own: one that resumes after its lease ended must not treat another
    holder's partial files as its own.
    """
    seeds, after_others = open_seeds(root, call, 1)
    return seeds[0], after_others


def open_seeds(root: Root, call: str, count: int) -> Tuple[List[bytes], bool]:
    """Return as many seeds, one for each process that receives under the same lock."""
    earlier = read_seeds(root)
    opened = [os.urandom(16) for _ in range(count)]
    parent = root.parent(journal_path(b""), make=True)
    seeds = [one.hex() for one in [*opened, *earlier][:_SEEDS]]
    content = json.dumps({"version": 1, "seeds": seeds, "call": call}).encode("ascii") + b"\n"
    name = _JOURNAL + b"." + os.urandom(16).hex().encode("ascii")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(name, flags, 0o600, dir_fd=parent)
    try:
        os.write(descriptor, content)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.rename(name, _JOURNAL, src_dir_fd=parent, dst_dir_fd=parent)
    os.fsync(parent)
    os.fsync(root.descriptor)
    return opened, bool(earlier)


def end_journal(root: Root) -> None:
    """Remove the journal, because no partial file is left; releasing the lock removes the folder."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(_JOURNAL, dir_fd=root.parent(journal_path(b"")))


MARK_BYTES = 8 * 1024 * 1024  # bytes between two recorded digests
NAME = b"begun"
_MOST_JOURNAL_BYTES = 256 * 1024 * 1024
_RETENTION_SECONDS = 30 * 24 * 3600

Mark = Tuple[int, str]  # an offset, and the sha256 in hexadecimal of all bytes before it
Block = Tuple[int, int, str]  # start, end, and the sha256 of the bytes between them


class PartialFile(object):
    """One partial file: its source's identity, its partial name, its marks in order, and later blocks.

    Blocks are noted while an earlier operation's bytes are still being verified; marks wait for that.
    """

    def __init__(self, path: bytes, partial: bytes, size: int, mtime_ns: int, tag: str) -> None:
        self.path = path
        self.partial = partial
        self.size = size
        self.mtime_ns = mtime_ns
        self.tag = tag
        self.marks: List[Mark] = []
        self.blocks: List[Block] = []

    @property
    def received(self) -> int:
        """The number of bytes from the start that are recorded as received."""
        received = self.marks[-1][0] if self.marks else 0
        for start, stop, _ in self.blocks:
            received = stop if start == received else received
        return received

    def cut(self, received: int) -> None:
        """Remove the records of everything after `received`."""
        self.marks = [mark for mark in self.marks if mark[0] <= received]
        self.blocks = [block for block in self.blocks if block[1] <= received]

    def record(self) -> Dict[str, Any]:
        """Return the file's line for the journal."""
        return {
            "partial": self.partial.decode("latin-1"),
            "path": self.path.decode("latin-1"),
            "size": self.size,
            "mtime_ns": self.mtime_ns,
            "tag": self.tag,
        }


class PartialFilesJournal(object):
    """A target's journal, open for appending; not synced, because its content is verified before use.

    May be used by several threads. Where several processes of one host receive under one lock, one opens it first, and
    the others open it `shared`: lines that are appended at once stay whole (open(2), O_APPEND).
    """

    def __init__(self, root: Root, shared: bool = False) -> None:  # noqa: FBT001, FBT002  # Python 3.6 style
        self._lock = threading.Lock()
        self.parts: Dict[bytes, PartialFile] = {}
        for part in read_partial_files(root):
            if _is_resumable(root, part):
                self.parts[part.path] = part
        parent = root.parent(protocol.OWN_FOLDER + b"/" + NAME, make=True)
        flags = os.O_WRONLY | os.O_NOFOLLOW | os.O_APPEND | os.O_CLOEXEC
        if shared:
            self._descriptor = os.open(NAME, flags, dir_fd=parent)
            return
        name = NAME + b"." + os.urandom(16).hex().encode("ascii")
        self._descriptor = os.open(name, flags | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=parent)
        for part in self.parts.values():
            self._write(part)
        os.rename(name, NAME, src_dir_fd=parent, dst_dir_fd=parent)

    def _write(self, part: PartialFile) -> None:
        self._append(part.record())
        for mark in part.marks:
            self._append(_mark_record(part, mark))
        for block in part.blocks:
            self._append(_block_record(part, block))

    def _append(self, record: Dict[str, Any]) -> None:
        os.write(self._descriptor, json.dumps(record).encode("ascii") + b"\n")

    def start(self, part: PartialFile) -> Optional[PartialFile]:
        """Record a file before its first byte; return the one that it replaces, if any."""
        with self._lock:
            before = self.parts.get(part.path)
            self.parts[part.path] = part
            self._write(part)
            return before

    def mark(self, part: PartialFile, mark: Mark) -> None:
        """Record how much of a file was received and hashed."""
        with self._lock:
            part.marks.append(mark)
            part.blocks = [block for block in part.blocks if block[0] >= mark[0]]
            self._append(_mark_record(part, mark))

    def block(self, part: PartialFile, block: Block) -> None:
        """Record a received block before all bytes in front of it are verified."""
        with self._lock:
            if not part.marks or part.marks[-1][0] <= block[0]:
                part.blocks.append(block)
                self._append(_block_record(part, block))

    def cut(self, part: PartialFile, received: int) -> None:
        """Record that everything after `received` was wrong and is discarded."""
        with self._lock:
            part.cut(received)
            self._append({"partial": part.partial.decode("latin-1"), "cut": received})

    def end(self, part: PartialFile) -> None:
        """Record that the file was renamed or abandoned."""
        with self._lock:
            if self.parts.get(part.path) is part:
                del self.parts[part.path]
            self._append({"partial": part.partial.decode("latin-1"), "end": True})

    def close(self) -> None:
        """Close the journal; safe to call twice."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _mark_record(part: PartialFile, mark: Mark) -> Dict[str, Any]:
    return {"partial": part.partial.decode("latin-1"), "to": mark[0], "sha256": mark[1]}


def _block_record(part: PartialFile, block: Block) -> Dict[str, Any]:
    return {"partial": part.partial.decode("latin-1"), "from": block[0], "to": block[1], "sha256": block[2]}


def _is_resumable(root: Root, part: PartialFile) -> bool:
    """Return whether a part can be resumed; remove it if it is too old or its file changed since."""
    partial = root.lstat(part.partial)
    final = root.lstat(part.path)
    if partial is None:
        return False
    passed = final is not None and final.ctime_ns > partial.ctime_ns
    if passed or time.time() - partial.ctime_ns / 1e9 > _RETENTION_SECONDS:
        with contextlib.suppress(OSError, UnsafeNameError):
            purge(root, part.partial)
        return False
    return True


def remove_partials_journal(root: Root) -> None:
    """Remove the journal of incomplete files, because none is left."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(NAME, dir_fd=root.parent(protocol.OWN_FOLDER + b"/" + NAME))


def read_partial_files(root: Root) -> List[PartialFile]:
    """Return the parts that an earlier operation of our account left; invalid lines are ignored."""
    try:
        descriptor = root.open_file(protocol.OWN_FOLDER + b"/" + NAME)
    except (OSError, UnsafeNameError):
        return []
    with os.fdopen(descriptor, "rb") as stream:
        found = os.fstat(descriptor)
        if (
            found.st_uid != os.geteuid()
            or stat.S_IMODE(found.st_mode) & 0o022
            or found.st_size > _MOST_JOURNAL_BYTES
        ):
            return []
        parts: Dict[str, PartialFile] = {}
        for line in stream:
            with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError, RecursionError):
                _read_line(parts, json.loads(line.decode("ascii")))
    return list(parts.values())


def partial_bytes(root: Root) -> int:
    """Return how many bytes of incomplete large files are stored below the root; a transfer resumes them."""
    return sum(part.received for part in read_partial_files(root) if root.lstat(part.partial) is not None)


def _read_line(parts: Dict[str, PartialFile], record: Dict[str, Any]) -> None:
    partial = record["partial"]
    if "path" in record:
        name = partial.encode("latin-1")
        if protocol.has_partial_shape(name.rpartition(b"/")[2]):
            path = record["path"].encode("latin-1")
            parts[partial] = PartialFile(
                path, name, int(record["size"]), int(record["mtime_ns"]), str(record["tag"])
            )
    elif "end" in record:
        parts.pop(partial, None)
    elif "cut" in record:
        parts[partial].cut(int(record["cut"]))
    else:
        _read_digest(parts[partial], int(record["to"]), str(record["sha256"]), record.get("from"))


def _read_digest(part: PartialFile, to: int, digest: str, start: Optional[int]) -> None:
    """Record a mark, or a block if `start` is given; ignore one out of order or beyond the file's end."""
    if start is not None:
        if start == part.received and start < to <= part.size:
            part.blocks.append((start, to, digest))
    elif (part.marks[-1][0] if part.marks else 0) < to <= part.size:
        part.marks.append((to, digest))
        part.blocks = [block for block in part.blocks if block[0] >= to]
