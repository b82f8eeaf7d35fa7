"""Create file trees from a dict and read them back; names are bytes."""

# Names are bytes, which pathlib does not take.
# ruff: noqa: PTH101, PTH103, PTH115, PTH116, PTH118, PTH120, PTH123, PTH208, PTH211

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import random
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

# The names required by requirement 6: each is valid for a regular file on Linux.
HOSTILE_NAMES: tuple[bytes, ...] = (
    b"with spaces  and  more",
    b" leading and trailing ",
    b"'single' \"double\" `back`",
    b"new\nline",
    b"carriage\rreturn\ttab",
    b"-leading-dash",
    b"--delete",
    b"*",
    b"?[a-z]{x,y}!$HOME$(touch pwned);&|<>#~",
    b"back\\slash",
    b"\\",
    b"\xff\xfe not UTF-8 \x80",
    "caf\u00e9 \u202e bidi \U0001f9e0".encode(),
    "cafe\u0301 decomposed".encode(),
    b"\x01\x1b[31mcontrol\x7f",
    b"%00%2e%2e%2f percent",
    b"a:b",
    b"@x",
    b"~",
    b"~root",
    b"...",
    b"..x",
    b".hidden",
    b".hibali-x",
    b".hibali-" + b"0" * 31,
    b"CON",
    b"x" * 255,
    "\u00e9".encode() * 127 + b"x",
)

# Names that many programs sort wrongly: `a` is a folder.
ORDER_NAMES: tuple[bytes, ...] = (b"a-x", b"a.b", b"a/b", b"a0")


@dataclass(frozen=True)
class File:
    content: bytes
    executable: bool = False
    mtime_ns: int | None = None


@dataclass(frozen=True)
class Link:
    target: bytes


@dataclass(frozen=True)
class Folder:
    pass


Leaf = File | Link | Folder | bytes
Tree = Mapping[bytes, Leaf]


def make_tree(root: Path | bytes, tree: Tree) -> Path:
    """Create the tree below `root`; plain bytes are the content of a file."""
    top = os.fsencode(root)
    os.makedirs(top, exist_ok=True)
    for path, leaf in tree.items():
        full = top + b"/" + path
        os.makedirs(os.path.dirname(full), exist_ok=True)
        match leaf:
            case bytes():
                _write(full, File(leaf))
            case File():
                _write(full, leaf)
            case Link(target):
                os.symlink(target, full)
            case Folder():
                os.makedirs(full, exist_ok=True)
    return Path(os.fsdecode(top))


def _write(path: bytes, file: File) -> None:
    with open(path, "wb") as stream:
        stream.write(file.content)
    os.chmod(path, 0o755 if file.executable else 0o644)
    if file.mtime_ns is not None:
        os.utime(path, ns=(file.mtime_ns, file.mtime_ns))


def walk_paths(root: Path | bytes) -> Iterable[tuple[bytes, os.stat_result]]:
    """Yield every relative name below `root` with its lstat; symlinks are not followed."""
    top = os.fsencode(root)
    for folder, folders, files in os.walk(top):
        for name in (*folders, *files):
            full = os.path.join(folder, name)
            with contextlib.suppress(FileNotFoundError):  # another process is removing entries
                yield os.path.relpath(full, top), os.lstat(full)


def read_tree(root: Path | bytes) -> dict[bytes, Leaf]:
    """Read the tree below `root`: contents of files, symlinks, and empty folders."""
    top = os.fsencode(root)
    found: dict[bytes, Leaf | None] = {}
    for path, status in walk_paths(top):
        with contextlib.suppress(FileNotFoundError):  # removed meanwhile by hibali
            found[path] = _read_leaf(top + b"/" + path, status.st_mode)
    return {path: leaf for path, leaf in found.items() if leaf is not None}


def _read_leaf(full: bytes, mode: int) -> Leaf | None:
    """Return a file's content, a symlink or an empty folder; None for a folder with entries."""
    if stat.S_ISLNK(mode):
        return Link(os.readlink(full))
    if stat.S_ISDIR(mode):
        return None if os.listdir(full) else Folder()
    if stat.S_ISREG(mode):
        with open(full, "rb") as stream:
            return stream.read()
    raise AssertionError(f"{full!r} is a device, FIFO or socket")


def state_of(root: Path | bytes) -> dict[bytes, tuple[int, ...]]:
    """Return kind, mode, inode, size and times of every name; equal states mean that nothing changed."""
    return {
        path: (status.st_mode, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
        for path, status in walk_paths(root)
    }


@functools.lru_cache(maxsize=1)
def random_bytes(seed: int, size: int) -> bytes:
    """Return incompressible content, the same each time.

    For large files: each worker imports all tests, and would otherwise make and keep the content of each.
    """
    return random.Random(seed).randbytes(size)  # noqa: S311 - the same content each time


def many_files(count: int, size: int, *, seed: int = 0, folders: int = 20) -> dict[bytes, bytes]:
    """Return `count` different files of about `size` bytes in some folders, reproducible by `seed`."""
    chance = random.Random(seed)  # noqa: S311 - the same files each time
    block = chance.randbytes(size * 2 + 64)
    tree: dict[bytes, bytes] = {}
    for number in range(count):
        length = chance.randrange(size // 2, size + size // 2 + 1)
        start = chance.randrange(0, len(block) - length + 1)
        name = b"folder %02d/file-%05d.dat" % (number % folders, number)
        tree[name] = b"%d %d " % (seed, number) + block[start : start + length]
    return tree


def differences(found: Mapping[bytes, Leaf], expected: Mapping[bytes, Leaf]) -> dict[bytes, str]:
    """Return what differs between two trees, without contents, which would make a report of megabytes."""
    return {
        name: "missing" if name not in found else "extra" if name not in expected else "another content"
        for name in sorted({*found, *expected})
        if found.get(name) != expected.get(name)
    }


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def sha256_of(path: Path) -> str:
    """Return the digest of a file that may be larger than the memory."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def flip_byte(path: Path | bytes) -> None:
    """Flip one bit in the middle of a file; keep its size and mtime."""
    name = os.fsencode(path)
    before = os.stat(name)
    with open(name, "r+b") as stream:
        stream.seek(before.st_size // 2)
        old = stream.read(1)
        stream.seek(before.st_size // 2)
        stream.write(bytes([old[0] ^ 1]))
    os.utime(name, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = os.stat(name)
    assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
