"""A user's crontab as text: one marked block in it belongs to one schedules.toml, every other line stays byte for byte."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from hibali.errors import RefusedError, UsageError
from hibali.text import printable

_BEGIN = b"# >>> hibali schedules of %s >>>"
_END = b"# <<< hibali schedules of %s <<<"


def with_block(crontab: bytes, owner: str, lines: Sequence[str]) -> bytes:
    """The crontab with these lines in the block of `owner`, a schedules.toml, or without that block where there are none.

    A new block comes first: variables that the user sets further down do not reach it, and no line there is touched,
    ended or not. Raises `RefusedError` where the marks are not a pair.
    """
    before, ours, after = split_block(crontab, owner)
    del ours
    if not lines:
        return before + after
    begin, end = _marks(owner)
    return before + b"\n".join([begin, *(line.encode("utf-8") for line in lines), end, b""]) + after


def split_block(crontab: bytes, owner: str) -> tuple[bytes, list[str], bytes]:
    """What stands before the block of `owner`, the lines in it, and what stands behind; without one all stands behind."""
    begin, end = _marks(owner)
    lines = crontab.splitlines(keepends=True)
    bare = [line.rstrip(b"\r\n") for line in lines]
    if begin not in bare and end not in bare:
        return b"", [], crontab
    if bare.count(begin) != 1 or bare.count(end) != 1 or bare.index(begin) > bare.index(end):
        raise RefusedError(
            "crontab-marks",
            "the marks around the lines of hibali are not one pair any more; nothing was changed",
            about="crontab",
            hint="Remove both marks and what is ours between them: crontab -e",
        )
    first, last = bare.index(begin), bare.index(end)
    ours = [line.decode("utf-8", "replace") for line in bare[first + 1 : last]]
    return b"".join(lines[:first]), ours, b"".join(lines[last + 1 :])


def _marks(owner: str) -> tuple[bytes, bytes]:
    name = printable(owner).encode("utf-8")
    return _BEGIN % name, _END % name


def crontab_line(when: str, words: Sequence[str], environment: Mapping[str, str], output: str) -> str:
    """One line of a crontab(5): `%` would end the command there, so it is quoted. Raises `UsageError` for a newline."""
    settings = [f"{name}={value}" for name, value in environment.items()]
    command = shlex.join([*(["/usr/bin/env", *settings] if settings else []), *words])
    line = f"{when} {command} >>{shlex.quote(output)} 2>&1"
    if not line.isprintable():
        raise UsageError(
            "unfit-for-crontab",
            "a newline or another control character cannot stand in a line of a crontab",
            about=ascii(line),
            hint="Keep hibali, its configuration and its state below folders with plain names.",
        )
    return line.replace("%", "\\%")
