"""Read an untrusted plan file: check every field (S1, S14), its signature and owner."""

from __future__ import annotations

import base64
import hashlib
import os
import pwd
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from hibali.documents import read_json
from hibali.errors import HibaliError, NotFoundError, RefusedError
from hibali.locations import Location
from hibali.signing import is_signed
from hibali.system_errors import unreadable
from hibali.text import counted, path_fields
from transfers.actions import Action, Verb
from transfers.entry import MOST_NS, Entry, Kind, Verification
from transfers.plan_file import SIGNED_AS, Header, PlanEndpoint, signed_content, totals
from transfers.planner import TransferPlan
from transfers.rules import DeleteLimit, Rules, read_delete_limit
from transfers.stores.base import Problem, is_own_name, is_partial_name, unsafe_component

_MOST = 2**63 - 1
_TEXT = 1000
_MODE = re.compile(r"[0-7]{1,7}")
_NAMES = 10_000  # the limit of patterns for one option
_CHANGING = (Verb.COPY, Verb.REPLACE, Verb.RELINK, Verb.RETYPE, Verb.ADJUST, Verb.LINK, Verb.DELETE)

_RULES = {
    "include",
    "exclude",
    "files_from",
    "newer_ns",
    "min_size",
    "max_size",
    "checksum",
    "delete",
    "max_delete",
    "allow_empty_source",
    "links",
    "modes",
    "xattrs",
    "hard_links",
    "recall",
    "specials",
    "require_proof",
}
_FACTS = {
    "type",
    "size",
    "path",
    "path_base64",
    "mtime_ns",
    "ctime_ns",
    "inode",
    "mode",
    "link",
    "link_base64",
    "etag",
    "attributes_base64",
}
_ACTION = {
    "schema",
    "kind",
    "action",
    "path",
    "path_base64",
    "type",
    "size",
    "because",
    "implied",
    "same_as",
    "same_as_base64",
    "source",
    "target",
}


class WrongLineError(ValueError):
    """An error for a line that hibali does not write; the message says why."""


def only(record: Mapping[str, Any], known: set[str]) -> None:
    """Raise if there are unknown keys."""
    extra = sorted(record.keys() - known)
    if extra:
        raise WrongLineError(f"the key {extra[0][:_TEXT]!r} is unknown")


def number(record: Mapping[str, Any], key: str, least: int = 0) -> int:
    """Return an integer from `least` to the maximum of 64 bits."""
    value = record.get(key)
    if type(value) is not int or not least <= value <= _MOST:
        raise WrongLineError(f"{key} is not an integer in the allowed range")
    return value


def _time(record: Mapping[str, Any], key: str) -> int:
    """Return a time in nanoseconds, 0 if missing; times far from 1970 need more than 64 bits."""
    value = record.get(key, 0)
    if type(value) is not int or not -MOST_NS < value < MOST_NS:
        raise WrongLineError(f"{key} is not an integer in the allowed range")
    return value


def truth(record: Mapping[str, Any], key: str) -> bool:
    """Return a boolean."""
    value = record.get(key)
    if not isinstance(value, bool):
        raise WrongLineError(f"{key} is not a boolean")
    return value


def _later(record: Mapping[str, Any], key: str) -> bool:
    """Return a boolean that plans of earlier versions do not have."""
    return key in record and truth(record, key)


def text(record: Mapping[str, Any], key: str) -> str:
    """Return a short string."""
    value = record.get(key)
    if not isinstance(value, str) or len(value) > _TEXT:
        raise WrongLineError(f"{key} is not a string of at most {_TEXT} characters")
    return value


def name(record: Mapping[str, Any], key: str = "path") -> bytes:
    """Return a name in bytes; raise if both of its forms differ, so that the readable form can be trusted."""
    shown, exact = record.get(key), record.get(f"{key}_base64")
    if not isinstance(shown, str):
        raise WrongLineError(f"{key} is not a string")
    try:
        found = shown.encode("utf-8") if exact is None else base64.b64decode(str(exact), validate=True)
    except ValueError:
        raise WrongLineError(f"{key}_base64 is not valid base64") from None
    if path_fields(found, key) != {word: record[word] for word in (key, f"{key}_base64") if word in record}:
        raise WrongLineError(f"{key} and {key}_base64 are different names")
    return found


