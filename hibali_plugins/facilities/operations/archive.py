"""Write small files so that none is ever half: by an archive that holds their contents, and hard links to their names.

IRI facilities extract an archive only into a new folder, from which its files are renamed.
FirecREST cannot rename at once, and writes an uploaded file in place. But it extracts tar archives; a member that is a hard link gets its
name by link(2), when the content that it links to is complete. GNU tar removes an existing file of that name first.
"""

from __future__ import annotations

import io
import posixpath
import tarfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hibali.errors import HibaliError
from hibali.http.client import Bytes
from hibali.retry import wait_unless_interrupted

_GATHER_SECONDS = 0.01  # in which files of other threads join an archive


@dataclass(frozen=True, slots=True)
class Archive:
    """A gzipped tar archive to extract in `folder`, and the temporary folder that it leaves there."""

    folder: bytes
    content: bytes
    leaves: bytes


def archive_of(files: Sequence[tuple[bytes, Bytes]], leaves: bytes) -> Archive:
    """Return the archive that writes these files, whose folders exist, by a temporary folder with the name `leaves`.

    Paths are absolute.
    """
    folder = common_folder(files)
    moment = int(time.time())
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w:gz", format=tarfile.GNU_FORMAT, compresslevel=1) as archive:
        _add_contents(archive, [content for _, content in files], leaves + b"/", moment)
        for number, (path, _) in enumerate(files):
            archive.addfile(_link(posixpath.relpath(path, folder), _member(leaves, b"%d" % number), moment))
    return Archive(folder, written.getvalue(), folder.rstrip(b"/") + b"/" + leaves)


def common_folder(files: Sequence[tuple[bytes, Bytes]]) -> bytes:
    """Return the folder that all of these files are below."""
    return posixpath.commonpath([path.rpartition(b"/")[0] or b"/" for path, _ in files])


def numbered_archive(contents: Sequence[Bytes]) -> bytes:
    """Return a gzipped tar archive of files that are named by their numbers, from 0."""
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w:gz", format=tarfile.GNU_FORMAT, compresslevel=1) as archive:
        _add_contents(archive, contents, b"", int(time.time()))
    return written.getvalue()


def _add_contents(archive: tarfile.TarFile, contents: Sequence[Bytes], prefix: bytes, moment: int) -> None:
    for number, content in enumerate(contents):
        member = tarfile.TarInfo((prefix + b"%d" % number).decode("ascii"))
        member.size, member.mode, member.mtime = len(content), 0o600, moment
        archive.addfile(member, io.BytesIO(content))


def archive_of_link(source: bytes, path: bytes) -> Archive:
    """Return the archive that gives a file another name, as a hard link; both paths are absolute."""
    folder = posixpath.commonpath([source.rpartition(b"/")[0] or b"/", path.rpartition(b"/")[0] or b"/"])
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w:gz", format=tarfile.GNU_FORMAT) as archive:
        target = posixpath.relpath(source, folder).decode("utf-8", "surrogateescape")
        archive.addfile(_link(posixpath.relpath(path, folder), target, int(time.time())))
    return Archive(folder, written.getvalue(), b"")


def _member(folder: bytes, name: bytes) -> str:
    return (folder + b"/" + name).decode("ascii")


def _link(path: bytes, target: str, moment: int) -> tarfile.TarInfo:
    member = tarfile.TarInfo(path.decode("utf-8", "surrogateescape"))
    member.type, member.linkname, member.mode, member.mtime = tarfile.LNKTYPE, target, 0o600, moment
    return member


@dataclass(slots=True)
class _Waiting:
    """A file that a thread writes, and the event that it is written or failed."""

    path: bytes
    content: Bytes
    done: threading.Event = field(default_factory=threading.Event)
    problem: HibaliError | None = None


class Batches:
    """Lets files that several threads write at the same time go in one archive."""

    def __init__(self, send: Callable[[Sequence[tuple[bytes, Bytes]]], None], most: int) -> None:
        """`send` writes files by one archive; `most` bytes of content fit in one."""
        self._send = send
        self._most = most
        self._guard = threading.Lock()
        self._sending = threading.Lock()
        self._waiting: list[_Waiting] = []

    def put(self, path: bytes, content: Bytes) -> None:
        """Write a file. Raise the error of its archive."""
        mine = _Waiting(path, content)
        with self._guard:
            self._waiting.append(mine)
        wait_unless_interrupted(_GATHER_SECONDS)
        with self._sending:
            if not mine.done.is_set():
                self._send_next(mine)
        if mine.problem is not None:
            raise mine.problem

    def _send_next(self, first: _Waiting) -> None:
        """Send this file, and others that wait and fit."""
        with self._guard:
            chosen, size, names = [first], len(first.content), {first.path}
            for each in self._waiting:
                fits = size + len(each.content) <= self._most and each.path not in names
                if each is not first and fits:
                    chosen.append(each)
                    size += len(each.content)
                    names.add(each.path)
            self._waiting = [each for each in self._waiting if each not in chosen]
        problem: HibaliError | None = None
        try:
            self._send([(each.path, each.content) for each in chosen])
        except HibaliError as found:
            problem = found
        for each in chosen:
            each.problem = problem
            each.done.set()
