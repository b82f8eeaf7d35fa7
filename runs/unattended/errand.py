"""One command of a firing, run to its end: what it said last, and an end to it where its time is up."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hibali import shell
from hibali.errors import Exit
from runs.unattended.firings import amounts_of
from runs.unattended.log_file import Log

_LOGGED = (b'"kind":"failed"', b'"kind":"noted"', b'"kind":"receipt"', b'"kind":"error"')
_LONGEST_LINE = 1024 * 1024
_INTERRUPTED_SECONDS = 0.9  # who interrupts us waits two seconds for both


@dataclass(slots=True)
class Heard:
    """What a command told of itself in its JSON lines."""

    amounts: dict[str, Any] = field(default_factory=dict)
    error: dict[str, Any] = field(default_factory=dict)
    operations: list[str] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)

    def take(self, record: Mapping[str, Any]) -> None:
        """Fold one line in."""
        kind, identifier = record.get("kind"), record.get("id")
        if kind == "receipt" and isinstance(identifier, str):
            self.amounts = amounts_of(record)
            _add(self.operations, identifier)
        elif kind == "run" and isinstance(identifier, str):
            _add(self.runs, identifier)
        elif kind == "error":
            self.error = {name: record.get(name) for name in ("code", "message", "about", "hint")}


def with_json(command: Sequence[str]) -> list[str]:
    """The words with `--json` and `--no-progress`, before a `--` that ends the options."""
    end = command.index("--") if "--" in command else len(command)
    missing = [word for word in ("--json", "--no-progress") if word not in command[:end]]
    return [*command[:end], *missing, *command[end:]]


def run_errand(
    words: Sequence[str],
    environment: Mapping[str, str],
    folder: str,
    *,
    seconds: float | None,
    log: Log,
    leave: Sequence[int],
) -> tuple[int, Heard]:
    """Run the command, for `seconds` at most; returns its exit code, 5 where its time was up, and what it told.

    Raises `NotFoundError` where it cannot be started, and ends it cleanly where we are interrupted ourselves.
    """
    heard = Heard()

    def take(line: bytes) -> None:
        if len(line) > _LONGEST_LINE:
            return
        if any(kind in line.replace(b'": ', b'":') for kind in _LOGGED):
            log.raw(line)
        try:
            record = json.loads(line)
        except ValueError:
            return
        if isinstance(record, dict):
            heard.take(record)

    errand = shell.Errand(
        words, environment=environment, folder=folder, aside=log.stream, take=take, leave=leave
    )
    began = time.monotonic()
    try:
        code = errand.wait(seconds)
    except BaseException:
        errand.end(_INTERRUPTED_SECONDS)
        raise
    if code is None:
        errand.end()
        passed = time.monotonic() - began
        message = f"ended because its time was up, after {passed:.0f} s"
        heard.error = {
            "code": "max-time",
            "message": message,
            "about": "",
            "hint": "It goes on from there next time.",
        }
        return int(Exit.TRY_LATER), heard
    if code < 0:
        heard.error = heard.error or {
            "code": "killed",
            "message": f"ended by signal {-code}",
            "about": "",
            "hint": "",
        }
        return 128 - code, heard
    return code, heard


def _add(known: list[str], identifier: str) -> None:
    if identifier not in known:
        known.append(identifier)
