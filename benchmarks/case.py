"""A case: who contends in it, onto which targets, how often, and what is promised."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.measuring import FailedError
from benchmarks.samples import Amount, Bar
from benchmarks.stage import Stage
from benchmarks.trees import count_tree, remove_tree
from tests.services.object_store import ObjectStore


class Target:
    """Where the runs of a case land, each in a place of its own that needs neither making nor clearing."""

    def fresh(self, name: str) -> None:
        """Make an empty place."""

    def check(self, name: str) -> None:
        """Raises `FailedError` unless all is there."""
        raise NotImplementedError

    def clear(self, name: str) -> None:
        """Take it away."""


def _compare(found: Amount, expected: Amount) -> None:
    if found != expected:
        raise FailedError(f"left {found} at the target, not {expected}")


@dataclass(frozen=True)
class FolderTarget(Target):
    """Folders below one of this machine, which may be reached by another way."""

    root: Path
    expected: Amount

    def fresh(self, name: str) -> None:
        (self.root / name).mkdir()

    def check(self, name: str) -> None:
        _compare(count_tree(self.root / name), self.expected)

    def clear(self, name: str) -> None:
        remove_tree(self.root / name)


@dataclass(frozen=True)
class KeptTarget(Target):
    """One folder that nothing may change."""

    root: Path
    expected: Amount

    def check(self, name: str) -> None:  # noqa: ARG002 - there is one place only
        _compare(count_tree(self.root), self.expected)


@dataclass(frozen=True)
class BucketTarget(Target):
    """Prefixes of a bucket; with `kept` one prefix that stays."""

    store: ObjectStore
    bucket: str
    expected: Amount
    kept: str = ""

    def check(self, name: str) -> None:
        _compare(self._count(self.kept or name), self.expected)

    def clear(self, name: str) -> None:
        if not self.kept:
            with contextlib.closing(self.store.client()) as client:
                for page in self._pages(client, name):
                    keys = [{"Key": found["Key"]} for found in page.get("Contents", ())]
                    if keys:
                        client.delete_objects(Bucket=self.bucket, Delete={"Objects": keys, "Quiet": True})
            os.sync()

    def _count(self, prefix: str) -> Amount:
        files = size = 0
        with contextlib.closing(self.store.client()) as client:
            for page in self._pages(client, prefix):
                for found in page.get("Contents", ()):
                    if "/.hibali/" not in found["Key"]:
                        files, size = files + 1, size + found["Size"]
        return Amount(files, size)

    def _pages(self, client: Any, prefix: str) -> Any:
        return client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=f"{prefix}/")


@dataclass(frozen=True)
class Contender:
    """A command line; `words` is told the name of the place that is fresh for this run."""

    name: str
    words: Callable[[str], Sequence[str]]
    target: Target
    environment: Mapping[str, str]
    logins: Path | None = None  # where its kept logins lie
    log_in: bool = False  # whether each run begins without one
    warm_up: bool = False  # whether a run before the first, not measured, leaves what later ones find
    missing: str = ""


@dataclass
class Field:
    """The contenders of a case that is prepared, and how much they move."""

    amount: Amount
    contenders: list[Contender] = field(default_factory=list)


@dataclass(frozen=True)
class Case:
    """`prepare` makes the source and gives the contenders; what it made is gone when it is left."""

    name: str
    about: str
    prepare: Callable[[Stage], contextlib.AbstractContextManager[Field]]
    bars: tuple[Bar, ...]
    repeats: int = 5
    watch: bool = False  # the memory of all processes together, too
