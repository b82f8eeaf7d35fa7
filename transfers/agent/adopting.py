"""Files that somebody else writes here under partial names of ours: invited first, and given their names once they are proven."""

import hashlib
import os
import queue
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Dict, List

from transfers.agent import frames
from transfers.agent.begun import Begun, Part
from transfers.agent.beneath import Root, UnsafeNameError
from transfers.agent.landing import Committer, Outcome, Staged, keep_attributes, keep_mode, keep_time
from transfers.agent.large import open_partial, partial_path
from transfers.agent.problems import Problem, RefusedError, problem_of
from transfers.agent.removing import purge

_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CHUNK = 1024 * 1024
_HASHERS = 4


class Adopting(object):
    """The partial files of one session that others write; they are in the journal of what was begun, so nobody purges them."""

    def __init__(self, root: Root, seed: bytes, gone: threading.Event) -> None:
        self._root = root
        self._seed = seed
        self._gone = gone
        self._begun = Begun(root)
        self.left = False

    def invite(self, items: List[Dict[str, Any]]) -> Dict[str, Any]:
        """Make an empty partial file for each item: where each lies, and what went wrong by position."""
        partials: List[bytes] = []
        problems: Dict[str, Problem] = {}
        for position, item in enumerate(items):
            partial = partial_path(self._seed, item["path"])
            partials.append(partial)
            part = Part(item["path"], partial, item["size"], item["mtime_ns"], item["tag"])
            before = self._begun.start(part)
            try:
                if before is not None:
                    purge(self._root, before.partial)
                    self._begun.end(before)
                os.close(open_partial(self._root, partial, item))
            except (OSError, UnsafeNameError) as problem:
                self._begun.end(part)
                problems[str(position)] = problem_of(problem)
        return {"partials": [frames.text_of(partial) for partial in partials], "problems": problems}

    def adopt(self, items: List[Dict[str, Any]]) -> Dict[str, Any]:
        """Hash what was written, and rename what is right; what went wrong by position. The others are gone."""
        roots: queue.Queue[Root] = queue.Queue()
        for _ in range(_HASHERS):
            roots.put(self._root.clone())

        def stage(item: Dict[str, Any]) -> Outcome:
            own = roots.get()
            try:
                return Outcome(item["number"], self._stage(own, item), None)
            except BrokenPipeError:
                raise
            except (OSError, UnsafeNameError, RefusedError) as problem:
                return Outcome(item["number"], None, _in_words(problem))
            finally:
                roots.put(own)

        try:
            with ThreadPoolExecutor(_HASHERS) as pool:
                outcomes = list(pool.map(stage, items))
        finally:
            while not roots.empty():
                roots.get().close()
        committer = Committer(self._root, self._seed)
        answers = committer.commit(outcomes)
        self.left = self.left or committer.left
        problems: Dict[str, Problem] = {}
        for position, (item, answer) in enumerate(zip(items, answers)):
            if answer["problem"] is not None:
                problems[str(position)] = answer["problem"]
            self._forget(item)
        return {"problems": problems}

    def _stage(self, root: Root, item: Dict[str, Any]) -> Staged:
        """A file that is complete and right, open for the sync."""
        part = self._begun.parts.get(item["path"])
        if part is None or part.partial != item["partial"]:
            raise RefusedError("never-arrived", "nothing is there of it")
        descriptor = os.open(part.partial.rpartition(b"/")[2], _FLAGS, dir_fd=root.parent(part.partial))
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1:
                raise UnsafeNameError("a partial file that is not ours alone")
            digest = self._digest(descriptor)
            if digest != item["digest"]:
                raise RefusedError(
                    "corrupt",
                    "what arrived differs from what was read: {} bytes, sha256 {}".format(
                        found.st_size, digest
                    ),
                )
            keep_attributes(descriptor, item)
            keep_mode(descriptor, item)
            keep_time(descriptor, item["mtime_ns"])
        except BaseException:
            os.close(descriptor)
            raise
        return Staged(item, part.partial.rpartition(b"/")[2], descriptor, digest)

    def _digest(self, descriptor: int) -> str:
        summed = hashlib.sha256()
        while True:
            if self._gone.is_set():
                raise BrokenPipeError(32, "the client is gone")
            chunk = os.read(descriptor, _CHUNK)
            if not chunk:
                return summed.hexdigest()
            summed.update(chunk)

    def _forget(self, item: Dict[str, Any]) -> None:
        """It has its name, or nothing of it is worth keeping."""
        part = self._begun.parts.get(item["path"])
        if part is None or part.partial != item["partial"]:
            return
        try:
            purge(self._root, part.partial)
        except (OSError, UnsafeNameError):
            self.left = True
        self._begun.end(part)

    def close(self) -> None:
        """Let go of the journal; safe to call twice."""
        self._begun.close()


def _in_words(problem: Exception) -> Problem:
    """What did not arrive, or arrived wrong, may succeed when it is sent again."""
    found = problem_of(problem)
    return [found[0], found[1], found[2] or found[0] in ("corrupt", "never-arrived", "vanished")]
