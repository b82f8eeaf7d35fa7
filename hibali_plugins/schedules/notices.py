"""Notify people by command, mail or webhook, at most once a day for each problem."""

from __future__ import annotations

import json
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
from hibali.files import read_regular, write_atomic
from hibali.http.fetch import post_json
from hibali.ledger import now
from hibali.notices import _COMMAND_SECONDS, remember_url, run_command
from hibali.subprocesses import remember_secret
from hibali.system_errors import reason_of
from hibali.text import printable
from hibali_plugins.schedules.environment import Credential
from hibali_plugins.schedules.records import SUCCESS_CODES, Trigger, schedule_folder
from hibali_plugins.schedules.schedule import Notices, exclusive

Event = Literal["failed", "works-again", "silent", "expires", "trial"]


@dataclass(frozen=True, slots=True)
class Notice:
    """A notification about a schedule. Two with the same `problem_id` are the same problem, which is sent once a day."""

    event: Event
    schedule: str
    problem_id: str
    message: str
    hint: str = ""
    trigger: Trigger | None = None
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
            "firing": None if self.trigger is None else self.trigger.to_record(),
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
        """Return the fields that `parse_history` reads."""
        return {"schema": 1, "days": dict(self.days), "failing": self.failing, "seen": self.seen}

    def after(self, notice: Notice, day: str) -> NoticeHistory:
        """Return the history after a notification."""
        recent = {problem_id: on for problem_id, on in self.days.items() if on >= day[:4]}
        failing = {"failed": True, "works-again": False}.get(notice.event, self.failing)
        seen = self.seen if notice.trigger is None else notice.trigger.id
        return NoticeHistory({**recent, notice.problem_id: day}, failing, seen)

    def is_new(self, notice: Notice, day: str) -> bool:
        """Return whether a notification was not sent on that day; a recovery is always sent, after a failure that was."""
        return notice.event == "works-again" or self.days.get(notice.problem_id) != day


def parse_history(record: Any) -> NoticeHistory:
    """Read the fields that `to_record` wrote; an empty history for anything else."""
    if not isinstance(record, dict) or not isinstance(record.get("days"), dict):
        return NoticeHistory()
    days = {str(name): str(day) for name, day in record["days"].items()}
    return NoticeHistory(days, bool(record.get("failing")), str(record.get("seen", "")))


def notice_of_end(trigger: Trigger, history: NoticeHistory) -> Notice | None:
    """Return the notification about a run's end; the same exit code counts as the same problem, regardless of its message."""
    if trigger.state == "broken":
        message = f"{trigger.schedule} was interrupted: its process ended without a result"
        hint = f"hibali schedule run {trigger.schedule}"
        return Notice("failed", trigger.schedule, "failed-broken", message, hint, trigger)
    if trigger.exit is None:
        return None
    if trigger.exit in SUCCESS_CODES:
        if not history.failing:
            return None
        return Notice(
            "works-again", trigger.schedule, "works-again", f"{trigger.schedule} works again", "", trigger
        )
    about = f"{trigger.about}: " if trigger.about else ""
    why = f": {about}{trigger.message}" if trigger.message else ""
    return Notice(
        "failed",
        trigger.schedule,
        f"failed-{trigger.exit}",
        f"{trigger.schedule} ended with {trigger.exit}{why}",
        trigger.hint or f"hibali schedule log {trigger.schedule}",
        trigger,
    )


def notice_of_silence(
    schedule: str, triggers: Iterable[Trigger], since: datetime, now: datetime, longest: timedelta
) -> Notice | None:
    """Return the notification that the schedule has not run for too long."""
    last = since
    for trigger in triggers:
        if trigger.state != "skipped":
            last = max(last, datetime.fromisoformat(trigger.ended or trigger.began))
            if trigger.state == "running":
                return None  # --max-time limits its duration
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
            expiry = f"expires in {format_duration(left)}" if left > 0 else "has expired"
            found.append(
                Notice(
                    "expires",
                    schedule,
                    f"expires-{each.kind}-{each.site}",
                    f"{each.description} of {each.site} {expiry}",
                    each.renew,
                    None,
                    each.expires,
                )
            )
    return found


