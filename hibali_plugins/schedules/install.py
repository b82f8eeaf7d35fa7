"""Install schedules in the user's crontab or as systemd user timers."""

from __future__ import annotations

import hashlib
import os
import shlex
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from hibali import subprocesses
from hibali.errors import AccessError, HibaliError, NotFoundError, RefusedError, TryLaterError, UsageError
from hibali.files import account_names, write_atomic
from hibali.system_errors import reason_of
from hibali.text import printable
from hibali_plugins.schedules.environment import hibali_argv, needed_variables
from hibali_plugins.schedules.records import start_log_path
from hibali_plugins.schedules.schedule import (
    Installer,
    Schedule,
    Schedules,
    drop_schedule,
    exclusive,
    load_schedules,
    put_schedule,
)
from hibali_plugins.schedules.trigger import jitter_of

_BEGIN = b"# >>> hibali schedules of %s >>>"
_END = b"# <<< hibali schedules of %s <<<"


def with_block(crontab: bytes, owner: str, lines: Sequence[str]) -> bytes:
    """Return the crontab with these lines in the block of `owner`, a schedules.toml, or without that block if there are none.

    A new block comes first, so that variables in the user's lines below do not affect it; the user's lines stay as they are. Raises
    `RefusedError` if the marks are not a pair.
    """
    before, own_lines, after = split_block(crontab, owner)
    del own_lines
    if not lines:
        return before + after
    begin, end = _marks(owner)
    return before + b"\n".join([begin, *(line.encode("utf-8") for line in lines), end, b""]) + after


def split_block(crontab: bytes, owner: str) -> tuple[bytes, list[str], bytes]:
    """Return the text before the block of `owner`, the lines in it, and the text after it; without a block all text is after it."""
    begin, end = _marks(owner)
    lines = crontab.splitlines(keepends=True)
    bare = [line.rstrip(b"\r\n") for line in lines]
    if begin not in bare and end not in bare:
        return b"", [], crontab
    if bare.count(begin) != 1 or bare.count(end) != 1 or bare.index(begin) > bare.index(end):
        raise RefusedError(
            "crontab-marks",
            "the two marks around hibali's lines are damaged, so the crontab was not changed",
            subject="crontab",
            hint="Remove the marks and hibali's lines between them: crontab -e",
        )
    first, last = bare.index(begin), bare.index(end)
    own_lines = [line.decode("utf-8", "replace") for line in bare[first + 1 : last]]
    return b"".join(lines[:first]), own_lines, b"".join(lines[last + 1 :])


def _marks(owner: str) -> tuple[bytes, bytes]:
    name = printable(owner).encode("utf-8")
    return _BEGIN % name, _END % name


def crontab_line(times: str, argv: Sequence[str], environment: Mapping[str, str], output: str) -> str:
    """Return one line of a crontab(5), with `%` quoted, which would end the command. Raises `UsageError` for a newline."""
    settings = [f"{name}={value}" for name, value in environment.items()]
    command = shlex.join([*(["/usr/bin/env", *settings] if settings else []), *argv])
    line = f"{times} {command} >>{shlex.quote(output)} 2>&1"
    if not line.isprintable():
        raise UsageError(
            "unfit-for-crontab",
            "a crontab line cannot contain a newline or another control character",
            subject=ascii(line),
            hint="Install hibali, and store its configuration and state, in folders with plain names.",
        )
    return line.replace("%", "\\%")


_FIRST = "# Written by `hibali schedule`, and again at every change.\n"


def timer_text(name: str, calendar: Sequence[str], *, make_up: bool) -> str:
    """Return the timer; with `make_up` systemd starts it at once after a missed time."""
    lines = "".join(f"OnCalendar={line}\n" for line in calendar)
    return (
        f"{_FIRST}[Unit]\nDescription=hibali schedule {name}\n\n[Timer]\n{lines}AccuracySec=1s\n"
        f"Persistent={'true' if make_up else 'false'}\n\n[Install]\nWantedBy=timers.target\n"
    )


def service_text(name: str, argv: Sequence[str], environment: Mapping[str, str], output: str) -> str:
    """Return the service; its exit code reports its end. Raises `UsageError` for a newline."""
    settings = "".join(f"Environment={_quoted(f'{key}={value}')}\n" for key, value in environment.items())
    command = " ".join(_quoted(argument, command=True) for argument in argv)
    # systemd gives it time to end cleanly
    text = (
        f"{_FIRST}[Unit]\nDescription=hibali schedule {name}\n\n[Service]\nType=oneshot\n{settings}"
        f"ExecStart={command}\nStandardOutput=append:{output.replace('%', '%%')}\nStandardError=inherit\n"
        "KillSignal=SIGTERM\nKillMode=mixed\nTimeoutStopSec=60\n"
    )
    if not text.replace("\n", "").isprintable() or "\n" in output:
        raise _unprintable(name)
    return text


