"""After each run and once an hour: send notices, write OpenMetrics, and make up missed runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from hibali.config.settings import Settings, load_sites
from hibali.errors import HibaliError, IncompleteError
from hibali.files import write_atomic
from hibali.system_errors import reason_of
from hibali_plugins.schedules.environment import Credential, local_zone
from hibali_plugins.schedules.notices import (
    Report,
    notice_of_silence,
    notices_of_expiry,
    send_end_notice_once,
    send_if_new,
)
from hibali_plugins.schedules.preflight import credentials_of
from hibali_plugins.schedules.records import SUCCESS_CODES, Trigger, read_triggers
from hibali_plugins.schedules.schedule import Schedule, Schedules
from hibali_plugins.schedules.trigger import trigger_due

_Sample = tuple[Mapping[str, str], float]
_HELP = {
    "hibali_schedule_last_success_timestamp_seconds": "Time at which a run of the schedule last succeeded.",
    "hibali_schedule_last_run_timestamp_seconds": "Time at which a run of the schedule last ended.",
    "hibali_schedule_last_exit_code": "Exit code of the last run; 0 is success.",
    "hibali_schedule_last_duration_seconds": "Duration of the last run.",
    "hibali_schedule_last_files_moved": "Files that the last run moved.",
    "hibali_schedule_last_bytes_moved": "Bytes that the last run moved.",
    "hibali_schedule_last_files_failed": "Files that failed in the last run.",
    "hibali_schedule_files": "Files of the whole tree as the last run saw it.",
    "hibali_schedule_bytes": "Bytes of the whole tree as the last run saw it.",
    "hibali_schedule_last_proof": "1 for the weakest verification of the files that the last run moved or compared.",
    "hibali_schedule_failures_in_a_row": "Number of failed runs since the last success.",
    "hibali_schedule_paused": "1 for a schedule that is paused.",
    "hibali_credential_expiry_timestamp_seconds": "Time at which a credential of the schedule expires.",
}


def metrics_text(
    schedules: Iterable[Schedule],
    triggers: Mapping[str, Sequence[Trigger]],
    credentials: Mapping[str, Sequence[Credential]],
) -> str:
    """Return the whole file, one family after the other, and `# EOF`."""
    families: dict[str, list[_Sample]] = {name: [] for name in _HELP}
    for schedule in sorted(schedules, key=lambda each: each.name):
        label = {"schedule": schedule.name}
        families["hibali_schedule_paused"].append((label, float(schedule.paused)))
        for name, labels, value in _of_runs(triggers.get(schedule.name, ())):
            families[name].append(({**label, **labels}, value))
        for each in credentials.get(schedule.name, ()):
            if each.expires is not None:
                labels = {**label, "site": each.site, "credential": each.kind}
                families["hibali_credential_expiry_timestamp_seconds"].append(
                    (labels, each.expires.timestamp())
                )
    lines = [line for name, samples in families.items() for line in _family(name, samples)]
    return "\n".join([*lines, "# EOF", ""])


def _of_runs(triggers: Sequence[Trigger]) -> Iterator[tuple[str, Mapping[str, str], float]]:
    ended = [each for each in triggers if each.exit is not None]
    well = [each for each in ended if each.exit in SUCCESS_CODES]
    if well:
        yield "hibali_schedule_last_success_timestamp_seconds", {}, _seconds(well[-1].ended)
    if not ended:
        return
    last = ended[-1]
    yield "hibali_schedule_last_run_timestamp_seconds", {}, _seconds(last.ended)
    yield "hibali_schedule_last_exit_code", {}, float(last.exit or 0)
    yield "hibali_schedule_last_duration_seconds", {}, last.seconds or 0.0
    yield "hibali_schedule_failures_in_a_row", {}, float(_failures_in_a_row(ended))
    if last.amounts:
        for name in ("files_moved", "bytes_moved", "files_failed"):
            yield f"hibali_schedule_last_{name}", {}, float(last.amount(name))
        for name in ("files", "bytes"):
            yield f"hibali_schedule_{name}", {}, float(last.amount(name))
    if last.proof is not None:
        yield "hibali_schedule_last_proof", {"proof": last.proof}, 1.0


def _failures_in_a_row(ended: Sequence[Trigger]) -> int:
    count = 0
    for each in reversed(ended):
        if each.exit in SUCCESS_CODES:
            break
        count += 1
    return count


def _family(name: str, samples: Sequence[_Sample]) -> Iterator[str]:
    if samples:
        yield f"# HELP {name} {_HELP[name]}"
        yield f"# TYPE {name} gauge"
    for labels, value in samples:
        written = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
        yield f"{name}{{{written}}} {value!r}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _seconds(moment: str | None) -> float:
    return datetime.fromisoformat(moment).timestamp() if moment else 0.0


def maintain(config: str | None, schedules: Schedules, report: Report) -> None:
    """Notify of ended runs, of silence and of expiring credentials, then write the metrics. Problems are reported, none is raised."""
    for name in schedules.schedules:
        ended = [each for each in read_triggers(name) if each.state in {"done", "failed", "broken"}]
        if ended:
            send_end_notice_once(schedules.notices, ended[-1], report)
    if not (schedules.notices.has_receiver or schedules.metrics_file):
        return
    try:
        credentials = all_credentials(config, schedules)
    except HibaliError as problem:
        report(f"expiring credentials were not checked: {problem.message}")
        credentials = {}
    if schedules.notices.has_receiver:
        _send_timed_notices(schedules, credentials, report)
    if schedules.metrics_file:
        try:
            write_metrics(Path(schedules.metrics_file), schedules, credentials)
        except HibaliError as problem:
            report(f"{problem.subject}: {problem.message}")


def run_missed(config: str | None, schedules: Schedules, report: Report) -> None:
    """Run the missed schedules that are to be made up, one after the other; then `maintain`."""
    maintain(config, schedules, report)
    for schedule in schedules.schedules.values():
        if schedule.missed == "once" and trigger_due(config, schedule, only_missed=True) is not None:
            maintain(config, schedules, report)


def all_credentials(config: str | None, schedules: Schedules) -> dict[str, list[Credential]]:
    """Return the credentials that may expire, by schedule; raises what reading config.toml raises."""
    settings: Settings = load_sites(config)
    return {
        name: credentials_of(config, settings, each)
        for name, each in schedules.schedules.items()
        if not each.paused
    }


def write_metrics(file: Path, schedules: Schedules, credentials: dict[str, list[Credential]]) -> None:
    """Write the metrics, completely or not at all. Raises `IncompleteError`."""
    try:
        write_atomic(file, current_metrics(schedules, credentials).encode("utf-8"), mode=0o644)
    except OSError as problem:
        raise IncompleteError(
            "unwritable-file", f"the metrics cannot be written: {reason_of(problem)}", subject=str(file)
        ) from None


def current_metrics(schedules: Schedules, credentials: dict[str, list[Credential]]) -> str:
    """Return the present metrics."""
    triggers = {name: read_triggers(name) for name in schedules.schedules}
    return metrics_text(schedules.schedules.values(), triggers, credentials)


def longest_silence(schedule: Schedule, now: datetime) -> timedelta:
    """Return how long a schedule may not run before a notification is sent."""
    if schedule.silent_after:
        return timedelta(seconds=schedule.silent_after)
    gap = schedule.cron.longest_gap(now, local_zone())
    return 2 * gap + timedelta(seconds=schedule.jitter + schedule.max_time + schedule.retry_for)


def _send_timed_notices(
    schedules: Schedules, credentials: dict[str, list[Credential]], report: Report
) -> None:
    now = datetime.now(UTC)
    within = timedelta(days=schedules.notices.expires_within_days)
    for name, schedule in schedules.schedules.items():
        if schedule.paused:
            continue
        silence = notice_of_silence(
            name, read_triggers(name), schedule.since, now, longest_silence(schedule, now)
        )
        for notice in (
            *([silence] if silence is not None else []),
            *notices_of_expiry(name, credentials.get(name, []), now, within),
        ):
            send_if_new(schedules.notices, notice, report)
