"""Landing large files: pieces under a partial name, from any line; what is there survives us and is gone on with."""

import contextlib
import os
import stat
from typing import Any, Dict, List, Optional

from transfers.agent import frames, own_names
from transfers.agent.begun import Begun, Part
from transfers.agent.beneath import Root, UnsafeNameError
from transfers.agent.frontier import Frontier, MismatchError
from transfers.agent.landing import Outcome, Staged, first_mode, keep_attributes, keep_mode, keep_time
from transfers.agent.problems import LandingError, RefusedError, problem_of
from transfers.agent.sparse import write_at

_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def partial_path(seed: bytes, path: bytes) -> bytes:
    """The partial name of a path, in the same folder."""
    folder = path.rpartition(b"/")[0]
    name = own_names.partial_name(seed, path)
    return folder + b"/" + name if folder else name


def open_partial(root: Root, partial: bytes, item: Dict[str, Any]) -> int:
    """A descriptor of a partial file of our own, made where it is not there yet. Raises OSError, `UnsafeNameError`.

    Whichever of an operation's processes comes first makes it: the name is as unguessable as the seed.
    """
    parent = root.parent(partial, make=True)
    descriptor = os.open(partial.rpartition(b"/")[2], _FLAGS, first_mode(item), dir_fd=parent)
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_nlink != 1:
        os.close(descriptor)
        raise UnsafeNameError("a partial file that is not ours alone")
    return descriptor


def check_piece(unit: Dict[str, Any], data: Dict[str, Any], body: frames.Body) -> int:
    """The number of the file that a piece belongs to; raises `LandingError` where it is not what was planned."""
    if data["unit"] != unit["unit"] or data["sizes"] != [len(body)] or len(body) != unit["length"]:
        raise LandingError("a piece that is not what was planned")
    return int(unit["items"][0]["number"])


class Large(object):
    """One file under way."""

    def __init__(self, item: Dict[str, Any], part: Part, descriptor: int, frontier: Frontier) -> None:
        self.item = item
        self.part = part
        self.descriptor = descriptor
        self.frontier = frontier
        self.digest: Optional[str] = None
        self.whole = False


