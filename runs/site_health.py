"""Record the outcome of the latest check of each site in the ledger, and read it back."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hibali.config.kinds import service_name
from hibali.config.model import Site
from hibali.documents import line_of_json
from hibali.errors import AccessError, HibaliError, TryLaterError
from hibali.events import Listener, ignore
from hibali.files import read_regular, write_atomic
from hibali.ledger import ledger_folder, now, seconds_of
from runs.rate_limits import query_service
from runs.site_commands import choosing, find_batch_systems, is_direct, programs_of
from transfers.check import SiteReport, check_site
from transfers.remote.host import KnowsPrograms, RemoteHost

_MOST_BYTES = 64 * 1024  # of a record; a longer one is not ours
_MOST_CHARACTERS = 1000  # of a message, which may quote a program
_TEXTS = ("code", "message", "about", "hint")


@dataclass(frozen=True, slots=True)
class SiteCheck:
    """The latest check of a site with its present settings.

    `at` is in seconds since the epoch, `by` the command without `hibali`. A site that works has no problems; otherwise
    `code`, `message`, `about` and `hint` are those of the most important one.
    """

    at: float
    by: str
    problems: int = 0
    code: str = ""
    message: str = ""
    about: str = ""
    hint: str = ""


def most_important(problems: Iterable[HibaliError]) -> HibaliError | None:
    """Return the first access problem, because waiting does not solve it; else a temporary one, else any."""
    return min(problems, key=_order, default=None)


def _order(problem: HibaliError) -> int:
    if isinstance(problem, AccessError):
        return 0
    return 1 if isinstance(problem, TryLaterError) else 2


def check_and_record(site: Site, on_event: Listener = ignore) -> SiteReport:
    """Check a site as `hibali sites check` does, and record the outcome."""
    check = _check_service if service_name(site) else _note_batch_system if is_direct(site) else None
    report = check_site(site, programs_of(site), check, on_event)
    record_check(site, "sites check", report.problems)
    return report


def _note_batch_system(site: Site, host: RemoteHost, report: SiteReport) -> None:
    """Add the batch system of a host whose jobs would be processes there."""
    systems = find_batch_systems(host.which) if isinstance(host, KnowsPrograms) else {}
    for scheduler, program in systems.items():
        report.facts["batch system"] = f"{program} is installed, but jobs would be processes on this host"
        report.advice.append(f"To submit jobs to {scheduler}: {choosing(site.name, scheduler)}")
        return


def _check_service(site: Site, host: RemoteHost, report: SiteReport) -> None:
    query_service(site, host)
    report.facts["scheduler"] = f"{service_name(site)} answers"


def record_check(site: Site, by: str, problems: Iterable[HibaliError]) -> None:
    """Record the outcome of a check that ended. A record that cannot be written is dropped silently."""
    found = list(problems)
    worst = most_important(found)
    record: dict[str, Any] = {"schema": 1, "kind": "checked", "at": now(), "by": by}
    record |= {"settings": _settings_digest(site), "problems": len(found)}
    if worst is not None:
        fields = worst.to_record()
        record |= {name: fields[name][:_MOST_CHARACTERS] for name in _TEXTS}
    with contextlib.suppress(HibaliError, OSError):
        write_atomic(_path(site), line_of_json(record).encode("ascii") + b"\n")


def last_check(site: Site) -> SiteCheck | None:
    """Return the latest check; None without one, if its record is damaged, or if the site's settings changed since."""
    try:
        record = json.loads(read_regular(_path(site), _MOST_BYTES))
        at, problems = seconds_of(record["at"]), int(record["problems"])
        texts = {name: str(record[name]) for name in _TEXTS} if problems else {}
        if at is None or problems < 0 or record["settings"] != _settings_digest(site):
            return None
        return SiteCheck(at, str(record["by"]), problems, **texts)
    except (HibaliError, OSError, ValueError, KeyError, TypeError, RecursionError, OverflowError):
        return None


def _settings_digest(site: Site) -> str:
    """Return a digest of all settings: a site with this name may have been another one when it was checked."""
    text = json.dumps(dataclasses.asdict(site), sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def _path(site: Site) -> Path:
    return ledger_folder("sites", site.name) / "checked.json"
