"""Write a plan as a signed file that people and programs can review, and read it back.

A plan file is not trusted: every field is checked (S1, S14), its signature and its owner.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import pwd
import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO, Any

from hibali import __version__
from hibali.documents import line_of_json, missing_file, read_json
from hibali.errors import HibaliError, RefusedError, UsageError
from hibali.events import Failed
from hibali.locations import Location
from hibali.signing import is_signed, sign
from hibali.system_errors import reason_of, unreadable
from hibali.text import counted, path_fields
from transfers.model.entry import MOST_NS, Entry, Kind, Verification
from transfers.model.facts import is_own_name, is_partial_name, unsafe_component
from transfers.model.rules import DeleteLimit, Rules, read_delete_limit
from transfers.model.units import Problem
from transfers.planning.actions import Action, Verb
from transfers.planning.planner import TransferPlan, sorted_actions

SIGNED_AS = "plan"

Line = dict[str, Any]


@dataclass(frozen=True, slots=True)
class PlanEndpoint:
    """An endpoint: the location in absolute form, and the root as its store knew it."""

    text: bytes
    root_path: bytes


@dataclass(frozen=True, slots=True)
class Header:
    """The header of a plan; `single` if the source is one file."""

    source: PlanEndpoint
    target: PlanEndpoint
    rules: Rules
    at: str
    single: bool = False


def absolute_text(location: Location) -> bytes:
    """Return the location in a form that does not depend on the current folder."""
    text = location.text
    if location.typed_local:
        text = location.path if location.path == "/" or not location.slash else f"{location.path}/"
    return text.encode("utf-8", "surrogateescape")


def write_plan(path: Path, header: Header, found: TransferPlan) -> None:
    """Write the signed plan to `path`, atomically. Raises `UsageError` if it is not possible."""
    sign(SIGNED_AS, b"")  # fails before anything is written if no key can be created
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        if path.exists() and not path.is_file():
            raise UsageError("not-a-file", "a plan is written to a plain file", subject=str(path))
        with open(os.open(partial, flags, 0o600), "wb") as stream:  # noqa: PTH123  # needs these flags
            try:
                stream.writelines(plan_lines(header, found, lambda end: sign(SIGNED_AS, end)))
                stream.flush()
                os.fsync(stream.fileno())
                partial.replace(path)
            except BaseException:
                with contextlib.suppress(OSError):
                    partial.unlink()
                raise
    except OSError as problem:
        raise UsageError(
            "unwritable-file",
            f"the plan cannot be written: {reason_of(problem)}",
            subject=str(path),
            hint="Give -o another place. Nothing was changed.",
        ) from None


def plan_lines(
    header: Header, found: TransferPlan, signature: Callable[[bytes], str] | None = None
) -> Iterator[bytes]:
    """Yield the lines: the header, failures, moves, deletions, and the signed end.

    Actions are in canonical order, so that duplicates are found, and so that both sides can be listed again
    and compared in constant memory.
    """
    summed = hashlib.sha256()
    count = 0
    for record in _records(header, found):
        line = line_of_json(record).encode("ascii") + b"\n"
        summed.update(line)
        count += 1
        yield line
    end: Line = {
        "schema": 1,
        "kind": "plan-end",
        "count": count,
        **totals(found),
        "sha256": summed.hexdigest(),
    }
    if signature is not None:
        end["signature"] = signature(signed_content(end))
    yield line_of_json(end).encode("ascii") + b"\n"


def signed_content(end: Line) -> bytes:
    """Return the bytes to sign: the last line without its signature; its sha256 covers all other lines."""
    return line_of_json({name: end[name] for name in end if name != "signature"}).encode("ascii")


def totals(found: TransferPlan) -> dict[str, int]:
    """Return the counts that the last line repeats."""
    return {
        "files": found.files,
        "bytes": found.bytes,
        "files_to_move": found.files_to_move,
        "bytes_to_move": found.bytes_to_move,
        "files_kept": found.files_kept,
        "files_to_delete": found.files_to_delete,
        "target_files": found.target_files,
    }


def _records(header: Header, found: TransferPlan) -> Iterator[Line]:
    yield header_record(header)
    for failure in found.failures():
        yield failure_record(failure)
    modes = header.rules.modes == "keep"
    for actions in (chain(found.moves, found.adjustments), found.deletions):
        for action in sorted_actions(actions):
            yield action_record(action, modes=modes)


def header_record(header: Header) -> Line:
    """Return the first line."""
    return {
        "schema": 1,
        "kind": "plan",
        "version": __version__,
        "at": header.at,
        **path_fields(header.source.text, "source"),
        **path_fields(header.source.root_path, "source_place"),
        **path_fields(header.target.text, "target"),
        **path_fields(header.target.root_path, "target_place"),
        "single": header.single,
        "rules": rules_record(header.rules),
    }


def rules_record(rules: Rules) -> Line:
    """Return the rules as given, with only the number of listed names."""
    limit = rules.delete_limit
    percent = None if limit.percent is None else f"{limit.percent}%"
    names = rules.files_from
    return {
        "include": list(rules.include),
        "exclude": list(rules.exclude),
        "files_from": None if names is None else len(names),
        "newer_ns": rules.newer_ns,
        "min_size": rules.min_size,
        "max_size": rules.max_size,
        "checksum": rules.checksum,
        "delete": rules.delete,
        "max_delete": str(limit.number) if limit.number is not None else percent,
        "allow_empty_source": rules.allow_empty_source,
        "links": rules.links,
        "modes": rules.modes,
        "xattrs": rules.xattrs,
        "hard_links": rules.hard_links,
        "keep_empty_folders": rules.keep_empty_folders,
        "recall": rules.recall,
        "specials": rules.specials,
        "require_proof": rules.require_proof,
        **({"rename": list(rules.rename)} if rules.rename else {}),
    }


def failure_record(failure: Failed) -> Line:
    """Return the line of an entry that is not transferred."""
    return {
        "schema": 1,
        "kind": "failed",
        **path_fields(failure.path),
        "code": failure.code,
        "message": failure.message,
    }


def action_record(action: Action, *, modes: bool = False) -> Line:
    """Return the line of an action with both sides' facts; with `modes` also those of folders."""
    record: Line = {
        "schema": 1,
        "kind": "action",
        "action": str(action.verb),
        **path_fields(action.entry.path),
        "type": str(action.entry.kind),
        "size": action.entry.size,
        "because": action.because,
    }
    if action.entry.same_as:
        record |= path_fields(action.entry.same_as, "same_as")
    if action.entry.renamed_from:
        record |= path_fields(action.entry.renamed_from, "renamed_from")
    if action.implied:
        record["implied"] = True
    existing = action.entry if action.verb is Verb.DELETE else action.target
    if action.verb is not Verb.DELETE:
        record["source"] = _facts(action.entry, action.entry.path, modes=modes)
    if existing is not None:
        record["target"] = _facts(existing, action.entry.path, modes=modes)
    return record


