"""Receive files: one thread writes partial files, another syncs and renames them."""

import contextlib
import errno
import os
import queue
import stat
import threading
from typing import Any, Callable, Dict, List, Optional, Tuple, Union

from transfers.agent import protocol
from transfers.agent.committing import Committer, Outcome, Writer
from transfers.agent.journal import PartialFilesJournal
from transfers.agent.large_files import LargeFile, LargeFiles, PartialMissingError, check_piece, open_partial
from transfers.agent.lease import BorrowedLease, Lease, LostLeaseError
from transfers.agent.progress import step, working
from transfers.agent.protocol import (
    Channel,
    Problem,
    ProtocolError,
    RefusedError,
    Reply,
    UnsafeNameError,
    partial_path,
    problem_of,
)
from transfers.agent.safe_path import Root
from transfers.agent.writing import purge, sync_files, write_at, write_piece

_QUEUE_LENGTH = 2  # packs written while an earlier one is synced
_OPEN_PARTIALS = 16


class PackReceiver(object):
    """The packs of one transfer, at any of its agents: the caller writes them, a thread commits them."""

    def __init__(self, channel: Channel, root: Root, lease: Union[Lease, BorrowedLease], seed: bytes) -> None:
        self._channel = channel
        self._lease = lease
        self._root = root
        self._writer = Writer(root, seed)
        self._commit_root = root.clone()
        self._committer = Committer(self._commit_root, seed)
        self._queue: queue.Queue[Optional[Callable[[], None]]] = queue.Queue(_QUEUE_LENGTH)
        self._failure: Optional[Exception] = None
        self.reports_digests = False  # digests of committed files, for a client that compares them
        self._thread = threading.Thread(target=self._run, name="commit", daemon=True)
        self._thread.start()

    def receive_pack(self, unit: Dict[str, Any], data: Dict[str, Any], body: protocol.Body) -> None:
        """Write a pack under partial names and queue it for the commit."""
        self._raise_failure()
        outcomes = self._writer.write_pack(unit, data, body)
        self._queue.put(lambda: self._commit_pack(unit["unit"], outcomes))

    def _commit_pack(self, number: int, outcomes: List[Outcome]) -> None:
        try:
            self._report(number, self._commit(outcomes))
        except BaseException:
            self._committer.discard(outcomes)
            raise

    def _commit(self, outcomes: List[Outcome]) -> List[Dict[str, Any]]:
        self._raise_failure()
        self._lease.check()
        return self._committer.commit(outcomes)

    def _report(self, unit: Optional[int], results: List[Dict[str, Any]]) -> None:
        placed = [result for result in results if result["problem"] is None]
        failed = [
            [result["number"], result["problem"]] for result in results if result["problem"] is not None
        ]
        done, inodes = [result["number"] for result in placed], [result["inode"] for result in placed]
        reply = {"unit": unit, "done": done, "inodes": inodes, "failed": failed}
        if self.reports_digests:
            reply["digests"] = [result["digest"] for result in placed]
        # A client that was killed does not read this, but what it sent before is still received and kept.
        with contextlib.suppress(OSError):
            self._channel.send(protocol.COMMITTED, reply)

    def _run(self) -> None:
        while True:
            work = self._queue.get()
            if work is None:
                return
            try:
                with working():
                    work()
            except Exception as problem:  # noqa: BLE001  # reported by the main thread, which replies to the client
                first = self._failure is None
                self._failure = self._failure or problem
                if first and isinstance(problem, LostLeaseError):
                    # The client may be disconnected; its further data must be discarded in any case.
                    with contextlib.suppress(OSError):
                        self._channel.send(protocol.ERROR, {"code": "lease-lost", "message": str(problem)})

    @property
    def left(self) -> bool:
        """True if partial files may be left, for the next run to remove."""
        return self._failure is not None or self._writer.left or self._committer.left

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _join(self) -> None:
        self._queue.put(None)
        self._thread.join()
        self._writer.close()
        self._committer.close()

    def _end(self) -> None:
        """Remove the folders that were moved aside."""
        self._raise_failure()
        self._lease.check()
        for path in self._committer.aside:
            purge(self._root, path)
        self._commit_root.close()


