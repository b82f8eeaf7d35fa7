"""Remember which folder a scheduled transfer writes to, and refuse another one under the same name (S21)."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from hibali.errors import RefusedError
from hibali.ledger import ledger_folder, write_atomic
from hibali.locations import Location
from hibali.text import printable

_FILE = "roots.json"


@dataclass(frozen=True, slots=True)
class RootIdentity:
    """A folder as the filesystem knows it; `device` means something only until the host boots again."""

    boot: str
    device: int
    inode: int

    def is_other(self, now: RootIdentity) -> bool:
        """Whether another folder has its name now. Device numbers of network filesystems differ from boot to boot."""
        return self.inode != now.inode or (self.boot == now.boot and self.device != now.device)


@runtime_checkable
class KnowsRoot(Protocol):
    """A store that can tell which folder its root is."""

    def identity(self) -> RootIdentity | None:
        """The root that is open; None where there is none."""


class KnownRoots:
    """What the runs of one schedule wrote to, in `schedules/NAME/roots.json`."""

    def __init__(self, schedule: str) -> None:
        self._schedule = schedule
        self._path = ledger_folder("schedules", schedule) / _FILE

    def check(self, target: Location, store: KnowsRoot, where: bytes) -> None:
        """Raise `RefusedError("root-changed")` where a run before this one wrote to another folder."""
        before = self._read().get(_key(target, where))
        if before is None:
            return
        now = store.identity()
        if now is not None and not before.is_other(now):
            return
        what = "is another folder than" if now is not None else "is gone, and was there"
        raise RefusedError(
            "root-changed",
            f"{printable(where)} {what} when this schedule last ran",
            about=target.text,
            hint=f"Look at what is there now. If it is right: hibali schedule resume {self._schedule}",
        )

    def remember(self, target: Location, store: KnowsRoot, where: bytes) -> None:
        """Keep what was written to."""
        now = store.identity()
        known = self._read()
        if now is None or known.get(_key(target, where)) == now:
            return
        known[_key(target, where)] = now
        roots = {key: asdict(each) for key, each in sorted(known.items())}
        record = {"schema": 1, "roots": roots}
        write_atomic(self._path, json.dumps(record, indent=1).encode("ascii") + b"\n")

    def _read(self) -> dict[str, RootIdentity]:
        try:
            record = json.loads(self._path.read_bytes())
            return {key: RootIdentity(**each) for key, each in record["roots"].items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError, TypeError, KeyError, AttributeError):
            raise RefusedError(
                "root-changed",
                "it cannot be read which folders this schedule writes to",
                about=str(self._path),
                hint=f"To begin anew: hibali schedule resume {self._schedule}",
            ) from None


def forget_roots(schedule_folder: Path) -> None:
    """Let the next run of a schedule write to whatever folder it finds."""
    (schedule_folder / _FILE).unlink(missing_ok=True)


def _key(target: Location, where: bytes) -> str:
    return f"{target.site.name}:{where.decode('utf-8', 'surrogateescape')}"
