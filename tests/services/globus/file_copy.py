"""Transfer one file: compare, copy and hash it on both sides, with the faults that a test activated."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.services.globus.world import Fault, World

if TYPE_CHECKING:
    from tests.services.globus.tasks import Task

_BLOCK = 1 << 20
# fault kind: event code, and whether the fault is at the source
KINDS = {
    "file_not_found": ("FILE_NOT_FOUND", True),
    "permission_denied": ("PERMISSION_DENIED", True),
    "quota": ("QUOTA_EXCEEDED", False),
    "no_space": ("NO_SPACE_LEFT", False),
    "timeout": ("TIMEOUT", False),
    "task_error": ("ENDPOINT_ERROR", False),  # any other event code, given by `code`
}
_MIDWAY = ("quota", "no_space", "timeout")


class TroubleError(Exception):
    """A step failed: Globus's event code, the path, a description; `fatal` ends the task."""

    def __init__(
        self, code: str, path: str, message: str, *, at_source: bool = True, fatal: bool = False
    ) -> None:
        super().__init__(message)
        self.code, self.path, self.message = code, path, message
        self.at_source, self.fatal = at_source, fatal


def raise_fault_before_writing(world: World, task: Task, about: dict[str, Any]) -> None:
    """Raise the fault that a test activated for these paths, before anything is written."""
    fault = world.take(*(kind for kind in KINDS if kind not in _MIDWAY), **about)
    if fault is not None:
        raise _trouble(fault, task, about["paths"])


def _trouble(fault: Fault, task: Task, paths: list[str]) -> TroubleError:
    """Return the error for a fault, at the fault's collection if it has one."""
    code, at_source = KINDS[fault.kind]
    if fault.collection is not None:
        at_source = fault.collection == task.source.id
    path = paths[0] if at_source else paths[-1]
    words = fault.message or code.capitalize().replace("_", " ")
    return TroubleError(fault.code or code, path, words, at_source=at_source, fatal=fault.fatal)


def copy_file(
    world: World, task: Task, paths: tuple[Path, Path], item: dict[str, Any], about: dict[str, Any]
) -> int | None:
    """Copy one file according to the task's options; return the bytes sent, or None if the file was up to date.

    Like Globus, it writes directly to the final name: an interrupted copy leaves a partial file.
    """
    source, destination = paths
    options = task.options
    if options["sync_level"] is not None and _is_same(source, destination, int(options["sync_level"])):
        return None
    raise_fault_before_writing(world, task, about)
    source_path = about["paths"][0]
    _check_external(source, item, source_path)
    midway = world.take(*_MIDWAY, **about)
    flipped = world.take("checksum", **about)
    destination.parent.mkdir(parents=True, exist_ok=True)
    sent = _send(source, destination, half=midway is not None, flipped=flipped is not None)
    if midway is not None:
        raise _trouble(midway, task, about["paths"])
    if options["verify_checksum"]:
        task.counts["bytes_checksummed"] += sent
        if digest_of(source) != digest_of(destination):
            message = "Checksums of source and destination differ"
            raise TroubleError(
                "VERIFY_CHECKSUM", source_path, message, fatal=flipped is not None and flipped.fatal
            )
    if options["preserve_timestamp"]:
        seconds = int(source.stat().st_mtime)  # GridFTP has whole seconds only
        os.utime(destination, (seconds, seconds))
    if world.take("corrupted_later", **about):
        _flip(destination)
    return sent


def _send(source: Path, destination: Path, *, half: bool, flipped: bool) -> int:
    if source.exists() and not source.is_file():
        raise FileNotFoundError(2, "Not a file", str(source))
    with source.open("rb") as given, destination.open("wb") as taken:
        left = os.fstat(given.fileno()).st_size // (2 if half else 1)
        sent = 0
        while block := given.read(min(_BLOCK, left - sent)):
            sent += taken.write(block)
    if flipped:
        _flip(destination)
    return sent


def _flip(path: Path) -> None:
    """Corrupt a file: change its last byte, or append one to an empty file."""
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([(data[-1] ^ 0xFF) if data else 0xFF]))


def _is_same(source: Path, destination: Path, level: int) -> bool:
    """Return whether a file is up to date by sync level: 0 it exists, 1 same size, 2 also not older, 3 also same content."""
    if not destination.exists():
        return False
    here, there = source.stat(), destination.stat()
    if level == 0:
        return True
    if here.st_size != there.st_size:
        return False
    if level == 2:
        return int(here.st_mtime) <= int(there.st_mtime)
    return level == 1 or digest_of(source) == digest_of(destination)


def _check_external(source: Path, item: dict[str, Any], path: str) -> None:
    wanted = item.get("external_checksum")
    if not wanted:
        return
    algorithm = (item.get("checksum_algorithm") or "md5").lower().replace("-", "")
    if digest_of(source, algorithm) != wanted.lower():
        raise TroubleError("EXTERNAL_CHECKSUM_MISMATCH", path, f"The source's {algorithm} is not {wanted}")


def digest_of(path: Path, algorithm: str = "md5") -> str:
    with path.open("rb") as given:
        return hashlib.file_digest(given, algorithm).hexdigest()