class MainReceiver(PackReceiver):
    """The receiver of a process: packs, and large files in pieces from any of its agents.

    With a `shared` journal, other processes receive under the same lock at the same time.
    """

    def __init__(
        self,
        channel: Channel,
        root: Root,
        lease: Union[Lease, BorrowedLease],
        seed: bytes,
        shared: bool = False,  # noqa: FBT001, FBT002  # Python 3.6 style
    ) -> None:
        super(MainReceiver, self).__init__(channel, root, lease, seed)
        self._journal = PartialFilesJournal(root, shared)
        self._large = LargeFiles(root, seed, self._journal)

    def partial_files(self) -> List[Any]:
        """Return an earlier operation's partial large files: path, size, mtime_ns, tag, bytes received."""
        return [
            [protocol.text_of(part.path), part.size, part.mtime_ns, part.tag, part.received]
            for part in self._journal.parts.values()
            if part.received
        ]

    def receive(self, unit: Dict[str, Any], data: Dict[str, Any], body: protocol.Body) -> None:
        """Take a pack, or a piece of a large file."""
        if not unit["segment"]:
            self.receive_pack(unit, data, body)
            return
        self._raise_failure()
        number = check_piece(unit, data, body)
        try:
            self._lease.check()
            self._commit_when_complete(self._large.receive(unit, data, body))
        except ProtocolError as problem:
            self._failure = self._failure or problem  # commit nothing more from this client
            raise
        except (OSError, UnsafeNameError) as problem:
            self._fail(unit["unit"], number, problem_of(problem))
        else:
            self._report(unit["unit"], [])

    def begin(self, header: Dict[str, Any]) -> None:
        """Prepare a large file, and reply when it is ready."""
        self._raise_failure()
        item = header["item"]
        try:
            self._large.begin(item, header["from"])
        except (OSError, UnsafeNameError) as problem:
            self._fail(header["unit"], item["number"], problem_of(problem), begun=False)
        except PartialMissingError as problem:
            self._fail(header["unit"], item["number"], ["earlier-segment", str(problem), True], begun=False)
        else:
            self._report(header["unit"], [])

    def place(self, header: Dict[str, Any]) -> None:
        """Note a piece that another agent wrote. A digest alone or an abandoned file gets no reply."""
        self._raise_failure()
        if header.get("given_up"):
            self._large.abandon(header["number"])
        elif "offset" not in header:
            self._commit_when_complete(self._large.set_digest(header["number"], header["digest"]))
        else:
            self._commit_when_complete(
                self._large.place(header["number"], header["offset"], header["length"], header["digest"])
            )

    def _commit_when_complete(self, large: Optional[LargeFile]) -> None:
        if large is not None:
            whole = large
            self._queue.put(lambda: self._commit_large(whole))

    def _commit_large(self, large: LargeFile) -> None:
        """Commit a large file; after an earlier failure keep it as it is, to be resumed."""
        self._raise_failure()
        outcome = self._large.finish(large, self._commit_root)
        results = self._commit([outcome])
        if outcome.staged is not None:
            self._large.committed(large)
        self._report(None, results)

    def _fail(self, unit: int, number: int, problem: Problem, begun: bool = True) -> None:  # noqa: FBT001, FBT002  # Python 3.6 style
        """Report a failed file once, however many of its pieces are still in flight."""
        was_open = self._large.abandon(number) if begun else True
        results = [{"number": number, "problem": problem}] if was_open else []
        self._report(unit, results)

    @property
    def left(self) -> bool:
        """True if partial files may be left, except the journaled ones that can be resumed."""
        return super(MainReceiver, self).left or self._large.left

    def finish(self) -> None:
        """Wait for the last commit and leave only what can be resumed."""
        self._join()
        self._large.close()
        self._journal.close()
        self._end()

    def abandon(self) -> None:
        """Finish after the client disconnected: commit complete files, keep partial ones to be resumed."""
        self._join()
        self._large.close()
        self._journal.close()
        self._commit_root.close()


class ChannelReceiver(PackReceiver):
    """The receiver of a further channel: its packs, and pieces of files that the lock's holder commits."""

    def __init__(self, channel: Channel, root: Root, lease: BorrowedLease, seed: bytes) -> None:
        super(ChannelReceiver, self).__init__(channel, root, lease, seed)
        self._seed = seed
        self._open: Dict[int, int] = {}

    def receive(self, unit: Dict[str, Any], data: Dict[str, Any], body: protocol.Body) -> None:
        """Take a pack, or a piece of a large file."""
        if not unit["segment"]:
            self.receive_pack(unit, data, body)
            return
        number = check_piece(unit, data, body)
        results: List[Dict[str, Any]] = []
        try:
            self._lease.check()
            item = unit["items"][0]
            write_at(self._descriptor(item), item, memoryview(body), unit["offset"])
        except (OSError, UnsafeNameError) as problem:
            results = [{"number": number, "problem": problem_of(problem)}]
        self._report(unit["unit"], results)

    def _descriptor(self, item: Dict[str, Any]) -> int:
        found = self._open.get(item["number"])
        if found is None:
            if len(self._open) >= _OPEN_PARTIALS:
                self._close_partials()
            partial = partial_path(self._seed, item["path"])
            found = self._open[item["number"]] = open_partial(self._root, partial, item)
        return found

    def _close_partials(self) -> None:
        for descriptor in self._open.values():
            os.close(descriptor)
        self._open.clear()

    def finish(self) -> None:
        """Wait for the last commit."""
        self._join()
        self._close_partials()
        self._end()

    def abandon(self) -> None:
        """Finish after the client disconnected: commit complete packs."""
        self._join()
        self._close_partials()
        self._commit_root.close()


