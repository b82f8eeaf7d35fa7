"""Putting schedules where something fires them: the user's crontab, or timers of the user's systemd."""

from __future__ import annotations

import hashlib
import os
import socket
from collections.abc import Mapping
from pathlib import Path

from hibali import shell
from hibali.account import account_names
from hibali.errors import AccessError, HibaliError, NotFoundError, TryLaterError, UsageError
from hibali.ledger import ledger_folder, write_atomic
from hibali.system_errors import reason_of
from runs.unattended.crontab import crontab_line, split_block, with_block
from runs.unattended.schedule import Installer, Schedule, Schedules
from runs.unattended.schedules_file import alone
from runs.unattended.surroundings import hibali_words, needed_variables
from runs.unattended.timers import service_text, timer_text
from runs.unattended.window import jitter_of

_HOURLY = "hourly"  # beside names of schedules: no schedule is called so


def choose_installer() -> Installer:
    """Cron where there is a `crontab`, else systemd where its user manager answers; raises `NotFoundError`."""
    try:
        _read_crontab()
    except NotFoundError:
        pass
    else:
        return "cron"
    if systemd_answers():
        return "systemd"
    raise NotFoundError(
        "no-cron",
        "there is neither a crontab nor a systemd of yours that answers",
        about="hibali schedule add",
        hint="--by print writes the line for whoever manages cron here.",
    )


def install(config: str | None, schedules: Schedules) -> None:
    """Make crontab and timers what these schedules say; what is not ours is not touched.

    Raises `RefusedError` for a crontab whose marks are broken, `AccessError` where a crontab is not allowed.
    """
    with alone("installed"):
        _install_crontab(config, schedules)
        _install_timers(config, schedules)


def lines_of(config: str | None, schedules: Schedules, by: Installer) -> list[str]:
    """The lines of a crontab for the schedules that are installed in that way, and the hourly look at what was missed."""
    active = [each for each in schedules.schedules.values() if each.by == by and not each.paused]
    if not active:
        return []
    environment = needed_variables(config)
    lines = [_line_of(config, each) for each in sorted(active, key=lambda each: each.name)]
    hourly = f"{_own_minute()} * * * *"
    return [*lines, crontab_line(hourly, words_of(None), environment, output_of(None))]


def _line_of(config: str | None, schedule: Schedule) -> str:
    return crontab_line(
        schedule.cron.text, words_of(schedule.name), needed_variables(config), output_of(schedule.name)
    )


def words_of(name: str | None) -> list[str]:
    """The command that fires a schedule, or that looks hourly at all of them."""
    return [*hibali_words(), "schedule", "run", *([name] if name else []), "--due"]


def output_of(name: str | None) -> str:
    """Where it goes what is said before a firing has a log: that hibali cannot be started, above all."""
    return str((ledger_folder("schedules", name) if name else ledger_folder("schedules")) / "start.log")


def installed_names(config: str | None, schedules: Schedules) -> set[str]:
    """The schedules whose line, or timer, stands where it should, just as it would be written now."""
    wanted = {name: each for name, each in schedules.schedules.items() if not each.paused}
    found: set[str] = set()
    if any(each.by == "cron" for each in wanted.values()):
        try:
            there = set(split_block(_read_crontab(), str(schedules.path))[1])
        except HibaliError:
            there = set()
        found |= {
            name for name, each in wanted.items() if each.by == "cron" and _line_of(config, each) in there
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


def systemd_answers() -> bool:
    """Whether this account has a systemd that takes timers."""
    try:
        return shell.run(["systemctl", "--user", "show-environment"], timeout=10).exit_code == 0
    except (NotFoundError, TryLaterError):
        return False


def lingers() -> bool:
    """Whether the user's systemd goes on when nobody is logged in (loginctl(1), enable-linger)."""
    return (Path("/var/lib/systemd/linger") / account_names()[0]).exists()


def _own_minute() -> int:
    """Not the same minute for everybody."""
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
        raise TryLaterError("crontab-changed", "somebody else changed the crontab meanwhile", about="crontab")
    words = ["crontab", "-"] if after else ["crontab", "-r"]
    finished = shell.run(words, stdin=after)
    if finished.exit_code != 0 or _read_crontab() != after:
        said = finished.stderr.decode("utf-8", "replace").strip().splitlines()
        raise UsageError(
            "crontab-refused",
            f"crontab does not take it: {said[-1] if said else finished.exit_code}",
            about="crontab",
            hint="--by print writes the line for whoever manages cron here.",
        )


def _read_crontab() -> bytes:
    """The user's crontab, b"" where there is none; raises `NotFoundError`, `AccessError`."""
    finished = shell.run(["crontab", "-l"])
    if finished.exit_code == 0:
        return finished.stdout
    said = finished.stderr.decode("utf-8", "replace").strip()
    if "no crontab" in said.lower():
        return b""
    raise AccessError(
        "crontab-refused",
        said.splitlines()[-1] if said else "crontab -l fails",
        about="crontab",
        hint="--by systemd uses timers, --by print writes the line for whoever manages cron here.",
    )


def _install_timers(config: str | None, schedules: Schedules) -> None:
    folder = _unit_folder()
    wanted = units_of(config, schedules)
    prefix = _unit_prefix(config)
    there = {path.name for path in folder.glob(f"{prefix}*") if path.suffix in {".timer", ".service"}}
    if not wanted and not there:
        return
    gone = sorted(name for name in there - wanted.keys() if name.endswith(".timer"))
    if gone:
        _systemctl("disable", "--now", *gone)
    for name in there - wanted.keys():
        (folder / name).unlink(missing_ok=True)
    for name, text in wanted.items():
        _write_unit(folder / name, text)
    _systemctl("daemon-reload")
    timers = sorted(name for name in wanted if name.endswith(".timer"))
    if timers:
        _systemctl("enable", *timers)
        _systemctl("restart", *timers)


def units_of(config: str | None, schedules: Schedules) -> Mapping[str, str]:
    """The units of all schedules that are timers, by their file's name, and those of the hourly look."""
    active = [each for each in schedules.schedules.values() if each.by == "systemd" and not each.paused]
    environment = needed_variables(config)
    prefix = _unit_prefix(config)
    units: dict[str, str] = {}
    for each in active:
        units[f"{prefix}{each.name}.timer"] = timer_text(
            each.name, each.cron.on_calendar(), make_up=each.missed == "once"
        )
        units[f"{prefix}{each.name}.service"] = service_text(
            each.name, words_of(each.name), environment, output_of(each.name)
        )
    if active:
        calendar = [f"*-*-* *:{_own_minute():02d}:00"]
        units[f"{prefix}{_HOURLY}.timer"] = timer_text(_HOURLY, calendar, make_up=False)
        units[f"{prefix}{_HOURLY}.service"] = service_text(
            _HOURLY, words_of(None), environment, output_of(None)
        )
    return units


def _unit_prefix(config: str | None) -> str:
    """Another configuration has other units."""
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
            "config-unwritable", f"cannot be written: {reason_of(problem)}", about=str(path)
        ) from None


def _systemctl(*words: str) -> None:
    """Tell the user's systemd; where none answers the files stand there, and it finds them when it starts."""
    if not systemd_answers():
        return
    finished = shell.run(["systemctl", "--user", "--no-ask-password", *words])
    if finished.exit_code != 0:
        said = finished.stderr.decode("utf-8", "replace").strip().splitlines()
        raise UsageError("systemd-refused", said[-1] if said else "systemctl fails", about=" ".join(words))