class LargeFiles(object):
    """All large files of one landing, at the agent that holds the lock. `take` and `place` are one thread's own."""

    def __init__(self, root: Root, seed: bytes, begun: Begun) -> None:
        self._root = root
        self._seed = seed
        self._begun = begun
        self._files: Dict[int, Large] = {}
        self._failed: List[bytes] = []
        self.left = False

    def take(self, unit: Dict[str, Any], data: Dict[str, Any], body: frames.Body) -> Optional[Large]:
        """A piece with its bytes; the file once it is there in whole. Pieces of a file that was given up are passed over."""
        number = check_piece(unit, data, body)
        large = self._files.get(number)
        if large is None:
            return None
        write_at(large.descriptor, large.item, memoryview(body), unit["offset"])
        return self.place(number, unit["offset"], len(body), data["digests"][0], body)

    def begin(self, item: Dict[str, Any], offset: int) -> None:
        """Ready a file whose first piece will begin at `offset`. Raises OSError, `UnsafeNameError`, `GoneError`."""
        part = self._resume(item, offset) if offset else self._start(item)
        try:
            descriptor = open_partial(self._root, part.partial, item)
        except (OSError, UnsafeNameError):
            self._begun.end(part)
            if not offset:
                raise
            self._unlink(part.partial)
            raise GoneError("what was there of it is not ours any more") from None
        try:
            if offset:
                os.ftruncate(descriptor, part.there)
            if item["sparse"]:
                # Its end may be a hole, and it is read back up to there.
                os.ftruncate(descriptor, item["size"])
        except OSError:
            os.close(descriptor)
            self._unlink(part.partial)
            self._begun.end(part)
            raise
        frontier = Frontier(descriptor, part, self._begun)
        self._files[item["number"]] = Large(item, part, descriptor, frontier)

    def _start(self, item: Dict[str, Any]) -> Part:
        part = _part_of(item, partial_path(self._seed, item["path"]))
        before = self._begun.start(part)
        if before is not None:
            self._unlink(before.partial)
            self._begun.end(before)
        return part

    def _resume(self, item: Dict[str, Any], offset: int) -> Part:
        """Go on under a name of this operation's own: a writer that slept past its lease knows only the old one."""
        before = self._begun.parts.get(item["path"])
        if before is None or before.there != offset or not is_same(before, item):
            raise GoneError("what was there of it is gone")
        part = _part_of(item, partial_path(self._seed, item["path"]))
        part.marks, part.blocks = list(before.marks), list(before.blocks)
        self._begun.start(part)
        parent = self._root.parent(before.partial)
        names = [name.rpartition(b"/")[2] for name in (before.partial, part.partial)]
        try:
            os.rename(names[0], names[1], src_dir_fd=parent, dst_dir_fd=parent)
        except FileNotFoundError:
            self._begun.end(part)
            raise GoneError("what was there of it is gone") from None
        self._begun.end(before)
        return part

    def place(
        self,
        number: int,
        offset: int,
        length: int,
        digest: Optional[str],
        content: Optional[frames.Body] = None,
    ) -> Optional[Large]:
        """A piece is there, whoever wrote it, and its content perhaps at hand; the file once all of it and its digest are."""
        large = self._files.get(number)
        if large is None:
            return None
        try:
            large.whole = large.frontier.place(offset, length, content) or large.whole
        except ValueError as problem:
            raise LandingError(str(problem)) from None
        return self.tell(number, digest)

    def tell(self, number: int, digest: Optional[str]) -> Optional[Large]:
        """The digest of a file as its source has it, None where that is not known yet; the file once it is there in whole."""
        large = self._files.get(number)
        if large is None:
            return None
        large.digest = digest if digest is not None else large.digest
        return self._files.pop(number) if large.whole and large.digest is not None else None

    def give_up(self, number: int) -> bool:
        """Nothing of this file is to stay; whether it was under way."""
        large = self._files.pop(number, None)
        if large is not None:
            self._discard(large)
        return large is not None

    def finish(self, large: Large) -> Outcome:
        """Compare and set mode and time; the descriptor stays open for the sync. Waits for the digest."""
        number = large.item["number"]
        try:
            found = large.frontier.finish()
            if found != large.digest:
                raise MismatchError("what arrived differs from what was read: sha256 {}".format(found))
            keep_attributes(large.descriptor, large.item)
            keep_mode(large.descriptor, large.item)
            keep_time(large.descriptor, large.item["mtime_ns"])
        except MismatchError as problem:
            if problem.good:
                self._begun.cut(large.part, problem.good)
                os.close(large.descriptor)
            else:
                self._discard(large)
            return Outcome(number, None, ["corrupt", str(problem), True])
        except (OSError, RefusedError) as problem:
            self._discard(large)
            return Outcome(number, None, problem_of(problem))
        name = large.part.partial.rpartition(b"/")[2]
        return Outcome(number, Staged(large.item, name, large.descriptor, found), None)

    def landed(self, large: Large) -> None:
        """It has its name, or was removed: nothing is begun of it."""
        self._begun.end(large.part)

    def _discard(self, large: Large) -> None:
        large.frontier.give_up()
        os.close(large.descriptor)
        self._failed.append(large.part.partial)
        self._unlink(large.part.partial)
        self._begun.end(large.part)

    def _unlink(self, partial: bytes) -> None:
        root = self._root.clone()  # two threads come here
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(partial.rpartition(b"/")[2], dir_fd=root.parent(partial))
        except (OSError, UnsafeNameError):
            self.left = True
        finally:
            root.close()

    def close(self) -> None:
        """What is under way stays for the next time; what was given up is removed, late pieces of it, too."""
        for large in self._files.values():
            large.frontier.give_up()
            os.close(large.descriptor)
            if not large.part.there:
                self._failed.append(large.part.partial)
                self._begun.end(large.part)
        self._files.clear()
        for partial in self._failed:
            self._unlink(partial)


class GoneError(Exception):
    """What was begun of a file is not there any more."""


def is_same(part: Part, item: Dict[str, Any]) -> bool:
    """Whether what was begun is of this very content, as far as size and times tell; the digest decides in the end."""
    return (part.size, part.mtime_ns, part.tag) == (item["size"], item["mtime_ns"], item["tag"])


def _part_of(item: Dict[str, Any], partial: bytes) -> Part:
    return Part(item["path"], partial, item["size"], item["mtime_ns"], item["tag"])