def _quoted(argument: str, *, command: bool = False) -> str:
    """Quote an argument for systemd.syntax(7): specifiers begin with %, variables in commands with $."""
    if not argument.isprintable():
        raise _unprintable(argument)
    text = argument.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return '"' + (text.replace("$", "$$") if command else text) + '"'


def _unprintable(argument: str) -> UsageError:
    return UsageError(
        "unfit-for-systemd",
        "a systemd unit cannot contain a newline or another control character",
        subject=ascii(argument),
        hint="Install hibali, and store its configuration and state, in folders with plain names.",
    )


_HOURLY = "hourly"  # not a valid name of a schedule


def choose_installer() -> Installer:
    """Choose cron if there is a `crontab`, else systemd if its user manager answers; raises `NotFoundError`."""
    try:
        _read_crontab()
    except NotFoundError:
        pass
    else:
        return "cron"
    if systemd_is_available():
        return "systemd"
    raise NotFoundError(
        "no-cron",
        "this machine has no crontab command, and your systemd user manager does not respond",
        subject="hibali schedule add",
        hint="To print the line for the administrator of cron: --by print",
    )


def install(config: str | None, schedules: Schedules) -> None:
    """Write these schedules into the crontab or timers; other entries stay as they are.

    Raises `RefusedError` for a crontab with broken marks, `AccessError` if a crontab is not allowed.
    """
    with exclusive("installed"):
        _install_crontab(config, schedules)
        _install_timers(config, schedules)


def lines_of(config: str | None, schedules: Schedules, by: Installer) -> list[str]:
    """Return the crontab lines of the schedules that cron runs, and of the hourly check for missed ones."""
    active = [each for each in schedules.schedules.values() if each.by == by and not each.paused]
    if not active:
        return []
    environment = needed_variables(config)
    lines = [_line_of(config, each) for each in sorted(active, key=lambda each: each.name)]
    hourly = f"{_own_minute()} * * * *"
    return [*lines, crontab_line(hourly, trigger_argv(None), environment, start_log_path(None))]


def _line_of(config: str | None, schedule: Schedule) -> str:
    return crontab_line(
        schedule.cron.text,
        trigger_argv(schedule.name),
        needed_variables(config),
        start_log_path(schedule.name),
    )


def trigger_argv(name: str | None) -> list[str]:
    """Return the command that triggers a schedule, or that checks all of them hourly."""
    return [*hibali_argv(), "schedule", "run", *([name] if name else []), "--due"]


def installed_names(config: str | None, schedules: Schedules) -> set[str]:
    """Return the schedules whose crontab line or timer is installed as it would be written now."""
    wanted = {name: each for name, each in schedules.schedules.items() if not each.paused}
    found: set[str] = set()
    if any(each.by == "cron" for each in wanted.values()):
        try:
            installed = set(split_block(_read_crontab(), str(schedules.path))[1])
        except HibaliError:
            installed = set()
        found |= {
            name for name, each in wanted.items() if each.by == "cron" and _line_of(config, each) in installed
        }
    units = units_of(config, schedules)
    for name, each in wanted.items():
        unit = f"{_unit_prefix(config)}{name}.timer"
        if each.by == "systemd" and _holds(_unit_folder() / unit, units[unit]):
            found.add(name)
    return found


def _holds(path: Path, text: str) -> bool:
    try:
        return path.read_bytes() == text.encode("utf-8")
    except OSError:
        return False


def systemd_is_available() -> bool:
    """Return whether the systemd user manager of this account responds."""
    try:
        return subprocesses.run(["systemctl", "--user", "show-environment"], timeout=10).exit_code == 0
    except (NotFoundError, TryLaterError):
        return False


def lingers() -> bool:
    """Return whether the user's systemd continues when the user is not logged in (loginctl(1), enable-linger)."""
    return (Path("/var/lib/systemd/linger") / account_names()[0]).exists()


def _own_minute() -> int:
    """Return a minute that differs between users."""
    return int(jitter_of(60, socket.gethostname(), str(os.geteuid())))


def _install_crontab(config: str | None, schedules: Schedules) -> None:
    wanted = lines_of(config, schedules, "cron")
    try:
        before = _read_crontab()
    except NotFoundError:
        if not wanted:
            return
        raise
    after = with_block(before, str(schedules.path), wanted)
    if after == before:
        return
    if _read_crontab() != before:
        raise TryLaterError(
            "crontab-changed", "another process changed the crontab meanwhile", subject="crontab"
        )
    argv = ["crontab", "-"] if after else ["crontab", "-r"]
    finished = subprocesses.run(argv, stdin=after)
    if finished.exit_code != 0 or _read_crontab() != after:
        lines = finished.stderr.decode("utf-8", "replace").strip().splitlines()
        raise UsageError(
            "crontab-refused",
            f"crontab rejected the new table: {lines[-1] if lines else finished.exit_code}",
            subject="crontab",
            hint="To print the line for the administrator of cron: --by print",
        )


