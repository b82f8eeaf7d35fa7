"""Define the operations on files that a service offers, and what they return."""

from __future__ import annotations

import secrets
import shlex
from dataclasses import dataclass
from typing import Protocol

from hibali.errors import RefusedError
from hibali.http.client import Bytes
from hibali.text import printable
from transfers.model.entry import Kind


@dataclass(frozen=True, slots=True)
class Stat:
    """The properties of a path (stat(2)); times in whole seconds."""

    mode: int
    inode: int
    user: int
    size: int
    mtime: int


@dataclass(frozen=True, slots=True)
class Listed:
    """A line of `ls`. `seconds` is the time of a file since the epoch, or since that of the system's local time if `local`."""

    name: bytes
    kind: Kind
    link: bytes
    size: int
    seconds: int
    local: bool


class Operations(Protocol):
    """The operations of one account at one machine; thread-safe. Paths are absolute, also without their first slash.

    Attributes:
        subject: The site, as errors name it.
        direct_bytes: The size of the largest file that `upload` takes.
        download_bytes: The size of the largest file that `download` returns.
    """

    subject: str
    direct_bytes: int
    download_bytes: int

    def stat(self, path: bytes, *, follow: bool = False) -> Stat | None:
        """Return the properties of a path; None if it is missing."""

    def ls(self, path: bytes, *, seconds: float) -> list[Listed]:
        """Return what is in a folder. Raise `NotFoundError("vanished")`, also for a file."""

    def download(self, path: bytes) -> bytes:
        """Return a whole file of at most `download_bytes`."""

    def upload(self, path: bytes, content: Bytes, *, seconds: float | None = None) -> None:
        """Write a file of at most `direct_bytes` in place; its name is plain ASCII."""

    def extract(self, archive: bytes, folder: bytes) -> None:
        """Extract a gzipped tar archive into a folder."""

    def mkdir(self, path: bytes, *, parents: bool = False) -> bool:
        """Make a folder; return False if the name is taken, unless that is no error with `parents`."""

    def remove(self, path: bytes) -> None:
        """Remove a file, or a folder with all that is in it; a missing one is no error."""

    def chmod(self, path: bytes, mode: int) -> None:
        """Set the permissions."""

    def checksum(self, path: bytes) -> str | None:
        """Return the sha256 that the system computes; None if that takes too long for the service, or it cannot do it for this name."""

    def close(self) -> None:
        """Close the connections."""


def form_of(name: str, content: Bytes) -> tuple[bytes, dict[str, str]]:
    """Return the body and headers of a form that uploads a file as `file` (RFC 7578); its name is plain ASCII."""
    boundary = secrets.token_hex(16)
    head = (
        f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="{name}"\r\n'
        "Content-Type: application/octet-stream\r\n\r\n"
    )
    body = b"".join([head.encode("ascii"), content, f"\r\n--{boundary}--\r\n".encode("ascii")])
    return body, {"Content-Type": f"multipart/form-data; boundary={boundary}"}


def plain_path(path: bytes, subject: str, service: str) -> str:
    """Return a path with its first slash. Raise `RefusedError` for one that a shell could read as something else (S9)."""
    if any(each in path for each in (b"'", b"\n", b"\r", b"\\", b"\0")):
        raise RefusedError(
            "unsafe-name",
            f"{service} cannot handle this name: {printable(path)}",
            subject=subject,
            hint="Rename it: names there cannot have apostrophes, backslashes and line breaks.",
        )
    return "/" + path.decode("utf-8", "surrogateescape").lstrip("/")


def quoted_path(path: bytes) -> str:
    """Return a path as a word of a shell."""
    return shlex.quote(path.decode("utf-8", "surrogateescape"))