def safe_name(record: Mapping[str, Any], key: str = "path") -> bytes:
    """Return a path below the root, without `..` and without names that hibali reserves."""
    found = name(record, key)
    reason = unsafe_component(found)
    if reason:
        raise WrongLineError(f"{key} is not a name below the root: {reason}")
    if is_partial_name(found) or is_own_name(found):
        raise WrongLineError(f"{key} is a name that hibali reserves")
    return found


def rules_of(record: Any) -> Rules:
    """Return the rules that matter when a plan is applied; the selection was already made."""
    if not isinstance(record, dict):
        raise WrongLineError("rules are missing")
    only(record, _RULES)
    for key in ("include", "exclude"):
        patterns = record.get(key)
        if not isinstance(patterns, list) or len(patterns) > _NAMES:
            raise WrongLineError(f"{key} is not a list")
        if not all(isinstance(pattern, str) for pattern in patterns):
            raise WrongLineError(f"{key} contains a value that is not a string")
    for key in ("files_from", "min_size", "max_size"):
        if record.get(key) is not None:
            number(record, key)
    if record.get("newer_ns") is not None:
        number(record, "newer_ns", -_MOST)
    limit, verification = record.get("max_delete"), record.get("require_proof")
    for key, words in (("links", ["keep", "skip"]), ("specials", ["fail", "skip"])):
        if record.get(key) not in words:
            raise WrongLineError(f"{key} has an unknown value")
    modes = record.get("modes", "execute")  # plans of earlier versions do not have this key
    if modes not in ("execute", "keep"):
        raise WrongLineError("modes has an unknown value")
    if verification is not None and verification not in list(Verification):
        raise WrongLineError("require_proof has an unknown value")
    return Rules(
        checksum=truth(record, "checksum"),
        delete=truth(record, "delete"),
        delete_limit=DeleteLimit() if limit is None else read_delete_limit(text(record, "max_delete")),
        allow_empty_source=truth(record, "allow_empty_source"),
        modes=modes,
        xattrs=_later(record, "xattrs"),
        hard_links=_later(record, "hard_links"),
        recall=_later(record, "recall"),
        require_proof=None if verification is None else Verification(verification),
    )


def action_of(record: Mapping[str, Any]) -> Action:
    """Return a valid action."""
    only(record, _ACTION)
    path = safe_name(record)
    word = record.get("action")
    if word not in _CHANGING:
        raise WrongLineError("the action is unknown or changes nothing")
    verb = Verb(str(word))
    implied = truth(record, "implied") if "implied" in record else False
    source = _entry(record["source"], path) if "source" in record else None
    target = _entry(record["target"], path) if "target" in record else None
    entry = target if verb is Verb.DELETE else source
    if entry is None or (verb is Verb.DELETE and source is not None) or entry.path != path:
        raise WrongLineError("source and target do not match the action")
    if "same_as" in record:
        entry = entry._replace(same_as=safe_name(record, "same_as"))
    if (str(entry.kind), entry.size) != (record.get("type"), number(record, "size")):
        raise WrongLineError("type and size do not match the entry")
    action = Action(
        verb, entry, text(record, "because"), None if verb is Verb.DELETE else target, implied=implied
    )
    if not _makes_sense(action):
        raise WrongLineError(f"source and target do not match the action {verb}")
    return action


def _makes_sense(action: Action) -> bool:
    verb, entry, target = action.verb, action.entry, action.target
    if verb is Verb.LINK or entry.same_as:
        return _is_another_name(action)
    if verb is Verb.DELETE:
        return True
    if action.implied or entry.kind is Kind.SPECIAL:
        return False
    if verb is Verb.COPY:
        return target is None
    if target is None:
        return False
    if verb is Verb.RETYPE:
        # In a bucket a folder exists only as a prefix: one of the keys below it represents it.
        below = target.path.startswith(entry.path + b"/")
        return below or (
            target.path == entry.path and (entry.kind is Kind.FOLDER) != (target.kind is Kind.FOLDER)
        )
    if verb is Verb.ADJUST:
        return target.path == entry.path and entry.kind is target.kind and entry.kind is not Kind.LINK
    if target.path != entry.path or Kind.FOLDER in {entry.kind, target.kind}:
        return False
    return verb is Verb.REPLACE or entry.kind is target.kind is Kind.LINK


