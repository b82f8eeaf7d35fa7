"""Write files over SFTP: partial names, read back, then renames (S1, S18)."""

from __future__ import annotations

import hashlib
import queue
import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial

from hibali.system_errors import message_of
from transfers.agent import protocol
from transfers.model.entry import Kind, Verification
from transfers.model.units import Committed, Item, Payload, Problem
from transfers.stores.sftp import channel
from transfers.stores.sftp.channel import Pending, StatusError
from transfers.stores.sftp.client import Client, entry_of, kind_of
from transfers.stores.sftp.paths import SafePaths
from transfers.stores.sftp.reading import Files, Opened

_NEW = channel.FOR_WRITING | channel.CREATE | channel.EXCLUSIVE


@dataclass(slots=True)
class Partial:
    """The partial file of one item; `problem` says why it will not be committed."""

    item: Item
    name: bytes = b""  # relative, like the item's path
    handle: bytes = b""
    offset: int = 0
    requests: list[Pending | None] = field(default_factory=list)
    digest: str | None = None
    problem: Problem | None = None

    @property
    def folder(self) -> bytes:
        """The item's folder."""
        return self.item.entry.path.rpartition(b"/")[0]


class Partials:
    """The partial files of one operation; thread-safe, with one thread at a time for each file."""

    def __init__(self, client: Client, safe_paths: SafePaths, seed: bytes) -> None:
        self._client = client
        self._safe_paths = safe_paths
        self._seed = seed
        self.left = False

    def name_for(self, path: bytes, prefix: bytes = b"", *, seed: bytes | None = None) -> bytes:
        """Return the partial name beside `path`; `prefix` makes it distinct, `seed` is another operation's."""
        folder = path.rpartition(b"/")[0]
        name = protocol.partial_name(seed or self._seed, prefix + path)
        return folder + b"/" + name if folder else name

    def open_all(self, partials: list[Partial]) -> None:
        """Create an empty file for each under its partial name."""
        for one in partials:
            one.name = self.name_for(one.item.entry.path)
        for retry in (False, True):
            waiting = [one for one in partials if not one.handle and one.problem is None]
            if retry:
                # An earlier attempt of this operation may have left a file with this name.
                self._client.settle(
                    [self._client.request_remove(self._safe_paths.full(one.name)) for one in waiting]
                )
            requests = [
                self._client.request_open(self._safe_paths.full(one.name), _NEW, _first_mode(one.item))
                for one in waiting
            ]
            for one, pending in zip(waiting, requests, strict=True):
                try:
                    one.handle = self._client.handle_of(pending)
                except StatusError as problem:
                    if retry or problem.code != channel.FAILURE:
                        one.problem = self.why(problem, one)
                        one.name = b""

    def resume(self, one: Partial, seeds: Sequence[bytes]) -> int:
        """Take over an interrupted operation's partial file; return its size in bytes.

        The caller must compare the content.
        """
        client, full = self._client, self._safe_paths.full
        new = self.name_for(one.item.entry.path)
        names = [self.name_for(one.item.entry.path, seed=seed) for seed in seeds]
        for name, pending_stat in zip(
            names, [client.request_stat(full(name)) for name in names], strict=True
        ):
            try:
                found = client.attributes_of(pending_stat)
                usable = kind_of(found) is Kind.FILE and 0 < (found.size or 0) <= one.item.entry.size
                if usable and client.settle([client.request_rename(full(name), full(new))]) is None:
                    flags = channel.FOR_READING | channel.FOR_WRITING
                    one.handle = client.handle_of(client.request_open(full(new), flags))
                    one.name = new
                    return found.size or 0
            except StatusError:
                continue
        return 0

    def write(self, one: Partial, content: memoryview) -> None:
        """Send more content; `finish` waits for the replies."""
        one.requests += self._client.request_write(one.handle, one.offset, content)
        one.offset += len(content)
        self._client.channel.data_bytes += len(content)

    def finish(self, partials: list[Partial]) -> None:
        """Set mode and time, sync if supported, close the files, and wait for all replies."""
        for one in partials:
            entry = one.item.entry
            one.requests.append(
                self._client.request_set(one.handle, mode=_final_mode(one.item), mtime_ns=entry.mtime_ns)
            )
            one.requests.append(self._client.request_sync(one.handle))
            one.requests.append(self._client.request_close(one.handle))
            one.handle = b""
        for one in partials:
            refused = self._client.settle(one.requests)
            one.requests = []
            if refused is not None and one.problem is None:
                one.problem = self.why(refused, one)

    def make_links(self, partials: list[Partial]) -> None:
        """Create a symlink for each under its partial name, and check its target."""
        client, full = self._client, self._safe_paths.full
        for one in partials:
            one.name = self.name_for(one.item.entry.path)
        client.settle([client.request_remove(full(one.name)) for one in partials])
        made = [client.request_symlink(full(one.name), one.item.entry.link) for one in partials]
        timed = [client.request_set_link_time(full(one.name), one.item.entry.mtime_ns) for one in partials]
        pending_stats = [client.request_readlink(full(one.name)) for one in partials]
        for one, pending, pending_stat in zip(partials, made, pending_stats, strict=True):
            try:
                pending.wait()
                if [found.name for found in client.names_of(pending_stat)] != [one.item.entry.link]:
                    one.problem = Problem("corrupt", "the created symlink has another target")
            except StatusError as problem:
                one.problem, one.name = self.why(problem, one), b""
        client.settle(timed)  # a symlink without its time is still correct

    def rename_all(self, partials: list[Partial]) -> None:
        """Rename each to its final name, replacing an existing file."""
        full = self._safe_paths.full
        requests = [
            self._client.request_rename(full(one.name), full(one.item.entry.path)) for one in partials
        ]
        for one, pending in zip(partials, requests, strict=True):
            try:
                pending.wait()
            except StatusError as problem:
                one.problem = (
                    self._rename_slowly(one) if self._must_move_away(one, problem) else self.why(problem, one)
                )

    def _must_move_away(self, one: Partial, problem: StatusError) -> bool:
        """Return whether the rename failed only because this server's rename cannot replace a file."""
        replaces = one.item.replaces
        cannot = not self._client.offers(b"posix-rename@openssh.com") and problem.code == channel.FAILURE
        return cannot and replaces is not None and replaces.kind is not Kind.FOLDER

    def _rename_slowly(self, one: Partial) -> Problem | None:
        """Rename the existing file away first; restore it if the new one cannot be renamed."""
        client = self._client
        path = self._safe_paths.full(one.item.entry.path)
        aside = self._safe_paths.full(self.name_for(one.item.entry.path, b"aside/"))
        refused = client.settle([client.request_rename(path, aside)])
        if refused is None:
            refused = client.settle([client.request_rename(self._safe_paths.full(one.name), path)])
            client.settle([client.request_rename(aside, path) if refused else client.request_remove(aside)])
        return None if refused is None else self.why(refused, one)

    def drop(self, partials: list[Partial]) -> None:
        """Remove partial files that will not be committed; `left` is set if one stays for the next run."""
        for one in partials:
            if one.handle:
                self._client.settle(one.requests)
                self._client.request_close(one.handle)
                one.handle, one.requests = b"", []
        named = [one for one in partials if one.name]
        requests = [self._client.request_remove(self._safe_paths.full(one.name)) for one in named]
        for pending in requests:
            try:
                pending.wait()
            except StatusError:  # even if its folder is missing: the folder may have been renamed
                self.left = True
        for one in named:
            one.name = b""

    def leave(self, partials: list[Partial]) -> None:
        """Close unfinished files; the next run knows their names."""
        for one in partials:
            self.left = True
            self._client.settle(one.requests)
            if one.handle:
                self._client.request_close(one.handle)
            one.handle, one.requests = b"", []

    def why(self, problem: StatusError, one: Partial) -> Problem:
        """Convert a failed write to a problem; report a full disk as such."""
        return self._client.problem(problem, self._safe_paths.full(b""), one.item.entry.size)


