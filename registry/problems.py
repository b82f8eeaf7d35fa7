"""Collect every problem of a descriptor or an invocation."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from hibali.documents import MAXIMUM_BYTES, find_lines, missing_file, written_path
from hibali.errors import UsageError
from hibali.files import open_regular
from hibali.plugins import if_offered
from hibali.system_errors import unreadable
from hibali.text import printable


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """One problem: `path` is its place (`inputs[3].value-key`, or an input's id), `message` describes it.

    `instead` says what to write; `line` is the line in the file, from 1 (0: unknown). `advice` does not make a document invalid.
    """

    path: str
    message: str
    instead: str = ""
    line: int = 0
    advice: bool = False

    def __str__(self) -> str:
        place = printable(self.path)
        if self.line:
            place = f"line {self.line}, {place}" if place else f"line {self.line}"
        text = f"{place}: {printable(self.message)}" if place else printable(self.message)
        return f"{text} ({printable(self.instead)})" if self.instead else text

    def at_line(self, line: int) -> Problem:
        """Return the same problem with a line."""
        return replace(self, line=line)

    def to_record(self) -> dict[str, str | int]:
        """Return the fields for JSON."""
        known: dict[str, str | int] = {"path": self.path, "message": self.message}
        if self.instead:
            known["instead"] = self.instead
        if self.line:
            known["line"] = self.line
        return known


class ProblemsError(UsageError):
    """A document of the user is invalid; the message lists every problem, one per line.

    `problems` holds them for JSON: objects with `path` and `message`, and where known `instead` and `line`.
    """

    def __init__(self, code: str, problems: Iterable[Problem], *, subject: str = "", hint: str = "") -> None:
        found = list(problems)
        self.problems = [each.to_record() for each in found]
        super().__init__(code, "\n".join(str(each) for each in found), subject=subject, hint=hint)


def _file(subject: str) -> str:
    return "FILE" if "://" in subject or not subject else shlex.quote(subject)


class DescriptorError(ProblemsError):
    """The descriptor is not a valid Boutiques descriptor."""

    def __init__(self, problems: Iterable[Problem], *, subject: str) -> None:
        super().__init__(
            "invalid-descriptor",
            problems,
            subject=subject,
            hint=f"Correct the descriptor. To check it again: hibali pipelines validate {_file(subject)}",
        )


class InvocationError(ProblemsError):
    """The invocation does not fit the pipeline `reference`; `subject` is its file, where it has one."""

    def __init__(self, problems: Iterable[Problem], *, reference: str, subject: str = "") -> None:
        start = if_offered("pipelines.example", f"; `hibali pipelines example {reference}` starts a file")
        super().__init__(
            "invalid-invocation",
            problems,
            subject=subject or reference,
            hint=f"`hibali pipelines show {reference}` lists the inputs{start}.",
        )


def read_file_bytes(path: Path, maximum: int = MAXIMUM_BYTES, *, of_state: bool = False) -> bytes:
    """Read an untrusted file, at most one byte over the limit; raises `NotFoundError`, `UsageError`.

    A file that a user names may be a pipe, one `of_state` is a regular file.
    """
    try:
        with os.fdopen(open_regular(path), "rb") if of_state else path.open("rb") as stream:
            return stream.read(maximum + 1)
    except (FileNotFoundError, NotADirectoryError):
        raise missing_file(path) from None
    except OSError as problem:
        raise unreadable(problem, str(path)) from None
    except ValueError:
        raise UsageError("unreadable-file", "cannot be read", subject=str(path)) from None


def place_problems(problems: list[Problem], raw: bytes) -> list[Problem]:
    """Return the problems with their lines in the file, sorted by line; those without a line come first."""
    lines = {written_path(path): line for path, line in find_lines(raw.decode("utf-8-sig")).items()}
    placed = [each.at_line(lines.get(each.path, 0)) for each in problems]
    return sorted(placed, key=lambda each: each.line)
