"""Limit and count requests to schedulers, and show the usage of a site."""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

from hibali.config.kinds import service_name
from hibali.config.model import Site
from hibali.errors import NotFoundError, TryLaterError
from hibali.events import Listener, ignore
from hibali.files import open_regular
from hibali.ledger import ledger_folder
from hibali.rate_limits import Refusals, Refused, note_use, read_uses
from hibali.ssh.sessions import login_name, login_refusals
from runs.model import Run
from runs.queue_places import QueuePlaces, count_queued
from runs.schedulers.base import load_scheduler
from runs.services.base import open_host as open_service_host
from runs.services.base import service_at
from runs.store import RunStore
from transfers.remote.host import CommandResult, OnceResult, RemoteHost
from transfers.remote.lending import lending
from transfers.stores.open_store import open_host

# The error codes of schedulers that refuse a request (runs.schedulers).
_REFUSALS = frozenset({"scheduler-busy", "scheduler-silent"})


def open_limited_host(site: Site, on_event: Listener = ignore) -> RemoteHost:
    """Connect to a site's machine, and count each command there, or to its job service; the caller closes it."""
    if service_name(site):
        return cast("RemoteHost", open_service_host(site, on_event))
    return counted(open_host(site, on_event=on_event), site.name)


def counted(host: RemoteHost, site: str) -> RemoteHost:
    """Return the machine with each command counted."""
    return cast("RemoteHost", _Counted(host, site))


def query_service(site: Site, host: RemoteHost) -> None:
    """Query the job service that [scheduler] names, at a connected machine. Raises its errors."""
    service = service_at(site, host)
    with rate_limited(site.name), contextlib.closing(service):
        service.find("hibali-check", "")


@contextlib.contextmanager
def rate_limited(site: str) -> Iterator[None]:
    """Limit queries of a site's scheduler. Raises `TryLaterError` if it refused too often; refusals are recorded."""
    refusals = scheduler_refusals(site)
    refusals.check()
    try:
        yield
    except TryLaterError as problem:
        if problem.code in _REFUSALS:
            refusals.refused(problem.message)
        raise
    refusals.answered()


def scheduler_refusals(site: str) -> Refusals:
    """Return the recorded refusals of a site's scheduler."""
    return Refusals("sites", site, subject=f"the scheduler of {site}")


_SHORT_PAUSE_SECONDS = 60.0


def wait_for_short_pause(site: str, on_event: Listener) -> None:
    """Wait for the end of a pause of a site's scheduler of at most a minute, for a command that waits anyway."""
    scheduler_refusals(site).wait(_SHORT_PAUSE_SECONDS, on_event)


def start_afresh(site: Site) -> None:
    """Forget all refusals of a site, because the user wants to retry."""
    scheduler_refusals(site.name).answered()
    if site.ssh is not None:
        for host in site.ssh.hosts:
            login_refusals(site.ssh, host).answered()


class _Counted:
    """A RemoteHost whose commands are counted by the program's name."""

    def __init__(self, host: RemoteHost, site: str) -> None:
        self._host = host
        self._site = site

    def __getattr__(self, name: str) -> Any:
        return getattr(self._host, name)

    def lending(self) -> contextlib.AbstractContextManager[None]:
        """Lend the session of the host."""
        return lending(self._host)

    def run(self, argv: Sequence[bytes | str], **options: Any) -> CommandResult:
        """See RemoteHost."""
        self._count(argv)
        return self._host.run(argv, **options)

    def run_once(
        self, marker: bytes, argv: Sequence[bytes | str], *, folder: bytes | None = None
    ) -> OnceResult:
        """See RemoteHost; only a command that was executed is counted."""
        attempted = self._host.run_once(marker, argv, folder=folder)
        if attempted.fresh:
            self._count(argv)
        return attempted

    def _count(self, argv: Sequence[bytes | str]) -> None:
        program = argv[0] if isinstance(argv[0], str) else argv[0].decode("utf-8", "replace")
        note_use("sites", self._site, request=f"command {program.rpartition('/')[2][:64]}")


