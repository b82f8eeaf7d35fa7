"""Rename a file or a folder with the SFTP server's own rename, which fails if the new name exists."""

from __future__ import annotations

from hibali.errors import RefusedError
from hibali.text import printable
from transfers.model.entry import Entry, Kind
from transfers.model.leases import locked
from transfers.stores.sftp.channel import StatusError
from transfers.stores.sftp.client import Client, is_unchanged, kind_of
from transfers.stores.sftp.lock import Own, SftpLock, find_lock
from transfers.stores.sftp.paths import Guard, SafePaths


class SftpRename:
    """A rename to an absolute path."""

    def __init__(self, client: Client, guard: Guard, old: bytes, target: bytes) -> None:
        """`old` is the real path of the entry. Raises `RefusedError` for a target that no rename may have."""
        self._client = client
        self._old = old
        folder, _, name = target.rpartition(b"/")
        self._folder = guard.reach(folder or b"/", writes=True, confined=True).path.rstrip(b"/")
        self._new = self._folder + b"/" + name
        if (self._new + b"/").startswith(old.rstrip(b"/") + b"/"):
            raise self._refused("overlap", "the target is inside the source")
        if client.stat(self._new) is not None:
            raise self._refused("target-exists", "a file or folder with that name already exists")

    def check_source(self, entry: Entry) -> None:
        """Raise `RefusedError` if the entry changed since it was listed."""
        found = self._client.stat(self._old)
        same = found is not None and kind_of(found) is entry.kind
        if not same or (entry.kind is Kind.FILE and found is not None and not is_unchanged(entry, found)):
            raise self._refused(
                "target-changed", "it changed after it was listed, so hibali left it unchanged"
            )

    def check_unlocked(self, lock: SftpLock, own: Own, root: bytes) -> None:
        """Raise `TryLaterError("locked")` if this account holds a lock above the target, except at `root`."""
        clock, folder = lock.clock(), self._folder
        while True:
            if folder != root.rstrip(b"/"):
                above = Own(self._client, SafePaths(self._client, folder or b"/"))
                above.user = own.user
                held = find_lock(above, clock)
                if held is not None and not held.free:
                    raise locked(held.holder, self._client.subject)
            if not folder:
                return
            folder = folder.rpartition(b"/")[0]

    def execute(self) -> None:
        """Rename it, after creating missing folders. Raises `RefusedError`; SFTP does not report the reason."""
        safe_paths = SafePaths(self._client, b"/")
        relative = self._new.lstrip(b"/")
        problem = safe_paths.parents([relative], make=True).get(relative)
        if problem is not None:
            raise self._refused(problem.code, problem.message)
        try:
            self._client.request_move(self._old, self._new).wait()
        except StatusError as refused:
            if self._client.stat(self._new) is not None:
                raise self._refused(
                    "target-exists", "a file or folder with that name already exists"
                ) from None
            raise self._refused(
                "other-filesystem",
                f"the server did not rename it ({refused}); the target may be on another filesystem",
            ) from None

    def _refused(self, code: str, message: str) -> RefusedError:
        return RefusedError(
            code,
            message,
            subject=f"{self._client.subject}:{printable(self._new)}",
            hint="Choose another name. Nothing was changed.",
        )
