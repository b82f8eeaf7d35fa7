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
from transfers.agent.safe_path import Root, UnsafeNameError
from transfers.agent.writing import purge

_JOURNAL = b"journal"
_LIMIT = 64 * 1024
_SEEDS = 1000  # fit the limit; so many operations in a row have to die before one is forgotten


def journal_path(folder: bytes) -> bytes:
    """Where the journal of the target at `folder` (b"" is the root) lies."""
    own = protocol.OWN_FOLDER + b"/" + _JOURNAL
    return folder + b"/" + own if folder else own


def read_seeds(root: Root, folder: bytes = b"") -> List[bytes]:
    """The seeds that unfinished operations left in `folder`, the newest first.

    Only a journal of our own account counts: somebody else's must not make us take files for partial ones.
    """
    try:
        return [binascii.unhexlify(seed) for seed in _read(root, folder)["seeds"]]
    except (ValueError, KeyError, TypeError):
        return []


def last_call(root: Root) -> str:
    """Which call landed here last, as it named itself; empty where nothing says so."""
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
    except (OSError, ValueError):
        return {}
    finally:
        os.close(descriptor)
    return record if isinstance(record, dict) else {}


def open_seed(root: Root, call: str = "") -> Tuple[bytes, bool]:
    """A new seed for a landing of this `call`, durable beside the earlier ones when this returns, and whether there were earlier ones.

    Each holder of the lock has its own: one that slept past its lease and wakes up must not find another's
    partial files under names that it takes for its own.
    """
    earlier = read_seeds(root)
    seed = os.urandom(16)
    parent = root.parent(journal_path(b""), make=True)
    seeds = [one.hex() for one in [seed, *earlier][:_SEEDS]]
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
    return seed, bool(earlier)


def end_journal(root: Root) -> None:
    """Nothing partial is left: remove the journal; the folder goes with the lock."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(_JOURNAL, dir_fd=root.parent(journal_path(b"")))


MARK_BYTES = 8 * 1024 * 1024  # a digest is noted whenever so much more is there
NAME = b"begun"
_MOST_BEGUN = 256 * 1024 * 1024
_KEPT_SECONDS = 30 * 24 * 3600

Mark = Tuple[int, str]  # an offset, and the sha256 in hexadecimal of all before it
Block = Tuple[int, int, str]  # from, to, and the sha256 of what lies between


class Part(object):
    """One file that was begun: whose content it is, under which partial name, its marks in order, and blocks behind them.

    Blocks are noted while what an earlier operation left is still being checked, which marks have to wait for.
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
    def there(self) -> int:
        """How many bytes from the start on are said to be there."""
        there = self.marks[-1][0] if self.marks else 0
        for start, stop, _ in self.blocks:
            there = stop if start == there else there
        return there

    def cut(self, there: int) -> None:
        """Forget what is said of anything behind `there`."""
        self.marks = [mark for mark in self.marks if mark[0] <= there]
        self.blocks = [block for block in self.blocks if block[1] <= there]

    def record(self) -> Dict[str, Any]:
        """Its line in the journal."""
        return {
            "partial": self.partial.decode("latin-1"),
            "path": self.path.decode("latin-1"),
            "size": self.size,
            "mtime_ns": self.mtime_ns,
            "tag": self.tag,
        }