def _is_another_name(action: Action) -> bool:
    entry, target = action.entry, action.target
    if entry.kind is not Kind.FILE or entry.same_as in {b"", entry.path} or action.implied:
        return False
    if action.verb is Verb.RETYPE:
        return target is not None and target.kind is Kind.FOLDER and target.path == entry.path
    other = target is None or (target.path == entry.path and target.kind is not Kind.FOLDER)
    return action.verb is Verb.LINK and other


def _entry(record: Any, path: bytes) -> Entry:
    if not isinstance(record, dict):
        raise WrongLineError("source or target is not an object")
    only(record, _FACTS)
    word = record.get("type")
    if word not in list(Kind):
        raise WrongLineError("the type is unknown")
    mode = record.get("mode")
    if "mode" in record and not (isinstance(mode, str) and _MODE.fullmatch(mode)):
        raise WrongLineError("mode is not octal")
    return Entry(
        safe_name(record) if "path" in record else path,
        Kind(str(word)),
        size=number(record, "size"),
        mtime_ns=_time(record, "mtime_ns"),
        mode=-1 if mode is None else int(mode, 8),
        inode=_inode(record),
        ctime_ns=_time(record, "ctime_ns"),
        link=name(record, "link") if "link" in record else b"",
        etag=text(record, "etag") if "etag" in record else None,
        attributes=_attributes(record),
    )


def _attributes(record: Mapping[str, Any]) -> bytes:
    """Return the attributes, which are only compared with the listing, never set from here."""
    value = record.get("attributes_base64", "")
    try:
        return base64.b64decode(value, validate=True) if isinstance(value, str) else bytes.fromhex("?")
    except ValueError:
        raise WrongLineError("attributes_base64 is not valid base64") from None


def _inode(record: Mapping[str, Any]) -> int:
    value = record.get("inode", 0)
    if type(value) is not int or not 0 <= value < 2**64:
        raise WrongLineError("inode is not an integer in the allowed range")
    return value


LINE_BYTES = 320 * 1024  # enough for two names of 4 KiB and the attributes of both sides
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
    """A complete plan from a file: `planned` has its actions in canonical order and its counts; close it.

    `owner` and `mode` are the file's; `signature` should be that of `signed` (see `doubts_about`).
    """

    header: Header
    planned: TransferPlan
    owner: int = -1
    mode: int = 0
    signed: bytes = b""
    signature: str = ""


def read_plan(path: Path) -> SavedPlan:
    """Read a plan. Raises `NotFoundError`, and `RefusedError("plan-damaged")` for an invalid one."""
    try:
        stream = path.open("rb")
    except (FileNotFoundError, NotADirectoryError):
        raise NotFoundError("no-such-file", "the plan file does not exist", subject=str(path)) from None
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
    """A plan file being read; `line` is the current line number."""

    def __init__(self, stream: IO[bytes], subject: str) -> None:
        self._stream = stream
        self._subject = subject
        self._summed = hashlib.sha256()
        self._before = b""
        self._deleting = False
        self._deletes = False
        self._signed, self._signature = b"", ""
        self.line = 0
        self.planned = TransferPlan()

    def read(self) -> SavedPlan:
        records = self._records()
        first = next(records)
        if first.get("kind") != "plan":
            raise WrongLineError("it is not the header of a plan")
        header = _header(first)
        self._deletes = header.rules.delete
        for record in records:
            if record["kind"] == "failed":
                self._failed(record)
            elif record["kind"] == "action":
                self._action(record)
            else:
                raise WrongLineError("the kind of the line is unknown")
        file = os.fstat(self._stream.fileno())
        return SavedPlan(header, self.planned, file.st_uid, file.st_mode, self._signed, self._signature)

    def _records(self) -> Iterator[Record]:
        """Yield all lines but the last, which is checked against the others."""
        while True:
            digest = self._summed.hexdigest()
            line = self._stream.readline(LINE_BYTES + 1)
            self.line += 1
            if not line.endswith(b"\n"):
                raise WrongLineError("it is too long" if len(line) > LINE_BYTES else "the plan is truncated")
            if not line.isascii():
                raise WrongLineError("it is not ASCII")
            self._summed.update(line)
            record = read_json(line, self._subject)
            if not isinstance(record, dict) or record.get("schema") != 1 or type(record["schema"]) is not int:
                raise WrongLineError("it is not a line of schema 1")
            if record.get("kind") == "plan-end":
                self._end(record, digest)
                return
            if not isinstance(record.get("kind"), str):
                raise WrongLineError("the line has no kind")
            yield record

    def _failed(self, record: Record) -> None:
        found = self.planned
        if found.changes or len(found.unlisted) >= _FAILURES:
            raise WrongLineError("failures must come before the actions")
        only(record, _FAILED)
        found.unlisted.append((name(record), Problem(text(record, "code"), text(record, "message"))))

    def _action(self, record: Record) -> None:
        action = action_of(record)
        deletes = action.verb is Verb.DELETE
        if (deletes or action.verb is Verb.RETYPE) and not self._deletes:
            raise WrongLineError("the action deletes, but the rules do not allow deletions")
        if deletes != self._deleting:
            if self._deleting:
                raise WrongLineError("deletions must come last")
            self._deleting, self._before = True, b""
        if action.entry.order <= self._before:
            raise WrongLineError("the name is out of order or listed twice")
        self._before = action.entry.order
        self.planned.count(action)

    def _end(self, record: Record, digest: str) -> None:
        found = self.planned
        sums = totals(found)
        only(record, {"schema", "kind", "count", "sha256", "signature", *sums})
        self._signed = signed_content(record)
        self._signature = text(record, "signature") if "signature" in record else ""
        if number(record, "count") != self.line - 1 or record.get("sha256") != digest:
            raise WrongLineError("the lines above do not match their sha256")
        for key in ("files_to_move", "bytes_to_move", "files_to_delete"):
            if number(record, key) != sums[key]:
                raise WrongLineError(f"{key} is not the sum of the actions")
        if self._stream.read(1):
            raise WrongLineError("there is content after the end of the plan")
        found.files, found.bytes = number(record, "files"), number(record, "bytes")
        found.files_kept, found.target_files = number(record, "files_kept"), number(record, "target_files")


