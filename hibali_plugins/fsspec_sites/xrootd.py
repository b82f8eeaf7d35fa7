"""Call XRootD servers with the client of fsspec-xrootd, whose filesystem is not safe enough.

That of 0.5 raises errors without their number, reads a replaced file through an old handle, cannot write a file only if it does not exist, and makes
files that other accounts cannot read. Numbers of errors: XProtocol.hh (`XErrorCode`) and XrdClStatus.hh of XRootD 6.2.
"""

from __future__ import annotations

import errno
import os
import re
import threading
from typing import Any, Self
from urllib.parse import urlsplit

from hibali.errors import IncompleteError, RefusedError
from hibali.http.errors import elsewhere
from transfers.model.identities import host_name

_PORT = 1094
_NUMBERS = {
    3002: errno.ENAMETOOLONG,
    3009: errno.ENOSPC,
    3010: errno.EACCES,
    3011: errno.ENOENT,
    3013: errno.EOPNOTSUPP,
    3014: errno.EHOSTUNREACH,
    3015: errno.ENOTDIR,
    3016: errno.EISDIR,
    3018: errno.EEXIST,
    3021: errno.EDQUOT,
    3025: errno.EROFS,
    3028: errno.EACCES,  # TLS is required
    3030: errno.EACCES,
    3034: errno.ETIMEDOUT,
    3035: errno.ETIMEDOUT,
}
_NO_LOGIN = frozenset({202, 203, 204})  # errHandShakeFailed, errLoginFailed, errAuthFailed
_NOT_SUPPORTED, _INVALID_RESPONSE, _OF_SERVER = 13, 303, 400
_ALGORITHM = re.compile(r"\d+:([a-z0-9]+)")  # as in `0:adler32,1:md5`
_DIGITS = re.compile(r"[0-9a-f]{8,128}")
_MOST_SECONDS = 65_535  # of the client: a server may read a large file for it
_FILE_MODE, _FOLDER_MODE = 0o644, 0o755  # as xrdcp and xrdfs do
_COPY_SECONDS, _COPY_RATE = 1800, 1 << 20  # of a third-party copy, and the slowest one in bytes per second


def server_of(hostid: str) -> str:
    """Return the name of the server in `USER@HOST:PORT`."""
    found = urlsplit(f"//{hostid}")
    return f"{host_name(found.hostname)}:{found.port or _PORT}"


def _check(status: Any) -> None:
    """Raise an OSError with the number, but without the server's text."""
    if status.ok:
        return
    if status.code == _OF_SERVER:
        number = _NUMBERS.get(status.errno, errno.EIO)
        if number == errno.EIO and "not a directory" in status.message:  # servers before 6
            number = errno.ENOTDIR
    elif status.code in _NO_LOGIN:
        number = errno.EACCES
    elif 100 <= status.code < 200:  # those of connections
        number = errno.ECONNRESET
    else:
        known = {_NOT_SUPPORTED: errno.EOPNOTSUPP, 206: errno.ETIMEDOUT, 207: errno.ECONNRESET}
        number = known.get(status.code, errno.EIO)
    raise OSError(number, os.strerror(number))


def _unreadable(reason: str) -> IncompleteError:
    return IncompleteError(
        "listing-violation",
        f"the folder cannot be listed: {reason}",
        hint="Rename that file at the server with another program.",
    )


def _described(name: str, found: Any) -> dict[str, Any]:
    """Describe a name as fsspec does; links are reported as what they lead to."""
    from XRootD.client.flags import StatInfoFlags  # start-up: the library is large

    if found is None or found.flags & StatInfoFlags.OTHER:
        return {"name": name, "type": "other"}
    kind = "directory" if found.flags & StatInfoFlags.IS_DIR else "file"
    number = int(found.id) if str(found.id).isdigit() else 0
    return {"name": name, "type": kind, "size": found.size, "mtime": found.modtime, "ino": number}


