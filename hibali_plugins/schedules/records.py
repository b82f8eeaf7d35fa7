"""Record each run of a schedule in `schedules/NAME/firings.jsonl`, and keep its log small."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, BinaryIO, Literal

from hibali.documents import line_of_json
from hibali.errors import NotFoundError, RefusedError
from hibali.files import open_regular, state_folder, write_atomic
from hibali.ledger import Journal, ledger_folder, now, read_records
from hibali.system_errors import reason_of

State = Literal["running", "done", "failed", "broken", "skipped"]
SUCCESS_CODES = frozenset({0, 10})  # 10 means that there are changes
_RETENTION = timedelta(days=400)  # a year and the months around it
_LARGE = 4 * 1024 * 1024  # bytes; smaller files are not checked for old records
_AMOUNTS = (
    "files",
    "bytes",
    "files_moved",
    "bytes_moved",
    "bytes_sent",
    "files_kept",
    "files_deleted",
    "files_failed",
    "proof_moved",
    "proof_tree",
)


@dataclass(frozen=True, slots=True)
class Trigger:
    """One recorded run of a schedule; times are UTC in RFC 3339, None if unknown.

    `state` is running; done (exit 0, or 10) or failed; broken if its process died; skipped if it was not started, and `because` is then
    `still-going`, `missed` or `paused`. `operations` and `runs` are ids of the ledger. The counts are those of the last receipt.
    """

    id: str
    schedule: str
    began: str
    due: str | None = None
    ended: str | None = None
    state: State = "running"
    exit: int | None = None
    code: str | None = None
    message: str | None = None
    about: str | None = None
    hint: str | None = None
    because: str | None = None
    by: str = "cron"  # cron, systemd, print or hand
    made_up: bool = False
    attempts: int = 0
    seconds: float | None = None
    operations: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()
    amounts: Mapping[str, int | str | None] = field(default_factory=dict)

    def amount(self, name: str) -> int:
        """Return a count of the receipt; 0 if there is none."""
        found = self.amounts.get(name)
        return found if isinstance(found, int) else 0

    @property
    def proof(self) -> str | None:
        """The weakest verification of the moved files, else of all compared files; None if nothing was verified."""
        found = self.amounts.get("proof_moved") or self.amounts.get("proof_tree")
        return found if isinstance(found, str) else None

    def to_record(self) -> dict[str, Any]:
        """Return the fields of a JSON line of kind `firing`, including the counts."""
        fields = asdict(self)
        amounts = fields.pop("amounts")
        return {
            **fields,
            "operations": list(self.operations),
            "runs": list(self.runs),
            **{name: amounts.get(name) for name in _AMOUNTS},
        }


def amounts_of(receipt: Mapping[str, Any]) -> dict[str, int | str | None]:
    """Return the counts of a receipt that are recorded."""
    return {name: receipt[name] for name in _AMOUNTS if name in receipt}


def read_triggers(schedule: str) -> list[Trigger]:
    """Return all recorded runs of a schedule, oldest first."""
    path = _folder(schedule) / "firings.jsonl"
    triggers = fold_triggers(read_records(path), schedule)
    unfinished = [number for number, trigger in enumerate(triggers) if trigger.state == "running"]
    if unfinished:
        last = None if holder_of(schedule) is None else unfinished[-1]
        for number in unfinished:
            if number != last:
                triggers[number] = replace(triggers[number], state="broken")
    return triggers


def records_version(schedule: str) -> tuple[int, int]:
    """Return the size and modification time of the records of a schedule, by which a change is noticed."""
    try:
        found = (_folder(schedule) / "firings.jsonl").stat()
    except FileNotFoundError:
        return 0, 0
    return found.st_size, found.st_mtime_ns


def triggered_schedules() -> list[str]:
    """Return the names of all schedules with records, sorted, including removed ones."""
    folder = state_folder() / "schedules"
    return sorted(path.parent.name for path in folder.glob("*/firings.jsonl"))


def fold_triggers(records: Iterable[Mapping[str, Any]], schedule: str) -> list[Trigger]:
    """Build the runs of a schedule from their records, in the order in which they began. Unknown records are skipped."""
    found: dict[str, Trigger] = {}
    for record in records:
        identifier, kind = record.get("id"), record.get("kind")
        if not isinstance(identifier, str):
            continue
        if kind in {"begun", "skipped"}:
            found[identifier] = Trigger(
                id=identifier,
                schedule=schedule,
                began=str(record.get("at", "")),
                due=record.get("due"),
                state="running" if kind == "begun" else "skipped",
                because=record.get("because"),
                message=record.get("message"),
                by=str(record.get("by", "cron")),
                made_up=bool(record.get("made_up")),
            )
        elif kind == "ended" and identifier in found:
            found[identifier] = _ended(found[identifier], record)
    return list(found.values())


def _ended(trigger: Trigger, record: Mapping[str, Any]) -> Trigger:
    amounts = record.get("amounts")
    return replace(
        trigger,
        ended=record.get("at"),
        state="done" if record.get("exit") in SUCCESS_CODES else "failed",
        exit=record.get("exit"),
        code=record.get("code"),
        message=record.get("message"),
        about=record.get("about"),
        hint=record.get("hint"),
        attempts=int(record.get("attempts", 1)),
        seconds=record.get("seconds"),
        operations=tuple(record.get("operations", ())),
        runs=tuple(record.get("runs", ())),
        amounts=amounts if isinstance(amounts, dict) else {},
    )


def note_begun(schedule: str, identifier: str, **fields: Any) -> None:
    """Record the start of a run, durably: `due`, `by`, `made_up`. Raises `RefusedError` if the ledger cannot be written."""
    _remove_old_records(schedule_folder(schedule) / "firings.jsonl")
    _note(schedule, "begun", identifier, fields)


def note_ended(schedule: str, identifier: str, **fields: Any) -> None:
    """Record its end: `exit`, `seconds`, `attempts`, `operations`, `runs`, `amounts`, and of an error `code`, `message`, `about`, `hint`."""
    _note(schedule, "ended", identifier, fields)


def note_skipped(schedule: str, identifier: str, **fields: Any) -> None:
    """Record that a due run was not started: `due`, `because`, `message`, `by`."""
    _note(schedule, "skipped", identifier, fields)


def schedule_folder(schedule: str) -> Path:
    """Return the folder of a schedule's records, which is created if needed."""
    return ledger_folder("schedules", schedule)


