"""Telling somebody of a notice: a command, a mail, a webhook; what was told is kept, so that it is told once a day."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from email.message import EmailMessage
from pathlib import Path

from hibali import shell
from hibali.errors import HibaliError, IncompleteError, NotFoundError, UsageError
from hibali.hidden import remember_secret
from hibali.ledger import now, write_atomic
from hibali.strict_json import line_of_json
from hibali.system_errors import reason_of
from hibali.text import printable
from registry.web import post_json
from runs.unattended.firings import Firing, schedule_folder
from runs.unattended.notices import Notice, Told, notice_of_end, read_told
from runs.unattended.schedule import Notices
from runs.unattended.schedules_file import alone

Say = Callable[[str], None]
_COMMAND_SECONDS = 60.0
_SENDMAIL = ("/usr/sbin/sendmail", "/usr/lib/sendmail")
_MOST_SECRET = 4096


def told_of(schedule: str) -> Told:
    """What was told of a schedule so far."""
    try:
        return read_told(json.loads(_told_file(schedule).read_bytes()))
    except (OSError, ValueError):
        return Told()


def tell_news(notices: Notices, notice: Notice, say: Say) -> None:
    """Tell it, unless it was told today. What cannot be told is said, and told the next time."""
    if notices.anybody:
        with alone("told"):  # an hourly look must not tell the same as a firing that ends just then
            _tell_once(notices, notice, told_of(notice.schedule), say)


def tell_end(notices: Notices, firing: Firing, say: Say) -> None:
    """Tell of a firing's end what is news in it, once, whoever looks at it first."""
    if not notices.anybody:
        return
    with alone("told"):
        told = told_of(firing.schedule)
        if told.seen == firing.id:
            return
        notice = notice_of_end(firing, told)
        if notice is None or not _tell_once(notices, notice, told, say):
            _keep(firing.schedule, replace(told, seen=firing.id), say)


def _tell_once(notices: Notices, notice: Notice, told: Told, say: Say) -> bool:
    """False where it is no news; True where it was told, or could not be, and is to be told the next time."""
    day = f"{datetime.now().astimezone():%Y-%m-%d}"
    if not told.is_news(notice, day):
        return False
    problems = give_notice(notices, notice)
    for problem in problems:
        say(f"not told: {problem.about}: {problem.message}")
    if len(problems) < _ways(notices):
        _keep(notice.schedule, told.after(notice, day), say)
        say(f"told: {notice.event}: {notice.message}")
    return True


def _keep(schedule: str, told: Told, say: Say) -> None:
    try:
        write_atomic(_told_file(schedule), line_of_json(told.to_record()).encode("ascii") + b"\n")
    except OSError as problem:
        say(f"what was told cannot be kept: {reason_of(problem)}")


def give_notice(notices: Notices, notice: Notice) -> list[HibaliError]:
    """Tell it in every way there is; returns what went wrong, one for each way that failed."""
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
    finished = shell.run(words, stdin=content, timeout=_COMMAND_SECONDS)
    if finished.exit_code != 0:
        raise IncompleteError("not-notified", f"it ended with {finished.exit_code}", about=words[0])


def _by_mail(address: str, notice: Notice, content: bytes) -> None:
    program = next((path for path in _SENDMAIL if Path(path).exists()), None)
    if program is None:
        raise NotFoundError("no-such-program", "there is no sendmail on this machine", about=_SENDMAIL[0])
    message = EmailMessage()
    message["To"] = address
    message["Subject"] = f"[hibali] {printable(notice.message)[:150]}"
    message["Auto-Submitted"] = "auto-generated"
    lines = [printable(notice.message), printable(notice.hint), "", content.decode("ascii")]
    message.set_content("\n".join(lines))
    finished = shell.run([program, "-i", "--", address], stdin=message.as_bytes(), timeout=_COMMAND_SECONDS)
    if finished.exit_code != 0:
        raise IncompleteError("not-notified", f"it ended with {finished.exit_code}", about=program)


def _by_webhook(notices: Notices, content: bytes) -> None:
    """The secret goes where the URL says `{secret}`, else along as a bearer token; no error names it (S16)."""
    secret = _secret(notices)
    try:
        if "{secret}" in notices.webhook:
            post_json(notices.webhook.replace("{secret}", secret), content)
        else:
            post_json(notices.webhook, content, secret=secret)
    except HibaliError as problem:
        raise IncompleteError("not-notified", problem.message, about="webhook") from None


def _secret(notices: Notices) -> str:
    if notices.secret_command:
        finished = shell.run(notices.secret_command, timeout=_COMMAND_SECONDS, most=1024 * 1024)
        if finished.exit_code != 0:
            raise IncompleteError(
                "no-secret", f"it ended with {finished.exit_code}", about=notices.secret_command[0]
            )
        found = finished.stdout
    elif notices.secret_file:
        try:
            with Path(notices.secret_file).open("rb") as stream:
                found = stream.read(_MOST_SECRET + 1)
        except OSError as problem:
            raise IncompleteError("no-secret", reason_of(problem), about=notices.secret_file) from None
    else:
        return ""
    secret = found.decode("utf-8", "replace").strip()
    remember_secret(secret)
    if not secret or not secret.isprintable() or not secret.isascii() or len(secret) > _MOST_SECRET:
        raise UsageError("no-secret", "the secret of the webhook is not one line of ASCII", about="webhook")
    return secret


def _told_file(schedule: str) -> Path:
    return schedule_folder(schedule) / "told.json"