def is_whole(one: Partial, content: memoryview, size: int, digest: str | None) -> bool:
    """Return whether the content has the source's digest; set the item's problem if not."""
    found = hashlib.sha256(content).hexdigest()
    if size == one.item.entry.size and found == digest:
        one.digest = found
        return True
    one.problem = Problem(
        "corrupt", f"the received data differs from the source: sha256 {found}", retryable=True
    )
    return False


def _first_mode(item: Item) -> int:
    """Return the mode for the partial file, never wider than the final one; the umask applies."""
    if item.permissions is not None:
        return item.permissions | 0o600
    final = _final_mode(item)
    if final is not None:
        return final
    return 0o777 if item.entry.mode >= 0 and item.entry.mode & 0o100 else 0o666


def folder_mode(item: Item) -> int:
    """Return the initial mode of a folder, writable until it gets its own permissions."""
    return 0o777 if item.permissions is None else item.permissions | 0o700


def _final_mode(item: Item) -> int | None:
    """Return the requested permissions, else those of the replaced file except execute bits."""
    if item.permissions is not None:
        return item.permissions
    replaced = item.replaces
    if replaced is None or replaced.kind is not Kind.FILE or replaced.mode < 0:
        return None
    old = replaced.mode
    execute = (old >> 2) & 0o111 if item.entry.mode >= 0 and item.entry.mode & 0o100 else 0
    return (old & 0o666) | execute


