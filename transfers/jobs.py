"""Work in threads of a pool within a bounded window, its answers taken by one thread; an error of any ends all."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Executor, Future
from typing import Any, Generic, TypeVar

_Answer = TypeVar("_Answer")


class Jobs(Generic[_Answer]):
    """One run: `feed` submits from a thread of its own, jobs `tell` answers, whoever called `run` takes them. Used once."""

    def __init__(self, pool: Executor, *, at_once: int, most_bytes: int) -> None:
        """At most so many jobs are under way, and at most `most_bytes` of what they hold, or one job's."""
        self._pool = pool
        self._at_once = at_once
        self._most_bytes = most_bytes
        self._answers: queue.SimpleQueue[_Answer | BaseException | None] = queue.SimpleQueue()
        self._room = threading.Condition()
        self._bytes_held = 0
        self._under_way = 0
        self.stopped = False

    def run(self, feed: Callable[[], None]) -> Generator[_Answer, None, None]:
        """The answers; it ends once all jobs have. Closing it stops the feeding and waits for what is under way."""
        feeder = threading.Thread(target=self._feed, args=(feed,), name="feed", daemon=True)
        feeder.start()
        try:
            while (answer := self._answers.get()) is not None:
                if isinstance(answer, BaseException):
                    raise answer
                yield answer
        finally:
            with self._room:
                self.stopped = True
                self._room.notify_all()
            feeder.join()
            self._wait()

    def _feed(self, feed: Callable[[], None]) -> None:
        try:
            feed()
            if not self.stopped:
                self._wait()
                self._answers.put(None)
        except BaseException as problem:  # noqa: BLE001  # raised again by the thread that takes the answers
            self._answers.put(problem)

    def tell(self, answer: _Answer) -> None:
        """Give an answer; any thread may."""
        self._answers.put(answer)

    def submit(self, size: int, job: Callable[..., None], *words: Any) -> Future[None] | None:
        """Start a job that holds `size` bytes once there is room for it in the window; None when all is to stop."""
        with self._room:
            while not self.stopped and (
                self._under_way >= self._at_once
                or (self._bytes_held and self._bytes_held + size > self._most_bytes)
            ):
                self._room.wait()
            if self.stopped:
                return None
            self._under_way += 1
            self._bytes_held += size
        return self._pool.submit(self._guarded, size, job, *words)

    def _guarded(self, size: int, job: Callable[..., None], *words: Any) -> None:
        try:
            if not self.stopped:
                job(*words)
        except BaseException as problem:  # noqa: BLE001  # raised again by the thread that takes the answers
            self._answers.put(problem)
        finally:
            with self._room:
                self._under_way -= 1
                self._bytes_held -= size
                self._room.notify_all()

    def _wait(self) -> None:
        with self._room:
            while self._under_way:
                self._room.wait()