def _facts(entry: Entry, path: bytes, *, modes: bool) -> Line:
    """Return the facts that show whether an entry changed; the path only if it differs from the action's."""
    facts: Line = {"type": str(entry.kind), "size": entry.size}
    if entry.path != path:
        facts |= path_fields(entry.path)
    if entry.kind is Kind.FOLDER:
        kept = {"mode": f"{entry.mode:04o}"} if modes and entry.mode >= 0 else {}
        return facts | kept | _attributes(entry)
    for name in ("mtime_ns", "ctime_ns", "inode"):
        value = getattr(entry, name)
        if value:
            facts[name] = value
    if entry.mode >= 0:
        facts["mode"] = f"{entry.mode:04o}"
    if entry.kind is Kind.LINK or entry.link:  # on disk, an annexed file is a symlink
        facts |= path_fields(entry.link, "link")
    if entry.etag is not None:
        facts["etag"] = entry.etag
    return facts | _attributes(entry)


def _attributes(entry: Entry) -> Line:
    """Return the attributes field, if there are any."""
    return (
        {"attributes_base64": base64.b64encode(entry.attributes).decode("ascii")} if entry.attributes else {}
    )


# ---- reading

_MOST = 2**63 - 1
_TEXT = 1000
_MODE = re.compile(r"[0-7]{1,7}")
_NAMES = 10_000  # the limit of patterns for one option
_CHANGING = (Verb.COPY, Verb.REPLACE, Verb.RELINK, Verb.RETYPE, Verb.ADJUST, Verb.LINK, Verb.DELETE)


