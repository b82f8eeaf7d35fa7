"""Store files in a folder behind an SFTP server."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import islice

from hibali.errors import HibaliError, IncompleteError, NotFoundError, RefusedError
from hibali.locations import Location
from hibali.system_errors import hint_of, message_of
from hibali.text import printable
from transfers.agent import protocol
from transfers.agent.identity import (
    BOOT,
    LONGEST,
    MOUNTS,
    Identity,
    Mount,
    identity_of,
    places_of,
    read_mounts,
)
from transfers.agent.protocol import LEASE_SECONDS
from transfers.model.entry import Entry, Kind
from transfers.model.facts import Facts
from transfers.model.leases import locked, lost_lease
from transfers.model.store import Lock, Store
from transfers.model.units import Adjustment, Committed, ListingIncompleteError, Payload, Problem, Space, Unit
from transfers.stores.sftp import channel
from transfers.stores.sftp.channel import Attributes, Pending, StatusError
from transfers.stores.sftp.client import (
    Client,
    entry_of,
    expand,
    is_unchanged,
    kind_of,
    listed_names,
    problem_of,
)
from transfers.stores.sftp.lock import OWN, Own, SftpLock, find_lock
from transfers.stores.sftp.paths import Guard, SafePaths
from transfers.stores.sftp.reading import Files, Listing, Reading
from transfers.stores.sftp.renaming import SftpRename
from transfers.stores.sftp.writing import SftpReceiver, SftpTarget


def adjust_all(
    client: Client, safe_paths: SafePaths, batch: Sequence[Adjustment]
) -> Iterator[tuple[Adjustment, Problem | None]]:
    """Check all entries, then set them in the given order, a folder's contents before the folder."""
    wrong = safe_paths.parents([one.entry.path for one in batch])
    pending_stats = [
        None if one.entry.path in wrong else client.request_stat(safe_paths.full(one.entry.path))
        for one in batch
    ]
    problems = [wrong.get(one.entry.path) for one in batch]
    requests = []
    for position, (one, pending_stat) in enumerate(zip(batch, pending_stats, strict=True)):
        if pending_stat is None:
            continue
        try:
            mode = _mode_to_set(one, client.attributes_of(pending_stat))
        except StatusError as problem:
            is_missing = problem.code == channel.NO_SUCH_FILE
            problems[position] = (
                Problem("vanished", "it does not exist") if is_missing else problem_of(problem)
            )
        except ValueError as problem:
            problems[position] = Problem("target-changed", str(problem))
        else:
            if mode is not None:
                requests.append((position, client.request_set_mode(safe_paths.full(one.entry.path), mode)))
    for position, pending in requests:
        try:
            pending.wait()
        except StatusError as problem:
            problems[position] = problem_of(problem)
    yield from zip(batch, problems, strict=True)


def _mode_to_set(one: Adjustment, found: Attributes) -> int | None:
    """Return the mode to set, or None. Raise ValueError if the entry changed since the listing."""
    folder = one.entry.kind is Kind.FOLDER
    if kind_of(found) is not one.entry.kind or not (folder or is_unchanged(one.entry, found)):
        raise ValueError("it changed after it was listed, so it was left unchanged")
    mode = found.mode or 0
    if one.permissions is None or mode & 0o777 == one.permissions:
        return None
    # A folder keeps setgid and sticky, which the site set; a file loses such bits.
    return (mode & 0o7000 if folder else 0) | one.permissions


