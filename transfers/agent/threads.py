"""Work in several threads below one folder, where the filesystem answers slowly.

A metadata server takes as long for one file as for eight at a time (Lustre, NFS, CephFS).
"""

import queue
import threading
import time
from typing import Any, Callable, Iterable, Iterator, List, Optional, Sequence, TypeVar

from transfers.agent.safe_path import Root

THREADS = 8
_MOST_OPEN = 8  # folders of a thread: some hosts let a process open no more than 1024 files
_LEAST = 16  # files whose time tells
_SLOW_SECONDS = 300e-6  # for a file; about 30 microseconds if the kernel has its folder in memory
_SLOW_BYTES = 400e6  # in a second, beside that

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class RootThreads(object):
    """Threads, each with a root of its own: a root is for one thread."""

    def __init__(self, root: Root, count: int = THREADS) -> None:
        """Start the threads now. Raises OSError or RuntimeError where this process may have no further files or threads."""
        from concurrent.futures import ThreadPoolExecutor  # start-up: only where threads are used

        self._pool = ThreadPoolExecutor(count)
        self._roots: queue.Queue[Root] = queue.Queue()
        started = threading.Event()
        try:
            for _ in range(count):
                self._roots.put(root.clone(_MOST_OPEN))
            for _ in range(count):
                self._pool.submit(started.wait)
        except BaseException:
            started.set()
            self.close()
            raise
        started.set()

    def submit(self, work: Callable[[Root, Any], Any], item: Any) -> Any:
        """Start `work(root, item)`; return its future."""
        return self._pool.submit(self._run, work, item)

    def map(self, work: Callable[[Root, _Item], _Result], items: Iterable[_Item]) -> Iterator[_Result]:
        """Start `work(root, item)` for each item; yield the results in order. After an error, and once closed, none is under way."""
        futures = [self.submit(work, item) for item in items]
        try:
            for future in futures:
                yield future.result()
        finally:
            for future in futures:
                future.cancel()
            for future in futures:
                if not future.cancelled():
                    future.exception()  # waits

    def map_parts(
        self, work: Callable[[Root, Sequence[_Item]], _Result], items: Sequence[_Item]
    ) -> Iterator[_Result]:
        """Divide the items, every eighth to one part; yield `work(root, part)` for each part."""
        return self.map(work, [items[start::THREADS] for start in range(THREADS)])

    def _run(self, work: Callable[[Root, Any], Any], item: Any) -> Any:
        root = self._roots.get()
        try:
            return work(root, item)
        finally:
            self._roots.put(root)

    def close(self) -> None:
        """Wait for the threads, and close their roots."""
        self._pool.shutdown()
        while not self._roots.empty():
            self._roots.get().close()


def _seconds_without_core() -> float:
    """Return how long this thread has waited for a core, which more threads would not shorten; 0 if the kernel does not count it."""
    try:
        with open("/proc/thread-self/schedstat") as found:  # nanoseconds: ran, waited (sched-stats.rst)
            return int(found.read().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


class FileThreads(object):
    """Works on the files of one pack after the other: in this thread, and in several once that took long. Used by one thread."""

    def __init__(self, root: Root) -> None:
        self._root = root
        self._threads: Optional[RootThreads] = None
        self._alone = False  # threads could not be started

    def map(
        self, work: Callable[[Root, Sequence[_Item]], List[_Result]], items: Sequence[_Item], size: int = 0
    ) -> List[_Result]:
        """Return the results of `work`, which gets a part of the items, for all items in order; they have `size` bytes."""
        if self._threads is None:
            began = time.monotonic() - _seconds_without_core()
            found = work(self._root, items)
            passed = time.monotonic() - _seconds_without_core() - began
            allowed = len(items) * _SLOW_SECONDS + size / _SLOW_BYTES
            if len(items) >= _LEAST and passed > allowed and not self._alone:
                self._start()
            return found
        results: List[Any] = [None] * len(items)
        for start, part in enumerate(self._threads.map_parts(work, items)):
            results[start::THREADS] = part
        return results

    def _start(self) -> None:
        try:
            self._threads = RootThreads(self._root)
        except (OSError, RuntimeError):
            self._alone = True

    def close(self) -> None:
        """End the threads; safe to call twice."""
        if self._threads is not None:
            self._threads.close()
            self._threads = None