def _keys(names: str, paths: str = "") -> set[str]:
    """Return the keys, with the readable and the exact form of each path."""
    return {*names.split(), *paths.split(), *(f"{path}_base64" for path in paths.split())}


_HEADER = _keys("schema kind version at single rules", "source source_place target target_place")
_FAILED = _keys("schema kind code message", "path")
_ACTION = _keys("schema kind action type size because implied source target", "path same_as renamed_from")
_FACTS = _keys("type size mtime_ns ctime_ns inode mode etag attributes_base64", "path link")


class WrongLineError(ValueError):
    """An error for a line that hibali does not write; the message says why."""


def _check_keys(record: Mapping[str, Any], known: set[str]) -> None:
    """Raise if there are unknown keys."""
    extra = sorted(record.keys() - known)
    if extra:
        raise WrongLineError(f"the key {extra[0][:_TEXT]!r} is unknown")


def _read_integer(record: Mapping[str, Any], key: str, least: int = 0) -> int:
    """Return an integer from `least` to the maximum of 64 bits."""
    value = record.get(key)
    if type(value) is not int or not least <= value <= _MOST:
        raise WrongLineError(f"{key} is not an integer in the allowed range")
    return value


def _read_time(record: Mapping[str, Any], key: str) -> int:
    """Return a time in nanoseconds, 0 if missing; times far from 1970 need more than 64 bits."""
    value = record.get(key, 0)
    if type(value) is not int or not -MOST_NS < value < MOST_NS:
        raise WrongLineError(f"{key} is not an integer in the allowed range")
    return value


def _read_boolean(record: Mapping[str, Any], key: str) -> bool:
    """Return a boolean."""
    value = record.get(key)
    if not isinstance(value, bool):
        raise WrongLineError(f"{key} is not a boolean")
    return value


def _read_optional_boolean(record: Mapping[str, Any], key: str) -> bool:
    """Return a boolean that plans of earlier versions do not have."""
    return key in record and _read_boolean(record, key)


def _read_string(record: Mapping[str, Any], key: str) -> str:
    """Return a short string."""
    value = record.get(key)
    if not isinstance(value, str) or len(value) > _TEXT:
        raise WrongLineError(f"{key} is not a string of at most {_TEXT} characters")
    return value


def _read_name(record: Mapping[str, Any], key: str = "path") -> bytes:
    """Return a name in bytes; raise if both of its forms differ, so that the readable form can be trusted."""
    shown, exact = record.get(key), record.get(f"{key}_base64")
    if not isinstance(shown, str):
        raise WrongLineError(f"{key} is not a string")
    try:
        found = shown.encode("utf-8") if exact is None else base64.b64decode(str(exact), validate=True)
    except ValueError:
        raise WrongLineError(f"{key}_base64 is not valid base64") from None
    if path_fields(found, key) != {form: record[form] for form in (key, f"{key}_base64") if form in record}:
        raise WrongLineError(f"{key} and {key}_base64 are different names")
    return found


def _read_safe_name(record: Mapping[str, Any], key: str = "path") -> bytes:
    """Return a path below the root, without `..` and without names that hibali reserves."""
    found = _read_name(record, key)
    reason = unsafe_component(found)
    if reason:
        raise WrongLineError(f"{key} is not a name below the root: {reason}")
    if is_partial_name(found) or is_own_name(found):
        raise WrongLineError(f"{key} is a name that hibali reserves")
    return found


