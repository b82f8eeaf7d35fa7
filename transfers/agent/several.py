"""Many small files at once: put whole and made durable together, or read in one answer."""

import contextlib
import errno
import os
import stat
from typing import Any, Dict, List, Optional, Tuple

from transfers.agent import frames
from transfers.agent.sync import sync_files

Answer = Tuple[Dict[str, Any], frames.Body]

_MOST_OPEN = 500  # some hosts let a process open no more than 1024 files
_MOST_BYTES = 32 * 1024 * 1024  # of one answer


def absolute_path(text: str) -> bytes:
    """The bytes of a path that the client named; raises OSError for one that is not absolute."""
    path = frames.bytes_of(text)
    if not path.startswith(b"/") or b"\0" in path:
        raise OSError(errno.EINVAL, "not an absolute path")
    return path


def put_all(header: Dict[str, Any]) -> Answer:
    """Make `folders` (0700, those above come before), then write `files`, each a path, its content and whether it is executable.

    Each file is private, and whole or not there; all is durable before the answer.
    """
    folders = [absolute_path(text) for text in header["folders"]]
    for folder in folders:
        _make_folder(folder)
    files = [(absolute_path(path), content, bool(more)) for path, content, more in header["files"]]
    for start in range(0, len(files), _MOST_OPEN):
        _put_some(files[start : start + _MOST_OPEN])
    touched = {os.path.dirname(path) for path, _, _ in files}
    for folder in sorted(touched.union(folders, map(os.path.dirname, folders))):
        sync_folder(folder)
    return {}, b""


def _make_folder(path: bytes) -> None:
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        if not os.path.isdir(path):
            raise


def _put_some(files: List[Tuple[bytes, str, bool]]) -> None:
    """Under partial names first, which are gone again where anything fails."""
    begun: List[Tuple[int, bytes, bytes]] = []
    try:
        for path, content, executable in files:
            folder = os.path.dirname(path)
            partial = os.path.join(folder, b".hibali-" + os.urandom(16).hex().encode("ascii"))
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(partial, flags, 0o700 if executable else 0o600)
            begun.append((descriptor, partial, path))
            view = memoryview(frames.bytes_of(content))
            while view:
                view = view[os.write(descriptor, view) :]
        failures = sync_files([descriptor for descriptor, _, _ in begun])
        if failures:
            raise OSError(errno.EIO, str(next(iter(failures.values()))[1]))
        for _, partial, path in begun:
            os.rename(partial, path)
    except BaseException:
        for _, partial, _ in begun:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(partial)
        raise
    finally:
        for descriptor, _, _ in begun:
            os.close(descriptor)


def sync_folder(path: bytes) -> None:
    """Make what was renamed into a folder durable, where its filesystem can."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as problem:
        if problem.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def get_all(header: Dict[str, Any]) -> Answer:
    """The first `maximum` bytes of each regular file, one behind the other, and how many of each; -1 where there is none.

    What is no regular file, or cannot be read, is none: one of many is not to keep the others from being told.
    """
    content = bytearray()
    sizes: List[int] = []
    for text in header["paths"]:
        found = _read(absolute_path(text), header["maximum"])
        if found is not None and len(content) + len(found) > _MOST_BYTES:
            raise OSError(errno.EFBIG, "more than one answer can hold")
        sizes.append(-1 if found is None else len(found))
        content += found or b""
    return {"sizes": sizes}, content


def _read(path: bytes, maximum: int) -> Optional[bytes]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as problem:
        if problem.errno in (errno.EIO, errno.ESTALE, errno.EMFILE, errno.ENFILE):
            raise  # it may be there all the same
        return None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        content = b""
        while len(content) < maximum:
            chunk = os.read(descriptor, maximum - len(content))
            if not chunk:
                break
            content += chunk
        return content
    finally:
        os.close(descriptor)