class SftpTreeRemover:
    """The removal of one root whose lock is held."""

    def __init__(self, client: Client, safe_paths: SafePaths, own: Own, lock: SftpLock) -> None:
        self._client = client
        self._safe_paths = safe_paths
        self._own = own
        self._lock = lock
        self._root_path = safe_paths.full(b"").rstrip(b"/")

    def check(self, own_folders: list[bytes], itself_at: bytes | None) -> None:
        """Raise `TryLaterError("locked")` if this account holds a lock above, or at one of `own_folders`.

        `itself_at`, the root's path as typed, must be a folder and no symlink.
        """
        if itself_at is not None:
            found = self._client.stat(itself_at.rstrip(b"/"))
            if found is None or kind_of(found) is not Kind.FOLDER:
                raise RefusedError(
                    "symlink-in-the-way",
                    "it is a symlink or was just replaced",
                    subject=self._client.subject,
                )
        try:
            clock = self._lock.clock()
        except StatusError as problem:
            raise self._client.error(problem, self._root_path) from None
        above = self._client.real_path(self._root_path or b"/")
        folders = [self._safe_paths.full(own_folder) for own_folder in own_folders]
        while above != b"/":
            above = above.rpartition(b"/")[0] or b"/"
            folders.append(above)
        for folder in folders:
            own = Own(self._client, SafePaths(self._client, folder))
            own.user = self._own.user
            held = find_lock(own, clock)
            if held is not None and not held.free:
                raise locked(held.holder, self._client.subject)

    def sweep(self, own_folders: list[bytes], lease: int) -> list[tuple[bytes, Problem]]:
        """Remove own files at the places below; return the failures."""
        problems = []
        for own_folder in own_folders:
            self._lock.check()
            problem = self._clear_own_folder(own_folder, lease)
            if problem is not None:
                problems.append((own_folder, problem))
        return problems

    def _clear_own_folder(self, own_folder: bytes, lease: int) -> Problem | None:
        """Remove the own files at one place, with its lock held."""
        path = own_folder + b"/" + OWN
        wrong = self._safe_paths.parents([path])
        if path in wrong:
            return None if wrong[path].code == "vanished" else wrong[path]
        inner = SafePaths(self._client, self._safe_paths.full(own_folder))
        own = Own(self._client, inner)
        own.user = self._own.user
        try:
            found = self._client.stat(inner.full(OWN))
            if found is None or kind_of(found) is not Kind.FOLDER:
                return None
            held = SftpLock(self._client, inner, own, "rm", lease)
        except HibaliError as problem:
            return Problem(problem.code, problem.message)
        _remove_own(own)
        held.release()
        return None

    def remove_own(self) -> None:
        """Remove own files in the root's `.hibali`, except the held lock."""
        _remove_own(self._own)

    def remove_root(self) -> Problem | None:
        """Remove the empty root folder; a missing one is no error. Never follows a symlink."""
        try:
            self._client.request_remove_folder(self._root_path).wait()
        except StatusError as problem:
            if problem.code == channel.NO_SUCH_FILE:
                return None
            if problem.code == channel.FAILURE:  # servers give no other status for it
                return Problem(
                    "folder-not-empty", "it is not empty: files were added meanwhile, or could not be removed"
                )
            return problem_of(problem)
        return None


def _remove_own(own: Own) -> None:
    for name in protocol.OWN:
        if name != b"lock":
            own.remove(OWN + b"/" + name)


_BATCH = 256

_Entries = list[Entry]  # inside the class, `list` is a method
_Numbered = list[tuple[int, Entry]]
_Requests = list[tuple[int, Pending]]
_Problems = list[Problem | None]


