"""Notify people by command, mail or webhook, at most once a day for each problem."""

from __future__ import annotations

import json
import re
import shlex
import socket
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from email.message import EmailMessage
from pathlib import Path
from typing import Any, Literal

from hibali import subprocesses
from hibali.amounts import format_duration
from hibali.documents import line_of_json
from hibali.errors import HibaliError, IncompleteError, NotFoundError, UsageError
from hibali.files import write_atomic
from hibali.http import check_post_url, post_json
from hibali.ledger import now
from hibali.subprocesses import remember_secret
from hibali.system_errors import reason_of
from hibali.text import printable
from runs.schedules.environment import Credential
from runs.schedules.records import WELL, Trigger, schedule_folder
from runs.schedules.schedule import Notices, alone

Event = Literal["failed", "works-again", "silent", "expires", "trial"]


@dataclass(frozen=True, slots=True)
class Notice:
    """A notification about a schedule. Two with the same `trouble` are the same problem, which is sent once a day."""

    event: Event
    schedule: str
    trouble: str
    message: str
    hint: str = ""
    firing: Trigger | None = None
    expires: datetime | None = None

    def to_record(self, at: str, host: str) -> dict[str, Any]:
        """Return the fields of a JSON line of kind `notice`."""
        return {
            "event": self.event,
            "schedule": self.schedule,
            "at": at,
            "host": host,
            "message": self.message,
            "hint": self.hint,
            "firing": None if self.firing is None else self.firing.to_record(),
            "expires": None if self.expires is None else f"{self.expires:%Y-%m-%dT%H:%M:%SZ}",
        }


@dataclass(frozen=True, slots=True)
class NoticeHistory:
    """The notifications that were sent about a schedule: each problem with its last day, and whether a failure is unresolved.

    `seen` is the last run of the schedule whose end was processed.
    """

    days: Mapping[str, str] = field(default_factory=dict)
    failing: bool = False
    seen: str = ""

    def to_record(self) -> dict[str, Any]:
        """Return the fields that `read_sent` reads."""
        return {"schema": 1, "days": dict(self.days), "failing": self.failing, "seen": self.seen}

    def after(self, notice: Notice, day: str) -> NoticeHistory:
        """Return the history after a notification."""
        recent = {trouble: on for trouble, on in self.days.items() if on >= day[:4]}
        failing = {"failed": True, "works-again": False}.get(notice.event, self.failing)
        seen = self.seen if notice.firing is None else notice.firing.id
        return NoticeHistory({**recent, notice.trouble: day}, failing, seen)

    def is_news(self, notice: Notice, day: str) -> bool:
        """Whether a notification was not sent on that day; a recovery is always sent, after a failure that was."""
        return notice.event == "works-again" or self.days.get(notice.trouble) != day


def read_sent(record: Any) -> NoticeHistory:
    """Read the fields that `to_record` wrote; an empty history for anything else."""
    if not isinstance(record, dict) or not isinstance(record.get("days"), dict):
        return NoticeHistory()
    days = {str(name): str(day) for name, day in record["days"].items()}
    return NoticeHistory(days, bool(record.get("failing")), str(record.get("seen", "")))


def notice_of_end(firing: Trigger, told: NoticeHistory) -> Notice | None:
    """Return the notification about a run's end; the same exit code is the same problem, whatever its message."""
    if firing.state == "broken":
        message = f"{firing.schedule} was broken off: whatever ran it is gone"
        hint = f"hibali schedule run {firing.schedule}"
        return Notice("failed", firing.schedule, "failed-broken", message, hint, firing)
    if firing.exit is None:
        return None
    if firing.exit in WELL:
        if not told.failing:
            return None
        return Notice(
            "works-again", firing.schedule, "works-again", f"{firing.schedule} works again", "", firing
        )
    about = f"{firing.about}: " if firing.about else ""
    why = f": {about}{firing.message}" if firing.message else ""
    return Notice(
        "failed",
        firing.schedule,
        f"failed-{firing.exit}",
        f"{firing.schedule} ended with {firing.exit}{why}",
        firing.hint or f"hibali schedule log {firing.schedule}",
        firing,
    )


