"""What follows a firing, and once an hour by itself: notices, metrics, and what was missed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from hibali.errors import HibaliError, IncompleteError
from hibali.ledger import write_atomic
from hibali.settings import Settings, load_sites
from hibali.system_errors import reason_of
from runs.unattended.credentials import Credential
from runs.unattended.fire import fire_due
from runs.unattended.firings import read_firings
from runs.unattended.looking import credentials_of
from runs.unattended.metrics import metrics_text
from runs.unattended.notices import notice_of_silence, notices_of_expiry
from runs.unattended.schedule import Schedule, Schedules
from runs.unattended.surroundings import local_zone
from runs.unattended.telling import Say, tell_end, tell_news


def tend(config: str | None, schedules: Schedules, say: Say) -> None:
    """Tell of how the last firings ended, of silence and of what expires, then write the metrics. Problems are said, none is raised."""
    for name in schedules.schedules:
        ended = [each for each in read_firings(name) if each.state in {"done", "failed", "broken"}]
        if ended:
            tell_end(schedules.notices, ended[-1], say)
    if not (schedules.notices.anybody or schedules.metrics_file):
        return
    try:
        credentials = all_credentials(config, schedules)
    except HibaliError as problem:
        say(f"not looked at what expires: {problem.message}")
        credentials = {}
    if schedules.notices.anybody:
        _tell_of_time(schedules, credentials, say)
    if schedules.metrics_file:
        try:
            write_metrics(Path(schedules.metrics_file), schedules, credentials)
        except HibaliError as problem:
            say(f"{problem.about}: {problem.message}")


def make_up_all(config: str | None, schedules: Schedules, say: Say) -> None:
    """Fire what was missed and is to be made up, one after the other; then `tend`."""
    tend(config, schedules, say)
    for schedule in schedules.schedules.values():
        if schedule.missed == "once" and fire_due(config, schedule, only_missed=True) is not None:
            tend(config, schedules, say)


def all_credentials(config: str | None, schedules: Schedules) -> dict[str, list[Credential]]:
    """What may expire, by schedule; raises what reading config.toml raises."""
    settings: Settings = load_sites(config)
    return {
        name: credentials_of(config, settings, each)
        for name, each in schedules.schedules.items()
        if not each.paused
    }


def write_metrics(file: Path, schedules: Schedules, credentials: dict[str, list[Credential]]) -> None:
    """Whole or not at all: what is there stays where there is no room. Raises `IncompleteError`."""
    try:
        write_atomic(file, current_metrics(schedules, credentials).encode("utf-8"), mode=0o644)
    except OSError as problem:
        raise IncompleteError(
            "unwritable-file", f"the metrics cannot be written: {reason_of(problem)}", about=str(file)
        ) from None


def current_metrics(schedules: Schedules, credentials: dict[str, list[Credential]]) -> str:
    """The metrics as of now."""
    firings = {name: read_firings(name) for name in schedules.schedules}
    return metrics_text(schedules.schedules.values(), firings, credentials)


def longest_silence(schedule: Schedule, now: datetime) -> timedelta:
    """How long nothing may run before somebody is told."""
    if schedule.silent_after:
        return timedelta(seconds=schedule.silent_after)
    gap = schedule.cron.longest_gap(now, local_zone())
    return 2 * gap + timedelta(seconds=schedule.jitter + schedule.max_time + schedule.retry_for)


def _tell_of_time(schedules: Schedules, credentials: dict[str, list[Credential]], say: Say) -> None:
    now = datetime.now(UTC)
    within = timedelta(days=schedules.notices.expires_within_days)
    for name, schedule in schedules.schedules.items():
        if schedule.paused:
            continue
        silence = notice_of_silence(
            name, read_firings(name), schedule.since, now, longest_silence(schedule, now)
        )
        for notice in (
            *([silence] if silence is not None else []),
            *notices_of_expiry(name, credentials.get(name, []), now, within),
        ):
            tell_news(schedules.notices, notice, say)
