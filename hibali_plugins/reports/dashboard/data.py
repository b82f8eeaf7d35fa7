"""Read what the dashboard shows from the ledger, and read again only what changed. Contacts no site."""

from __future__ import annotations

import contextlib
import os
import stat
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from hibali.config.settings import load_sites
from hibali.errors import HibaliError
from hibali.unreadable import Unreadable, collect_unreadable
from hibali_plugins.reports.run_page import ReportedRun, report_run
from hibali_plugins.reports.status import ScheduleRow, evaluate
from hibali_plugins.reports.status_data import schedule_infos, transferred_in
from hibali_plugins.schedules.schedule import load_schedules
from hibali_plugins.schedules.status import ScheduleItem, ScheduleState
from runs.model import Run
from runs.present import Present, PresentReader
from runs.rate_limits import site_usage
from runs.site_health import SiteCheck, last_check
from runs.store import RunStore
from transfers.history.index import OperationDetails, read_details, read_operations
from transfers.history.operations import Operation, Result

_FRESH_SECONDS = 1.0  # several pages and tabs share what was read
_LOG_BYTES = 16 * 1024
_CUT = "…".encode()


@dataclass(frozen=True, slots=True)
class SiteHealth:
    """A site as last seen: its usage, its latest check, and the latest operation that ended there; None without one."""

    usage: dict[str, Any]
    check: SiteCheck | None
    last: Operation | None
    result: Result | None


class LogPart(NamedTuple):
    """A part of a run's output, the offset at which the next one begins, and the number of bytes left out before this one."""

    text: bytes
    end: int
    left_out: int = 0


class LedgerReader:
    """Reads the ledger for all requests; safe to use from any thread. `config` is the config.toml given."""

    def __init__(self, config: str | None) -> None:
        self.config = config
        self._guard = threading.Lock()
        self._present = PresentReader(config)
        self._latest: tuple[float, Present] | None = None
        self._store = RunStore()
        self._runs: dict[str, tuple[int, Run]] = {}
        self._unreadable: dict[str, Unreadable] = {}

    @property
    def unreadable(self) -> Unreadable:
        """The files of the ledger that the last readings could not read."""
        return {path: damage for found in list(self._unreadable.values()) for path, damage in found.items()}

    @contextlib.contextmanager
    def _reading(self, what: str) -> Iterator[None]:
        with self._guard, collect_unreadable() as self._unreadable[what]:
            yield

    def present(self) -> Present:
        """Return what runs now."""
        at = time.monotonic()
        if self._latest is None or at - self._latest[0] >= _FRESH_SECONDS:
            with self._reading("present"):
                self._latest = at, self._present.read()
        return self._latest[1]

    def schedules(self, present: Present) -> list[ScheduleRow]:
        """Return the schedules with their latest firings, as in the status report."""
        triggers = {name: state.triggers for name, state in schedule_states(present).items()}
        infos = schedule_infos(load_schedules(self.config))
        return [evaluate(info, triggers.get(info.name, []), present.now) for info in infos]

    def operations(self) -> list[Operation]:
        """Return all operations, oldest first."""
        with self._reading("operations"):
            return read_operations()

    def operation(self, identifier: str) -> OperationDetails:
        """Return one operation in full; raises `NotFoundError`."""
        return read_details(identifier)

    def runs(self) -> list[Run]:
        """Return all runs, oldest first; runs that did not change are not read again."""
        with self._reading("runs"):
            known: dict[str, tuple[int, Run]] = {}
            for run_id in self._store.ids():
                size = self._store.length(run_id)
                earlier = self._runs.get(run_id)
                if earlier and earlier[0] == size:
                    known[run_id] = earlier
                else:
                    known.update((run_id, (size, run)) for run in self._store.load_all([run_id]))
            self._runs = known
        return sorted((run for _, run in known.values()), key=lambda run: (run.created, run.id))

    def run(self, run_id: str) -> ReportedRun:
        """Return one run in full; raises `NotFoundError`."""
        return report_run(self._store.load(run_id), self._store)

    def sites(self, operations: Sequence[Operation]) -> list[SiteHealth]:
        """Return the sites of config.toml by name; none if it cannot be read."""
        try:
            sites = load_sites(self.config).sites
        except HibaliError:
            return []
        found = []
        for name in sorted(sites):
            last = next(
                (
                    each
                    for each in reversed(operations)
                    if name in each.sites and each.receipt and not each.was_mistyped
                ),
                None,
            )
            usage = site_usage(sites[name], transferred_in(operations))
            result = None if last is None else last.result()
            found.append(SiteHealth(usage, last_check(sites[name]), last, result))
        return found

    def site_names(self) -> frozenset[str]:
        """Return the names of the sites of config.toml; none if it cannot be read."""
        try:
            return frozenset(load_sites(self.config).sites)
        except HibaliError:
            return frozenset()

    def log_parts(self, run: Run, after: int | None = None) -> dict[str, LogPart]:
        """Return the end of each stream of a run's output, or what follows the byte `after`; {} if it is not on this machine."""
        try:
            site = load_sites(self.config).sites.get(run.site)
        except HibaliError:
            return {}
        if site is None or site.kind != "local" or not run.folder.startswith(b"/"):
            return {}
        folder = Path(os.fsdecode(run.folder))
        return {
            name: _read_part(folder / name, after, whole=run.state.ended) for name in ("stdout", "stderr")
        }


def schedule_states(present: Present) -> dict[str, ScheduleState]:
    """Return the schedules in what runs now, by name."""
    return {each.name: each.of for each in present.others if isinstance(each, ScheduleItem)}


def _read_part(path: Path, after: int | None, *, whole: bool) -> LogPart:
    """Return the last lines of a regular file, those that follow the byte `after` if it is given; none if it cannot be read.

    At most `_LOG_BYTES` are read: earlier ones are left out. Without `whole` an incomplete last line is left for the next
    part. A line is cut, with a mark, only where it is longer than what is read.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return LogPart(b"", 0)
    with contextlib.suppress(OSError), os.fdopen(descriptor, "rb"):
        found = os.fstat(descriptor)
        if stat.S_ISREG(found.st_mode):
            first = after if after is not None and after <= found.st_size else 0
            start = max(first, found.st_size - _LOG_BYTES)
            text = os.pread(descriptor, _LOG_BYTES, start)
            if not whole:
                lines = text[: text.rfind(b"\n") + 1]
                text = lines or (text if len(text) == _LOG_BYTES else b"")
            before = os.pread(descriptor, 1, start - 1) if start and text else b"\n"
            left_out = 0 if after is None else start - first
            return LogPart(_marked(text, before, whole=whole), start + len(text), left_out)
    return LogPart(b"", 0)


def _marked(text: bytes, before: bytes, *, whole: bool) -> bytes:
    """Return a part of a log, which follows the byte `before`, with marks where its first or last line is cut."""
    began = text if before == b"\n" else _CUT + text
    return began if whole or not text or text.endswith(b"\n") else began + _CUT