class SftpStore(Store):
    """A store over one SFTP connection."""

    def __init__(
        self,
        client: Client,
        path: bytes,
        facts: Facts,
        *,
        read_back: bool,
        logins: int = 0,
        lease: int = LEASE_SECONDS,
        guard: Guard | None = None,
        confined: bool = False,
        borrowed: bool = False,
        lend: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        """Set the fields; `path` is absolute, `guard` checks symlinks, the others as in PosixStore."""
        self._facts = facts
        self.root_path = path
        self._guard = guard
        self._confined = confined
        self._borrowed = borrowed
        self._lend = lend
        self._closed = False
        self._first_bytes = client.channel.data_bytes  # it may have served others before
        self._sent = 0  # once it is closed
        self._reached = False
        self._real = path  # resolved at the first use
        self._logins = logins
        self._client = client
        self._read_back = read_back
        self._lease = lease
        self._set_root(path)
        self._lock: SftpLock | None = None
        self._orphans: list[bytes] = []
        self._own_folders: list[bytes] = []
        self._tidy = False  # all orphans are known and no other partial file exists
        self._seen: tuple[str, bytes] | None = None  # the host and its mount table

    def _set_root(self, path: bytes) -> None:
        self._safe_paths = SafePaths(self._client, path)
        self._files = Files(self._client, self._safe_paths)
        self._own = Own(self._client, self._safe_paths)

    def _reach(self) -> None:
        """Resolve the root's path, once. Raise `RefusedError`."""
        if self._reached or self._guard is None:
            return
        self._real = self._guard.reach(self.root_path, confined=self._confined).path
        if self._real != self.root_path:
            self._set_root(self._real)
        self._reached = True

    def _check_path(self) -> None:
        """Raise `RefusedError` or `IncompleteError` if the path resolves elsewhere now, before a change."""
        if self._guard is not None and self._reached:
            self._guard.check_same(self.root_path, self._real)

    def check_trusted(self) -> None:
        """See Store."""
        self._reach()

    @property
    def facts(self) -> Facts:
        """See Store."""
        return self._facts

    @property
    def logins(self) -> int:
        """See Store."""
        return self._logins

    @property
    def wire_bytes(self) -> int:
        """The file bytes that crossed the network."""
        return 0 if self._borrowed else (self._sent or self._client.channel.data_bytes - self._first_bytes)

    @property
    def pid(self) -> int:
        """The process id of ssh."""
        return self._client.channel.pid

    def substore(self, folder: bytes) -> tuple[SftpStore, bytes]:
        """See Store."""
        path = self.root_path.rstrip(b"/") + b"/" + folder if folder else self.root_path
        return self._beside(path, confined=self._confined), b""

    def lending(self) -> AbstractContextManager[None]:
        """Lend the connection to another store of the site, which is closed within the context."""
        return self._lend()

    def beside(self, location: Location) -> SftpStore:
        """See Store."""
        return self._beside(expand(self._client, location.raw), confined=location.confined)

    def _beside(self, path: bytes, *, confined: bool) -> SftpStore:
        return SftpStore(
            self._client,
            path,
            self._facts,
            read_back=self._read_back,
            lease=self._lease,
            guard=self._guard,
            confined=confined,
            borrowed=True,
        )

    def stat(self, path: bytes = b"") -> Entry | None:
        """See Store; the root itself may be a symlink that the user named."""
        if not path:
            found = self._client.stat(self.root_path, follow=True)
            return None if found is None else entry_of(b"", found)
        self._reach()
        wrong = self._safe_paths.parents([path])
        if path in wrong:
            if wrong[path].code in {"vanished", "not-a-folder", "symlink-in-the-way"}:
                return None
            raise IncompleteError(wrong[path].code, wrong[path].message, subject=self._client.subject)
        full = self._safe_paths.full(path)
        found = self._client.stat(full)
        if found is None:
            return None
        if kind_of(found) is not Kind.LINK:
            return entry_of(path, found)
        try:
            names = self._client.names_of(self._client.request_readlink(full))
        except StatusError as problem:
            raise self._client.error(problem, full) from None
        return entry_of(path, found, names[0].name if names else b"")

    def resolved(self, paths: Sequence[bytes] = ()) -> Sequence[bytes]:
        """See Store."""
        return [self._resolve(expand(self._client, path)) for path in (self.root_path, *paths)]

    def identities(self) -> Sequence[Identity]:
        """See Store."""
        return [one for one in self.identify([self.root_path]) if one is not None]

    def identify(self, paths: Sequence[bytes]) -> Sequence[Identity | None]:
        """See Store: by the remote mount table if readable, else by the account and its paths."""
        if self._seen is None:
            boot, mounts = self._client.small_files([BOOT, MOUNTS], LONGEST)
            known = bool(boot.strip() and mounts)
            self._seen = (
                (boot.strip().decode("ascii", "replace"), mounts) if known else (self._account(), b"")
            )
        machine, mounts = self._seen
        table = read_mounts(mounts)
        real = (
            None if path.startswith(b"$") else self._resolve(expand(self._client, path)) for path in paths
        )
        return [None if path is None else self._identity_of(machine, path, table) for path in real]

    def _identity_of(self, machine: str, path: bytes, table: list[Mount]) -> Identity:
        exists = self._client.stat(path, follow=True) is not None
        return identity_of(machine, places_of(path, table), missing=0 if exists else None)

    def _account(self) -> str:
        login = self._client.channel.login
        return login.account if login is not None else ""

    def _resolve(self, path: bytes) -> bytes:
        """Resolve the existing part of a path; some servers resolve only existing paths."""
        above, missing = path, b""
        while True:
            try:
                return _joined(self._client.real_path(above), missing)
            except (NotFoundError, IncompleteError):
                above, _, name = above.rstrip(b"/").rpartition(b"/")
                missing = _joined(name, missing)
            if not above:
                return path

    def _open_folder(self) -> bool:
        """Return whether the root is a folder, False for a file. Raise `NotFoundError`."""
        self._reach()
        found = self.stat()
        if found is None:
            raise NotFoundError("vanished", "it does not exist", subject=self._client.subject)
        if self._own.user is None:
            self._own.user = self._client.home_user()
        return found.kind is Kind.FOLDER

    def make_root(self) -> None:
        """See Store."""
        self._reach()
        if self._guard is not None:
            self._guard.reach(self.root_path, writes=True)
        parts = self._real.strip(b"/").split(b"/")
        for count in range(1, len(parts) + 1):
            path = b"/" + b"/".join(parts[:count])
            found = self._client.stat(path, follow=True)
            if found is None:
                refused = self._client.settle([self._client.request_make_folder(path, 0o777)])
                found = self._client.stat(path, follow=True)
                if found is None and refused is not None:
                    raise self._client.error(refused, path)
            if found is None or kind_of(found) is not Kind.FOLDER:
                subject = f"{self._client.subject}:{printable(path)}"
                raise RefusedError(
                    "not-a-folder", message_of("not-a-folder"), subject=subject, hint=hint_of("not-a-folder")
                )

    def file_above(self) -> bool:
        """See Store."""
        parts = self.root_path.strip(b"/").split(b"/")
        for count in range(len(parts) - 1, 0, -1):
            found = self._client.stat(b"/" + b"/".join(parts[:count]), follow=True)
            if found is not None:
                return kind_of(found) is not Kind.FOLDER
        return False

    def list(self, *, shallow: bool = False) -> Iterator[Entry]:
        """See Store. SFTP sends no final count; complete replies up to the end replace it."""
        if not self._open_folder():
            return
        listing = Listing(self._client, self._safe_paths, self._own, shallow=shallow)
        yield from listing
        self._orphans, self._own_folders = listing.orphans, listing.own_folders
        self._tidy = not shallow and not listing.problems
        if listing.problems:
            raise ListingIncompleteError(self._client.subject, listing.problems)

    def read(self, units: Iterable[Unit]) -> Iterator[Payload]:
        """See Store."""
        self._reach()
        return Reading(self._files).read(units)

    def digest(self, entries: Iterable[Entry]) -> Iterator[tuple[Entry, str | None, Problem | None]]:
        """See Store."""
        self._reach()
        return Reading(self._files).digest(entries)

    def write(self, payloads: Iterable[Payload]) -> Generator[Committed, None, None]:
        """See Store; the target must be locked."""
        lock = self._held()
        self._check_path()
        try:
            before = self._own.seeds()
            seed = self._own.open_seed()
        except StatusError as problem:
            found = self._client.problem(problem, self._safe_paths.full(b""))
            if found.code == "no-space":
                raise RefusedError(found.code, found.message, subject=self._client.subject) from None
            raise self._client.error(problem, self.root_path) from None
        self._tidy = self._tidy or not before
        receiver = SftpReceiver(
            SftpTarget(
                self._client,
                self._safe_paths,
                seed,
                lock.check,
                read_back=self._read_back,
                earlier=tuple(before),
            )
        )
        try:
            yield from receiver.run(payloads)
            lock.check()
            self._purge([*receiver.aside, *self._orphans])
            self._orphans = []
        finally:
            self._tidy = self._tidy and not receiver.left

    def _held(self) -> SftpLock:
        if self._lock is None:
            raise lost_lease(self._client.subject, "the target is not locked")
        self._lock.check()
        return self._lock

    def _purge(self, paths: Iterable[bytes]) -> None:
        """Remove our own files and folders."""
        for path in paths:
            self._remove_tree(path)

    def _remove_tree(self, path: bytes) -> None:
        """Remove a name and everything below it, without following symlinks; a missing one is no error."""
        client = self._client
        full = self._safe_paths.full(path)
        found = client.stat(full)
        if found is None:
            return
        try:
            if kind_of(found) is not Kind.FOLDER:
                client.request_remove(full).wait()
                return
            for one in listed_names(client, full):
                self._remove_tree(path + b"/" + one.name)
            client.request_remove_folder(full).wait()
        except StatusError as problem:
            if problem.code != channel.NO_SUCH_FILE:
                raise client.error(problem, full) from None

    def remove(self, entries: Iterable[Entry]) -> Iterator[tuple[Entry, Problem | None]]:
        """See Store; the target must be locked."""
        lock = self._held()
        coming = iter(entries)
        while batch := [*islice(coming, _BATCH)]:
            lock.check()
            self._check_path()
            yield from self._remove_batch(batch)

    def adjust(self, adjustments: Iterable[Adjustment]) -> Iterator[tuple[Adjustment, Problem | None]]:
        """See Store; the target must be locked."""
        lock = self._held()
        coming = iter(adjustments)
        while batch := [*islice(coming, _BATCH)]:
            lock.check()
            yield from adjust_all(self._client, self._safe_paths, batch)

    def check_no_locks(self, *, itself: bool) -> None:
        """See Store."""
        lock = self._held()
        itself_at = self.root_path if itself else None
        SftpTreeRemover(self._client, self._safe_paths, self._own, lock).check(self._own_folders, itself_at)

    def remove_own_files(self) -> Sequence[tuple[bytes, Problem]]:
        """See Store."""
        lock = self._held()
        self._check_path()
        self._purge(self._orphans)
        self._orphans = []
        return SftpTreeRemover(self._client, self._safe_paths, self._own, lock).sweep(
            self._own_folders, self._lease
        )

    def remove_root(self) -> Problem | None:
        """See Store."""
        self._check_path()
        remover = SftpTreeRemover(self._client, self._safe_paths, self._own, self._held())
        remover.remove_own()
        self._tidy = False
        self.unlock()
        return remover.remove_root()

    def rename(self, entry: Entry, target: Location) -> None:
        """See Store; a folder's lock is released just before, because it is a file in it."""
        self._open_folder()
        assert self._guard is not None
        old = self._safe_paths.full(entry.path) if entry.path else self._real
        to_path = expand(self._client, target.raw)
        renaming = SftpRename(self._client, self._guard, old, to_path)
        if self._lock is None:
            return
        lock = self._held()
        self._check_path()
        renaming.check_source(entry)
        renaming.check_unlocked(lock, self._own, self._real)
        if not entry.path:
            self._tidy = False
            self.unlock()
        renaming.execute()

    def _remove_batch(self, batch: _Entries) -> Iterator[tuple[Entry, Problem | None]]:
        client = self._client
        wrong = self._safe_paths.parents([entry.path for entry in batch])
        problems: _Problems = []
        pending_stats = [
            None if entry.path in wrong else client.request_stat(self._safe_paths.full(entry.path))
            for entry in batch
        ]
        doomed: _Numbered = []
        for position, (entry, pending_stat) in enumerate(zip(batch, pending_stats, strict=True)):
            problems.append(wrong.get(entry.path))
            if pending_stat is None:
                if problems[-1] is not None and problems[-1].code == "vanished":
                    problems[-1] = None
                continue
            try:
                found = client.attributes_of(pending_stat)
            except StatusError as problem:
                problems[-1] = None if problem.code == channel.NO_SUCH_FILE else problem_of(problem)
                continue
            if kind_of(found) is not entry.kind or (
                entry.kind is Kind.FILE and not is_unchanged(entry, found)
            ):
                problems[-1] = Problem(
                    "target-changed", "it changed after it was listed, so it was left unchanged"
                )
            else:
                doomed.append((position, entry))
        for position, refused in self._remove_all(doomed):
            problems[position] = refused
        yield from zip(batch, problems, strict=True)

    def _remove_all(self, doomed: Iterable[tuple[int, Entry]]) -> Iterator[tuple[int, Problem | None]]:
        """Remove in the given order, a folder's contents before the folder."""
        client = self._client
        requests: _Requests = []
        for position, entry in doomed:
            full = self._safe_paths.full(entry.path)
            if entry.kind is Kind.FOLDER:
                client.settle(pending for _, pending in requests)
                requests.append((position, client.request_remove_folder(full)))
            else:
                requests.append((position, client.request_remove(full)))
        for position, pending in requests:
            try:
                pending.wait()
            except StatusError as problem:
                is_missing = problem.code == channel.NO_SUCH_FILE
                yield position, None if is_missing else problem_of(problem)

    def lock(self, operation: str, *, make: bool = False) -> _Held:
        """See Store."""
        if make:
            self.make_root()
        self._open_folder()
        self._check_path()
        self._lock = SftpLock(self._client, self._safe_paths, self._own, operation, self._lease)
        return _Held(self)

    def unlock(self) -> None:
        """Release the lock; remove the journal if no partial file can remain."""
        lock, self._lock = self._lock, None
        if lock is None:
            return
        try:
            lock.check()
            self._purge(self._orphans)
            self._orphans = []
            if self._tidy:
                self._own.end_journal()
        finally:
            self._tidy = False
            lock.release()

    def space(self) -> Space:
        """See Store; of the nearest folder above that exists."""
        path = self.root_path
        while path != b"/" and self._client.stat(path, follow=True) is None:
            path = path.rpartition(b"/")[0] or b"/"
        return self._client.space(path)

    def close(self) -> None:
        """See Store."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None
        if not (self._borrowed or self._closed):
            self._sent, self._closed = self.wire_bytes, True
            self._client.close()


class _Held(Lock):
    """The lease that the store's caller holds."""

    def __init__(self, store: SftpStore) -> None:
        self._store = store

    def finish(self) -> None:
        """See Lock."""
        self._store.unlock()

    def release(self) -> None:
        """See Lock; if the server is unreachable, the lease expires."""
        try:
            self._store.unlock()
        except HibaliError:
            return


def _joined(path: bytes, name: bytes) -> bytes:
    return path.rstrip(b"/") + b"/" + name if name else path
