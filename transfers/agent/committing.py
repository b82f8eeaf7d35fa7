"""Commit received files: partial names, one sync for many files, then all renames (S1, S18, S19)."""

import contextlib
import errno
import hashlib
import os
import stat
import threading
from typing import Any, Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from transfers.agent import protocol
from transfers.agent.acl import path_in, set_first_bits, set_like
from transfers.agent.protocol import (
    IS_FILE,
    IS_FOLDER,
    IS_LINK,
    ChangedError,
    MismatchError,
    Problem,
    ProtocolError,
    Record,
    RefusedError,
    UnsafeNameError,
    aside_path,
    problem_of,
)
from transfers.agent.reading import digest_file
from transfers.agent.safe_path import Root, split_path
from transfers.agent.threads import FileThreads
from transfers.agent.writing import set_attributes, sync_files, sync_folders, write_at


def check_expected(root: Root, item: Dict[str, Any]) -> Optional[Problem]:
    """Return a problem if the target is not as the item expects; an absent target is always accepted.

    `expect` is None if anything may be replaced, empty if nothing may, else kind, size, mtime_ns,
    ctime_ns and inode. Raises OSError, `UnsafeNameError`.
    """
    expected = item.get("expect")
    if expected is None:
        return None
    found = root.lstat(item["path"])
    if found is None or (found.kind == IS_FOLDER and item["kind"] == "d"):
        return None
    return (
        None
        if expected and _is_same(found, expected)
        else [
            "target-changed",
            "the target changed after the plan was made, so hibali did not replace it",
            False,
        ]
    )


def is_up_to_date(root: Root, item: Dict[str, Any], digest: Optional[str]) -> bool:
    """Return whether the content already is as required. Raises OSError, `UnsafeNameError`."""
    found = root.lstat(item["path"])
    if found is None or os.fsdecode(found.kind) != item["kind"]:
        return False
    if found.kind == IS_LINK:
        return bool(found.link == item["link"])
    if found.kind != IS_FILE or (found.size, found.mtime_ns) != (item["size"], item["mtime_ns"]):
        return False
    try:
        return digest is not None and digest_file(root, item["path"], threading.Event()) == digest
    except ChangedError:
        return False


def _is_same(found: Record, expected: Any) -> bool:
    kind = os.fsdecode(found.kind)
    if found.kind == IS_FOLDER:
        return bool(kind == expected[0])
    return [kind, found.size, found.mtime_ns, found.ctime_ns, found.inode] == list(expected)


_PARTIAL_FLAGS = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Staged(object):
    """One complete item under its partial name, neither synced nor renamed yet."""

    def __init__(
        self, item: Dict[str, Any], partial: Optional[bytes], descriptor: int, digest: Optional[str]
    ) -> None:
        self.item = item
        self.partial = partial
        self.descriptor = descriptor
        self.digest = digest


class Outcome(NamedTuple):
    """The result of one item: staged for the commit, or a problem."""

    number: int
    staged: Optional[Staged]
    problem: Optional[Problem]


