"""Model a schedule, parse its cron expression, and read schedules.toml."""

from __future__ import annotations

import contextlib
import re
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from dataclasses import replace as replace_fields
from datetime import UTC, datetime, timedelta, tzinfo
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from hibali.amounts import duration_text, format_duration
from hibali.config.schema import (
    Note,
    Wrong,
    argv,
    choice,
    collect,
    duration,
    flag,
    line,
    read_table,
    setting,
    strings,
    table,
    table_of,
    tables,
    text,
    whole,
)
from hibali.config.settings import SettingsError, raise_wrong
from hibali.errors import HibaliError, NotFoundError, UsageError
from hibali.files import check_private_file, config_file, lock_file, read_regular, write_atomic
from hibali.ledger import ledger_folder
from hibali.system_errors import reason_of
from hibali.text import did_you_mean, printable

_NAMED = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
# The syntax of crontab(5); cronsim accepts more, such as L and #, which a cron daemon would reject.
_FIELD = re.compile(
    r"(?:\*|[0-9]{1,2}(?:-[0-9]{1,2})?|[a-z]{3}(?:-[a-z]{3})?)(?:/[0-9]{1,2})?", re.IGNORECASE
)
_WEEKDAYS = ("Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat")
_SAMPLED_TIMES = 16


@dataclass(frozen=True, slots=True)
class Expression:
    """A valid cron expression of five fields."""

    text: str

    def after(self, moment: datetime, zone: tzinfo) -> datetime:
        """Return the next due time after a moment, in UTC."""
        return next(self._times(moment.astimezone(zone).replace(microsecond=0), reverse=False))

    def until(self, moment: datetime, zone: tzinfo) -> datetime:
        """Return the last due time until a moment, in UTC."""
        # a fraction of a second includes the second itself
        return next(self._times(moment.astimezone(zone).replace(microsecond=1), reverse=True))

    def count(self, begin: datetime, end: datetime, zone: tzinfo, *, most: int = 1000) -> int:
        """Return the number of due times after `begin` and before `end`, at most `most`."""
        found = 0
        for moment in self._times(begin.astimezone(zone).replace(microsecond=0), reverse=False):
            if moment >= end or found >= most:
                break
            found += 1
        return found

    def longest_gap(self, moment: datetime, zone: tzinfo) -> timedelta:
        """Return the longest time between two of the next due times."""
        times = self._times(moment.astimezone(zone).replace(microsecond=0), reverse=False)
        ahead = [next(times) for _ in range(_SAMPLED_TIMES)]
        return max(later - earlier for earlier, later in pairwise(ahead))

    def on_calendar(self) -> list[str]:
        """Return the same for systemd.time(7); two lines if a day of the month or one of the week is enough."""
        # local: commands on runs load this module, but need no due times
        from cronsim import CronSim

        found = CronSim(self.text, datetime(2000, 1, 1, tzinfo=UTC))
        fields = self.text.split()
        time = f"{_listed(found.hours, 24)}:{_listed(found.minutes, 60)}:00"
        date = f"*-{_listed(found.months, 12)}"
        days = _listed(found.days, 31)
        on = ",".join(_WEEKDAYS[each] for each in sorted({each % 7 for each in _plain(found.weekdays)}))
        if fields[4] == "*":
            return [f"{date}-{days} {time}"]
        if fields[2] == "*":
            return [f"{on} {date}-* {time}"]
        if found.day_and:
            return [f"{on} {date}-{days} {time}"]
        return [f"{date}-{days} {time}", f"{on} {date}-* {time}"]

    def _times(self, moment: datetime, *, reverse: bool) -> Iterator[datetime]:
        # local: commands on runs load this module, but need no due times
        from cronsim import CronSim

        for found in CronSim(self.text, moment, reverse=reverse):
            yield found.astimezone(UTC)


@cache
def read_expression(text: str) -> Expression:
    """Read a cron expression; raises `UsageError` for an invalid one, for @reboot, and for one that is never due."""
    # local: commands on runs load this module, but need no due times
    from cronsim import CronSim, CronSimError

    written = _NAMED.get(text.strip().lower(), text)
    fields = written.split()
    if len(fields) != 5 or not all(_FIELD.fullmatch(part) for field in fields for part in field.split(",")):
        raise _no_expression(text)
    plain = " ".join(fields)
    try:
        next(CronSim(plain, datetime(2000, 1, 1, tzinfo=UTC)))
    except (CronSimError, StopIteration, RuntimeError):
        raise _no_expression(text) from None
    return Expression(plain)


_MINUTE, _HOUR, _DAY = 60, 3600, 86400