_PACKS = 4  # packs in flight


@dataclass(frozen=True, slots=True)
class SftpTarget:
    """The target of one write: connection, root, secret of partial names, and the lock's check."""

    client: Client
    safe_paths: SafePaths
    seed: bytes
    check: Callable[[], None]  # raises if the lock was lost
    read_back: bool = True
    earlier: tuple[bytes, ...] = ()  # the secrets of interrupted operations at this root


@dataclass(slots=True)
class _Large:
    """A file that arrives in segments, with the hash of what was received."""

    partial: Partial
    existing: int = 0  # bytes from an interrupted operation
    summed: hashlib._Hash = field(default_factory=hashlib.sha256)


class SftpReceiver:
    """One write session, used once: one thread reads and sends, others wait for replies."""

    def __init__(self, write_target: SftpTarget) -> None:
        self._write_target = write_target
        self._client = write_target.client
        self._safe_paths = write_target.safe_paths
        self._partials = Partials(write_target.client, write_target.safe_paths, write_target.seed)
        self._results: queue.SimpleQueue[Committed | None] = queue.SimpleQueue()
        self._pack_slots = threading.Semaphore(_PACKS)
        self._stopped = threading.Event()
        self._failure: BaseException | None = None
        self._files = Files(write_target.client, write_target.safe_paths, self._stopped)
        self._large: dict[int, _Large] = {}
        self._finishing: list[Future[None]] = []
        self.aside: list[bytes] = []

    @property
    def left(self) -> bool:
        """Whether a partial file may remain for the next run to remove."""
        return self._partials.left or self._failure is not None

    def run(self, payloads: Iterable[Payload]) -> Generator[Committed, None, None]:
        """Yield the result of each item; stop both sides before raising an error of either."""
        self._write_target.check()
        sender = threading.Thread(target=self._send, args=(payloads,), name="send", daemon=True)
        sender.start()
        try:
            while (committed := self._results.get()) is not None:
                yield committed
        finally:
            self._stopped.set()
            sender.join()
        if self._failure is not None:
            raise self._failure

    def _send(self, payloads: Iterable[Payload]) -> None:
        """Read the source and send; runs in its own thread."""
        pool = ThreadPoolExecutor(_PACKS + 1, thread_name_prefix="receive")
        try:
            for payload in payloads:
                if self._stopped.is_set() or self._failure is not None:
                    break
                if payload.unit.segment:
                    self._segment(payload, pool)
                else:
                    # A large file that did not fit frees its space before small ones are tried.
                    wait(self._finishing)
                    self._finishing.clear()
                    self._pack_slots.acquire()
                    pool.submit(self._guarded, partial(self._write_pack, payload)).add_done_callback(
                        lambda _: self._pack_slots.release()
                    )
        except BaseException as problem:  # noqa: BLE001  # raised again by the thread that yields the results
            self._failure = self._failure or problem
        pool.shutdown(wait=True)
        self._guarded(self._leave_all)
        self._results.put(None)

    def _guarded(self, act: Callable[[], None]) -> None:
        try:
            act()
        except BaseException as problem:  # noqa: BLE001  # raised again by the thread that yields the results
            self._failure = self._failure or problem

    def _leave_all(self) -> None:
        """Keep partial files for the next call to resume or remove."""
        self._partials.leave([large.partial for large in self._large.values()])
        self._large.clear()

    def _report(self, one: Partial) -> None:
        if one.problem is not None:
            self._results.put(Committed(one.item, None, Verification.NONE, problem=one.problem))
            return
        verification = Verification.DIGEST
        if one.item.entry.kind is Kind.FILE and not self._write_target.read_back:
            verification = Verification.SIZE
        self._results.put(Committed(one.item, one.digest, verification))

    def _write_pack(self, payload: Payload) -> None:
        """Write and commit one pack; runs in a thread of the pool."""
        partials = [
            Partial(item, problem=payload.problems.get(position))
            for position, item in enumerate(payload.unit.items)
        ]
        contents = _contents(payload, partials)
        try:
            self._make_folders([one for one in partials if one.item.entry.kind is Kind.FOLDER])
            others = [one for one in partials if one.item.entry.kind is not Kind.FOLDER]
            self._find_folders(others)
            links = [one for one in others if one.item.entry.kind is Kind.LINK and one.problem is None]
            self._partials.make_links(links)
            self._write_files([one for one in others if one.item.entry.kind is Kind.FILE], contents)
            self._commit([one for one in others if one.problem is None])
        finally:
            self._partials.drop([one for one in partials if one.name])
        for one in partials:
            self._report(one)

    def _find_folders(self, partials: list[Partial]) -> None:
        """Check the folders above, and make missing ones."""
        good = [one for one in partials if one.problem is None]
        wrong = self._safe_paths.parents([one.item.entry.path for one in good], make=True)
        for one in good:
            one.problem = wrong.get(one.item.entry.path)

    def _make_folders(self, partials: list[Partial]) -> None:
        """Make folders at once, because their contents follow; replace a file if the plan allows it."""
        client = self._client
        for one in partials:
            if one.item.clear and one.problem is None:
                self._clear_name(one)
        self._find_folders(partials)
        good = [one for one in partials if one.problem is None]
        full = [self._safe_paths.full(one.item.entry.path) for one in good]
        made = [
            client.request_make_folder(path, folder_mode(one.item))
            for one, path in zip(good, full, strict=True)
        ]
        pending_stats = [client.request_stat(path) for path in full]
        for one, pending, pending_stat in zip(good, made, pending_stats, strict=True):
            refused = client.settle([pending])
            try:
                if kind_of(client.attributes_of(pending_stat)) is not Kind.FOLDER:
                    one.problem = Problem("not-a-folder", message_of("not-a-folder"))
            except StatusError as problem:
                one.problem = self._partials.why(refused or problem, one)

    def _clear_name(self, one: Partial) -> None:
        """Remove a file that the plan replaces by a folder."""
        self._find_folders([one])
        path = self._safe_paths.full(one.item.entry.path)
        found = self._client.stat(path) if one.problem is None else None
        if found is not None and kind_of(found) is not Kind.FOLDER:
            self._write_target.check()
            self._client.settle([self._client.request_remove(path)])

    def _write_files(self, files: list[Partial], contents: dict[int, memoryview]) -> None:
        whole = [
            one
            for one in files
            if one.problem is None
            and is_whole(one, contents[one.item.number], len(contents[one.item.number]), one.digest)
        ]
        self._partials.open_all(whole)
        opened = [one for one in whole if one.problem is None]
        for one in opened:
            self._partials.write(one, contents[one.item.number])
        self._partials.finish(opened)
        self._read_back([one for one in opened if one.problem is None])

    def _read_back(self, files: list[Partial]) -> None:
        """Read the files back and compare them with the sent data."""
        if not self._write_target.read_back:
            return
        for one, (digest, problem) in zip(
            files, self._files.hash_all([one.name for one in files]), strict=True
        ):
            if problem is not None:
                one.problem = problem
            elif digest != one.digest:
                one.problem = Problem(
                    "corrupt",
                    f"the written file differs when it is read back: sha256 {digest}",
                    retryable=True,
                )

    def _commit(self, partials: list[Partial]) -> None:
        """Rename to the final names while the lock is held."""
        if not partials:
            return
        self._write_target.check()
        for one in partials:
            if one.item.clear:
                self._move_folder_aside(one)
        self._check_expected([one for one in partials if one.item.exact and one.problem is None])
        good = [one for one in partials if one.problem is None]
        self._partials.rename_all(good)
        for one in good:
            if one.problem is None:
                one.name = b""

    def _check_expected(self, partials: list[Partial]) -> None:
        """Refuse to replace what a saved plan did not see, by kind, size and second (SFTP has no more)."""
        client = self._client
        requests = [client.request_stat(self._safe_paths.full(one.item.entry.path)) for one in partials]
        for one, pending in zip(partials, requests, strict=True):
            try:
                found = entry_of(one.item.entry.path, client.attributes_of(pending))
            except StatusError:
                continue  # no file exists
            seen = one.item.replaces
            if seen is None or (found.kind, found.size, found.mtime_ns) != (
                seen.kind,
                seen.size,
                seen.mtime_ns,
            ):
                message = "it changed at the target after the plan was made, so it was not replaced"
                one.problem = Problem("target-changed", message)

    def _move_folder_aside(self, one: Partial) -> None:
        """Rename a folder that a file replaces to a partial name; it is purged at the end."""
        path = one.item.entry.path
        found = self._client.stat(self._safe_paths.full(path))
        if found is None or kind_of(found) is not Kind.FOLDER:
            return
        aside = self._partials.name_for(path, b"aside/")
        refused = self._client.settle(
            [self._client.request_rename(self._safe_paths.full(path), self._safe_paths.full(aside))]
        )
        if refused is None:
            self.aside.append(aside)
        else:
            one.problem = self._partials.why(refused, one)

    def _segment(self, payload: Payload, pool: ThreadPoolExecutor) -> None:
        """Write one segment; runs in the sending thread, in order; the pool finishes the last one."""
        unit = payload.unit
        item = unit.items[0]
        problem = payload.problems.get(0)
        if problem is None and unit.offset == 0:
            self._drop_large(item)
            problem = self._open_large(item)
        large = self._large.get(item.number)
        if problem is None and (large is None or large.partial.offset != unit.offset):
            problem = Problem("earlier-segment", "an earlier segment of this file failed", retryable=True)
        if problem is None and large is not None:
            view = memoryview(payload.data)
            large.summed.update(view)
            before = list(large.partial.requests)
            existing = min(max(large.existing - unit.offset, 0), len(view))
            if existing and not self._is_equal(large.partial, view[:existing]):
                large.existing = existing = 0
            large.partial.offset += existing
            self._partials.write(large.partial, view[existing:])
            refused = self._client.settle(before)
            large.partial.requests = [one for one in large.partial.requests if one not in before]
            if refused is not None:
                problem = self._partials.why(refused, large.partial)
        if problem is not None:
            # The problem was reported once; later segments add nothing.
            if self._drop_large(item) or unit.offset == 0:
                self._results.put(Committed(item, None, Verification.NONE, problem=problem))
        elif large is not None and unit.last:
            del self._large[item.number]
            large.partial.digest = payload.digests[0]
            self._finishing.append(pool.submit(self._guarded, partial(self._end_large, large)))

    def _open_large(self, item: Item) -> Problem | None:
        one = Partial(item)
        self._find_folders([one])
        existing = 0
        if one.problem is None and self._write_target.read_back:
            existing = self._partials.resume(one, self._write_target.earlier)
        if one.problem is None and not one.handle:
            self._partials.open_all([one])
        if one.problem is None:
            self._large[item.number] = _Large(one, existing)
        return one.problem

    def _is_equal(self, one: Partial, expected: memoryview) -> bool:
        """Return whether an interrupted operation wrote the same bytes as the source has now."""
        opened = Opened(one.handle)
        requests = self._files.request_range(opened, one.offset, len(expected))
        return self._files.collect(opened, requests) == expected

    def _drop_large(self, item: Item) -> bool:
        large = self._large.pop(item.number, None)
        if large is None:
            return False
        self._partials.drop([large.partial])
        return True

    def _end_large(self, large: _Large) -> None:
        """Wait, compare, read back and rename; runs in a thread of the pool."""
        one = large.partial
        found = large.summed.hexdigest()
        try:
            self._partials.finish([one])
            if one.problem is None and (one.offset != one.item.entry.size or found != one.digest):
                one.problem = Problem(
                    "corrupt", f"the received data differs from the source: sha256 {found}", retryable=True
                )
            if one.problem is None:
                self._read_back([one])
            if one.problem is None:
                self._commit([one])
        finally:
            if one.name and self._stopped.is_set():
                self._partials.leave([one])
            elif one.name:
                self._partials.drop([one])
        self._report(one)


def _contents(payload: Payload, partials: list[Partial]) -> dict[int, memoryview]:
    """Return the bytes of each file of a pack by item number; set the digests in `partials`."""
    view = memoryview(payload.data)
    found: dict[int, memoryview] = {}
    at = 0
    for position, one in enumerate(partials):
        size = payload.sizes[position]
        found[one.item.number] = view[at : at + size]
        one.digest = payload.digests[position]
        at += size
    return found
