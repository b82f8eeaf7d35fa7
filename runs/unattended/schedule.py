"""What a schedule is: a command of hibali, when it is due, and what holds while it runs."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from hibali.errors import HibaliError, NotFoundError, UsageError
from hibali.nearest import did_you_mean
from hibali.settings_table import Table, Wrong
from hibali.settings_values import read_duration
from hibali.text import printable
from runs.unattended.expression import Expression, read_expression

Installer = Literal["cron", "systemd", "print"]
Missed = Literal["skip", "once"]
NAME = re.compile(r"[a-z][a-z0-9-]{0,62}")
_TAKEN = frozenset({"hourly"})
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SECRET = re.compile(
    r"SECRET|PASSWORD|PASSWD|PASSPHRASE|TOKEN|CREDENTIAL|(?:ACCESS|PRIVATE|API)_?KEY", re.IGNORECASE
)
_OWN = re.compile(r"HIBALI_(?:SCHEDULE|CONFIG|STATE)")
_INSTALLERS: tuple[Installer, ...] = ("cron", "systemd", "print")
_MISSED: tuple[Missed, ...] = ("skip", "once")


@dataclass(frozen=True, slots=True)
class Schedule:
    """Times are in seconds, 0 where there is none; `since` is when it was added or resumed: what was due before is not missed.

    `folder` is where relative paths of `command` begin. `silent_after` 0 is twice the usual time between two runs.
    """

    name: str
    cron: Expression
    command: tuple[str, ...]
    folder: str
    since: datetime
    by: Installer = "cron"
    jitter: float = 0.0
    max_time: float = 0.0
    retry_for: float = 0.0
    missed: Missed = "skip"
    silent_after: float = 0.0
    paused: bool = False
    environment: dict[str, str] = field(default_factory=dict)

    def to_table(self) -> dict[str, Any]:
        """Its table in schedules.toml; what is not set does not stand there."""
        table: dict[str, Any] = {
            "cron": self.cron.text,
            "command": list(self.command),
            "folder": self.folder,
            "since": self.since.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "by": self.by,
            "missed": self.missed,
        }
        for name in ("jitter", "max_time", "retry_for", "silent_after"):
            seconds = getattr(self, name)
            if seconds:
                table[name] = duration_text(seconds)
        if self.paused:
            table["paused"] = True
        if self.environment:
            table["environment"] = dict(self.environment)
        return table

    def to_record(self) -> dict[str, Any]:
        """The fields of a JSON line of kind `schedule` that do not depend on the present moment."""
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


@dataclass(frozen=True, slots=True)
class Notices:
    """Who is told of trouble; none where all are empty. A secret comes from a file or a command and is never kept."""

    command: tuple[str, ...] = ()
    mail: str = ""
    webhook: str = ""
    secret_file: str = ""
    secret_command: tuple[str, ...] = ()
    expires_within_days: int = 7

    @property
    def anybody(self) -> bool:
        """Whether there is somebody to tell."""
        return bool(self.command or self.mail or self.webhook)

    def to_table(self) -> dict[str, Any]:
        """The table `notices` of schedules.toml."""
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
    """All of schedules.toml; `path` is where it is or would be."""

    path: Path
    schedules: dict[str, Schedule] = field(default_factory=dict)
    notices: Notices = field(default_factory=Notices)
    metrics_file: str = ""

    def one(self, name: str) -> Schedule:
        """The schedule of that name; raises `NotFoundError`."""
        found = self.schedules.get(name)
        if found is None:
            known = ", ".join(sorted(self.schedules)) or "none"
            raise NotFoundError(
                "unknown-schedule",
                "there is no schedule of this name",
                about=name,
                hint=f"{did_you_mean(name, self.schedules)}There are: {known}.",
            )
        return found


def check_name(name: str) -> str:
    """The name; raises `UsageError`."""
    if not NAME.fullmatch(name) or name in _TAKEN:
        raise UsageError(
            "bad-name",
            "a schedule's name is small letters, digits and hyphens, a letter first",
            about=printable(name),
        )
    return name


def check_variable(text: str) -> tuple[str, str]:
    """The name and the value of `NAME=VALUE`; raises `UsageError`, for what looks like a secret, too (S16)."""
    name, equals, value = text.partition("=")
    if not VARIABLE.fullmatch(name) or not equals or not value.isprintable():
        raise UsageError("bad-variable", "it is written NAME=VALUE, on one line", about="--env")
    if _SECRET.search(name):
        raise UsageError(
            "secret-in-schedule",
            "a secret does not belong in a schedule, whose file is readable",
            about=name,
            hint="Keep it in a profile (aws configure --profile NAME) or let the site's credentials_command print it.",
        )
    if _OWN.fullmatch(name):
        raise UsageError("bad-variable", "hibali sets this itself", about=name)
    return name, value


def duration_text(seconds: float) -> str:
    """A duration as `read_duration` reads it, in its largest whole unit."""
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= length and seconds % length == 0:
            return f"{seconds / length:g}{unit}"
    return f"{seconds:g}s"


def read_schedules(document: dict[str, Any], path: Path, wrong: list[Wrong]) -> Schedules:
    """What schedules.toml says; what is wrong is noted."""
    top = Table(document, (), wrong)
    if top.whole("version", 1) != 1:
        top.note("this version of hibali reads version 1", "version")
    schedules: dict[str, Schedule] = {}
    named = top.table("schedules")
    for name in named.content if named is not None else ():
        assert named is not None
        table = named.table(name)
        if table is None or not NAME.fullmatch(name):
            named.note("a schedule's name is small letters, digits and hyphens, a letter first", name)
        else:
            found = _read_schedule(name, table)
            if found is not None:
                schedules[name] = found
    notices = _read_notices(top.table("notices"))
    metrics = top.table("metrics")
    file = (metrics.text("file", r"/.*", "an absolute path") if metrics is not None else None) or ""
    for read in (metrics, top):
        if read is not None:
            read.finish()
    return Schedules(path, schedules, notices, file)


def _read_schedule(name: str, table: Table) -> Schedule | None:
    cron = table.text("cron")
    expression = None
    try:
        expression = read_expression(cron or "")
    except HibaliError as problem:
        table.note(problem.message, "cron")
    environment = table.mapping("environment")
    for key, value in environment.items():
        try:
            check_variable(f"{key}={value}")
        except UsageError as problem:
            table.note(problem.message, "environment", key)
    if expression is None:
        return None
    found = Schedule(
        name=name,
        cron=expression,
        command=table.words("command", ()),
        folder=table.text("folder", r"/.*", "an absolute path") or "/",
        since=_read_moment(table),
        by=table.choice("by", _INSTALLERS, "cron"),
        jitter=table.quantity("jitter", read_duration, 0.0),
        max_time=table.quantity("max_time", read_duration, 0.0),
        retry_for=table.quantity("retry_for", read_duration, 0.0),
        missed=table.choice("missed", _MISSED, "skip"),
        silent_after=table.quantity("silent_after", read_duration, 0.0),
        paused=table.flag("paused"),
        environment=environment,
    )
    if not found.command and not table.has("command"):
        table.note("needs command, the words behind `hibali`")
    table.finish()
    return found


def _read_moment(table: Table) -> datetime:
    text = table.text("since") or "1970-01-01T00:00:00Z"
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except ValueError:
        table.note(f"{text!r} is not a time such as 2026-01-31T03:00:00Z", "since")
        return datetime.fromtimestamp(0, UTC)


def _read_notices(table: Table | None) -> Notices:
    if table is None:
        return Notices()
    found = Notices(
        command=table.words("command", ()),
        mail=table.text("mail", r"[^\s<>,;@-][^\s<>,;@]*@[^\s<>,;@]+", "an address") or "",
        webhook=table.text("webhook") or "",
        secret_file=table.text("secret_file", r"/.*", "an absolute path") or "",
        secret_command=table.words("secret_command", ()),
        expires_within_days=table.whole("expires_within_days", 7, least=0, most=365),
    )
    table.finish()
    return found
