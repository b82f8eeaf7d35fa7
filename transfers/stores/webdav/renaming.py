"""Rename a file or a folder with MOVE (RFC 4918, section 9.9), which fails if the new name exists."""

from __future__ import annotations

from collections.abc import Callable

from hibali.errors import IncompleteError, RefusedError
from hibali.text import printable
from transfers.model.entry import Entry
from transfers.model.leases import locked
from transfers.stores.server.lease import Held
from transfers.stores.webdav.files import Files, Found


class WebdavRename:
    """A rename between two paths below the site's URL."""

    def __init__(self, files: Files, old: bytes, new: bytes) -> None:
        """Set the fields. Raise `RefusedError` for a target that no rename may have."""
        self._files = files
        self._old = old
        self._new = new
        if (new + b"/").startswith(old + b"/"):
            raise self._refused("overlap", "the target is inside the source")
        if files.stat(new) is not None:
            raise self._exists()

    def check_source(self, entry: Entry) -> Found:
        """Return the entry's properties now. Raise `RefusedError` if it changed since it was listed."""
        found = self._files.stat(self._old)
        if found is None or not found.is_still(entry):
            raise self._refused(
                "target-changed", "it changed after it was listed, so hibali left it unchanged"
            )
        return found

    def check_unlocked(self, root: bytes, find_lock: Callable[[bytes], Held | None]) -> None:
        """Raise `TryLaterError("locked")` if a lock is held above the target, except at `root`."""
        for folder in self._folders_above():
            found = find_lock(folder) if folder != root else None
            if found is not None and not found.free:
                raise locked(found.holder, self._files.subject)

    def make_folders(self) -> None:
        """Make the missing folders above the target. Raise if one of them is a file."""
        for folder in self._folders_above()[1:]:
            self._files.make_folder(folder)

    def execute(self, entry: Entry, *, if_tag: bool) -> None:
        """Send MOVE; with `if_tag`, on the condition that a file still has its tag.

        Raises:
            RefusedError: Nothing was changed.
            IncompleteError: The server failed, or moved only a part of a folder.
        """
        found = self.check_source(entry)
        conditional = if_tag and bool(found.tag) and not found.tag.startswith("@")
        condition = {"If": f'<{self._files.client.address(self._old)}> (["{found.tag}"])'}
        if self._moved(condition if conditional else {}):
            return
        # The tag of an unchanged file is weak in its first second, which conditions reject.
        self.check_source(entry)
        if not self._moved({}):
            raise self._exists()

    def _moved(self, headers: dict[str, str]) -> bool:
        """Return whether MOVE succeeded, False if its condition failed. Raise `RefusedError` if the target exists."""
        if self._files.move(self._old, self._new, headers, overwrite=False) not in {404, 412}:
            return True
        # A repeated MOVE whose first response was lost finds no source, and the target.
        source, target = self._files.stat(self._old), self._files.stat(self._new)
        if source is not None and target is not None:
            raise self._exists()
        if source is None and target is None:
            raise IncompleteError("vanished", "it disappeared before it was renamed", subject=self._subject)
        return target is not None

    def _folders_above(self) -> list[bytes]:
        """Return the folders above the target, from the site's URL (b"") on."""
        parts = self._new.split(b"/")[:-1]
        return [b"/".join(parts[:count]) for count in range(len(parts) + 1)]

    @property
    def _subject(self) -> str:
        return f"{self._files.subject}:{printable(self._new)}"

    def _exists(self) -> RefusedError:
        return self._refused("target-exists", "a file or folder with that name already exists")

    def _refused(self, code: str, message: str) -> RefusedError:
        return RefusedError(
            code, message, subject=self._subject, hint="Choose another name. Nothing was changed."
        )
