"""Run a schedule: one at a time, retried within its window, recorded."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shlex
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, Literal

from hibali import subprocesses
from hibali.errors import Exit, HibaliError, TryLaterError
from hibali.files import open_regular
from hibali.ledger import journal_names, ledger_folder, new_identifier, read_records
from hibali.retry import pause
from hibali.system_errors import exit_of
from hibali_plugins.schedules.environment import bare_environment, hibali_argv, local_zone
from hibali_plugins.schedules.records import (
    Log,
    Trigger,
    amounts_of,
    holder_of,
    note_begun,
    note_ended,
    note_skipped,
    one_trigger,
    read_triggers,
    schedule_folder,
)
from hibali_plugins.schedules.schedule import Expression, Schedule

_EARLY = timedelta(seconds=2)  # a small correction of the clock must not skip a run
_LATE = timedelta(minutes=5)  # cron and timers start within this time, even on a busy machine
_FIRST_PAUSE, _LONGEST_PAUSE = 60.0, 900.0


@dataclass(frozen=True, slots=True)
class Decision:
    """The action: `run`, `nothing`, or `missed`, which is recorded; `due` is the due time, `missed` the number of other missed times."""

    action: Literal["run", "nothing", "missed"]
    due: datetime | None = None
    made_up: bool = False
    missed: int = 0


def decide(
    expression: Expression,
    now: datetime,
    zone: tzinfo,
    *,
    handled: datetime,
    make_up: bool,
    only_missed: bool = False,
) -> Decision:
    """Decide the action at `now`; `handled` is the last due time with a record, or the time when the schedule was added.

    With `make_up` a missed time is run once, however many were missed. `only_missed` ignores a time that is due just now, which cron or a timer starts itself.
    """
    due = expression.until(now + _EARLY, zone)
    if due <= handled:
        return Decision("nothing")
    late = now - due > _LATE
    missed = expression.count(handled, due, zone)
    if not late:
        return Decision("nothing") if only_missed else Decision("run", due, missed=missed)
    if make_up:
        return Decision("run", due, made_up=True, missed=missed)
    return Decision("missed", due, missed=missed)


def pause_before_retry(failures: int, elapsed: float, retry_for: float) -> float | None:
    """Return the growing pause in seconds after so many failures; None if the window ends before."""
    first = min(_FIRST_PAUSE, max(1.0, retry_for / 20))
    pause = float(min(_LONGEST_PAUSE, first * 2.0 ** min(failures - 1, 20)))
    return pause if elapsed + pause <= retry_for else None


def jitter_of(seconds: float, *parts: str) -> float:
    """Return a number from 0 to `seconds`, always the same for the same text; it differs between schedules, machines and days."""
    digest = hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).digest()
    return seconds * int.from_bytes(digest[:8]) / 2**64


_LOGGED = (b'"kind":"failed"', b'"kind":"noted"', b'"kind":"receipt"', b'"kind":"error"')
_LONGEST_LINE = 1024 * 1024
_INTERRUPTED_SECONDS = 0.9  # the interrupting process waits two seconds for both


@dataclass(slots=True)
class CommandResults:
    """The results of a command, from its JSON lines."""

    amounts: dict[str, Any] = field(default_factory=dict)
    error: dict[str, Any] = field(default_factory=dict)
    operations: list[str] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)

    def add(self, record: Mapping[str, Any]) -> None:
        """Add one line."""
        kind, identifier = record.get("kind"), record.get("id")
        if kind == "receipt" and isinstance(identifier, str):
            self.amounts = amounts_of(record)
            _add(self.operations, identifier)
        elif kind == "run" and isinstance(identifier, str):
            _add(self.runs, identifier)
        elif kind == "error":
            self.error = _error_fields(record)


def _error_fields(record: Mapping[str, Any]) -> dict[str, Any]:
    return {name: record.get(name) for name in ("code", "message", "about", "hint")}


def with_json(command: Sequence[str]) -> list[str]:
    """Return the command with `--json` and `--no-progress`, before a `--` that ends the options."""
    end = command.index("--") if "--" in command else len(command)
    options = [argument for argument in command[:end] if argument != "--json-array"]
    missing = [argument for argument in ("--json", "--no-progress") if argument not in options]
    return [*options, *missing, *command[end:]]


def run_transfer(
    argv: Sequence[str],
    environment: Mapping[str, str],
    folder: str,
    *,
    seconds: float | None,
    log: Log,
    leave: Sequence[int],
) -> tuple[int, CommandResults]:
    """Run the command for at most `seconds`; return its exit code, 5 after a timeout, and its results.

    Raises `NotFoundError` if it cannot be started, and ends it cleanly if this process is interrupted.
    """
    results = CommandResults()

    def read_line(line: bytes) -> None:
        if len(line) > _LONGEST_LINE:
            return
        if any(kind in line.replace(b'": ', b'":') for kind in _LOGGED):
            log.raw(line)
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            return
        if isinstance(record, dict):
            results.add(record)

    process = subprocesses.BackgroundProcess(
        argv, environment=environment, folder=folder, stderr_file=log.stream, on_line=read_line, leave=leave
    )
    began = time.monotonic()
    try:
        code = process.wait(seconds)
    except BaseException:
        process.end(_INTERRUPTED_SECONDS)
        raise
    if code is None:
        process.end()
        passed = time.monotonic() - began
        message = f"stopped after {passed:.0f} s, because its time limit was reached"
        results.error = {
            "code": "max-time",
            "message": message,
            "about": "",
            "hint": "The next run resumes it.",
        }
        return int(Exit.TRY_LATER), results
    if code < 0:
        results.error = results.error or {
            "code": "killed",
            "message": f"killed by signal {-code}",
            "about": "",
            "hint": "",
        }
        return 128 - code, results
    return code, results


def _add(known: list[str], identifier: str) -> None:
    if identifier not in known:
        known.append(identifier)


_LOCK_ATTEMPTS, _LOCK_PAUSE_SECONDS = 5, 0.1


def trigger_due(config: str | None, schedule: Schedule, *, only_missed: bool = False) -> Trigger | None:
    """Run the schedule if it is due, or was missed and is to be made up; None if there is nothing to do.

    A skipped run is returned, too.
    """
    if schedule.paused:
        return None
    decision = _decision(schedule, only_missed=only_missed)
    if decision.action == "nothing":
        return None
    identifier = new_identifier()
    due = _written(decision.due)
    if decision.action == "missed":
        message = f"it was due at {due}, but nothing started it"
        note_skipped(schedule.name, identifier, due=due, because="missed", message=message, by=schedule.by)
        return one_trigger(read_triggers(schedule.name), identifier)
    try:
        with schedule_lock(schedule.name) as lock:
            if _decision(schedule, only_missed=only_missed).action != "run":
                return None  # another process ran it meanwhile
            return _run_schedule(config, schedule, identifier, lock, decision)
    except TryLaterError as problem:
        if problem.code != "locked":
            raise
        note_skipped(
            schedule.name, identifier, due=due, because="still-going", message=problem.message, by=schedule.by
        )
        return one_trigger(read_triggers(schedule.name), identifier)


def trigger_now(config: str | None, schedule: Schedule) -> Trigger:
    """Run the schedule now. Raises `TryLaterError("locked")` if it is running."""
    with schedule_lock(schedule.name) as lock:
        return _run_schedule(config, schedule, new_identifier(), lock, None)


@contextlib.contextmanager
def schedule_lock(name: str) -> Iterator[int]:
    """Lock the schedule, and return the lock's descriptor; raises `TryLaterError("locked")` that names its holder.

    The command inherits the descriptor, so that no second command starts while it still runs, even if this process was killed.
    """
    path = schedule_folder(name) / "lock"
    descriptor = open_regular(path, os.O_RDWR | os.O_CREAT)
    try:
        if not _acquire(descriptor):
            holder = holder_of(name) or "another process"
            raise TryLaterError(
                "locked",
                f"it is still running: {holder}",
                subject=name,
                hint=f"To see what it did: hibali schedule log {name}",
            )
        os.ftruncate(descriptor, 0)
        since = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
        os.write(
            descriptor,
            f"process {os.getpid()} on {socket.gethostname()} since {since}\n".encode("ascii", "replace"),
        )
        yield descriptor
    finally:
        os.close(descriptor)


def _acquire(descriptor: int) -> bool:
    """Lock the descriptor; return whether that succeeded. A process that only checks it (`holder_of`) holds it for a moment, too."""
    for _ in range(_LOCK_ATTEMPTS):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pause(_LOCK_PAUSE_SECONDS)
        else:
            return True
    return False


def _decision(schedule: Schedule, *, only_missed: bool) -> Decision:
    known = [datetime.fromisoformat(each.due) for each in read_triggers(schedule.name) if each.due]
    return decide(
        schedule.cron,
        datetime.now(UTC),
        local_zone(),
        handled=max([schedule.since, *known]),
        make_up=schedule.missed == "once",
        only_missed=only_missed,
    )


def _run_schedule(
    config: str | None, schedule: Schedule, identifier: str, lock: int, decision: Decision | None
) -> Trigger:
    log = Log(schedule.name)
    try:
        if decision is not None and schedule.jitter:
            seconds = jitter_of(schedule.jitter, schedule.name, socket.gethostname(), str(decision.due))
            log.write_line(f"waiting {seconds:.0f} s (jitter of at most {schedule.jitter:.0f} s)")
            pause(seconds)
        note_begun(
            schedule.name,
            identifier,
            due=_written(decision.due) if decision else None,
            by=schedule.by if decision else "hand",
            made_up=decision.made_up if decision else False,
        )
        log.write_line(f"{identifier}: {shlex.join(['hibali', *schedule.command])}")
        began = time.monotonic()
        ended = _RunResult()
        try:
            _run_with_retries(config, schedule, identifier, lock, log, ended)
        except KeyboardInterrupt as interruption:
            ended.interrupted(interruption)
            raise
        finally:
            fields = ended.fields(identifier)
            note_ended(schedule.name, identifier, seconds=round(time.monotonic() - began, 3), **fields)
            log.write_line(
                f"{identifier}: exited with {fields['exit']} after {time.monotonic() - began:.0f} s"
            )
    finally:
        log.close()
    return one_trigger(read_triggers(schedule.name), identifier)


class _RunResult:
    """The end of a run of the schedule."""

    def __init__(self) -> None:
        self.exit = int(Exit.BUG)
        self.attempts = 0
        self.results = CommandResults()
        self._operations: list[str] = []
        self._runs: list[str] = []

    def attempt(self, code: int, results: CommandResults) -> None:
        self.exit, self.results = code, results
        self._operations += results.operations
        self._runs += [each for each in results.runs if each not in self._runs]

    def failed(self, problem: HibaliError) -> None:
        self.exit = int(problem.exit)
        self.results.error = _error_fields(problem.to_record())

    def interrupted(self, interruption: KeyboardInterrupt) -> None:
        self.exit = int(exit_of(interruption))
        self.results.error = {"code": "interrupted", "message": "interrupted", "about": "", "hint": ""}

    def fields(self, identifier: str) -> dict[str, Any]:
        operations = [*self._operations, *_operations_of(identifier, self._operations)]
        error = self.results.error if self.exit else {}
        return {
            "exit": self.exit,
            "attempts": self.attempts,
            "operations": operations,
            "runs": self._runs,
            "amounts": self.results.amounts,
            **error,
        }


def _run_with_retries(
    config: str | None, schedule: Schedule, identifier: str, lock: int, log: Log, ended: _RunResult
) -> None:
    """Run the command, and retry after exit code 5 within the retry window."""
    began = time.monotonic()
    environment = {
        **bare_environment(config, schedule.environment),
        "HIBALI_SCHEDULE": f"{schedule.name}/{identifier}",
    }
    argv = [*hibali_argv(), *with_json(schedule.command)]
    while True:
        ended.attempts += 1
        elapsed = time.monotonic() - began
        left = max(schedule.max_time - elapsed, 0.001) if schedule.max_time else None
        try:
            code, results = run_transfer(
                argv, environment, schedule.folder, seconds=left, log=log, leave=(lock,)
            )
        except HibaliError as problem:
            ended.failed(problem)
            return
        ended.attempt(code, results)
        elapsed = time.monotonic() - began
        wait = pause_before_retry(ended.attempts, elapsed, schedule.retry_for) if schedule.retry_for else None
        out_of_time = schedule.max_time and elapsed + (wait or 0.0) >= schedule.max_time
        if code != Exit.TRY_LATER or wait is None or out_of_time:
            return
        log.write_line(f"{identifier}: attempt {ended.attempts} exited with 5; retrying in {wait:.0f} s")
        pause(wait)


def _operations_of(trigger_id: str, known: list[str]) -> list[str]:
    """Return the ledger's operations of this run: a killed command could not report their ids."""
    stamp = trigger_id[:15]  # ids begin with the second in which they were made
    found = []
    folder = ledger_folder("operations")
    for name in sorted(name for name in journal_names(folder) if name[:15] >= stamp):
        if name not in known:
            first = next(read_records(folder / f"{name}.jsonl"), {})
            if first.get("firing") == trigger_id:
                found.append(name)
    return found


def _written(moment: datetime | None) -> str | None:
    return None if moment is None else f"{moment.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
