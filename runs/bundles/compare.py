"""Whether a run left what another run left, file by file; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Fate(StrEnum):
    """What became of an output the second time."""

    EQUAL = "equal"
    DIFFERENT = "different"
    MISSING = "missing"
    EXTRA = "extra"


@dataclass(frozen=True, slots=True)
class Compared:
    """One output; sha256 in hexadecimal, "" where there is no such file."""

    path: bytes
    fate: Fate
    recorded: str
    found: str


def compare_outputs(recorded: Mapping[bytes, str], found: Mapping[bytes, str]) -> list[Compared]:
    """Every path of either, in the order of its bytes."""
    return [
        _compare(path, recorded.get(path, ""), found.get(path, ""))
        for path in sorted(recorded.keys() | found.keys())
    ]


def _compare(path: bytes, recorded: str, found: str) -> Compared:
    if not found:
        return Compared(path, Fate.MISSING, recorded, found)
    if not recorded:
        return Compared(path, Fate.EXTRA, recorded, found)
    return Compared(path, Fate.EQUAL if recorded == found else Fate.DIFFERENT, recorded, found)
