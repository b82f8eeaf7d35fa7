"""A share of many files, chosen by chance and yet the same whenever the seed is the same."""

from __future__ import annotations

import hashlib
import heapq
import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from hibali.errors import UsageError

_SHARE = re.compile(r"([0-9]{1,18})(%?)")

_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class Share:
    """So many files, or so many of a hundred, at least one."""

    number: int
    percent: bool = False

    def of(self, count: int) -> int:
        """How many of `count` are meant; a percentage is rounded up."""
        return min(count, -(-count * self.number // 100) if self.percent else self.number)

    def __str__(self) -> str:
        return f"{self.number}%" if self.percent else str(self.number)


def read_share(text: str) -> Share:
    """`N` or `N%` of the command line; raises `UsageError`."""
    found = _SHARE.fullmatch(text)
    if found is None or not int(found.group(1)) or (found.group(2) and int(found.group(1)) > 100):
        raise UsageError(
            "bad-sample", "a sample is a number of files from 1, or a percentage from 1% to 100%", about=text
        )
    return Share(int(found.group(1)), percent=bool(found.group(2)))


def new_seed() -> int:
    """A seed that nobody chose, short enough to be typed."""
    return secrets.randbelow(1_000_000_000)


def choose(
    values: Sequence[_Value], name: Callable[[_Value], bytes], share: Share, seed: int
) -> list[_Value]:
    """The chosen ones in the order they came.

    Each name draws its lot from the seed by itself, so what else is there changes nothing about it.
    """
    key = str(seed).encode("ascii")

    def lot(position: int) -> bytes:
        return hashlib.blake2b(name(values[position]), key=key, digest_size=16).digest()

    return [
        values[position]
        for position in sorted(heapq.nsmallest(share.of(len(values)), range(len(values)), lot))
    ]