class BegunFilesJournal(object):
    """The journal of one target, open for appending. Its lines need no sync: what they say is checked before it counts.

    May be used by several threads.
    """

    def __init__(self, root: Root) -> None:
        self._lock = threading.Lock()
        self.parts: Dict[bytes, Part] = {}
        for part in read_begun(root):
            if _is_alive(root, part):
                self.parts[part.path] = part
        parent = root.parent(protocol.OWN_FOLDER + b"/" + NAME, make=True)
        name = NAME + b"." + os.urandom(16).hex().encode("ascii")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_APPEND | os.O_CLOEXEC
        self._descriptor = os.open(name, flags, 0o600, dir_fd=parent)
        for part in self.parts.values():
            self._write(part)
        os.rename(name, NAME, src_dir_fd=parent, dst_dir_fd=parent)

    def _write(self, part: Part) -> None:
        self._append(part.record())
        for mark in part.marks:
            self._append(_mark_record(part, mark))
        for block in part.blocks:
            self._append(_block_record(part, block))

    def _append(self, record: Dict[str, Any]) -> None:
        os.write(self._descriptor, json.dumps(record).encode("ascii") + b"\n")

    def start(self, part: Part) -> Optional[Part]:
        """Note a file before its first byte; the one it takes the place of, if any."""
        with self._lock:
            before = self.parts.get(part.path)
            self.parts[part.path] = part
            self._write(part)
            return before

    def mark(self, part: Part, mark: Mark) -> None:
        """Note how far a file is there."""
        with self._lock:
            part.marks.append(mark)
            part.blocks = [block for block in part.blocks if block[0] >= mark[0]]
            self._append(_mark_record(part, mark))

    def block(self, part: Part, block: Block) -> None:
        """Note that more is there, before it is known whether all in front of it is right."""
        with self._lock:
            if not part.marks or part.marks[-1][0] <= block[0]:
                part.blocks.append(block)
                self._append(_block_record(part, block))

    def cut(self, part: Part, there: int) -> None:
        """What was found to be wrong behind `there` is there no more."""
        with self._lock:
            part.cut(there)
            self._append({"partial": part.partial.decode("latin-1"), "cut": there})

    def end(self, part: Part) -> None:
        """The file has its name, or was given up."""
        with self._lock:
            if self.parts.get(part.path) is part:
                del self.parts[part.path]
            self._append({"partial": part.partial.decode("latin-1"), "end": True})

    def close(self) -> None:
        """Let go of it; safe to call twice."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _mark_record(part: Part, mark: Mark) -> Dict[str, Any]:
    return {"partial": part.partial.decode("latin-1"), "to": mark[0], "sha256": mark[1]}


def _block_record(part: Part, block: Block) -> Dict[str, Any]:
    return {"partial": part.partial.decode("latin-1"), "from": block[0], "to": block[1], "sha256": block[2]}


def _is_alive(root: Root, part: Part) -> bool:
    """Whether it can be gone on with; what nobody did for long, and what stands there in whole by now, is removed."""
    partial = root.lstat(part.partial)
    final = root.lstat(part.path)
    if partial is None:
        return False
    passed = final is not None and final.ctime_ns > partial.ctime_ns
    if passed or time.time() - partial.ctime_ns / 1e9 > _KEPT_SECONDS:
        with contextlib.suppress(OSError, UnsafeNameError):
            purge(root, part.partial)
        return False
    return True


def remove_begun(root: Root) -> None:
    """Nothing is begun any more: remove the journal."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(NAME, dir_fd=root.parent(protocol.OWN_FOLDER + b"/" + NAME))


def read_begun(root: Root) -> List[Part]:
    """The parts that an earlier operation of our own account left; a line that cannot be understood says nothing."""
    try:
        descriptor = root.open_file(protocol.OWN_FOLDER + b"/" + NAME)
    except (OSError, UnsafeNameError):
        return []
    with os.fdopen(descriptor, "rb") as stream:
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o022 or found.st_size > _MOST_BEGUN:
            return []
        parts: Dict[str, Part] = {}
        for line in stream:
            with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
                _take(parts, json.loads(line.decode("ascii")))
    return list(parts.values())


def _take(parts: Dict[str, Part], record: Dict[str, Any]) -> None:
    partial = record["partial"]
    if "path" in record:
        name = partial.encode("latin-1")
        if protocol.has_partial_shape(name.rpartition(b"/")[2]):
            path = record["path"].encode("latin-1")
            parts[partial] = Part(
                path, name, int(record["size"]), int(record["mtime_ns"]), str(record["tag"])
            )
    elif "end" in record:
        parts.pop(partial, None)
    elif "cut" in record:
        parts[partial].cut(int(record["cut"]))
    else:
        _take_digest(parts[partial], int(record["to"]), str(record["sha256"]), record.get("from"))


def _take_digest(part: Part, to: int, digest: str, start: Optional[int]) -> None:
    """A mark, or a block where it says from where; nothing that lies behind the file's end or in front of the last one."""
    if start is not None:
        if start == part.there and start < to <= part.size:
            part.blocks.append((start, to, digest))
    elif (part.marks[-1][0] if part.marks else 0) < to <= part.size:
        part.marks.append((to, digest))
        part.blocks = [block for block in part.blocks if block[0] >= to]
