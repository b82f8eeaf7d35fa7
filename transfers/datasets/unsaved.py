"""What landed at a place in a repository and is in no commit yet: names on disk, so that the same line again saves them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from hibali.errors import RefusedError
from hibali.ledger import ledger_folder, new_identifier
from hibali.system_errors import reason_of


class Unsaved:
    """Absolute names, one call's after those that earlier calls left. Begun when the target is locked, by its holder alone."""

    def __init__(self, where: bytes) -> None:
        """`where` is the target, without symlinks."""
        self._folder = ledger_folder("unsaved", hashlib.sha256(where).hexdigest()[:32])
        self._failed: set[bytes] = set()
        self._left = sorted(self._folder.glob("*.names"))
        self._own = self._folder / f"{new_identifier()}.names"
        try:
            self._stream = self._own.open("xb", buffering=0)
        except OSError as problem:
            raise RefusedError(
                "ledger-unwritable",
                f"the ledger cannot be written: {reason_of(problem)}",
                about=str(self._own),
                hint="Nothing was started. Make room there, or set HIBALI_STATE.",
            ) from None

    def begin(self, name: bytes) -> None:
        """A name is about to be changed."""
        self._stream.write(name + b"\0")

    def fail(self, name: bytes) -> None:
        """It was not changed after all."""
        self._failed.add(name)

    def names(self) -> Iterator[bytes]:
        """All that were changed; one may come twice."""
        for path in (*self._left, self._own):
            for name in read_names(path):
                if path != self._own or name not in self._failed:
                    yield name

    def settle(self) -> None:
        """All of it is in a commit."""
        self._stream.close()
        for path in (*self._left, self._own):
            path.unlink(missing_ok=True)

    def close(self) -> None:
        """Leave for the next call what is not settled; safe to call twice."""
        self._stream.close()
        if self._own.exists() and not self._own.stat().st_size:
            self._own.unlink()


def read_names(path: Path) -> list[bytes]:
    """The names in one file; one that a crash cut short is left out."""
    try:
        return path.read_bytes().split(b"\0")[:-1]
    except FileNotFoundError:
        return []
