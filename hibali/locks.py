"""Lock a folder for one process at a time; the lock of a dead process is taken over."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import socket
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from hibali.documents import line_of_json, read_json
from hibali.errors import TryLaterError, UsageError
from hibali.files import read_regular, write_atomic
from hibali.retry import growing_intervals, pause
from hibali.unreadable import unreadable

if TYPE_CHECKING:  # start-up: lists of pipelines have no events
    from hibali.events import Listener

_NUMBERED = re.compile(r"([0-9]{1,9})\.json")
_SILENT_SECONDS = 0.1  # a longer wait is reported with the holder


@dataclass(frozen=True, slots=True)
class Holder:
    """The identity of a process, distinct from later processes with the same number and from those of other machines."""

    host: str
    boot: str
    pid: int
    start: str
    token: str


class FolderLock:
    """The lock of a folder, held until `release`; usable with `with`.

    A lock is the highest of numbered files, which appear complete (link(2) of a finished file: exactly one process can create
    each number, on NFS too). The highest is never removed, so a number below it that is taken again is outdated: `release`
    marks it as free.
    """

    def __init__(self, folder: Path, number: int) -> None:
        self._path = folder / f"{number}.json"

    def release(self) -> None:
        """Release the lock; safe to call twice."""
        with contextlib.suppress(OSError):
            write_atomic(self._path, b'{"free":true}\n')

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def acquire_lock(folder: Path) -> FolderLock:
    """Take the lock of `folder`, which exists and is private.

    Raises `TryLaterError("locked")` with the holder while that lives, or may live: processes on another machine cannot be
    checked.
    """
    own = this_process()
    while True:
        highest = _highest(folder)
        if highest:
            holder = _read(folder / f"{highest}.json")
            if holder is not None and not has_ended(holder, own):
                raise TryLaterError(
                    "locked",
                    f"process {holder.pid} on {holder.host} holds the lock",
                    subject=str(folder),
                    hint="Wait until it ends. If that machine does not exist any more, remove the folder.",
                )
        if not _create(folder, highest + 1, own):
            continue
        numbers = _numbers(folder)
        # another process took a higher number meanwhile, and removed this one, so that it was free again
        outdated = max(numbers) > highest + 1
        for number in numbers:
            if number <= highest or (outdated and number == highest + 1):
                (folder / f"{number}.json").unlink(missing_ok=True)
        if not outdated:
            return FolderLock(folder, highest + 1)


def wait_for_lock(
    folder: Path, *, on_event: Listener | None = None, longest_wait: float = 600.0
) -> FolderLock:
    """`acquire_lock`, waiting while another process holds it; raises what that raises after `longest_wait` seconds."""
    intervals = growing_intervals(0.02, 2.0)
    waited = 0.0
    notified = False
    while True:
        try:
            return acquire_lock(folder)
        except TryLaterError as locked:
            if waited >= longest_wait:
                raise
            if on_event is not None and not notified and waited > _SILENT_SECONDS:
                from hibali.events import Noted  # start-up: only after a long wait

                on_event(Noted(f"waiting: {locked.message}"))
                notified = True
        step = intervals.next_pause()
        waited += step
        pause(step)


def _create(folder: Path, number: int, own: Holder) -> bool:
    partial = folder / f".{own.token}"
    write_atomic(partial, line_of_json(asdict(own)).encode() + b"\n")
    try:
        os.link(partial, folder / f"{number}.json")
    except FileExistsError:
        return partial.stat().st_nlink > 1  # over NFS, the answer to a successful link can be lost
    finally:
        partial.unlink(missing_ok=True)
    return True


def _highest(folder: Path) -> int:
    return max(_numbers(folder), default=0)


def _numbers(folder: Path) -> list[int]:
    return [int(match[1]) for each in folder.iterdir() if (match := _NUMBERED.fullmatch(each.name))]


def _read(path: Path) -> Holder | None:
    """Return the holder, or None where the lock is free."""
    try:
        found: dict[str, Any] = read_json(read_regular(path), str(path))
        return None if found.get("free") else Holder(**found)
    except FileNotFoundError:
        return None  # another process took the next number
    except (OSError, UsageError, TypeError, AttributeError):
        raise unreadable(path, "the lock is damaged, so its holder is unknown") from None


def has_ended(holder: Holder, own: Holder) -> bool:
    """Return whether the process has provably ended."""
    if holder.host != own.host:
        return False
    if holder.boot != own.boot:
        return True
    return _start_time(holder.pid) != holder.start


def this_process() -> Holder:
    """Return the identity of this process."""
    pid = os.getpid()
    return Holder(socket.gethostname(), _boot(), pid, _start_time(pid), secrets.token_hex(8))


def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return ""


def _start_time(pid: int) -> str:
    """Return field 22 of /proc/PID/stat (proc(5)), "gone" for a process that ended or is a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return "gone"
    fields = stat.rpartition(b") ")[2].split()
    return "gone" if fields[0] in {b"Z", b"X"} else fields[19].decode("ascii")