def read_rules(record: Any) -> Rules:
    """Return the rules that matter when a plan is applied; the selection was already made."""
    if not isinstance(record, dict):
        raise WrongLineError("rules are missing")
    _check_keys(record, {*rules_record(Rules()), "rename"})
    for key in ("include", "exclude", "rename"):
        patterns = record.get(key, [] if key == "rename" else None)  # only some plans rename
        if not isinstance(patterns, list) or len(patterns) > _NAMES:
            raise WrongLineError(f"{key} is not a list")
        if not all(isinstance(pattern, str) for pattern in patterns):
            raise WrongLineError(f"{key} contains a value that is not a string")
    for key in ("files_from", "min_size", "max_size"):
        if record.get(key) is not None:
            _read_integer(record, key)
    if record.get("newer_ns") is not None:
        _read_integer(record, "newer_ns", -_MOST)
    limit, verification = record.get("max_delete"), record.get("require_proof")
    for key, values in (("links", ["keep", "skip"]), ("specials", ["fail", "skip"])):
        if record.get(key) not in values:
            raise WrongLineError(f"{key} has an unknown value")
    modes = record.get("modes", "execute")  # plans of earlier versions do not have this key
    if modes not in ("execute", "keep"):
        raise WrongLineError("modes has an unknown value")
    if verification is not None and verification not in list(Verification):
        raise WrongLineError("require_proof has an unknown value")
    return Rules(
        checksum=_read_boolean(record, "checksum"),
        delete=_read_boolean(record, "delete"),
        delete_limit=DeleteLimit()
        if limit is None
        else read_delete_limit(_read_string(record, "max_delete")),
        allow_empty_source=_read_boolean(record, "allow_empty_source"),
        modes=modes,
        xattrs=_read_optional_boolean(record, "xattrs"),
        hard_links=_read_optional_boolean(record, "hard_links"),
        keep_empty_folders=_read_optional_boolean(record, "keep_empty_folders"),
        recall=_read_optional_boolean(record, "recall"),
        require_proof=None if verification is None else Verification(verification),
        rename=tuple(record.get("rename", ())),
    )


