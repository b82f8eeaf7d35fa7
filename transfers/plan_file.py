"""Write a plan as a signed file that people and programs can review."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from base64 import b64encode
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from hibali import __version__
from hibali.documents import line_of_json
from hibali.errors import UsageError
from hibali.events import Failed
from hibali.locations import Location
from hibali.signing import sign
from hibali.system_errors import reason_of
from hibali.text import path_fields
from transfers.actions import Action, Verb
from transfers.entry import Entry, Kind
from transfers.planner import TransferPlan, sorted_actions
from transfers.rules import Rules

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
        "recall": rules.recall,
        "specials": rules.specials,
        "require_proof": rules.require_proof,
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
    return {"attributes_base64": b64encode(entry.attributes).decode("ascii")} if entry.attributes else {}