def notice_of_silence(
    schedule: str, firings: Iterable[Trigger], since: datetime, now: datetime, longest: timedelta
) -> Notice | None:
    """Return the notification that the schedule has not run for too long."""
    last = since
    for firing in firings:
        if firing.state != "skipped":
            last = max(last, datetime.fromisoformat(firing.ended or firing.began))
            if firing.state == "running":
                return None  # how long that may take is --max-time
    silence = now - last
    if silence <= longest:
        return None
    return Notice(
        "silent",
        schedule,
        "silent",
        f"{schedule} has not run for {format_duration(silence.total_seconds())}",
        f"hibali schedule show {schedule}",
    )


def notices_of_expiry(
    schedule: str, credentials: Iterable[Credential], now: datetime, within: timedelta
) -> list[Notice]:
    """Return a notification for each credential that has expired, or will soon."""
    found = []
    for each in credentials:
        if each.expires is not None and each.expires - now <= within:
            left = (each.expires - now).total_seconds()
            when = f"expires in {format_duration(left)}" if left > 0 else "has expired"
            found.append(
                Notice(
                    "expires",
                    schedule,
                    f"expires-{each.kind}-{each.site}",
                    f"{each.words} of {each.site} {when}",
                    each.renew,
                    None,
                    each.expires,
                )
            )
    return found


Say = Callable[[str], None]
_COMMAND_SECONDS = 60.0
_SENDMAIL = ("/usr/sbin/sendmail", "/usr/lib/sendmail")
_MOST_SECRET = 4096


def notices_sent(schedule: str) -> NoticeHistory:
    """Return the notifications that were sent about a schedule so far."""
    try:
        return read_sent(json.loads(_told_file(schedule).read_bytes()))
    except (OSError, ValueError):
        return NoticeHistory()


def send_news(notices: Notices, notice: Notice, say: Say) -> None:
    """Send a notification, unless it was sent today. A failure is reported, and the notification is sent the next time."""
    if notices.anybody:
        with alone("told"):  # an hourly look must not tell the same as a firing that ends just then
            _send_once(notices, notice, notices_sent(notice.schedule), say)


def send_end_notice(notices: Notices, firing: Trigger, say: Say) -> None:
    """Send the notification about a run's end once, by the first process that sees it."""
    if not notices.anybody:
        return
    with alone("told"):
        told = notices_sent(firing.schedule)
        if told.seen == firing.id:
            return
        notice = notice_of_end(firing, told)
        if notice is None or not _send_once(notices, notice, told, say):
            _keep(firing.schedule, replace(told, seen=firing.id), say)


def _send_once(notices: Notices, notice: Notice, told: NoticeHistory, say: Say) -> bool:
    """Return False if it was sent before; True if it was sent, or failed and is sent again the next time."""
    day = f"{datetime.now().astimezone():%Y-%m-%d}"
    if not told.is_news(notice, day):
        return False
    problems = send_notice(notices, notice)
    for problem in problems:
        say(f"not told: {problem.subject}: {problem.message}")
    if len(problems) < _ways(notices):
        _keep(notice.schedule, told.after(notice, day), say)
        say(f"told: {notice.event}: {notice.message}")
    return True


def _keep(schedule: str, told: NoticeHistory, say: Say) -> None:
    try:
        write_atomic(_told_file(schedule), line_of_json(told.to_record()).encode("ascii") + b"\n")
    except OSError as problem:
        say(f"what was told cannot be kept: {reason_of(problem)}")


def send_notice(notices: Notices, notice: Notice) -> list[HibaliError]:
    """Send a notification in every configured way; return the error of each way that failed."""
    record = {"schema": 1, "kind": "notice", **notice.to_record(now(), socket.gethostname())}
    content = line_of_json(record).encode("ascii") + b"\n"
    problems: list[HibaliError] = []
    ways: list[tuple[bool, Callable[[], None]]] = [
        (bool(notices.command), lambda: _by_command(notices.command, content)),
        (bool(notices.mail), lambda: _by_mail(notices.mail, notice, content)),
        (bool(notices.webhook), lambda: _by_webhook(notices, content)),
    ]
    for wanted, way in ways:
        if wanted:
            try:
                way()
            except HibaliError as problem:
                problems.append(problem)
    return problems


