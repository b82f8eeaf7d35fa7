"""Define a remote host: small files, folders, and programs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from transfers.agent import protocol
from transfers.model.entry import Entry
from transfers.model.units import Space


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The result of a remote command; `exit_code` is negative for a signal, 127 for a missing program."""

    exit_code: int
    stdout: bytes
    stderr: bytes


@dataclass(frozen=True, slots=True)
class OnceResult:
    """The state of a command that may run only once; `fresh` if this call ran it.

    `finished` is None if it was started and no result was written: check its effect, do not repeat it.
    `age_seconds` is the time since its start, by the clock of the remote filesystem.
    """

    fresh: bool
    finished: CommandResult | None
    age_seconds: float


@dataclass(frozen=True, slots=True)
class SmallFile:
    """A private file to write; `path` is absolute."""

    path: bytes
    content: bytes
    executable: bool = False


class RemoteHost(Protocol):
    """A remote host. All paths are absolute bytes there; every method may raise
    `TryLaterError` (unreachable), `AccessError` (denied), `NotFoundError`, `RefusedError`.
    """

    def expand(self, path: str) -> bytes:
        """Expand a path that may start with `~/` or `$NAME` to an absolute one; nothing else is expanded."""

    def facts(self) -> dict[str, str]:
        """Return host, user (name), home, python, boot, and clock (seconds since the epoch)."""

    def stat(self, path: bytes) -> Entry | None:
        """Describe a path, following a symlink in the last component; None when absent."""

    def is_private(self, path: bytes) -> bool:
        """Return whether it is a folder of this account or root, not writable by others; follows symlinks."""

    def make_folder(self, path: bytes, *, exclusive: bool = False) -> bool:
        """Create a folder and its parents, 0700; with `exclusive`, only one caller ever gets True."""

    def put(self, path: bytes, content: bytes, *, executable: bool = False) -> None:
        """Write a small private file, atomically and durably."""

    def get(self, path: bytes, *, maximum: int = 1 << 20, offset: int = 0) -> bytes | None:
        """Read up to `maximum` bytes of a regular file (no symlink) from `offset`; None when absent."""

    def put_all(self, files: Sequence[SmallFile], folders: Sequence[bytes] = ()) -> None:
        """Create these folders, parents first, and write all the files as `put` does, in few round trips."""

    def get_all(self, paths: Sequence[bytes], *, maximum: int = 1 << 16) -> list[bytes | None]:
        """Read the first `maximum` bytes of each, in few round trips; None if not a readable file."""

    def copy_all(self, pairs: Sequence[tuple[bytes, bytes]]) -> None:
        """Copy each source to its target as `copy` does, in few round trips."""

    def names(self, path: bytes) -> list[bytes]:
        """List the names in a folder, sorted; an absent folder is empty."""

    def copy(self, source: bytes, target: bytes) -> None:
        """Copy a file or tree privately (a reflink where possible), never as a hard link."""

    def move(self, source: bytes, target: bytes) -> None:
        """Rename a file or tree, unless `target` exists; no error then, so callers must check."""

    def remove_tree(self, path: bytes) -> None:
        """Remove a folder and its content; an absent one is no error."""

    def run(
        self,
        argv: Sequence[bytes | str],
        *,
        stdin: bytes = b"",
        folder: bytes | None = None,
        timeout: float = 60.0,
    ) -> CommandResult:
        """Run one program there, with its arguments unchanged and without a shell; output is cut at 8 MiB."""

    def run_once(
        self, marker: bytes, argv: Sequence[bytes | str], *, folder: bytes | None = None
    ) -> OnceResult:
        """Run one program at most once ever: the exclusive mkdir of `marker` decides.

        The result is stored in it, durably, even when the connection is lost meanwhile.
        """

    def digest(self, path: bytes) -> str:
        """Return the sha256 in hexadecimal of a regular file, read there now."""

    def close(self) -> None:
        """Close the connection; safe to call twice."""


@runtime_checkable
class KnowsPrograms(Protocol):
    """A host that can find programs by name and run them with any arguments."""

    def which(self, names: Sequence[str]) -> Mapping[str, str | None]:
        """Find each program by name; None if it is missing."""


@runtime_checkable
class ReportsFreeSpace(Protocol):
    """A host that reports free space."""

    def free_space(self, path: bytes) -> Space:
        """Return the free space at an existing folder, with the quotas of this account."""


def parse_result(content: bytes) -> CommandResult | None:
    """Read the result that `run_once` wrote to `answer.json` in its marker; None if invalid."""
    try:
        record = json.loads(content)
        return CommandResult(
            int(record["exit"]), protocol.bytes_of(record["stdout"]), protocol.bytes_of(record["stderr"])
        )
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