class Writer(object):
    """The target side before the commit: writes partial files and checks digests. Used by one thread only."""

    def __init__(
        self, root: Root, seed: bytes, attempt: int = 1, threads: Optional[FileThreads] = None
    ) -> None:
        """`attempt` counts the attempts of the same work: a process of an earlier one, which may still run, has other partial names.

        The `threads` may be those of a committer that the same thread uses.
        """
        self._root = root
        self._seed = seed
        self._attempt = attempt
        self._threads = threads or FileThreads(root)
        self.left = False

    def close(self) -> None:
        """End the threads."""
        self._threads.close()

    def remove_earlier(self, path: bytes) -> None:
        """Remove the partial files of `path` that earlier attempts left; if one still runs, its rename fails."""
        for attempt in range(1, self._attempt):
            with contextlib.suppress(OSError, UnsafeNameError):
                remove_partial(self._root.parent(path), self._partial(path, attempt))

    def _partial(self, path: bytes, attempt: int) -> bytes:
        """Return the partial name of `path` in one attempt; no path has two slashes in a row."""
        return protocol.partial_name(self._seed, path if attempt == 1 else b"%d//%s" % (attempt, path))

    def write_pack(self, unit: Dict[str, Any], data: Dict[str, Any], body: protocol.Body) -> List[Outcome]:
        """Stage every item of a pack."""
        items = unit["items"]
        sizes = data["sizes"]
        if (
            data["unit"] != unit["unit"]
            or len(sizes) != len(items)
            or sum(sizes) != len(body)
            or min(sizes or [0]) < 0
        ):
            raise ProtocolError("data for a unit that was not planned")
        outcomes: Dict[int, Outcome] = {}
        files = []
        view = memoryview(body)
        position = 0
        for index, item in enumerate(items):
            content = view[position : position + sizes[index]]
            position += sizes[index]
            problem = data["problems"].get(str(index))
            if problem is not None:
                outcomes[index] = Outcome(item["number"], None, problem)
            elif item["kind"] == "f":
                files.append((index, item, content, data["digests"][index]))
            else:  # folders before what is in them
                outcomes[index] = self._stage(self._root, item, content, None)
        staged = self._threads.map(self._stage_files, files, position)
        outcomes.update((index, outcome) for (index, *_), outcome in zip(files, staged))
        return [outcomes[index] for index in range(len(items))]

    def _stage_files(
        self, root: Root, files: Sequence[Tuple[int, Dict[str, Any], memoryview, Optional[str]]]
    ) -> List[Outcome]:
        return [self._stage(root, item, content, digest) for _, item, content, digest in files]

    def _stage(self, root: Root, item: Dict[str, Any], content: memoryview, digest: Optional[str]) -> Outcome:
        number = item["number"]
        try:
            if item["kind"] == "d":
                changed = check_expected(self._root, item)
                if changed is not None:
                    return Outcome(number, None, changed)
                self._make_folder(item)
                return Outcome(number, Staged(item, None, -1, None), None)
            if item["kind"] == "l":
                return Outcome(number, self._stage_link(item), None)
            if item["kind"] == "h":
                return Outcome(number, self._stage_name(item), None)
            return Outcome(number, self._stage_file(root, item, content, digest), None)
        except (OSError, UnsafeNameError, RefusedError) as problem:
            return Outcome(number, None, problem_of(problem))
        except MismatchError as problem:
            return Outcome(number, None, ["corrupt", str(problem), True])

    def _make_folder(self, item: Dict[str, Any]) -> None:
        """Create a folder at once, because its pack has its content; replace a file if the plan says so."""
        path = item["path"]
        name = split_path(path)[-1]
        parent = self._root.parent(path, make=True)
        mode = first_mode(item, folder=True)
        try:
            os.mkdir(name, mode, dir_fd=parent)
        except FileExistsError:
            if item["clear"] and not stat.S_ISDIR(
                os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
            ):
                os.unlink(name, dir_fd=parent)
                os.mkdir(name, mode, dir_fd=parent)
            self._root.folder(path)

    def _stage_link(self, item: Dict[str, Any]) -> Staged:
        partial = self._partial(item["path"], self._attempt)
        parent = self._root.parent(item["path"], make=True)
        remove_partial(parent, partial)
        os.symlink(item["link"], partial, dir_fd=parent)
        return Staged(item, partial, -1, None)

    def _stage_name(self, item: Dict[str, Any]) -> Staged:
        """Create a further name (hard link) of a committed file."""
        first = self._root.lstat(item["same_as"])
        if first is None or (first.kind, first.size) != (IS_FILE, item["size"]):
            raise RefusedError("first-name-missing", "the file that this hard link refers to does not exist")
        partial = self._partial(item["path"], self._attempt)
        parent = self._root.parent(item["path"], make=True)
        remove_partial(parent, partial)
        name, above = item["same_as"].rpartition(b"/")[2], self._root.parent(item["same_as"])
        try:
            os.link(name, partial, src_dir_fd=above, dst_dir_fd=parent, follow_symlinks=False)
        except OSError as problem:
            if problem.errno in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EXDEV):
                raise RefusedError(
                    "no-hard-links", "the target does not support hard links; leave out --hard-links"
                ) from None
            raise
        return Staged(item, partial, -1, None)

    def _stage_file(
        self, root: Root, item: Dict[str, Any], content: memoryview, digest: Optional[str]
    ) -> Staged:
        """Check the digest, write the content and set its time; the descriptor stays open for the sync."""
        found = hashlib.sha256(content).hexdigest()
        if len(content) != item["size"] or found != digest:
            raise MismatchError(
                "the received data differs from the data read at the source: {} bytes, sha256 {}".format(
                    len(content), found
                )
            )
        name = self._partial(item["path"], self._attempt)
        # nothing else is opened through the root before this file is complete
        parent = root.parent(item["path"], make=True)
        descriptor = _create(parent, name, item)
        try:
            write_at(descriptor, item, content, 0)
            if item["sparse"]:
                os.ftruncate(descriptor, len(content))
            apply_attributes(descriptor, item)
            set_mode(descriptor, item, lambda _: parent)
            set_time(descriptor, item["mtime_ns"])
        except BaseException:
            try:
                os.close(descriptor)
                remove_partial(parent, name)
            except OSError:
                self.left = True  # the next run removes it
            raise
        return Staged(item, name, descriptor, found)


