"""Read the logs of a run from its site, in pieces and as they grow."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from hibali.errors import NotFoundError
from hibali.events import Listener, Noted
from hibali.retry import growing_intervals, pause
from runs.model import Run
from runs.monitor import TaskIsOverError, wait_for_end
from runs.records import choose_task
from runs.site_session import SiteOpener
from transfers.model.entry import Entry, Kind
from transfers.remote.host import RemoteHost

Stream = Literal["stdout", "stderr", "scheduler.log"]
Show = Callable[[Stream, bytes], None]
_PIECE = 1 << 20
_SHORTEST_SECONDS = 0.25  # between two polls while output arrives
_LONGEST_SECONDS = 10.0


def read_log(host: RemoteHost, run: Run, stream: Stream) -> Iterator[bytes]:
    """Read the stream as far as it is written; raises `NotFoundError` if nothing was written yet."""
    path = run.folder + b"/" + stream.encode("ascii")
    offset = 0
    while run.folder:
        piece = host.get(path, maximum=_PIECE, offset=offset)
        if piece is None:
            break
        if not piece and offset:
            return
        yield piece
        offset += len(piece)
        if len(piece) < _PIECE:
            return
    raise _no_log(run, stream)


def follow_logs(
    opener: SiteOpener, run: Run, streams: Sequence[Stream], show: Show, *, task: int | None = None
) -> Run:
    """Show new output until the run has ended and all of it was shown; return the run as it is then.

    For a task of a sweep, `run` is its `task` as a single run, and following ends with that task. The
    scheduler is polled as often as `wait_for_end` does, and when the job has written its exit record. Raises
    what `wait_for_end` raises, and `NotFoundError` if nothing was ever written.
    """
    tail = _Tail(run.folder, streams, show, opener.on_event)

    def follow(host: RemoteHost, seconds: float) -> None:
        if task is not None and choose_task(opener.runs.load(run.id), task).state.ended:
            tail.follow(host, 0.0)
            raise TaskIsOverError
        tail.follow(host, seconds)

    with contextlib.suppress(TaskIsOverError):
        wait_for_end(opener, [run.id], meanwhile=follow)
    if not tail.found:
        raise _no_log(run, streams[0])
    return choose_task(opener.runs.load(run.id), task)


@dataclass(slots=True)
class _File:
    """A stream: the offset shown so far, and the file's identity if the site reports it (else 0)."""

    stream: Stream
    path: bytes
    shown: int = 0
    inode: int = 0
    exists: bool = False


class _Tail:
    """The log files of a run, polled repeatedly; only new bytes are read."""

    def __init__(self, folder: bytes, streams: Sequence[Stream], show: Show, on_event: Listener) -> None:
        self._files = [_File(stream, folder + b"/" + stream.encode("ascii")) for stream in streams]
        self._record = folder + b"/exit.json"
        self._show = show
        self._on_event = on_event
        self._intervals = growing_intervals(_SHORTEST_SECONDS, _LONGEST_SECONDS)
        self._job_is_over = False

    @property
    def found(self) -> bool:
        """True if one of the files ever existed."""
        return any(each.exists for each in self._files)

    def follow(self, host: RemoteHost, seconds: float) -> None:
        """Poll for so many seconds, fewer when the job has ended; with 0 show all that exists."""
        if not seconds:
            self._show_remaining(host)
            return
        until = time.monotonic() + seconds
        while True:
            most = max(self._show_next(host, each) for each in self._files)
            if most:
                self._intervals.restart()
            left = until - time.monotonic()
            if left <= 0 or self._has_just_ended(host):
                return
            if most < _PIECE:
                pause(min(left, self._intervals.next_pause()))

    def _show_remaining(self, host: RemoteHost) -> None:
        """Show what is written now, and no more: a process that outlives the job may continue writing."""
        for each in self._files:
            entry = host.stat(each.path)
            while self._show_next(host, each) and entry is not None and each.shown < entry.size:
                pass

    def _has_just_ended(self, host: RemoteHost) -> bool:
        """Return True once, when the exit record appears: then wait for the scheduler's state."""
        if self._job_is_over or host.stat(self._record) is None:
            return False
        self._job_is_over = True
        return True

    def _show_next(self, host: RemoteHost, each: _File) -> int:
        """Show one more piece, if there is one; return its length."""
        entry = host.stat(each.path)
        if entry is None or entry.kind is not Kind.FILE:
            return 0
        each.exists = True
        self._detect_replacement(each, entry)
        most = min(_PIECE, entry.size - each.shown)
        piece = host.get(each.path, maximum=most, offset=each.shown) if most > 0 else None
        if not piece:
            return 0
        each.shown += len(piece)
        self._show(each.stream, piece)
        return len(piece)

    def _detect_replacement(self, each: _File, entry: Entry) -> None:
        """Restart at the beginning of a file that was truncated or replaced."""
        is_another = bool(each.inode and entry.inode) and each.inode != entry.inode
        if each.shown and (is_another or entry.size < each.shown):
            self._on_event(
                Noted(
                    f"{each.stream} was {'replaced' if is_another else 'truncated'}; showing it from its beginning"
                )
            )
            each.shown = 0
        each.inode = entry.inode


def _no_log(run: Run, stream: Stream) -> NotFoundError:
    return NotFoundError(
        "no-log",
        f"the run has no {stream} yet",
        subject=run.id,
        hint=f"To see the run: hibali runs show {run.id}",
    )
