"""Declare what is certain about a filesystem before it is probed (transfers.stores.filesystem.probe)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Put(StrEnum):
    """The way to put a file so that no half file is ever seen under its final name."""

    WHOLE = "whole"  # one call with the whole content, which appears at once
    STREAMED = "streamed"  # an opened file appears when it is closed, and never if it is discarded
    RENAMED = "renamed"  # a partial file is renamed
    UNKNOWN = ""


class Exclusive(StrEnum):
    """The way to create a file only if it does not exist, which the server decides in one step."""

    CREATE = "create"  # one call that fails if the file exists
    OPEN = "open"  # open(mode="xb")
    RENAME = "rename"  # a rename that does not replace
    FOLDER = "folder"  # a folder whose creation fails if it exists
    NONE = ""


@dataclass(frozen=True, slots=True)
class Traits:
    """The certain facts of a kind of filesystem; the defaults are the safe assumptions for an unknown one.

    Attributes:
        kind: The name of the kind of site.
        keys: Whether paths are keys of objects, so that folders exist only as parts of keys.
        put: How files are put.
        exclusive: How a lock is created.
        threads: Calls at a time.
        refuses: Characters that names cannot contain.
        keeps_parts: Whether an interruption leaves files or folders with partial names, such as parts that the next upload uses.
        swaps: Whether a file is replaced without a moment in which it does not exist; otherwise probed.
        posix: Whether it is certainly the filesystem of a Linux machine, which is not probed.
    """

    kind: str
    keys: bool = False
    put: Put = Put.UNKNOWN
    exclusive: Exclusive = Exclusive.NONE
    threads: int = 1
    refuses: bytes = b""
    keeps_parts: bool = False
    swaps: bool = True
    posix: bool = False