class SharedPolling:
    """The queries of all processes of this account to one scheduler of a site."""

    def __init__(self, site: str, scheduler: str) -> None:
        self._site = site
        self._scheduler = scheduler
        self._stamp = ledger_folder("sites", site) / f"asked-{scheduler}"

    def seconds_ago(self) -> float:
        """Return the seconds since any process got a reply; infinite if none did."""
        with contextlib.suppress(OSError):
            return abs(time.time() - self._stamp.stat().st_mtime)
        return math.inf

    def note(self) -> None:
        """Record that the scheduler replied for all unfinished runs."""
        with contextlib.suppress(OSError):
            self._stamp.touch(mode=0o600)

    def others(self, run_store: RunStore, known: Collection[str]) -> list[Run]:
        """Return the runs that have jobs there, without those in `known`."""
        found = []
        for run_id in QueuePlaces(self._site).runs():
            if run_id not in known:
                with contextlib.suppress(NotFoundError):
                    found.append(run_store.load(run_id))
        return [
            run
            for run in found
            if run.job and run.placement.scheduler == self._scheduler and not run.state.ended
        ]


_TAIL = 64 * 1024  # a receipt is the last line of its journal, and shorter than that


def bytes_transferred(site: str, since: datetime) -> int:
    """Return the bytes transferred to or from a site since then, by the receipts."""
    start = since.astimezone(UTC).timestamp()
    total = 0
    for entry in os.scandir(ledger_folder("operations")):
        with contextlib.suppress(OSError):
            if entry.name.endswith(".jsonl") and entry.stat(follow_symlinks=False).st_mtime >= start:
                receipt = _receipt(Path(entry.path))
                sent = receipt.get("bytes_sent")
                if isinstance(sent, int) and _is_of(receipt, site):
                    total += sent
    return total


def _receipt(path: Path) -> dict[str, Any]:
    """Return the last line; empty for an operation that has not ended, or was killed."""
    with os.fdopen(open_regular(path), "rb") as stream:
        size = stream.seek(0, os.SEEK_END)
        stream.seek(max(0, size - _TAIL))
        lines = stream.read().splitlines()
    try:
        found = json.loads(lines[-1]) if lines else {}
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) and found.get("kind") == "receipt" else {}


def _is_of(receipt: dict[str, Any], site: str) -> bool:
    return any(str(receipt.get(side, "")).startswith(f"{site}:") for side in ("source", "target"))


_SPANS = {"hour": timedelta(hours=1), "day": timedelta(days=1)}


TransferredBytes = Callable[[str, datetime], int]


def site_usage(site: Site, transferred: TransferredBytes = bytes_transferred) -> dict[str, Any]:
    """Return the fields of the JSON line of kind `site-usage`; `transferred` are the bytes to or from a site."""
    now = datetime.now(UTC)
    held = QueuePlaces(site.name).held() if site.kind in {"ssh", "local"} else {}
    limits = site.limits
    return {
        "name": site.name,
        **{span: _used(site, now - length, transferred) for span, length in _SPANS.items()},
        "queued_jobs": count_queued(held),
        "limits": {
            "queued_jobs": limits.queued_jobs,
            "poll_seconds": limits.poll_seconds,
            "login_interval_seconds": limits.login_interval_seconds,
            "bandwidth": limits.bandwidth,
        },
        "refusals": [each for each in _refusals(site) if each["times"]],
    }


def _used(site: Site, since: datetime, transferred: TransferredBytes) -> dict[str, Any]:
    found = read_uses([("sites", site.name), *_logins(site)], since)
    commands: Counter[str] = Counter()
    for use, times in found.items():
        kind, _, name = use.partition(" ")
        if kind == "command":
            commands[name] += times
    return {
        "logins": found["login"],
        "logins_refused": found["login refused"],
        "scheduler_commands": sum(commands[name] for name in _scheduler_programs(site)),
        "commands": dict(sorted(commands.items())),
        "bytes": transferred(site.name, since),
    }


def _scheduler_programs(site: Site) -> frozenset[str]:
    """Return the programs of the site's scheduler; other commands are listed by name."""
    if site.scheduler is None or service_name(site):
        return frozenset()
    return frozenset(load_scheduler(site.scheduler.name).commands)


def _logins(site: Site) -> list[tuple[str, str]]:
    if site.ssh is None:
        return []
    return [("logins", login_name(site.ssh, host)) for host in site.ssh.hosts]


def _refusals(site: Site) -> list[dict[str, Any]]:
    found = []
    if site.ssh is not None:
        found.append(
            _refusal_fields(f"logins to {site.ssh.host}", login_refusals(site.ssh, site.ssh.host).read())
        )
    if site.scheduler is not None:
        found.append(_refusal_fields(site.scheduler.name, scheduler_refusals(site.name).read()))
    return found


def _refusal_fields(subject: str, refused: Refused) -> dict[str, Any]:
    until = datetime.fromtimestamp(refused.until, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "by": subject,
        "times": refused.times,
        "because": refused.because,
        "paused_until": until if refused.until else None,
    }