def _header(record: Record) -> Header:
    only(record, _HEADER)
    text(record, "version")
    return Header(
        PlanEndpoint(name(record, "source"), name(record, "source_place")),
        PlanEndpoint(name(record, "target"), name(record, "target_place")),
        rules_of(record.get("rules")),
        text(record, "at"),
        single=truth(record, "single"),
    )


def _damaged(message: str, subject: str) -> RefusedError:
    return RefusedError(
        "plan-damaged",
        f"the plan file was modified or is not a plan: {message}",
        subject=subject,
        hint="Nothing was changed. Make a new plan: hibali plan FROM TO -o FILE",
    )


def doubts_about(saved: SavedPlan) -> str:
    """Return why the plan may not be this user's; "" if it is signed here and private."""
    is_own = saved.owner == os.geteuid()
    found = []
    if not is_own:
        found.append(f"its owner is {_account(saved.owner)}")
    if saved.mode & 0o022:
        found.append("other accounts can write to it")
    if not is_signed(SIGNED_AS, saved.signed, saved.signature):
        found.append("it has no signature of this account")
    if found and is_own:
        found.insert(0, "you own the file")
    return ", ".join(found)


def check_trust(saved: SavedPlan, ends: Sequence[Location], named: Sequence[Location], path: Path) -> str:
    """Return the doubts about a plan whose endpoints the user named again; "" if there are none.

    Raises `RefusedError` if the named endpoints are not the plan's, or if there are doubts and none were
    named.
    """
    if named and any(_place(one) != _place(other) for one, other in zip(ends, named, strict=True)):
        raise RefusedError(
            "other-ends",
            f"this plan transfers from {ends[0].text} to {ends[1].text}, not from {named[0].text} to {named[1].text}",
            subject=str(path),
            hint="Name the source and target of the plan, or make another plan: hibali plan FROM TO -o FILE",
        )
    doubts = doubts_about(saved)
    if doubts and not named:
        planned = saved.planned
        raise RefusedError(
            "foreign-plan",
            f"this plan may not be yours: {doubts}. It transfers from {ends[0].text} to {ends[1].text}:"
            f" {counted(planned.files_to_move, 'file')} to move, {planned.files_to_delete} to delete",
            subject=str(path),
            hint="Check the plan. To apply it, repeat its source and target: hibali apply FILE FROM TO",
        )
    return doubts


def _place(location: Location) -> tuple[str, str, str | None]:
    return location.site.name, location.path, location.bucket


def _account(user: int) -> str:
    try:
        return f"{pwd.getpwuid(user).pw_name} (uid {user})"
    except KeyError:
        return f"uid {user}"
