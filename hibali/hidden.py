"""Variables of the environment that hold a secret: known here, and to no program that is started from here (S16)."""

from __future__ import annotations

import os

_hidden: dict[str, bytes] = {}


def hide_variable(name: str) -> None:
    """Take it out of the environment: a job without a scheduler, or one of `sbatch`, would inherit it."""
    value = os.environ.pop(name, None)
    if value is not None:
        _hidden[name] = os.fsencode(value)


def hidden_variable(name: str) -> bytes | None:
    """What it said; None where it was not set."""
    hide_variable(name)
    return _hidden.get(name)
