"""Parse untrusted JSON and XML within limits, and write JSON in one canonical form."""

from __future__ import annotations

import hashlib
import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from hibali.errors import NotFoundError, TryLaterError, UsageError
from hibali.system_errors import unreadable
from hibali.text import printable

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element
    from xml.parsers.expat import XMLParserType


JsonPath = tuple[str | int, ...]

_TOKEN = re.compile(r'[\[\]{}:,]|"(?:[^"\\]|\\.)*"|[^\s\[\]{}:,"]+')


@dataclass(slots=True)
class _Bracket:
    """An open object or list, with its current member or item: the key or index, its line, and where its value begins."""

    is_object: bool
    part: str | int
    line: int = 0  # 0 before the first token of the member
    begin: int = 0
    seen: dict[str, tuple[int, str]] = field(default_factory=dict)  # the lines and values of its keys


def _walk(text: str) -> Iterator[tuple[list[_Bracket], int]]:
    """Yield the open brackets whenever a member or item of the innermost one ends, and its end.

    `text` is JSON; where it is not, after a repeated key, this ends.
    """
    newlines = [found.start() for found in re.finditer("\n", text)]
    brackets: list[_Bracket] = []
    for match in _TOKEN.finditer(text):
        lexeme, inner = match.group(), brackets[-1] if brackets else None
        if inner is not None and lexeme in "]},":
            if inner.line:
                yield brackets, match.start()
            inner.part, inner.line = inner.part + 1 if isinstance(inner.part, int) else "", 0
            if lexeme != ",":
                brackets.pop()
        elif inner is not None and lexeme == ":":
            inner.begin = match.end()
        else:
            if inner is not None and not inner.line:
                inner.line = 1 + bisect_right(newlines, match.start())
                if inner.is_object:
                    try:
                        inner.part = str(json.loads(lexeme))
                    except ValueError:
                        return
            if lexeme in "[{":
                brackets.append(_Bracket(lexeme == "{", "" if lexeme == "{" else 0))


def find_lines(text: str) -> Mapping[JsonPath, int]:
    """Return the lines, counted from 1, by path; `text` is JSON that was parsed before. A member's line is that of its key."""
    found: dict[JsonPath, int] = {(): 1}
    for brackets, _ in _walk(text):
        found[tuple(each.part for each in brackets)] = brackets[-1].line
    return found


@dataclass(frozen=True, slots=True)
class RepeatedKey:
    """A key that one object has twice, on lines `first_line` and `line`; the values are JSON texts."""

    path: JsonPath
    line: int
    value: str
    first_line: int
    first_value: str

    @property
    def is_same(self) -> bool:
        """Whether both values are equal; 1, 1.0 and true are three values. What is not JSON has no other value."""
        try:
            one, other = (
                json.dumps(json.loads(each), sort_keys=True) for each in (self.value, self.first_value)
            )
        except ValueError:
            return True
        return one == other


def find_repeated_keys(text: str) -> list[RepeatedKey]:
    """Return every key that is repeated in its object, by line; `text` is valid JSON."""
    found: list[RepeatedKey] = []
    for brackets, end in _walk(text):
        inner = brackets[-1]
        if isinstance(inner.part, str):
            value = text[inner.begin : end].strip()
            if inner.part in inner.seen:
                path = tuple(each.part for each in brackets)
                found.append(RepeatedKey(path, inner.line, value, *inner.seen[inner.part]))
            inner.seen[inner.part] = (inner.line, value)
    return sorted(found, key=lambda each: each.line)


