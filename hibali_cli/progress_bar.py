"""The picture of an operation on a terminal: one line, drawn four times a second, gone when it is over."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.text import Text

from hibali.events import Carried, Deleted, Event, Failed, Hashing, Moved, Planned


class ProgressBar:
    """Bytes carried of the bytes to move, and files done."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress = progress
        self._task = task
        self._files = 0
        self._files_to_move = 0

    def show(self, event: Event) -> None:
        """Take an event into the picture."""
        match event:
            case Planned():
                self._files_to_move = event.files_to_move
                self._progress.update(self._task, total=event.bytes_to_move)
            case Hashing():
                self._files_to_move = event.files
                self._progress.update(self._task, total=event.bytes)
            case Carried():
                self._progress.advance(self._task, event.bytes)
            case Moved() | Failed() | Deleted():
                self._files += not isinstance(event, Deleted)
                self._progress.update(self._task, files=f"{self._files}/{self._files_to_move} files")

    def line(self, text: str) -> None:
        """Print a safe line above the picture."""
        self._progress.console.print(Text(text), soft_wrap=True)


@contextmanager
def progress_bar(title: str) -> Iterator[ProgressBar]:
    """Show the bar on stderr while inside."""
    progress = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=None),
        DownloadColumn(),
        TransferSpeedColumn(),
        TextColumn("{task.fields[files]}", markup=False),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        refresh_per_second=4,
        transient=True,
    )
    with progress:
        yield ProgressBar(progress, progress.add_task(title, total=None, files=""))