Report = Callable[[str], None]
_SENDMAIL = ("/usr/sbin/sendmail", "/usr/lib/sendmail")
_MOST_SECRET = 4096


def read_history(schedule: str) -> NoticeHistory:
    """Return the notifications that were sent about a schedule so far."""
    try:
        return parse_history(json.loads(read_regular(_history_file(schedule))))
    except (OSError, ValueError, RecursionError):
        return NoticeHistory()


def send_if_new(notices: Notices, notice: Notice, report: Report) -> None:
    """Send a notification, unless it was sent today. A failure is reported, and the notification is sent the next time."""
    if notices.has_receiver:
        with exclusive("told"):  # the hourly check must not report the same end as the run itself
            _send_once(notices, notice, read_history(notice.schedule), report)


def send_end_notice_once(notices: Notices, trigger: Trigger, report: Report) -> None:
    """Send the notification about a run's end once, by the first process that sees it."""
    if not notices.has_receiver:
        return
    with exclusive("told"):
        history = read_history(trigger.schedule)
        if history.seen == trigger.id:
            return
        notice = notice_of_end(trigger, history)
        if notice is None or not _send_once(notices, notice, history, report):
            _write_history(trigger.schedule, replace(history, seen=trigger.id), report)


def _send_once(notices: Notices, notice: Notice, history: NoticeHistory, report: Report) -> bool:
    """Return False if it was sent before; True if it was sent, or failed and is sent again the next time."""
    day = f"{datetime.now().astimezone():%Y-%m-%d}"
    if not history.is_new(notice, day):
        return False
    problems = send_notice(notices, notice)
    for problem in problems:
        report(f"notification failed: {problem.subject}: {problem.message}")
    if len(problems) < _receiver_count(notices):
        _write_history(notice.schedule, history.after(notice, day), report)
        report(f"notification sent: {notice.event}: {notice.message}")
    return True


def _write_history(schedule: str, history: NoticeHistory, report: Report) -> None:
    try:
        write_atomic(_history_file(schedule), line_of_json(history.to_record()).encode("ascii") + b"\n")
    except OSError as problem:
        report(f"the sent notifications cannot be recorded: {reason_of(problem)}")


def send_notice(notices: Notices, notice: Notice) -> list[HibaliError]:
    """Send a notification in every configured way; return the error of each way that failed."""
    record = {"schema": 1, "kind": "notice", **notice.to_record(now(), socket.gethostname())}
    content = line_of_json(record).encode("ascii") + b"\n"
    problems: list[HibaliError] = []
    ways: list[tuple[bool, Callable[[], None]]] = [
        (bool(notices.command), lambda: run_command(notices.command, content)),
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


def _receiver_count(notices: Notices) -> int:
    return sum(map(bool, (notices.command, notices.mail, notices.webhook)))


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
    run_command([program, "-i", "--", address], message.as_bytes())


def _by_webhook(notices: Notices, content: bytes) -> None:
    """POST a notification. The secret replaces `{secret}` in the URL, else it is a bearer token; no error contains it (S16)."""
    secret = _secret(notices)
    try:
        if "{secret}" in notices.webhook:
            post_json(notices.webhook.replace("{secret}", secret), content)
        else:
            remember_url(notices.webhook)  # its path may be the secret
            post_json(notices.webhook, content, secret=secret)
    except HibaliError as problem:
        raise IncompleteError("not-notified", problem.message, subject="webhook") from None


def _secret(notices: Notices) -> str:
    if notices.secret_command:
        finished = subprocesses.run(notices.secret_command, timeout=_COMMAND_SECONDS, most=1024 * 1024)
        if finished.exit_code != 0:
            raise IncompleteError(
                "no-secret", f"it exited with {finished.exit_code}", subject=notices.secret_command[0]
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


def _history_file(schedule: str) -> Path:
    return schedule_folder(schedule) / "told.json"