def expression_of_interval(seconds: float) -> Expression:
    """Return the expression that is due at this interval, counted from midnight.

    Raises `UsageError` for an interval that cron cannot keep: it has to divide an hour or a day, or be a week.
    """
    minutes, hours = seconds / _MINUTE, seconds / _HOUR
    if minutes in _divisors(60):
        return read_expression("* * * * *" if minutes == 1 else f"*/{minutes:.0f} * * * *")
    if hours in _divisors(24):
        return read_expression("0 * * * *" if hours == 1 else f"0 */{hours:.0f} * * *")
    named = {1.0: "@daily", 7.0: "@weekly"}.get(seconds / _DAY)
    if named is not None:
        return read_expression(named)
    possible = [f"{each}m" for each in _divisors(60)] + [f"{each}h" for each in _divisors(24)]
    raise UsageError(
        "bad-interval",
        f"an interval of {format_duration(seconds)} divides neither an hour nor a day, so cron cannot keep it",
        subject="--every",
        hint=f"Possible are {', '.join(possible)}, 1d and 7d. For set times: --cron '0 3 * * *'",
    )


def _divisors(number: int) -> list[int]:
    return [each for each in range(1, number) if number % each == 0]


def _no_expression(text: str) -> UsageError:
    return UsageError(
        "bad-cron",
        f"{text!r} is not a cron expression (minute, hour, day of the month, month, day of the week), or is never due",
        subject="--cron",
        hint='For every night at three: --cron "0 3 * * *"',
    )


def _listed(values: set[Any], size: int) -> str:
    plain = sorted(_plain(values))
    return "*" if len(plain) == size else ",".join(f"{each:02d}" for each in plain)


def _plain(values: set[Any]) -> list[int]:
    return [each for each in values if isinstance(each, int)]


Installer = Literal["cron", "systemd", "print"]
Missed = Literal["skip", "once"]
NAME = re.compile(r"[a-z][a-z0-9-]{0,62}")
_RESERVED_NAMES = frozenset({"hourly"})
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET = re.compile(
    r"SECRET|PASSWORD|PASSWD|PASSPHRASE|TOKEN|CREDENTIAL|(?:ACCESS|PRIVATE|API)_?KEY", re.IGNORECASE
)
_OWN = re.compile(r"HIBALI_(?:SCHEDULE|CONFIG|STATE)")
_EPOCH = datetime.fromtimestamp(0, UTC)


def _cron(value: Any, note: Note) -> Expression:
    try:
        return read_expression(line(value, note))
    except HibaliError as problem:
        raise ValueError(problem.message) from None


def _moment(value: Any, note: Note) -> datetime:
    text = line(value, note)
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except ValueError:
        raise ValueError(f"{text!r} is not a time such as 2026-01-31T03:00:00Z") from None


def _environment(value: Any, note: Note) -> dict[str, str]:
    found = strings(value, note)
    for name, each in found.items():
        try:
            check_variable(f"{name}={each}")
        except UsageError as problem:
            note(problem.message, name)
    return found


_ABSOLUTE = text(r"/.*", "an absolute path")


@table
class Schedule:
    """A schedule. Times are in seconds, 0 for none; `since` is when it was added or resumed: runs before that time are not missed.

    Relative paths of `command` begin in `folder`. `silent_after` 0 means twice the usual time between two runs.
    """

    name: str
    cron: Expression = setting(_cron, doc="the cron expression, as in crontab(5)")
    command: tuple[str, ...] = setting(argv, doc="the arguments after `hibali`")
    folder: str = setting(_ABSOLUTE, default="/", doc="the current folder of the command")
    since: datetime = setting(_moment, default=_EPOCH, doc="when it was added or resumed")
    by: Installer = setting(choice(Installer), default="cron", doc="the program that starts it")
    jitter: float = setting(duration(), default=0.0, doc="the longest random delay")
    max_time: float = setting(duration(), default=0.0, doc="the time limit of the command")
    retry_for: float = setting(duration(), default=0.0, doc="how long failed runs are retried")
    missed: Missed = setting(choice(Missed), default="skip", doc="whether missed runs are made up")
    silent_after: float = setting(duration(), default=0.0, doc="when a missing run is reported")
    paused: bool = setting(flag, default=False, doc="whether it is paused")
    environment: dict[str, str] = setting(_environment, default={}, doc="variables of the command")

    def to_table(self) -> dict[str, Any]:
        """Return its table in schedules.toml, without unset values."""
        record = self.to_record()
        always = ("cron", "command", "folder", "since", "by", "missed")
        durations = {name: record[name] for name in ("jitter", "max_time", "retry_for", "silent_after")}
        optional = {name: record[name] for name in ("paused", "environment")}
        return {
            **{name: record[name] for name in always},
            **{name: duration_text(seconds) for name, seconds in durations.items() if seconds},
            **{name: value for name, value in optional.items() if value},
        }

    def to_record(self) -> dict[str, Any]:
        """Return the fields of a JSON line of kind `schedule` that do not depend on the present time."""
        return {
            "name": self.name,
            "cron": self.cron.text,
            "command": list(self.command),
            "folder": self.folder,
            "since": self.since.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "by": self.by,
            "missed": self.missed,
            "jitter": self.jitter,
            "max_time": self.max_time,
            "retry_for": self.retry_for,
            "silent_after": self.silent_after,
            "paused": self.paused,
            "environment": dict(self.environment),
        }


