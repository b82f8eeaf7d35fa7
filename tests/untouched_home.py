"""Fail the test session if it changed the tester's crontab, ssh and hibali configuration, or the names in HOME."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

# What tests could change by mistake, without what the tester's other programs and schedules write meanwhile.
_CONTENTS = (
    ".ssh",
    ".config/hibali",
    ".config/systemd/user",
    ".hibali",
    ".gitconfig",
    ".bashrc",
    ".profile",
)
_NAMES = ("", ".config", ".local", ".local/share", ".local/state")
_BEFORE = pytest.StashKey[dict[str, str]]()
_CHANGED = pytest.StashKey[list[str]]()


def record_home(home: Path) -> dict[str, str]:
    """Return the state of the crontab and of the files and names to compare, as text by what they are."""
    state = {"crontab": _read_crontab()}
    for name in _CONTENTS:
        top = home / name
        for path in (top, *sorted(top.rglob("*"))):
            if path.is_file() or path.is_symlink():
                state[str(path)] = (
                    f"{path.lstat().st_mode:o} {path.lstat().st_size} {path.lstat().st_mtime_ns}"
                )
    for name in _NAMES:
        folder = home / name
        state |= {str(path): "exists" for path in folder.glob("*") if str(path) not in state}
    return state


def changes(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """Return what differs, as `crontab` or a path."""
    return sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))


def _read_crontab() -> str:
    try:
        done = subprocess.run(
            ["crontab", "-l"], check=False, capture_output=True, text=True, errors="replace"
        )
    except OSError:
        return ""
    return done.stdout if done.returncode == 0 else ""


def _compares(config: pytest.Config) -> bool:
    """Return whether this process compares: the workers of a parallel session leave it to the first process."""
    return not hasattr(config, "workerinput")


def pytest_sessionstart(session: pytest.Session) -> None:
    if _compares(session.config):
        session.config.stash[_BEFORE] = record_home(Path.home())


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    before = session.config.stash.get(_BEFORE, None)
    if before is None:
        return
    session.config.stash[_CHANGED] = changed = changes(before, record_home(Path.home()))
    if changed and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.INTERNAL_ERROR


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    changed = terminalreporter.config.stash.get(_CHANGED, [])
    if changed:
        terminalreporter.section("THE TESTS CHANGED THE TESTER'S OWN FILES", red=True)
        for name in changed:
            terminalreporter.line(name)
