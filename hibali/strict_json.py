"""JSON from elsewhere, read within limits, and JSON of ours, written one way."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from hibali.errors import NotFoundError, UsageError
from hibali.json_lines import RepeatedKey, find_repeated_keys, written_path
from hibali.system_errors import unreadable
from hibali.text import printable

MAXIMUM_BYTES = 4 * 1024 * 1024
MAXIMUM_DEPTH = 64
_LONGEST_VALUE = 80
_LARGEST_EXACT = 2**53


class JsonProblemError(UsageError):
    """The text is not JSON that hibali accepts; `line` is where, counted from 1 (0: unknown)."""

    def __init__(self, message: str, *, about: str, line: int = 0) -> None:
        where = f"{about}:{line}" if line else about
        super().__init__(
            "invalid-json", message, about=where, hint="Correct the file; `jq . FILE` shows where it breaks."
        )
        self.line = line


def read_json(text: bytes, about: str) -> Any:
    """Parse JSON that nobody vouches for (S14).

    Refuses what parsers disagree on or choke on: a key that is repeated with another value, NaN and Infinity, more than
    64 levels, more than 4 MiB, text that is not UTF-8. Raises `JsonProblemError`.
    """
    if len(text) > MAXIMUM_BYTES:
        raise JsonProblemError(f"larger than {MAXIMUM_BYTES} bytes", about=about)
    try:
        decoded = text.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        raise JsonProblemError(f"not UTF-8 at byte {problem.start}", about=about) from None
    _check_depth(decoded, about)
    try:
        return json.loads(decoded, object_pairs_hook=_unique_pairs, parse_constant=_refuse_constant)
    except json.JSONDecodeError as problem:
        raise JsonProblemError(problem.msg, about=about, line=problem.lineno) from None
    except _RepeatedKeyError:
        repeated = next(each for each in find_repeated_keys(decoded) if not each.is_same)
        raise JsonProblemError(_describe(repeated), about=about, line=repeated.line) from None
    except ValueError as problem:
        message = "a number has more than 4300 digits" if "limit" in str(problem) else str(problem)
        raise JsonProblemError(message, about=about) from None


def find_repeated(text: bytes) -> list[RepeatedKey]:
    """The keys that are repeated with an equal value in a JSON text that `read_json` accepts."""
    return find_repeated_keys(text.decode("utf-8-sig"))


def read_json_file(path: Path) -> Any:
    """`read_json` of a file; raises `NotFoundError` where there is none."""
    try:
        with path.open("rb") as stream:
            text = stream.read(MAXIMUM_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        raise NotFoundError("no-such-file", "there is no such file", about=str(path)) from None
    except OSError as problem:
        raise unreadable(problem, str(path)) from None
    return read_json(text, str(path))


def canonical_json(value: Any) -> bytes:
    """The bytes of RFC 8785 (JSON Canonicalization Scheme), over which pipelines are digested.

    RFC 8785 has no whole numbers beyond 2**53, which an invocation may hold: here they are written as objects with their digits.
    """
    import rfc8785

    try:
        try:
            return rfc8785.dumps(value)
        except rfc8785.IntegerDomainError:
            return rfc8785.dumps(_with_digits(value))
    except rfc8785.CanonicalizationError as problem:
        raise UsageError("not-canonical", f"cannot be written as canonical JSON: {problem}") from None


def canonical_digest(value: Any) -> str:
    """sha256 in hexadecimal of the canonical JSON."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


def line_of_json(record: dict[str, Any]) -> str:
    """One record as one ASCII line, without the newline."""
    return json.dumps(record, ensure_ascii=True, separators=(",", ":"), allow_nan=False)


def _check_depth(text: str, about: str) -> None:
    """Count brackets outside strings: the parser itself would recurse."""
    if text.count("{") + text.count("[") <= MAXIMUM_DEPTH:
        return
    depth = 0
    inside = False
    escaped = False
    line = 1
    for character in text:
        if character == "\n":
            line += 1
        if inside:
            if escaped:
                escaped = False
            elif character == "\\":
                escaped = True
            elif character == '"':
                inside = False
        elif character == '"':
            inside = True
        elif character in "[{":
            depth += 1
            if depth > MAXIMUM_DEPTH:
                raise JsonProblemError(f"nested deeper than {MAXIMUM_DEPTH} levels", about=about, line=line)
        elif character in "]}":
            depth -= 1


class _RepeatedKeyError(ValueError):
    """An object has a key twice, with different values."""


def _describe(repeated: RepeatedKey) -> str:
    first, second = (
        printable(each if len(each) <= _LONGEST_VALUE else f"{each[: _LONGEST_VALUE - 4]} ...")
        for each in (repeated.first_value, repeated.value)
    )
    key = printable(written_path(repeated.path))
    return f"{key} is repeated with another value: {second} here, {first} on line {repeated.first_line}"


def _unique_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found and json.dumps(found[key], sort_keys=True) != json.dumps(value, sort_keys=True):
            raise _RepeatedKeyError
        found[key] = value
    return found


def _with_digits(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _with_digits(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_with_digits(item) for item in value]
    is_large = isinstance(value, int) and abs(value) >= _LARGEST_EXACT
    return {"integer": str(value)} if is_large else value


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")