def _create(parent: int, name: bytes, item: Dict[str, Any]) -> int:
    """Create a partial file and return its descriptor; one of an interrupted attempt, which is rare, is removed first."""
    mode = first_mode(item)
    try:
        return os.open(name, _PARTIAL_FLAGS, mode, dir_fd=parent)
    except FileExistsError:
        remove_partial(parent, name)
        return os.open(name, _PARTIAL_FLAGS, mode, dir_fd=parent)


def first_mode(item: Dict[str, Any], folder: bool = False) -> int:  # noqa: FBT001, FBT002  # Python 3.6 style
    """Return the mode to create with: no wider than the final one, but the owner can write."""
    permissions = item.get("permissions")
    if permissions is not None:
        return int(permissions) & 0o777 | (0o700 if folder else 0o600)
    return 0o777 if folder or (item["mode"] >= 0 and item["mode"] & 0o100) else 0o666


def apply_attributes(descriptor: int, item: Dict[str, Any]) -> None:
    """Set exactly the requested attributes while the file is still writable. Raises `RefusedError`."""
    if item["attributes"] is not None:
        set_attributes(descriptor, item["attributes"])


def set_mode(descriptor: int, item: Dict[str, Any], parent: Callable[[bytes], int]) -> None:
    """Set exactly the requested permissions, or those of the replaced file except the execute bits.

    `parent` opens the folder of a path; if that was moved meanwhile, the commit will say so.
    """
    permissions, old_mode = item.get("permissions"), item.get("old_mode")
    if permissions is None and old_mode is None:
        return
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        folder = parent(item["path"])
        replaced = path_in(folder, item["path"].rpartition(b"/")[2])
        if permissions is not None:
            below = path_in(folder, b".")
            set_first_bits(descriptor, permissions & 0o777, None if old_mode is None else replaced, below)
        elif old_mode is not None:
            set_like(descriptor, replaced, old_mode, item["mode"] >= 0 and bool(item["mode"] & 0o100))


def set_time(descriptor: int, mtime_ns: int) -> None:
    """Set the modification time. Linux rounds it to what fits; others raise `RefusedError`."""
    try:
        os.utime(descriptor, ns=(mtime_ns, mtime_ns))
    except (OverflowError, OSError) as problem:
        if isinstance(problem, OSError) and problem.errno not in (
            errno.EINVAL,
            errno.ERANGE,
            errno.EOVERFLOW,
        ):
            raise
        raise RefusedError(
            "time-not-supported", "the filesystem cannot store its modification time"
        ) from None