def written_path(path: Iterable[str | int]) -> str:
    """Return a path as users write it: `inputs[3].value-key`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


MAXIMUM_BYTES = 4 * 1024 * 1024
MAXIMUM_DEPTH = 64
_LONGEST_VALUE = 80
_LARGEST_EXACT = 2**53


class JsonProblemError(UsageError):
    """The text is not JSON that hibali accepts; `line` is counted from 1 (0: unknown)."""

    def __init__(self, message: str, *, subject: str, line: int = 0) -> None:
        location = f"{subject}:{line}" if line else subject
        super().__init__(
            "invalid-json",
            message,
            subject=location,
            hint="Correct the file. To see the first error: jq . FILE",
        )
        self.line = line


def read_json(text: bytes, subject: str) -> Any:
    """Parse untrusted JSON (S14).

    Refuses what parsers read differently or cannot read: a key that is repeated with another value, NaN and Infinity, more than
    64 levels, more than 4 MiB, text that is not UTF-8. Raises `JsonProblemError`.
    """
    if len(text) > MAXIMUM_BYTES:
        raise JsonProblemError(f"larger than {MAXIMUM_BYTES} bytes", subject=subject)
    try:
        decoded = text.decode("utf-8-sig")
    except UnicodeDecodeError as problem:
        raise JsonProblemError(f"not UTF-8 at byte {problem.start}", subject=subject) from None
    _check_depth(decoded, subject)
    try:
        return json.loads(decoded, object_pairs_hook=_unique_pairs, parse_constant=_refuse_constant)
    except json.JSONDecodeError as problem:
        raise JsonProblemError(problem.msg, subject=subject, line=problem.lineno) from None
    except _RepeatedKeyError:
        repeated = next(each for each in find_repeated_keys(decoded) if not each.is_same)
        raise JsonProblemError(_describe(repeated), subject=subject, line=repeated.line) from None
    except ValueError as problem:
        message = "a number has more than 4300 digits" if "limit" in str(problem) else str(problem)
        raise JsonProblemError(message, subject=subject) from None


def find_repeated(text: bytes) -> list[RepeatedKey]:
    """The keys that are repeated with an equal value in a JSON text that `read_json` accepts."""
    return find_repeated_keys(text.decode("utf-8-sig"))


def missing_file(path: Path | str, what: str = "the file") -> NotFoundError:
    """Return the error for a file of a user that does not exist."""
    hint = "Names of files are relative to the current folder."
    return NotFoundError("no-such-file", f"{what} does not exist", subject=str(path), hint=hint)


def read_json_file(path: Path) -> Any:
    """Read a file with `read_json`; raises `NotFoundError` for a missing file."""
    try:
        with path.open("rb") as stream:
            text = stream.read(MAXIMUM_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        raise missing_file(path) from None
    except OSError as problem:
        raise unreadable(problem, str(path)) from None
    return read_json(text, str(path))


def canonical_json(value: Any) -> bytes:
    """Return the bytes of RFC 8785 (JSON Canonicalization Scheme), which the digests of pipelines are made of.

    RFC 8785 has no integers beyond 2**53, which an invocation may hold: they are written as objects with their digits.
    """
    import rfc8785  # start-up: only for digests

    try:
        try:
            return rfc8785.dumps(value)
        except rfc8785.IntegerDomainError:
            return rfc8785.dumps(_with_digits(value))
    except rfc8785.CanonicalizationError as problem:
        raise UsageError("not-canonical", f"cannot be written as canonical JSON: {problem}") from None


def canonical_digest(value: Any) -> str:
    """Return the sha256 in hexadecimal of the canonical JSON."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


# made once: `json.dumps` would make one for each of millions of lines
_encode_line = json.JSONEncoder(ensure_ascii=True, separators=(",", ":"), allow_nan=False).encode


def line_of_json(record: dict[str, Any]) -> str:
    """Return a record as one ASCII line, without the newline."""
    return _encode_line(record)


def quoted(text: str | None) -> str:
    """Return a text as JSON, `null` for none."""
    return "null" if text is None else _encode_line(text)


def _check_depth(text: str, subject: str) -> None:
    """Check the depth by counting brackets outside strings: the parser itself would recurse."""
    if text.count("{") + text.count("[") <= MAXIMUM_DEPTH:
        return
    depth = 0
    for match in _TOKEN.finditer(text):
        depth += (match.group() in "[{") - (match.group() in "]}")
        if depth > MAXIMUM_DEPTH:
            line = 1 + text.count("\n", 0, match.start())
            raise JsonProblemError(f"nested deeper than {MAXIMUM_DEPTH} levels", subject=subject, line=line)


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


def _refuse_constant(lexeme: str) -> NoReturn:
    raise ValueError(f"{lexeme} is not JSON")


_MOST_DEPTH = 64


class UnsafeXmlError(Exception):  # raised through expat, never shown
    """The document has declarations that are never accepted."""


def refuse_declarations(parser: XMLParserType) -> None:
    """Make an expat parser raise `UnsafeXmlError` at a document type or an entity in any encoding.

    expat's own handlers see them decoded; a search for `<!DOCTYPE` in the bytes misses UTF-16 and EBCDIC.
    """

    def refuse(*_: object) -> NoReturn:
        raise UnsafeXmlError

    parser.StartDoctypeDeclHandler = refuse
    parser.EntityDeclHandler = refuse
    parser.UnparsedEntityDeclHandler = refuse
    parser.ExternalEntityRefHandler = refuse


def parse(body: bytes, subject: str) -> Element:
    """Return the root element. Raises `TryLaterError` for invalid XML, a document type, or too deep nesting."""
    from xml.etree.ElementTree import ParseError, fromstring
    from xml.parsers.expat import ExpatError  # start-up: only for XML

    try:
        _check(body)
        return fromstring(body)  # noqa: S314  # checked
    except (ExpatError, ParseError, UnsafeXmlError, ValueError, LookupError):
        raise TryLaterError(
            "bad-answer", "the answer of the server is not valid XML", subject=subject
        ) from None


def _check(body: bytes) -> None:
    from xml.parsers.expat import ParserCreate  # start-up: only for XML

    depth = 0

    def start(_: str, __: dict[str, str]) -> None:
        nonlocal depth
        depth += 1
        if depth > _MOST_DEPTH:
            raise UnsafeXmlError

    def end(_: str) -> None:
        nonlocal depth
        depth -= 1

    parser = ParserCreate()
    refuse_declarations(parser)
    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.Parse(body, True)