def _ways(notices: Notices) -> int:
    return sum(map(bool, (notices.command, notices.mail, notices.webhook)))


def _by_command(words: tuple[str, ...], content: bytes) -> None:
    finished = subprocesses.run(words, stdin=content, timeout=_COMMAND_SECONDS)
    if finished.exit_code != 0:
        raise IncompleteError("not-notified", f"it ended with {finished.exit_code}", subject=words[0])


def _by_mail(address: str, notice: Notice, content: bytes) -> None:
    program = next((path for path in _SENDMAIL if Path(path).exists()), None)
    if program is None:
        raise NotFoundError("no-such-program", "there is no sendmail on this machine", subject=_SENDMAIL[0])
    message = EmailMessage()
    message["To"] = address
    message["Subject"] = f"[hibali] {printable(notice.message)[:150]}"
    message["Auto-Submitted"] = "auto-generated"
    lines = [printable(notice.message), printable(notice.hint), "", content.decode("ascii")]
    message.set_content("\n".join(lines))
    finished = subprocesses.run(
        [program, "-i", "--", address], stdin=message.as_bytes(), timeout=_COMMAND_SECONDS
    )
    if finished.exit_code != 0:
        raise IncompleteError("not-notified", f"it ended with {finished.exit_code}", subject=program)


def _by_webhook(notices: Notices, content: bytes) -> None:
    """POST a notification. The secret replaces `{secret}` in the URL, else it is a bearer token; no error contains it (S16)."""
    secret = _secret(notices)
    try:
        if "{secret}" in notices.webhook:
            post_json(notices.webhook.replace("{secret}", secret), content)
        else:
            post_json(notices.webhook, content, secret=secret)
    except HibaliError as problem:
        raise IncompleteError("not-notified", problem.message, subject="webhook") from None


def _secret(notices: Notices) -> str:
    if notices.secret_command:
        finished = subprocesses.run(notices.secret_command, timeout=_COMMAND_SECONDS, most=1024 * 1024)
        if finished.exit_code != 0:
            raise IncompleteError(
                "no-secret", f"it ended with {finished.exit_code}", subject=notices.secret_command[0]
            )
        found = finished.stdout
    elif notices.secret_file:
        try:
            with Path(notices.secret_file).open("rb") as stream:
                found = stream.read(_MOST_SECRET + 1)
        except OSError as problem:
            raise IncompleteError("no-secret", reason_of(problem), subject=notices.secret_file) from None
    else:
        return ""
    secret = found.decode("utf-8", "replace").strip()
    remember_secret(secret)
    if not secret or not secret.isprintable() or not secret.isascii() or len(secret) > _MOST_SECRET:
        raise UsageError("no-secret", "the secret of the webhook is not one line of ASCII", subject="webhook")
    return secret


def _told_file(schedule: str) -> Path:
    return schedule_folder(schedule) / "told.json"


_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")


@dataclass(frozen=True, slots=True)
class Target:
    """The receiver of notifications: a command, or a URL. Neither is ever shown, because both may contain a secret (S16)."""

    words: tuple[str, ...] = ()
    url: str = ""


def read_target(text: str) -> Target:
    """Read `COMMAND|URL`. Raises `UsageError` for a URL of another scheme, and for an empty command."""
    if _URL.match(text):
        check_post_url(text)
        return Target(url=text)
    try:
        words = tuple(shlex.split(text))
    except ValueError as problem:
        raise UsageError("bad-command", f"this is no command: {problem}", subject="--notify") from None
    if not words:
        raise UsageError("bad-command", "this is no command", subject="--notify")
    return Target(words)


def send_run_notice(target: Target, run_id: str, state: str, content: bytes) -> None:
    """Run `COMMAND ID STATE` with `content` on its standard input, or POST that. Raises why it failed."""
    if target.url:
        post_json(target.url, content)
        return
    finished = subprocesses.run([*target.words, run_id, state], stdin=content, timeout=_COMMAND_SECONDS)
    if finished.exit_code != 0:
        raise IncompleteError("not-notified", f"it ended with {finished.exit_code}", subject=target.words[0])
