"""Collect the options of a filesystem: from config.toml, environment variables, the keyring and a command."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from hibali.errors import AccessError
from hibali.keyring_secrets import keyring_secret
from hibali.subprocesses import credentials_from, hidden_variable, remember_secret
from hibali_plugins.fsspec_sites.settings import FsspecSettings

_MOST_OPTIONS = 100


def options_of(settings: FsspecSettings, subject: str) -> dict[str, Any]:
    """Return all options; secrets win, and are registered so that no output repeats them. Raise `AccessError`."""
    found = {name: _expanded(name, value) for name, value in settings.options.items()}
    for option, variable in settings.secret_variables.items():
        found[option] = _from_variable(option, variable, subject)
    for option, service in settings.secret_keyrings.items():
        found[option] = keyring_secret(
            service,
            option,
            owner=f"the option {option}",
            subject=subject,
            otherwise="secret_variables or a credentials_command",
        )
    if settings.credentials_command:
        found |= credentials_from(
            settings.credentials_command,
            read_options,
            key="credentials_command",
            what="options",
            subject=subject,
            hint='Run the command yourself: it must print options as JSON, such as {"account_key": "..."}.',
        )
    for option in (*settings.secret_variables, *settings.secret_keyrings):
        remember_secret(found[option])
    return found


def read_options(text: bytes) -> dict[str, Any]:
    """Parse a JSON object of options; raise ValueError without any of the text."""
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("its output is not JSON") from None
    if not isinstance(record, dict) or not record or len(record) > _MOST_OPTIONS:
        raise ValueError("its output is not a JSON object of options")
    if not all(name.isidentifier() for name in record):
        raise ValueError("a name in its output cannot be that of an option")
    return record


def _expanded(name: str, value: Any) -> Any:
    """Expand `~` in the path of a file with credentials."""
    if name == "token" and isinstance(value, str) and value.startswith("~/"):
        return str(Path(value).expanduser())
    return value


def _from_variable(option: str, variable: str, subject: str) -> str:
    found = hidden_variable(variable)
    if found:
        return os.fsdecode(found)
    raise AccessError(
        "no-secret",
        f"the option {option} is not in the environment: {variable} is not set",
        subject=subject,
        hint=f"In the crontab or the script, from a file of mode 0600: export {variable}=$(cat ~/.{subject}-secret)",
    )