def holder_of(schedule: str) -> str | None:
    """Describe the process that runs the schedule now; None if there is none."""
    try:
        descriptor = open_regular(_folder(schedule) / "lock")
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return os.read(descriptor, 200).decode("ascii", "replace").strip() or "another process"
    else:
        return None
    finally:
        os.close(descriptor)


def one_trigger(triggers: Iterable[Trigger], identifier: str) -> Trigger:
    """Return the run of a schedule with that id; raises `NotFoundError`."""
    for trigger in triggers:
        if trigger.id == identifier:
            return trigger
    raise NotFoundError("no-such-firing", "there is no run of the schedule with this id", subject=identifier)


def _note(schedule: str, kind: str, identifier: str, fields: Mapping[str, Any]) -> None:
    with Journal(schedule_folder(schedule) / "firings.jsonl") as journal:
        journal.append({"schema": 1, "kind": kind, "id": identifier, "at": now(), **fields}, durable=True)


def _folder(schedule: str) -> Path:
    return state_folder() / "schedules" / schedule


def _remove_old_records(path: Path) -> None:
    """Remove records that are years old before a run begins; the caller has the schedule's lock."""
    if not path.exists() or path.stat().st_size < _LARGE:
        return
    oldest = f"{datetime.now(UTC) - _RETENTION:%Y-%m-%dT%H:%M:%S}"
    write_atomic(path, b"".join(_recent(read_records(path), oldest)))


def _recent(records: Iterable[Mapping[str, Any]], oldest: str) -> Iterator[bytes]:
    for record in records:
        if str(record.get("at", "")) >= oldest:
            yield line_of_json(dict(record)).encode("ascii") + b"\n"


_LARGE_LOG = 1024 * 1024
_OLD_LOGS = 3


def log_path(schedule: str) -> Path:
    """Return the present log file; older ones are in the same folder, `log.txt.1` the youngest."""
    return schedule_folder(schedule) / "log.txt"


class Log:
    """The log of a schedule, open for one run; the caller has the schedule's lock."""

    def __init__(self, schedule: str) -> None:
        """Rotate and open the log; raises `RefusedError` if it cannot be written."""
        path = log_path(schedule)
        try:
            if path.exists() and path.stat().st_size > _LARGE_LOG:
                for number in range(_OLD_LOGS, 0, -1):
                    older = path.with_name(f"{path.name}.{number}")
                    younger = path.with_name(f"{path.name}.{number - 1}") if number > 1 else path
                    if younger.exists():
                        younger.replace(older)
            descriptor = open_regular(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            self.stream: BinaryIO = os.fdopen(descriptor, "ab", buffering=0)
        except OSError as problem:
            raise RefusedError(
                "ledger-unwritable", f"the log cannot be written: {reason_of(problem)}", subject=str(path)
            ) from None

    def write_line(self, text: str) -> None:
        """Write a line with the time; a full disk is ignored."""
        line = f"{datetime.now().astimezone():%Y-%m-%dT%H:%M:%S%z} {text}\n"
        self.raw(line.encode("utf-8", "backslashreplace"))

    def raw(self, line: bytes) -> None:
        """Write a complete line."""
        try:
            self.stream.write(line)
        except OSError:
            return

    def close(self) -> None:
        """Close the log."""
        self.stream.close()


def start_log_path(schedule: str | None) -> str:
    """Return the file for output before a run of the schedule has a log, mainly if hibali cannot be started."""
    return str((schedule_folder(schedule) if schedule else ledger_folder("schedules")) / "start.log")


def truncate_start_log(schedule: str | None) -> None:
    """Truncate the output of failed starts, because hibali did start now."""
    path = Path(start_log_path(schedule))
    try:
        if path.stat().st_size > _LARGE_LOG:
            os.truncate(path, 0)
    except OSError:
        return