def _read_action(record: Mapping[str, Any]) -> Action:
    """Return a valid action."""
    _check_keys(record, _ACTION)
    path = _read_safe_name(record)
    verb_name = record.get("action")
    if verb_name not in _CHANGING:
        raise WrongLineError("the action is unknown or changes nothing")
    verb = Verb(str(verb_name))
    implied = _read_boolean(record, "implied") if "implied" in record else False
    source = _read_entry(record["source"], path) if "source" in record else None
    target = _read_entry(record["target"], path) if "target" in record else None
    entry = target if verb is Verb.DELETE else source
    if entry is None or (verb is Verb.DELETE and source is not None) or entry.path != path:
        raise WrongLineError("source and target do not match the action")
    if "same_as" in record:
        entry = entry._replace(same_as=_read_safe_name(record, "same_as"))
    if "renamed_from" in record:
        entry = entry._replace(renamed_from=_read_safe_name(record, "renamed_from"))
    if (str(entry.kind), entry.size) != (record.get("type"), _read_integer(record, "size")):
        raise WrongLineError("type and size do not match the entry")
    action = Action(
        verb, entry, _read_string(record, "because"), None if verb is Verb.DELETE else target, implied=implied
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


def _read_entry(record: Any, path: bytes) -> Entry:
    if not isinstance(record, dict):
        raise WrongLineError("source or target is not an object")
    _check_keys(record, _FACTS)
    kind = record.get("type")
    if kind not in list(Kind):
        raise WrongLineError("the type is unknown")
    mode = record.get("mode")
    if "mode" in record and not (isinstance(mode, str) and _MODE.fullmatch(mode)):
        raise WrongLineError("mode is not octal")
    return Entry(
        _read_safe_name(record) if "path" in record else path,
        Kind(str(kind)),
        size=_read_integer(record, "size"),
        mtime_ns=_read_time(record, "mtime_ns"),
        mode=-1 if mode is None else int(mode, 8),
        inode=_read_inode(record),
        ctime_ns=_read_time(record, "ctime_ns"),
        link=_read_name(record, "link") if "link" in record else b"",
        etag=_read_string(record, "etag") if "etag" in record else None,
        attributes=_read_attributes(record),
    )


def _read_attributes(record: Mapping[str, Any]) -> bytes:
    """Return the attributes, which are only compared with the listing, never set from here."""
    value = record.get("attributes_base64", "")
    try:
        return base64.b64decode(value, validate=True) if isinstance(value, str) else bytes.fromhex("?")
    except ValueError:
        raise WrongLineError("attributes_base64 is not valid base64") from None


def _read_inode(record: Mapping[str, Any]) -> int:
    value = record.get("inode", 0)
    if type(value) is not int or not 0 <= value < 2**64:
        raise WrongLineError("inode is not an integer in the allowed range")
    return value


LINE_BYTES = 320 * 1024  # enough for two names of 4 KiB and the attributes of both sides
_FAILURES = 1_000_000


@dataclass(slots=True)
class SavedPlan:
    """A complete plan from a file: `planned` has its actions in canonical order and its counts; close it.

    `owner` and `mode` are the file's; `signature` should be that of `signed` (see `find_doubts`).
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
        raise missing_file(path, "the plan file") from None
    except OSError as problem:
        raise unreadable(problem, str(path)) from None
    with stream:
        reading = _PlanReader(stream, str(path))
        try:
            return reading.read()
        except BaseException as problem:
            reading.planned.close()
            if isinstance(problem, (WrongLineError, HibaliError, OSError)):
                message = problem.message if isinstance(problem, HibaliError) else str(problem)
                raise _damaged(f"line {reading.line}: {message}", str(path)) from None
            raise


class _PlanReader:
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
        header = _read_header(first)
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

    def _records(self) -> Iterator[Line]:
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

    def _failed(self, record: Line) -> None:
        found = self.planned
        if found.changes or len(found.unlisted) >= _FAILURES:
            raise WrongLineError("failures must come before the actions")
        _check_keys(record, _FAILED)
        found.unlisted.append(
            (_read_name(record), Problem(_read_string(record, "code"), _read_string(record, "message")))
        )

    def _action(self, record: Line) -> None:
        action = _read_action(record)
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

    def _end(self, record: Line, digest: str) -> None:
        found = self.planned
        sums = totals(found)
        _check_keys(record, {"schema", "kind", "count", "sha256", "signature", *sums})
        self._signed = signed_content(record)
        self._signature = _read_string(record, "signature") if "signature" in record else ""
        if _read_integer(record, "count") != self.line - 1 or record.get("sha256") != digest:
            raise WrongLineError("the lines above do not match their sha256")
        for key in ("files_to_move", "bytes_to_move", "files_to_delete"):
            if _read_integer(record, key) != sums[key]:
                raise WrongLineError(f"{key} is not the sum of the actions")
        if self._stream.read(1):
            raise WrongLineError("there is content after the end of the plan")
        found.files, found.bytes = _read_integer(record, "files"), _read_integer(record, "bytes")
        found.files_kept, found.target_files = (
            _read_integer(record, "files_kept"),
            _read_integer(record, "target_files"),
        )


def _read_header(record: Line) -> Header:
    _check_keys(record, _HEADER)
    _read_string(record, "version")
    return Header(
        PlanEndpoint(_read_name(record, "source"), _read_name(record, "source_place")),
        PlanEndpoint(_read_name(record, "target"), _read_name(record, "target_place")),
        read_rules(record.get("rules")),
        _read_string(record, "at"),
        single=_read_boolean(record, "single"),
    )


def _damaged(message: str, subject: str) -> RefusedError:
    return RefusedError(
        "plan-damaged",
        f"the plan file was modified or is not a plan: {message}",
        subject=subject,
        hint="Nothing was changed. Make a new plan: hibali plan FROM TO -o FILE",
    )


def find_doubts(saved: SavedPlan) -> str:
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
    if named and any(
        _endpoint_key(one) != _endpoint_key(other) for one, other in zip(ends, named, strict=True)
    ):
        raise RefusedError(
            "other-ends",
            f"this plan transfers from {ends[0].text} to {ends[1].text}, not from {named[0].text} to {named[1].text}",
            subject=str(path),
            hint="Name the source and target of the plan, or make another plan: hibali plan FROM TO -o FILE",
        )
    doubts = find_doubts(saved)
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


def _endpoint_key(location: Location) -> tuple[str, str, str | None]:
    return location.site.name, location.path, location.bucket


def _account(user: int) -> str:
    try:
        return f"{pwd.getpwuid(user).pw_name} (uid {user})"
    except KeyError:
        return f"uid {user}"
