"""A share of many files, chosen by chance and yet the same whenever the seed is the same."""

from __future__ import annotations

import hashlib
import heapq
import re
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, TypeVar

from hibali.errors import UsageError

_SHARE = re.compile(r"([0-9]{1,18})(%?)")

_Value = TypeVar("_Value")
_Value_co = TypeVar("_Value_co", covariant=True)


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


class Values(Protocol[_Value_co]):
    """What can be counted, and looked at more than once."""

    def __len__(self) -> int:
        """How many there are."""

    def __iter__(self) -> Iterator[_Value_co]:
        """The same ones each time."""


def choose(values: Values[_Value], name: Callable[[_Value], bytes], share: Share, seed: int) -> list[_Value]:
    """The chosen ones in the order they came.

    Each name draws its lot from the seed by itself, so what else is there changes nothing about it.
    """
    key = str(seed).encode("ascii")
    lots = (
        (hashlib.blake2b(name(value), key=key, digest_size=16).digest(), position)
        for position, value in enumerate(values)
    )
    chosen = {position for _, position in heapq.nsmallest(share.of(len(values)), lots)}
    return [value for position, value in enumerate(values) if position in chosen]
