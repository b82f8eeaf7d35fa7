"""A file of the user's that is written whole or not at all, however long it takes."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from hibali.errors import AccessError, IncompleteError, NotFoundError, UsageError
from hibali.ledger import sync_folder
from hibali.system_errors import reason_of


class WholeFile:
    """Bytes go to a partial file beside `path`, which takes its place, durable, with `commit` and is gone without."""

    def __init__(self, path: Path) -> None:
        """Follows a symlink at `path`. Raises `UsageError` where something else than a file stands there."""
        self.path = Path(os.path.realpath(path))
        try:
            if not stat.S_ISREG(self.path.stat().st_mode):
                raise UsageError(
                    "not-a-file", "something else than a file stands there, and stays", about=str(path)
                )
        except FileNotFoundError:
            pass
        except OSError as problem:
            raise _unwritable(path, problem) from None
        self._partial = self.path.with_name(f".{self.path.name[:200]}.{secrets.token_hex(8)}")
        try:
            self._stream: IO[bytes] = self._partial.open("xb")
        except OSError as problem:
            raise _unwritable(path, problem) from None

    def write(self, content: bytes) -> None:
        """Add to it; raises `IncompleteError` where there is no room."""
        try:
            self._stream.write(content)
        except OSError as problem:
            raise self._broken(problem) from None

    @property
    def stream(self) -> IO[bytes]:
        """The partial file itself, for a writer that seeks in it."""
        return self._stream

    def commit(self) -> None:
        """Give it its name; raises `IncompleteError`."""
        try:
            self._stream.flush()
            os.fsync(self._stream.fileno())
            self._stream.close()
            self._partial.replace(self.path)
            sync_folder(self.path.parent)
        except OSError as problem:
            raise self._broken(problem) from None

    def _broken(self, problem: OSError) -> IncompleteError:
        reason = reason_of(problem)
        return IncompleteError("unwritable-file", f"it could not be written: {reason}", about=str(self.path))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):  # what was not committed is thrown away
            self._stream.close()
        self._partial.unlink(missing_ok=True)


def _unwritable(path: Path, problem: OSError) -> NotFoundError | AccessError | UsageError:
    if isinstance(problem, FileNotFoundError | NotADirectoryError):
        return NotFoundError("no-such-folder", "the folder it should be in is not there", about=str(path))
    if isinstance(problem, PermissionError):
        return AccessError("denied", "it may not be written there", about=str(path))
    return UsageError("unwritable-file", reason_of(problem), about=str(path))
