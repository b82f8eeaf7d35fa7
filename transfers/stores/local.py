"""Store files in folders of this machine."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from hibali.config.model import Site
from hibali.errors import NotFoundError
from hibali.events import Listener, ignore
from hibali.locations import Location, guarded_roots
from hibali.subprocesses import Process
from hibali.system_errors import message_of
from hibali.text import printable
from transfers.agent.protocol import RefusedError, UnsafeNameError, problem_of
from transfers.model.entry import Entry, entry_of
from transfers.model.store import MARKER
from transfers.model.units import PACK_BYTES, Problem, problem_from
from transfers.pipeline.channel_pool import ChannelPool, no_channels
from transfers.remote.connection import Connection, error_from, local_command
from transfers.remote.shared_memory import arena
from transfers.stores.agent_store import AGENT_FACTS, PosixStore, check_size, is_executable, listed

if TYPE_CHECKING:
    from transfers.agent.safe_path import OpenedFolder, Root


def connect(
    site: Site,
    *,
    inspect_path: bytes | None = None,
    roots: Sequence[str] | None = None,
    on_event: Listener = ignore,
) -> tuple[Connection, int]:
    """Start an agent on this machine; return its connection and 0 logins. Arguments: see Connection."""
    del on_event
    memory = arena()
    process = Process(local_command(sys.executable), leave=() if memory is None else (memory.descriptor,))
    known = guarded_roots(site) if roots is None else roots
    return Connection(
        process, site.name, here=True, inspect_path=inspect_path, roots=known, stall=site.limits.stall_seconds
    ), 0


class LocalStore(PosixStore):
    """A folder on this machine. Single small files are handled in this process, faster than by the agent.

    Start-up: only methods for single files import modules of the agent.
    """

    roots: Sequence[str] = ()  # of the site; below them symlinks of other accounts are not followed
    _cached_folder: tuple[OpenedFolder, Root] | None = None

    def find_whole(self, path: bytes) -> Entry | None:
        """See Store."""
        try:
            with self._below() as root:
                record = root.lstat(path)
        except NotFoundError:
            return None
        return entry_of(record) if record is not None else None

    def store_whole(self, entry: Entry, content: bytes) -> bool:
        """See Store."""
        from transfers.agent.small_files import SmallFile, store_whole

        with self._below(writes=True) as root:
            return store_whole(root, SmallFile(entry.path, content, entry.mtime_ns, is_executable(entry)))

    def fetch_whole(self, entry: Entry) -> bytes:
        """See Store."""
        from transfers.agent.small_files import fetch_whole

        with self._below() as root:
            content = fetch_whole(root, entry.path, PACK_BYTES)
        check_size(entry, content)
        return content

    def remove_whole(self, entry: Entry) -> Problem | None:
        """See Store."""
        from transfers.agent.removing import remove_item

        with self._below(removes=True) as root:
            found = remove_item(root, {**listed(entry), "path": entry.path})
        return None if found is None else problem_from(found)

    def remove_exact(self, entry: Entry) -> Problem | None:
        """Remove a regular file if nothing of it changed since it was listed, not even its ctime; an absent one is a problem."""
        from transfers.agent.removing import remove_exact

        listed = entry.size, entry.mtime_ns, entry.ctime_ns, entry.device, entry.inode, entry.links
        with self._below(removes=True) as root:
            found = remove_exact(root, entry.path, listed)
        return None if found is None else problem_from(found)

    @contextmanager
    def marked(self, path: bytes) -> Iterator[None]:
        """See Store."""
        name, flags = path.rpartition(b"/")[2], os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        with self._below(writes=True) as root:
            descriptor = os.open(name, flags, 0o600, dir_fd=root.parent(path))
            os.write(descriptor, MARKER)
            os.close(descriptor)
        try:
            yield
        finally:
            with self._below(writes=True) as root:
                os.unlink(name, dir_fd=root.parent(path))

    @contextmanager
    def set_aside(self, entry: Entry, prefix: bytes) -> Iterator[None]:
        """Give a file another name in its folder for the time of the context; killed meanwhile, it keeps that one."""
        parent, slash, _ = entry.path.rpartition(b"/")
        aside = parent + slash + prefix + secrets.token_hex(16).encode("ascii")
        self._rename_new(entry.path, aside)
        try:
            yield
        finally:
            self._rename_new(aside, entry.path)

    def _rename_new(self, path: bytes, new: bytes) -> None:
        """Rename a file within its folder; an existing new name is left, and an error."""
        from transfers.agent.removing import NO_LINKS

        with self._below(removes=True) as root:
            folder, (old, name) = root.parent(path), (each.rpartition(b"/")[2] for each in (path, new))
            try:
                os.link(old, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
                os.unlink(old, dir_fd=folder)
            except OSError as problem:
                if problem.errno not in NO_LINKS or root.lstat(new) is not None:
                    raise
                os.rename(old, name, src_dir_fd=folder, dst_dir_fd=folder)

    def beside(self, location: Location) -> LocalStore:
        """See Store."""
        store = super().beside(location)
        assert isinstance(store, LocalStore)
        store.roots = self.roots
        return store

    def close(self) -> None:
        """See Store; also close the folder."""
        self._close_folder()
        super().close()

    @contextmanager
    def _below(self, *, writes: bool = False, removes: bool = False) -> Iterator[Root]:
        """Yield the folder without cached contents; raise the same errors as an agent."""
        from transfers.agent.safe_path import leaves_root_error

        try:
            opened, root = self._reopen_folder()
            if removes and not opened.inside:
                raise leaves_root_error(self.root_path)
            if opened.foreign is not None and (writes or removes):
                raise opened.foreign
            yield root
        except (OSError, UnsafeNameError, RefusedError) as problem:
            self._close_folder()
            code, message, _ = problem_of(problem)
            message = message_of(str(code), str(message))
            raise error_from(str(code), message, printable(self.root_path)) from None

    def _reopen_folder(self) -> tuple[OpenedFolder, Root]:
        """Return the folder at the path; open it again, component by component, only if it was replaced."""
        if self._cached_folder is not None:
            opened, root = self._cached_folder
            current = os.stat(self.root_path)  # noqa: PTH116  # bytes, at every request
            if os.path.samestat(current, os.fstat(opened.descriptor)):
                root.forget_all()  # another process may have replaced a folder in it
                return self._cached_folder
            self._close_folder()
        from transfers.agent.commands import expanded
        from transfers.agent.safe_path import Roots

        opened = Roots(expanded(self.roots)).open(self.root_path)
        self._cached_folder = opened, opened.root(self.root_path)
        return self._cached_folder

    def _close_folder(self) -> None:
        opened, self._cached_folder = self._cached_folder, None
        if opened is not None:
            opened[1].close()


def open_store(location: Location, *, on_event: Listener = ignore) -> PosixStore:
    """Open the folder; `~` and a leading `$NAME` are expanded as at other sites."""
    site, roots = location.site, location.roots if location.typed_local else None
    connection, _ = connect(site, inspect_path=location.raw, roots=roots, on_event=on_event)

    def reopen(inspect_path: bytes) -> tuple[Connection, ChannelPool]:
        return connect(site, inspect_path=inspect_path, roots=roots)[0], no_channels()

    lease, confined = site.limits.lease_seconds, location.confined
    store = LocalStore(connection, AGENT_FACTS, lease=lease, reopen=reopen, confined=confined)
    store.roots = guarded_roots(site) if roots is None else roots
    return store
