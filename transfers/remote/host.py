"""Define a remote host: small files, folders, and programs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from transfers.agent import protocol
from transfers.entry import Entry
from transfers.stores.base import Space


@dataclass(frozen=True, slots=True)
class Finished:
    """How a command ended there; `exit_code` is negative for a signal, 127 where there is no such program."""

    exit_code: int
    stdout: bytes
    stderr: bytes


@dataclass(frozen=True, slots=True)
class Once:
    """What is known of a command that may run only once: `fresh` if this call ran it.

    `finished` is None where somebody began it and the answer was never written: look it up, do not repeat.
    `age_seconds` is how long ago it was begun, by the far filesystem's clock.
    """

    fresh: bool
    finished: Finished | None
    age_seconds: float


@dataclass(frozen=True, slots=True)
class SmallFile:
    """A private file that is put somewhere; `path` is absolute."""

    path: bytes
    content: bytes
    executable: bool = False


class RemoteHost(Protocol):
    """One login at one site. All paths are absolute bytes there; every method may raise
    `TryLaterError` (unreachable), `AccessError` (denied), `NotFoundError`, `RefusedError`.
    """

    def expand(self, path: str) -> bytes:
        """An absolute path there, from one that may start with `~/` or `$NAME`; nothing else is expanded."""

    def facts(self) -> dict[str, str]:
        """host, user (its name), home, python, boot, clock (seconds since the epoch) as the far side reports them."""

    def stat(self, path: bytes) -> Entry | None:
        """What stands there, the last component's symlink followed; None when absent."""

    def is_private(self, path: bytes) -> bool:
        """Whether a folder of this account, or of root, is there that nobody else may write to; symlinks are followed."""

    def make_folder(self, path: bytes, *, exclusive: bool = False) -> bool:
        """Make it and those above it, 0700; with `exclusive` only one caller ever gets True for a path."""

    def put(self, path: bytes, content: bytes, *, executable: bool = False) -> None:
        """Write a small private file whole or not at all, durable when this returns."""

    def get(self, path: bytes, *, maximum: int = 1 << 20, offset: int = 0) -> bytes | None:
        """Up to `maximum` bytes of a regular file from `offset`, symlinks not followed; None when absent."""

    def put_all(self, files: Sequence[SmallFile], folders: Sequence[bytes] = ()) -> None:
        """Make these folders, those above come first, and write all the files as `put` does, in few round trips."""

    def get_all(self, paths: Sequence[bytes], *, maximum: int = 1 << 16) -> list[bytes | None]:
        """The first `maximum` bytes of each, in few round trips; None where there is no regular file that can be read."""

    def copy_all(self, pairs: Sequence[tuple[bytes, bytes]]) -> None:
        """Each source copied to its target as `copy` does, without waiting for one after the other."""

    def names(self, path: bytes) -> list[bytes]:
        """The names in a folder, sorted; an absent folder has none."""

    def copy(self, source: bytes, target: bytes) -> None:
        """A private copy of a file or tree (a reflink where the filesystem can), never a hard link."""

    def move(self, source: bytes, target: bytes) -> None:
        """Rename a file or tree, unless anything stands at `target`; look afterwards where that matters."""

    def remove_tree(self, path: bytes) -> None:
        """Remove a folder and all below it; absent is done."""

    def run(
        self,
        argv: Sequence[bytes | str],
        *,
        stdin: bytes = b"",
        folder: bytes | None = None,
        timeout: float = 60.0,
    ) -> Finished:
        """Run one program there, words handed over as they are, no shell; output is cut at 8 MiB."""

    def run_once(self, marker: bytes, argv: Sequence[bytes | str], *, folder: bytes | None = None) -> Once:
        """Run one program at most once for all time: the exclusive mkdir of `marker` decides who.

        The answer is written beside it, durable, even when this side is gone meanwhile.
        """

    def digest(self, path: bytes) -> str:
        """sha256 in hexadecimal of a regular file, read there now."""

    def close(self) -> None:
        """Leave; safe to call twice."""


@runtime_checkable
class KnowsPrograms(Protocol):
    """A machine where programs can be looked for by their names, and run with any words."""

    def which(self, names: Sequence[str]) -> Mapping[str, str | None]:
        """Where each is found, by name; None where it is not."""


@runtime_checkable
class HasRoom(Protocol):
    """A machine that tells how much room there is."""

    def room(self, path: bytes) -> Space:
        """At a folder that is there, quotas of this account included."""


def read_answer(content: bytes) -> Finished | None:
    """The answer that `run_once` wrote into its marker as `answer.json`; None where it is none."""
    try:
        record = json.loads(content)
        return Finished(
            int(record["exit"]), protocol.bytes_of(record["stdout"]), protocol.bytes_of(record["stderr"])
        )
    except (ValueError, KeyError, TypeError):
        return None
