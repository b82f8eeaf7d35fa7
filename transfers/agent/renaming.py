"""Rename a file or a folder within its filesystem, never over another one."""

import contextlib
import errno
import os
import stat
from typing import Any, Callable, Dict

from transfers.agent import protocol
from transfers.agent.protocol import RefusedError
from transfers.agent.removing import NO_LINKS, check_unlocked_above, has_changed
from transfers.agent.safe_path import OpenedFolder, Root, Roots, leaves_root_error, record_of

_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class Renaming(object):
    """The rename of one entry: the root itself, or a name in it; open until it is closed."""

    def __init__(self, root: Root, root_path: bytes, item: Dict[str, Any]) -> None:
        """Check that the entry is unchanged since the listing `item`; its path is b"" for the root itself."""
        self._root = root
        whole = not item["path"]
        path = root_path.rstrip(b"/")
        self.path = os.path.realpath(os.path.dirname(path) if whole else path)
        self._name = os.path.basename(path) if whole else protocol.bytes_of(item["path"])
        self._above = os.open(self.path, _FOLDER_FLAGS) if whole else os.dup(root.descriptor)
        self._found = os.stat(self._name, dir_fd=self._above, follow_symlinks=False)
        replaced = whole and not os.path.samestat(self._found, os.fstat(root.descriptor))
        if replaced or has_changed(record_of(b"", self._found), item):
            raise RefusedError(
                "target-changed", "it changed after it was listed, so hibali left it unchanged"
            )

    def check_target(self, target: bytes) -> None:
        """Refuse a target that exists, is inside the entry, or is on another filesystem."""
        above = os.path.realpath(os.path.dirname(target))
        own = os.path.join(self.path, self._name)
        if (above + b"/").startswith(own + b"/"):
            raise RefusedError("overlap", "the target is inside the source")
        if os.path.lexists(os.path.join(above, os.path.basename(target))):
            raise _exists()
        while not os.path.lexists(above):
            above = os.path.dirname(above)
        if os.stat(above).st_dev != self._found.st_dev:
            raise _elsewhere()

    def execute(self, target: bytes, roots: Roots, token: str, check: Callable[[], None]) -> None:
        """Rename it durably; missing folders above the target are created.

        Args:
            target: the absolute new path.
            roots: the configured roots, out of which no symlink may lead.
            token: of the held lock, which is no other operation's.
            check: raises an error if the lock was lost.
        """
        clock = os.stat(
            b"lock", dir_fd=self._root.folder(protocol.OWN_FOLDER), follow_symlinks=False
        ).st_mtime
        folder, name = os.path.dirname(target), os.path.basename(target)
        opened = roots.open(folder, make=True)
        try:
            _check_folder(opened, folder)
            check_unlocked_above(os.path.join(os.path.realpath(folder), name), clock, token)
            check()
            self._rename(name, opened.descriptor)
            for descriptor in (opened.descriptor, self._above):
                _sync(descriptor)
        except OSError as problem:
            if problem.errno == errno.EXDEV:
                raise _elsewhere() from None
            if problem.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR, errno.EISDIR):
                raise _exists() from None
            raise
        finally:
            os.close(opened.descriptor)

    def _rename(self, name: bytes, into: int) -> None:
        """Rename by system calls that fail if the name exists: an empty folder is all that they replace."""
        if not stat.S_ISDIR(self._found.st_mode):
            try:
                # both names exist for a moment, so that an interruption loses nothing
                os.link(self._name, name, src_dir_fd=self._above, dst_dir_fd=into, follow_symlinks=False)
            except OSError as problem:
                if problem.errno not in NO_LINKS:
                    raise
            else:
                _sync(into)
                os.unlink(self._name, dir_fd=self._above)
                return
            with contextlib.suppress(FileNotFoundError):
                os.stat(name, dir_fd=into, follow_symlinks=False)
                raise _exists()
        os.rename(self._name, name, src_dir_fd=self._above, dst_dir_fd=into)

    def close(self) -> None:
        """Close the folder of the entry."""
        os.close(self._above)


def _check_folder(opened: OpenedFolder, path: bytes) -> None:
    if opened.foreign is not None:
        raise opened.foreign
    if not opened.inside:
        raise leaves_root_error(path)


def _sync(descriptor: int) -> None:
    try:
        os.fsync(descriptor)
    except OSError as problem:
        # Some filesystems cannot sync a folder and report that: nothing more can be done.
        if problem.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise


def _exists() -> RefusedError:
    return RefusedError("target-exists", "a file or folder with that name already exists")


def _elsewhere() -> RefusedError:
    return RefusedError("other-filesystem", "the target is on another filesystem than the source")