@table
class Notices:
    """The receivers of notifications; none if all are empty. A secret is read from a file or a command and never stored."""

    command: tuple[str, ...] = setting(argv, default=(), doc="a command that gets the notice")
    mail: str = setting(
        text(r"[^\s<>,;@-][^\s<>,;@]*@[^\s<>,;@]+", "an address"), default="", doc="a mail address"
    )
    webhook: str = setting(line, default="", doc="a URL that gets the notice")
    secret_file: str = setting(_ABSOLUTE, default="", doc="a file with the secret of the webhook")
    secret_command: tuple[str, ...] = setting(argv, default=(), doc="a command that prints it")
    expires_within_days: int = setting(
        whole(least=0, most=365), default=7, doc="when an expiring login is reported"
    )

    @property
    def has_receiver(self) -> bool:
        """True if there is a receiver."""
        return bool(self.command or self.mail or self.webhook)

    def to_table(self) -> dict[str, Any]:
        """Return the table `notices` of schedules.toml."""
        table = {
            "command": list(self.command),
            "mail": self.mail,
            "webhook": self.webhook,
            "secret_file": self.secret_file,
            "secret_command": list(self.secret_command),
        }
        return {
            **{key: value for key, value in table.items() if value},
            "expires_within_days": self.expires_within_days,
        }


@dataclass(frozen=True, slots=True)
class Schedules:
    """The content of schedules.toml; `path` is its path, whether it exists or not."""

    path: Path
    schedules: dict[str, Schedule] = field(default_factory=dict)
    notices: Notices = field(default_factory=Notices)
    metrics_file: str = ""

    def one(self, name: str) -> Schedule:
        """Return the schedule of that name; raises `NotFoundError`."""
        found = self.schedules.get(name)
        if found is None:
            raise NotFoundError(
                "unknown-schedule",
                "there is no schedule of this name",
                subject=name,
                hint=f"{did_you_mean(name, self.schedules)}To list all: hibali schedule list",
            )
        return found


def check_name(name: str) -> str:
    """Return a valid name; raises `UsageError`."""
    if not NAME.fullmatch(name) or name in _RESERVED_NAMES:
        raise UsageError(
            "bad-name",
            "a schedule's name is small letters, digits and hyphens, a letter first",
            subject=printable(name),
        )
    return name


def check_variable(text: str) -> tuple[str, str]:
    """Return the name and the value of `NAME=VALUE`; raises `UsageError`, also for a value that looks like a secret (S16)."""
    name, equals, value = text.partition("=")
    if not VARIABLE.fullmatch(name) or not equals or not value.isprintable():
        raise UsageError("bad-variable", "a variable is written NAME=VALUE, on one line", subject="--env")
    if _SECRET.search(name):
        raise UsageError(
            "secret-in-schedule",
            "the name looks like that of a secret, and schedules must not contain secrets",
            subject=name,
            hint="Store it in a profile (aws configure --profile NAME) or let the site's credentials_command print it.",
        )
    if _OWN.fullmatch(name):
        raise UsageError("bad-variable", "hibali sets this variable itself", subject=name)
    return name, value


@table
class _Metrics:
    """The table `metrics`."""

    file: str = setting(_ABSOLUTE, default="", doc="the file of metrics")


def _version(value: Any, note: Note) -> int:
    if whole()(value, note) != 1:
        raise ValueError("this version of hibali only supports version 1")
    return 1


@table
class _Document:
    """All of schedules.toml."""

    version: int = setting(_version, default=1, doc="the version of this format")
    schedules: dict[str, Schedule] = setting(
        tables(
            lambda name, content, note: read_table(Schedule, content, note, name=name),
            NAME.pattern,
            "a schedule's name is small letters, digits and hyphens, a letter first",
        ),
        default={},
        doc="the schedules, by name",
    )
    notices: Notices = setting(table_of(Notices), default=Notices(), doc="the receivers of notifications")
    metrics: _Metrics = setting(table_of(_Metrics), default=_Metrics(), doc="the metrics")