_CHUNK = 1024 * 1024
_MOST_OPEN = 500  # some hosts let a process open no more than 1024 files
_MOST_BYTES = 32 * 1024 * 1024  # in one reply


def absolute_path(text: str) -> bytes:
    """Return a path named by the client as bytes; raises OSError unless it is absolute."""
    path = protocol.bytes_of(text)
    if not path.startswith(b"/") or b"\0" in path:
        raise OSError(errno.EINVAL, "not an absolute path")
    return path


def put_all(header: Dict[str, Any]) -> Reply:
    """Create `folders` (0700, parents first), then write `files`: path, content, executable or not.

    Each file is private and appears complete or not at all; all are durable before the reply.
    """
    folders = [absolute_path(text) for text in header["folders"]]
    for folder in folders:
        _make_folder(folder)
    files = [(absolute_path(path), content, bool(more)) for path, content, more in header["files"]]
    for start in range(0, len(files), _MOST_OPEN):
        _put_some(files[start : start + _MOST_OPEN])
    touched = {os.path.dirname(path) for path, _, _ in files}
    for folder in sorted(touched.union(folders, map(os.path.dirname, folders))):
        sync_folder(folder)
    return {}, b""


def _make_folder(path: bytes) -> None:
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        if not os.path.isdir(path):
            raise


def _put_some(files: List[Tuple[bytes, str, bool]]) -> None:
    """Write partial files, then rename them; after a failure remove the partial files."""
    begun: List[Tuple[int, bytes, bytes]] = []
    try:
        for path, content, executable in files:
            folder = os.path.dirname(path)
            partial = os.path.join(folder, b".hibali-" + os.urandom(16).hex().encode("ascii"))
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            descriptor = os.open(partial, flags, 0o700 if executable else 0o600)
            begun.append((descriptor, partial, path))
            write_piece(descriptor, memoryview(protocol.bytes_of(content)), 0)
        failures = sync_files([descriptor for descriptor, _, _ in begun])
        for code, message, _ in failures.values():
            raise RefusedError(str(code), str(message))
        for _, partial, path in begun:
            os.rename(partial, path)
    except BaseException:
        for _, partial, _ in begun:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(partial)
        raise
    finally:
        for descriptor, _, _ in begun:
            os.close(descriptor)


def sync_folder(path: bytes) -> None:
    """Sync a folder so that renames in it are durable, if its filesystem can."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as problem:
        if problem.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)


def get_all(header: Dict[str, Any]) -> Reply:
    """Return the first `maximum` bytes of each regular file, concatenated, and each length; -1 for none.

    A file that cannot be read or is not regular counts as none, so that the others are still returned.
    """
    content = bytearray()
    sizes: List[int] = []
    for text in header["paths"]:
        found = _read(absolute_path(text), header["maximum"])
        if found is not None and len(content) + len(found) > _MOST_BYTES:
            raise OSError(errno.EFBIG, "the files are too large for one reply")
        sizes.append(-1 if found is None else len(found))
        content += found or b""
    return {"sizes": sizes}, content


def _read(path: bytes, maximum: int) -> Optional[bytearray]:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as problem:
        if problem.errno in (errno.EIO, errno.ESTALE, errno.EMFILE, errno.ENFILE):
            raise  # the file may exist
        return None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        return read_up_to(descriptor, maximum)
    finally:
        os.close(descriptor)


def read_up_to(descriptor: int, maximum: int) -> bytearray:
    """Return the next bytes of a file, at most `maximum`. Raises OSError."""
    content = bytearray()
    while len(content) < maximum:
        step()
        chunk = os.read(descriptor, min(_CHUNK, maximum - len(content)))
        if not chunk:
            break
        content += chunk
    return content
