"""Reading a saved plan: whole, checked line by line, before anything is opened; one that was cut or edited is refused."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from hibali.errors import HibaliError, NotFoundError, RefusedError
from hibali.strict_json import read_json
from hibali.system_errors import unreadable
from transfers.plan import Verb
from transfers.plan_fields import WrongLineError, action_of, name, number, only, rules_of, text, truth
from transfers.plan_file import Header, Place, signed_content, totals
from transfers.store import Problem
from transfers.survey import Survey

LINE_BYTES = 320 * 1024  # two names of 4 KiB, and the attributes of both sides
_FAILURES = 1_000_000

_HEADER = {
    "schema",
    "kind",
    "version",
    "at",
    "source",
    "source_base64",
    "source_place",
    "source_place_base64",
    "target",
    "target_base64",
    "target_place",
    "target_place_base64",
    "single",
    "rules",
}
_FAILED = {"schema", "kind", "path", "path_base64", "code", "message"}

Record = dict[str, Any]


@dataclass(slots=True)
class SavedPlan:
    """A plan that was read whole: `planned` has its actions in canonical order and its counts; close it.

    `owner` and `mode` are the file's; `signature` is to be one of `signed` (transfers.plan_trust).
    """

    header: Header
    planned: Survey
    owner: int = -1
    mode: int = 0
    signed: bytes = b""
    signature: str = ""


def read_plan(path: Path) -> SavedPlan:
    """Read and check all of it. Raises `NotFoundError`, and `RefusedError("plan-damaged")` for anything it should not be."""
    try:
        stream = path.open("rb")
    except (FileNotFoundError, NotADirectoryError):
        raise NotFoundError("no-such-file", "there is no such plan", about=str(path)) from None
    except OSError as problem:
        raise unreadable(problem, str(path)) from None
    with stream:
        reading = _Reading(stream, str(path))
        try:
            return reading.read()
        except BaseException as problem:
            reading.planned.close()
            if isinstance(problem, (WrongLineError, HibaliError, OSError)):
                words = problem.message if isinstance(problem, HibaliError) else str(problem)
                raise _damaged(f"line {reading.line}: {words}", str(path)) from None
            raise


class _Reading:
    """One file being read; `line` is where it is."""

    def __init__(self, stream: IO[bytes], about: str) -> None:
        self._stream = stream
        self._about = about
        self._summed = hashlib.sha256()
        self._before = b""
        self._deleting = False
        self._deletes = False
        self._signed, self._signature = b"", ""
        self.line = 0
        self.planned = Survey()

    def read(self) -> SavedPlan:
        records = self._records()
        first = next(records)
        if first.get("kind") != "plan":
            raise WrongLineError("this is not a plan of hibali")
        header = _header(first)
        self._deletes = header.rules.delete
        for record in records:
            if record["kind"] == "failed":
                self._failed(record)
            elif record["kind"] == "action":
                self._action(record)
            else:
                raise WrongLineError("this kind of line has no place in a plan")
        file = os.fstat(self._stream.fileno())
        return SavedPlan(header, self.planned, file.st_uid, file.st_mode, self._signed, self._signature)

    def _records(self) -> Iterator[Record]:
        """All but the last; the last is held against what came before it."""
        while True:
            digest = self._summed.hexdigest()
            line = self._stream.readline(LINE_BYTES + 1)
            self.line += 1
            if not line.endswith(b"\n"):
                raise WrongLineError(
                    "it is too long" if len(line) > LINE_BYTES else "the plan was cut off here"
                )
            if not line.isascii():
                raise WrongLineError("it is not ASCII")
            self._summed.update(line)
            record = read_json(line, self._about)
            if not isinstance(record, dict) or record.get("schema") != 1 or type(record["schema"]) is not int:
                raise WrongLineError("it is not a line of schema 1")
            if record.get("kind") == "plan-end":
                self._end(record, digest)
                return
            if not isinstance(record.get("kind"), str):
                raise WrongLineError("it has no kind")
            yield record

    def _failed(self, record: Record) -> None:
        found = self.planned
        if found.changes or len(found.unlisted) >= _FAILURES:
            raise WrongLineError("what cannot be done stands before the actions")
        only(record, _FAILED)
        found.unlisted.append((name(record), Problem(text(record, "code"), text(record, "message"))))

    def _action(self, record: Record) -> None:
        action = action_of(record)
        deletes = action.verb is Verb.DELETE
        if (deletes or action.verb is Verb.RETYPE) and not self._deletes:
            raise WrongLineError("it deletes, and the rules do not say so")
        if deletes != self._deleting:
            if self._deleting:
                raise WrongLineError("deletions come last")
            self._deleting, self._before = True, b""
        if action.entry.order <= self._before:
            raise WrongLineError("it is out of order, or the name comes twice")
        self._before = action.entry.order
        self.planned.count(action)

    def _end(self, record: Record, digest: str) -> None:
        found = self.planned
        counted = totals(found)
        only(record, {"schema", "kind", "count", "sha256", "signature", *counted})
        self._signed = signed_content(record)
        self._signature = text(record, "signature") if "signature" in record else ""
        if number(record, "count") != self.line - 1 or record.get("sha256") != digest:
            raise WrongLineError("what stands above is not what was written: its sha256 differs")
        for key in ("files_to_move", "bytes_to_move", "files_to_delete"):
            if number(record, key) != counted[key]:
                raise WrongLineError(f"{key} is not what its lines add up to")
        if self._stream.read(1):
            raise WrongLineError("something follows the end of the plan")
        found.files, found.bytes = number(record, "files"), number(record, "bytes")
        found.files_kept, found.target_files = number(record, "files_kept"), number(record, "target_files")


def _header(record: Record) -> Header:
    only(record, _HEADER)
    text(record, "version")
    return Header(
        Place(name(record, "source"), name(record, "source_place")),
        Place(name(record, "target"), name(record, "target_place")),
        rules_of(record.get("rules")),
        text(record, "at"),
        single=truth(record, "single"),
    )


def _damaged(message: str, about: str) -> RefusedError:
    return RefusedError(
        "plan-damaged",
        f"this plan is not as it was written: {message}",
        about=about,
        hint="Nothing was changed. Make it again: hibali plan FROM TO -o FILE",
    )