class XRootDServer:
    """The files of one server; every path is absolute there."""

    def __init__(self, filesystem: Any) -> None:
        """`filesystem` is that of fsspec-xrootd, with its options."""
        self._client = filesystem._myclient  # noqa: SLF001  # it has no public name
        self._url = f"root://{filesystem.hostid}/"
        self._timeout = filesystem.timeout

    @staticmethod
    def _safe(path: str) -> str:
        """Return a path. Raise for one with a question mark: parameters for the server follow it."""
        if "?" in path:
            raise RefusedError("unsafe-name", "XRootD does not allow names with a question mark")
        return path

    def url(self, path: str) -> str:
        """Return the URL of a path."""
        return self._url + self._safe(path)

    def info(self, path: str) -> dict[str, Any]:
        """Return the properties of a path."""
        status, found = self._client.stat(self._safe(path), self._timeout)
        _check(status)
        return _described(path, found)

    def ls(self, path: str, *, detail: bool) -> list[dict[str, Any]]:
        """Return the names in a folder with their properties.

        With properties, a server ends the listing without an error at the first name whose properties it cannot tell, such as a link to itself
        (XrdOssDir::Readdir, XrdXrootdProtocol::do_DirStat). Without them it lists all names.
        """
        del detail
        from XRootD.client.flags import DirListFlags  # start-up: the library is large

        around = path.rstrip("/")
        described = {one.name: one.statinfo for one in self._names(path, DirListFlags.STAT)}
        found = [_described(f"{around}/{name}", one) for name, one in described.items()]
        lacking = [one.name for one in self._names(path, DirListFlags.NONE) if one.name not in described]
        return [*found, *(self._alone(f"{around}/{name}") for name in lacking)]

    def _names(self, path: str, flags: int) -> Any:
        try:
            status, found = self._client.dirlist(self._safe(path), flags, self._timeout)
        except (SystemError, UnicodeDecodeError):  # of the bindings
            raise _unreadable("a name in it is not UTF-8") from None
        if status.code == _INVALID_RESPONSE:
            raise _unreadable("a name in it may have a line break")
        _check(status)
        return found

    def _alone(self, path: str) -> dict[str, Any]:
        """Return the properties of a listed name, without a size if they are unknown, as those of a link to nothing are: it is no absent name."""
        try:
            return self.info(path)
        except (RefusedError, PermissionError, FileNotFoundError):
            return {"name": path, "type": "file", "size": None}
        except OSError as problem:
            if problem.errno != errno.EIO:
                raise
            return {"name": path, "type": "other"}

    def cat_file(self, path: str, *, start: int, end: int) -> bytes:
        """Read a part of a file as it is now: a handle that stays open shows the old file after a rename."""
        from XRootD.client.flags import OpenFlags  # start-up: the library is large

        with _Opened(self, path, OpenFlags.READ) as opened:
            return opened.read(start, end - start)

    def pipe_file(self, path: str, content: bytes, *, mode: str = "overwrite") -> None:
        """Write a whole file; with the mode `create` only if it does not exist."""
        with self.open(path, "xb" if mode == "create" else "wb") as opened:
            opened.write(content)

    def open(self, path: str, mode: str, *, block_size: int = 0) -> _Opened:
        """Open a file to be written. An existing one is emptied when the server that has it is known."""
        del block_size
        from XRootD.client.flags import OpenFlags  # start-up: the library is large

        try:
            return _Opened(self, path, OpenFlags.NEW)
        except FileExistsError:
            if mode == "xb":
                raise
        opened = _Opened(self, path, OpenFlags.UPDATE)
        try:
            opened.empty()
        except BaseException:
            opened.close()
            raise
        return opened

    def makedirs(self, path: str, *, exist_ok: bool) -> None:
        """Make a folder and its parents; an existing one is no error."""
        del exist_ok
        from XRootD.client.flags import MkDirFlags  # start-up: the library is large

        _check(self._client.mkdir(self._safe(path), MkDirFlags.MAKEPATH, _FOLDER_MODE, self._timeout)[0])

    def algorithms(self) -> list[str]:
        """Return the checksums that the server computes, its usual one first."""
        from XRootD.client.flags import QueryCode  # start-up: the library is large

        status, found = self._client.query(QueryCode.CONFIG, "chksum", self._timeout)
        _check(status)
        return _ALGORITHM.findall(found.decode("ascii", "replace"))

    def checksum(self, path: str, algorithm: str) -> str:
        """Return the server's checksum of a file as `ALGORITHM:DIGITS`; it may be one that it stored."""
        from XRootD.client.flags import QueryCode  # start-up: the library is large

        asked = f"{self._safe(path)}?cks.type={algorithm}"
        status, found = self._client.query(QueryCode.CHECKSUM, asked, self._timeout or _MOST_SECONDS)
        _check(status)
        words = found.rstrip(b"\0").decode("ascii", "replace").lower().split()
        if words[:1] != [algorithm] or not _DIGITS.fullmatch(words[-1]):
            raise OSError(errno.EBADMSG, os.strerror(errno.EBADMSG))
        return ":".join(words)

    def rm_file(self, path: str) -> None:
        """Remove a file."""
        _check(self._client.rm(self._safe(path), self._timeout)[0])

    def rmdir(self, path: str) -> None:
        """Remove an empty folder."""
        _check(self._client.rmdir(self._safe(path), self._timeout)[0])

    def mv(self, path: str, to: str) -> None:
        """Rename a file; an existing one is replaced."""
        _check(self._client.mv(self._safe(path), self._safe(to), self._timeout)[0])