def _read_crontab() -> bytes:
    """Return the user's crontab, b"" if there is none; raises `NotFoundError`, `AccessError`."""
    finished = subprocesses.run(["crontab", "-l"])
    if finished.exit_code == 0:
        return finished.stdout
    stderr = finished.stderr.decode("utf-8", "replace").strip()
    if "no crontab" in stderr.lower():
        return b""
    raise AccessError(
        "crontab-refused",
        stderr.splitlines()[-1] if stderr else "crontab -l fails",
        subject="crontab",
        hint="To use timers: --by systemd. To print the line for the administrator of cron: --by print",
    )


def _install_timers(config: str | None, schedules: Schedules) -> None:
    folder = _unit_folder()
    wanted = units_of(config, schedules)
    prefix = _unit_prefix(config)
    installed = {path.name for path in folder.glob(f"{prefix}*") if path.suffix in {".timer", ".service"}}
    if not wanted and not installed:
        return
    obsolete = sorted(name for name in installed - wanted.keys() if name.endswith(".timer"))
    if obsolete:
        _systemctl("disable", "--now", *obsolete)
    for name in installed - wanted.keys():
        (folder / name).unlink(missing_ok=True)
    for name, text in wanted.items():
        _write_unit(folder / name, text)
    _systemctl("daemon-reload")
    timers = sorted(name for name in wanted if name.endswith(".timer"))
    if timers:
        _systemctl("enable", *timers)
        _systemctl("restart", *timers)


def units_of(config: str | None, schedules: Schedules) -> Mapping[str, str]:
    """Return the units of all schedules with timers, by their file's name, and those of the hourly check."""
    active = [each for each in schedules.schedules.values() if each.by == "systemd" and not each.paused]
    environment = needed_variables(config)
    prefix = _unit_prefix(config)
    units: dict[str, str] = {}
    for each in active:
        units[f"{prefix}{each.name}.timer"] = timer_text(
            each.name, each.cron.on_calendar(), make_up=each.missed == "once"
        )
        units[f"{prefix}{each.name}.service"] = service_text(
            each.name, trigger_argv(each.name), environment, start_log_path(each.name)
        )
    if active:
        calendar = [f"*-*-* *:{_own_minute():02d}:00"]
        units[f"{prefix}{_HOURLY}.timer"] = timer_text(_HOURLY, calendar, make_up=False)
        units[f"{prefix}{_HOURLY}.service"] = service_text(
            _HOURLY, trigger_argv(None), environment, start_log_path(None)
        )
    return units


def _unit_prefix(config: str | None) -> str:
    """Return a prefix that differs between configurations."""
    own = needed_variables(config).get("HIBALI_CONFIG", "")
    mark = hashlib.sha256(os.fsencode(own)).hexdigest()[:8]
    return f"hibali-{mark}-" if own else "hibali-schedule-"


def _unit_folder() -> Path:
    base = os.environ.get("XDG_CONFIG_HOME") or str(Path("~/.config").expanduser())
    return Path(base) / "systemd" / "user"


def _write_unit(path: Path, text: str) -> None:
    content = text.encode("utf-8")
    if _holds(path, text):
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, content, mode=0o644)
    except OSError as problem:
        raise UsageError(
            "config-unwritable", f"cannot be written: {reason_of(problem)}", subject=str(path)
        ) from None


def _systemctl(*argv: str) -> None:
    """Run systemctl for the user; if systemd does not answer, it reads the files when it starts."""
    if not systemd_is_available():
        return
    finished = subprocesses.run(["systemctl", "--user", "--no-ask-password", *argv])
    if finished.exit_code != 0:
        lines = finished.stderr.decode("utf-8", "replace").strip().splitlines()
        raise UsageError("systemd-refused", lines[-1] if lines else "systemctl fails", subject=" ".join(argv))


def put_and_install(config: str | None, schedule: Schedule) -> Schedules:
    """Add or replace a schedule in schedules.toml, and install it; return all schedules. Raises what `install` does."""
    before = load_schedules(config).schedules.get(schedule.name)
    put_schedule(config, schedule)
    return _install_or_undo(config, schedule.name, before)


def drop_and_install(config: str | None, name: str) -> Schedules:
    """Remove a schedule, and return the remaining ones. Raises `NotFoundError`, and what `install` does."""
    before = load_schedules(config).one(name)
    drop_schedule(config, name)
    return _install_or_undo(config, name, before)


def _install_or_undo(config: str | None, name: str, before: Schedule | None) -> Schedules:
    known = load_schedules(config)
    try:
        install(config, known)
    except HibaliError:
        if before is not None:
            put_schedule(config, before)
        else:
            drop_schedule(config, name)
        raise
    return known
