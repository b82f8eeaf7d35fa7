"""A case: who contends in it, onto which targets, how often, and what is promised."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.measuring import FailedError
from benchmarks.samples import Amount, Bar, Sample
from benchmarks.stage import Stage
from benchmarks.trees import count_tree, remove_tree
from tests.services.object_store import ObjectStore, remove_bucket


class Target:
    """Where the runs of a case land, each in a place of its own that needs neither making nor clearing."""

    stays: bool = False  # one place for all runs, which hibali remembers from one to the next

    def fresh(self, name: str) -> None:
        """Make an empty place."""

    def check(self, name: str) -> None:
        """Raises `FailedError` unless all is there."""
        raise NotImplementedError

    def timed(self, sample: Sample) -> Sample:
        """What counts of a run that is checked; where the place itself tells how long it took, that."""
        return sample

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
    stays: bool = True

    def check(self, name: str) -> None:  # noqa: ARG002 - there is one place only
        _compare(count_tree(self.root), self.expected)


@dataclass(frozen=True)
class BucketTarget(Target):
    """A bucket for each run, removed with all it holds; or one that stays."""

    store: ObjectStore
    bucket: str
    prefix: str
    expected: Amount
    configure: Callable[[str], None]
    stays: bool = False

    def name(self, run: str) -> str:
        """The bucket of one run."""
        return self.bucket if self.stays else f"{self.bucket}-{run}"

    def fresh(self, name: str) -> None:
        if self.stays:
            return
        with contextlib.closing(self.store.client()) as client:
            client.create_bucket(Bucket=self.name(name))
            # the first object of a bucket waits for the server to make room: no contender is to pay for that
            client.put_object(Bucket=self.name(name), Key="first", Body=b"content")
        self.configure(self.name(name))

    def check(self, name: str) -> None:
        files = size = 0
        with contextlib.closing(self.store.client()) as client:
            pages = client.get_paginator("list_objects_v2")
            for page in pages.paginate(Bucket=self.name(name), Prefix=f"{self.prefix}/"):
                for found in page.get("Contents", ()):
                    if "/.hibali/" not in found["Key"]:
                        files, size = files + 1, size + found["Size"]
        _compare(Amount(files, size), self.expected)

    def clear(self, name: str) -> None:
        if not self.stays:
            remove_bucket(self.store, self.name(name))
            os.sync()


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
    """The contenders of a case that is prepared, and how much they move; `told` gives a table of its own when all have run."""

    amount: Amount
    contenders: list[Contender] = field(default_factory=list)
    told: Callable[[], list[list[str]]] | None = None


@dataclass(frozen=True)
class Case:
    """`prepare` makes the source and gives the contenders; what it made is gone when it is left."""

    name: str
    subject: str
    prepare: Callable[[Stage], contextlib.AbstractContextManager[Field]]
    bars: tuple[Bar, ...]
    repeats: int = 5
    watch: bool = False  # the memory of all processes together, too