class ThirdPartyCopy:
    """A copy of a file that the target's server gets from the source's server; the client calls the methods after `run`."""

    def __init__(self, source: str, target: str, size: int, stopped: threading.Event) -> None:
        """Set the URLs. The client asks every 2.5 s whether it is stopped."""
        self._source = source
        self._target = target
        self._seconds = min(_MOST_SECONDS, _COPY_SECONDS + size // _COPY_RATE)
        self._stopped = stopped

    def run(self) -> None:
        """Copy to a new file. Raise an OSError: `TimeoutError` and `ConnectionError` if the server may still be copying."""
        from XRootD.client import CopyProcess  # start-up: the library is large

        process = CopyProcess()
        process.add_job(self._source, self._target, thirdparty="only", tpctimeout=self._seconds)
        _check(process.prepare())
        _check(process.run(self)[0])

    def begin(self, *_: object) -> None:
        """Do nothing."""

    def update(self, *_: object) -> None:
        """Do nothing."""

    def end(self, *_: object) -> None:
        """Do nothing."""

    def should_cancel(self, *_: object) -> bool:
        """Return whether the server should stop."""
        return self._stopped.is_set()


class _Opened:
    """An open file."""

    def __init__(self, server: XRootDServer, path: str, flags: int) -> None:
        from XRootD import client  # start-up: the library is large

        self._file = client.File()
        self._timeout = server._timeout  # noqa: SLF001  # its own class
        self._offset = 0
        _check(self._file.open(server.url(path), flags, _FILE_MODE, self._timeout)[0])
        # the client also follows redirections to files of this machine
        if not self._file.get_property("LastURL").startswith(
            ("root://", "roots://", "xroot://", "xroots://")
        ):
            self.close()
            raise elsewhere(server._url.strip("/"))  # noqa: SLF001  # as above

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self._file.close(self._timeout)

    def read(self, offset: int, length: int) -> bytes:
        """Read up to `length` bytes."""
        status, content = self._file.read(offset, length, self._timeout)
        _check(status)
        found: bytes = content
        return found

    def empty(self) -> None:
        """Remove the content."""
        _check(self._file.truncate(0, self._timeout)[0])

    def write(self, content: Any) -> None:
        """Write the next bytes."""
        if not content:
            return
        _check(self._file.write(bytes(content), self._offset, len(content), self._timeout)[0])
        self._offset += len(content)

    def close(self) -> None:
        """Close the file; the server reports here what it could not write."""
        _check(self._file.close(self._timeout)[0])