def remove_partial(parent: int, name: bytes) -> None:
    """Remove a partial file of an interrupted operation."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=parent)


def is_same_file(folder: int, first: bytes, second: bytes) -> bool:
    """Return whether two names in an open folder are the same file; False if one is absent."""
    try:
        found = [os.stat(name, dir_fd=folder, follow_symlinks=False) for name in (first, second)]
    except FileNotFoundError:
        return False
    return os.path.samestat(*found)


class Committer(object):
    """Makes staged items durable and renames them. Used by one thread only, and uses others where that is slow.

    `left` says that partial files may be left, for the next run to remove.
    """

    def __init__(self, root: Root, seed: bytes, threads: Optional[FileThreads] = None) -> None:
        self._root = root
        self._seed = seed
        self._threads = threads or FileThreads(root)
        self.aside: List[bytes] = []
        self.left = False

    def commit(self, outcomes: List[Outcome]) -> List[Dict[str, Any]]:
        """Return one result per item: {"number", "digest", "inode", "problem"}; reported files are on disk."""
        staged = [outcome.staged for outcome in outcomes if outcome.staged is not None]
        failures = sync_files([one.descriptor for one in staged if one.descriptor >= 0])

        def name_all(root: Root, some: Sequence[Outcome]) -> List[Dict[str, Any]]:
            with root.keeping_open():
                return self._name_all(root, some, failures)

        if any(one.item["clear"] or one.item["kind"] == "h" for one in staged):
            return name_all(self._root, outcomes)
        return self._threads.map(name_all, outcomes)

    def _name_all(
        self, root: Root, outcomes: Sequence[Outcome], failures: Dict[int, Problem]
    ) -> List[Dict[str, Any]]:
        """Give items their final names, and make these durable: in the folders of this root."""
        results: List[Dict[str, Any]] = []
        folders: Dict[bytes, List[int]] = {}
        for outcome in outcomes:
            one = outcome.staged
            problem = outcome.problem
            if one is not None:
                problem = failures.get(one.descriptor)
                if problem is not None:
                    self._discard(root, one)
                else:
                    problem = self._place(root, one)
                if problem is None:
                    folder = one.item["path"].rpartition(b"/")[0]
                    folders.setdefault(folder, []).append(len(results))
            inode = os.fstat(one.descriptor).st_ino if one is not None and one.descriptor >= 0 else 0
            digest = one.digest if one else None
            results.append({"number": outcome.number, "digest": digest, "inode": inode, "problem": problem})
        for outcome in outcomes:
            if outcome.staged is not None:
                _close(outcome.staged)
        for folder, problem in sync_folders(root, sorted(folders)).items():
            for index in folders[folder]:
                results[index]["problem"] = problem
        return results

    def discard(self, outcomes: List[Outcome]) -> None:
        """Remove staged items that will not be committed."""
        for outcome in outcomes:
            one = outcome.staged
            if one is not None:
                self._discard(self._root, one)
                _close(one)

    def close(self) -> None:
        """End the threads."""
        self._threads.close()

    def _place(self, root: Root, one: Staged) -> Optional[Problem]:
        """Rename to the final name; first move a folder away if the plan says so."""
        path = one.item["path"]
        name = path.rpartition(b"/")[2]
        try:
            parent = root.parent(path)
            if one.partial is None:
                return None
            if one.item["kind"] == "h" and is_same_file(parent, one.partial, name):
                # rename(2) would keep both names
                self._discard(root, one)
                return None
            changed = check_expected(root, one.item)
            if changed is not None:
                self._discard(root, one)
                # The reply to an earlier attempt may have been lost with its channel.
                return None if is_up_to_date(root, one.item, one.digest) else changed
            if one.item["clear"]:
                self._move_folder_aside(path, name, parent)
            os.rename(one.partial, name, src_dir_fd=parent, dst_dir_fd=parent)
        except (OSError, UnsafeNameError) as problem:
            self._discard(root, one)
            return problem_of(problem)
        return None

    def _move_folder_aside(self, path: bytes, name: bytes, parent: int) -> None:
        """Rename a folder that is in the way of a file to a partial name; it is removed at the end."""
        try:
            mode = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
        except FileNotFoundError:
            return
        if not stat.S_ISDIR(mode):
            return
        aside = aside_path(self._seed, path)
        self._root.forget(path)
        os.rename(name, aside.rpartition(b"/")[2], src_dir_fd=parent, dst_dir_fd=parent)
        self.aside.append(aside)

    def _discard(self, root: Root, one: Staged) -> None:
        """Remove a partial file; set `left` also if it is not found: its folder may have been replaced."""
        if one.partial is not None:
            try:
                os.unlink(one.partial, dir_fd=root.parent(one.item["path"]))
            except (OSError, UnsafeNameError):
                self.left = True


def _close(one: Staged) -> None:
    descriptor, one.descriptor = one.descriptor, -1
    if descriptor >= 0:
        os.close(descriptor)
