"""What a command finds at three in the morning: no terminal, no agent, a bare PATH; and what it must be told of this account."""

from __future__ import annotations

import os
import pwd
import sys
from collections.abc import Mapping
from datetime import tzinfo
from pathlib import Path
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from hibali.folders import config_file, state_folder

BARE_PATH = "/usr/bin:/bin"  # of cron, unless somebody says otherwise
_KEPT = ("HOME", "LOGNAME", "USER", "SHELL", "LANG", "LC_ALL", "LC_CTYPE", "TZ")


def hibali_words() -> list[str]:
    """How this very hibali is started again, from anywhere: by its absolute path."""
    script = Path(sys.executable).with_name("hibali")
    return [str(script)] if os.access(script, os.X_OK) else [sys.executable, "-P", "-m", "hibali_cli"]


def needed_variables(config: str | None) -> dict[str, str]:
    """Home, configuration and state, for a command that starts with nothing; only what it would not find by itself."""
    needed = {}
    if os.environ.get("HOME", "") not in {"", _account_home()}:
        needed["HOME"] = os.environ["HOME"]
    if config or "HIBALI_CONFIG" in os.environ or "XDG_CONFIG_HOME" in os.environ:
        needed["HIBALI_CONFIG"] = str(config_file(config))
    if "HIBALI_STATE" in os.environ or "XDG_STATE_HOME" in os.environ:
        needed["HIBALI_STATE"] = str(state_folder())
    return needed


def bare_environment(config: str | None, more: Mapping[str, str]) -> dict[str, str]:
    """The environment of a command that runs unattended, whoever started us; `more` is what the schedule sets itself."""
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    return {**kept, "PATH": BARE_PATH, **needed_variables(config), **more}


def _account_home() -> str:
    """What cron takes for HOME."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:
        return ""


def local_zone() -> tzinfo:
    """The zone whose clock cron looks at, with its summer time."""
    named = os.environ.get("TZ", "").removeprefix(":")
    if named:
        try:
            return ZoneInfo(named)
        except (ZoneInfoNotFoundError, ValueError):
            pass
    try:
        with Path("/etc/localtime").open("rb") as stream:
            return ZoneInfo.from_file(stream)
    except (OSError, ValueError):
        return ZoneInfo("UTC")
