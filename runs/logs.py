"""What the tool wrote to its standard output and error, read from the site in pieces."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from hibali.errors import NotFoundError
from runs.run import Run
from transfers.far import Far

Stream = Literal["stdout", "stderr", "scheduler.log"]
_PIECE = 1 << 20


def read_log(far: Far, run: Run, stream: Stream) -> Iterator[bytes]:
    """The stream as far as it is written now; raises `NotFoundError` where nothing was written yet."""
    path = run.folder + b"/" + stream.encode("ascii")
    offset = 0
    while run.folder:
        piece = far.get(path, maximum=_PIECE, offset=offset)
        if piece is None:
            break
        if not piece and offset:
            return
        yield piece
        offset += len(piece)
        if len(piece) < _PIECE:
            return
    raise NotFoundError(
        "no-log", f"the run has no {stream} yet", about=run.id, hint=f"hibali runs show {run.id}"
    )