def schedules_path(config: str | None) -> Path:
    """Return the path of the schedules of this configuration."""
    return config_file(config).with_name("schedules.toml")


def load_schedules(config: str | None) -> Schedules:
    """Load the schedules; none if there is no file. Raises `RefusedError`, and `SettingsError` with all problems."""
    path = schedules_path(config)
    return _parse(_read(path), path)


def put_schedule(config: str | None, schedule: Schedule) -> Path:
    """Add or replace a schedule; return the file."""

    def edit(document: Any) -> None:
        named = _table(document, "schedules")
        if schedule.name in named:
            _set_all(named[schedule.name], schedule.to_table())
        else:
            named.add(schedule.name, _new_table(schedule.to_table()))

    return _edit(
        config,
        edit,
        lambda found: replace_fields(found, schedules={**found.schedules, schedule.name: schedule}),
    )


def drop_schedule(config: str | None, name: str) -> Path:
    """Remove a schedule; return the file. Raises `NotFoundError`."""
    load_schedules(config).one(name)

    def edit(document: Any) -> None:
        document["schedules"].remove(name)

    def change(found: Schedules) -> Schedules:
        return replace_fields(
            found, schedules={each: schedule for each, schedule in found.schedules.items() if each != name}
        )

    return _edit(config, edit, change)


def put_notices(config: str | None, notices: Notices) -> Path:
    """Set the receivers of notifications; return the file."""

    def edit(document: Any) -> None:
        _set_all(_table(document, "notices"), notices.to_table())

    return _edit(config, edit, lambda found: replace_fields(found, notices=notices))


def put_metrics_file(config: str | None, file: str) -> Path:
    """Set the file for metrics, which are written after each run, "" for none; return the file."""

    def edit(document: Any) -> None:
        _set_all(_table(document, "metrics"), {"file": file} if file else {})

    return _edit(config, edit, lambda found: replace_fields(found, metrics_file=file))


@contextlib.contextmanager
def exclusive(name: str) -> Iterator[None]:
    """Lock `name`, so that one process of this account changes it at a time; wait for the lock."""
    with lock_file(ledger_folder("schedules") / f"{name}.lock"):
        yield


def _edit(config: str | None, edit: Callable[[Any], None], change: Callable[[Schedules], Schedules]) -> Path:
    """Write the changed text only if it parses to exactly the expected schedules."""
    # local: slow to load, and only needed to change the file
    import tomlkit

    path = schedules_path(config)
    with exclusive("file"):
        text = _read(path)
        expected = change(_parse(text, path))
        document = tomlkit.parse(text or "version = 1\n")
        edit(document)
        after = tomlkit.dumps(document)
        try:
            same = _parse(after, path) == expected
        except HibaliError:
            same = False
        if not same:
            raise UsageError(
                "not-editable",
                "hibali cannot edit this file safely",
                subject=str(path),
                hint=f"Change it in an editor: ${{EDITOR:-vi}} {path}",
            )
        target = path.resolve()
        try:
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomic(target, after.encode("utf-8"))
        except OSError as problem:
            raise UsageError(
                "config-unwritable", f"cannot be written: {reason_of(problem)}", subject=str(path)
            ) from None
    return path


def _read(path: Path) -> str:
    check_private_file(path, "the list of schedules")
    try:
        return read_regular(path.resolve()).decode("utf-8")
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as problem:
        raise UsageError(
            "unreadable-config", f"cannot be read: {type(problem).__name__}", subject=str(path)
        ) from None


def _parse(text: str, path: Path) -> Schedules:
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as problem:
        raise SettingsError(path, [{"line": 0, "key": "", "message": str(problem)}]) from None
    wrong: list[Wrong] = []
    found = read_table(_Document, document, collect(wrong))
    raise_wrong(text, path, wrong)
    return Schedules(path, found.schedules, found.notices, found.metrics.file)


def _table(document: Any, key: str) -> Any:
    # local: slow to load, and only needed to change the file
    import tomlkit

    if key not in document:
        document.add(key, tomlkit.table(is_super_table=key == "schedules"))
    return document[key]


def _new_table(content: dict[str, Any]) -> Any:
    # local: slow to load, and only needed to change the file
    import tomlkit

    table = tomlkit.table()
    _set_all(table, content)
    return table


def _set_all(table: Any, content: dict[str, Any]) -> None:
    # local: slow to load, and only needed to change the file
    import tomlkit

    for key in [key for key in table if key not in content]:
        table.remove(key)
    for key, value in content.items():
        if key in table and table[key] == value:
            continue
        if isinstance(value, dict):
            inline = tomlkit.inline_table()
            inline.update(value)
            table[key] = inline
        else:
            table[key] = value
