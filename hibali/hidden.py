"""Keep secrets to this process: variables of the environment that hold one, and what must not stand in a bug report (S16)."""

from __future__ import annotations

import os
import re

_SHORTEST = 4  # what is shorter is no secret, and would blacken half of a text
_NAMES = re.compile(
    r"(?i)secret|passw|passphrase|token|credential|access_key|api_?key|private_?key|authorization|cookie"
)
_IN_TEXT = (
    re.compile(r"(?i)\b((?:bearer|basic)\s+)[A-Za-z0-9+/=._~-]{4,}"),
    re.compile(r"(?i)(://)[^/\s@'\"]+(?=@)"),
    re.compile(
        r"(?i)([\w-]*(?:secret|passw\w*|passphrase|token|credential|signature|api[_-]?key|access[_-]?key(?:[_-]?id)?)[\w-]*"
        r"[\"']?\s*[:=]\s*[\"']?)[^\s\"'&,;}\])]{2,}"
    ),
    re.compile(r"\b()(?:AKIA|ASIA)[A-Z0-9]{12,}"),
    re.compile(r"()-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL),
)

_known: set[str] = set()
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


def remember_secret(*values: str | bytes | None) -> None:
    """What this process was given as a secret: it will be missing from what `without_secrets` returns."""
    for value in values:
        text = value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else value or ""
        if len(text.strip()) >= _SHORTEST:
            _known.add(text.strip())


def without_secrets(text: str) -> str:
    """A text with `***` for all that was remembered, for variables that are named like secrets, and for what looks like one."""
    found = {value for name, value in os.environ.items() if _NAMES.search(name)}
    found |= {value.decode("utf-8", "surrogateescape") for value in _hidden.values()} | _known
    for value in sorted(found, key=len, reverse=True):
        if len(value) >= _SHORTEST:
            text = text.replace(value, "***").replace(repr(value)[1:-1], "***")
    for pattern in _IN_TEXT:
        text = pattern.sub(r"\1***", text)
    return text
