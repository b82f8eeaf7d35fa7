"""A turn at a folder of a site: its store's own lease, waited for, and looked at again before anything counts."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Self, TypeVar

from hibali.errors import TryLaterError
from hibali.events import Listener, Noted, ignore
from hibali.locations import Location
from hibali.retry import growing_intervals, pause
from transfers.far import Far
from transfers.lock_record import record_of
from transfers.places import open_store
from transfers.store import Lock

Found = TypeVar("Found")

_LONGEST_WAIT = 5.0
_PATIENCE = 2 * 3600.0


class Turn:
    """Held from `wait` to the end of its `with`; a holder that is gone gives way as with any target (S6)."""

    def __init__(self, far: Far, location: Location, tell: Listener = ignore) -> None:
        """`location` is a folder of the site that `far` reaches; it is made when the turn is taken."""
        self._far = far
        self._lock_file = location.path.encode("utf-8", "surrogateescape") + b"/.hibali/lock"
        self._about = location.text
        self._tell = tell
        self._store = open_store(location, tell=tell)
        self._lock: Lock | None = None
        self._token: object = None

    def wait(self, operation: str, look: Callable[[], Found | None]) -> Found | None:
        """None when the turn is ours; or what `look` finds of another's work while it is not."""
        intervals = growing_intervals(0.2, _LONGEST_WAIT)
        waited = 0.0
        while True:
            try:
                self._lock = self._store.lock(operation, make=True)
            except TryLaterError as problem:
                if problem.code != "locked" or waited > _PATIENCE:
                    raise
                if not waited:
                    self._tell(Noted(f"{self._about}: {problem.message}; waiting for it"))
            else:
                self._token = self._read()
                return None
            seconds = intervals.next_pause()
            pause(seconds)
            waited += seconds
            found = look()
            if found is not None:
                return found

    def check(self) -> None:
        """Raise `TryLaterError` unless the turn is still ours."""
        if self._token is None or self._read() != self._token:
            raise TryLaterError(
                "lock-lost",
                "the lock was lost; nothing more is written",
                about=self._about,
                hint="Type the same line again.",
                transient=False,
            )

    def _read(self) -> object:
        return record_of(self._far.get(self._lock_file) or b"").get("token")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._lock is not None:
            self._lock.release()
        self._store.close()
