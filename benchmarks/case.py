"""Define a benchmark case: its contenders, their targets, the number of rounds and the performance targets."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.measuring import FailedError
from benchmarks.samples import Amount, Bar, Sample
from benchmarks.testbed import HIBALI, Testbed
from benchmarks.trees import count_tree, remove_tree
from tests.services.object_store import ObjectStore, remove_bucket

MOST_OF_EARLIER = 1.03  # of the time of another checkout


class Target:
    """The destination of a case's runs. By default nothing is created before a run or removed after it."""

    reused: bool = False  # all runs write to one destination, and hibali keeps its state between them

    def create(self, name: str) -> None:
        """Create an empty destination for one run."""

    def check(self, name: str) -> None:
        """Raise `FailedError` unless the destination is complete."""
        raise NotImplementedError

    def adjust(self, sample: Sample) -> Sample:
        """Return the sample to record for a checked run; a subclass may take the duration from the destination."""
        return sample

    def remove(self, name: str) -> None:
        """Remove the destination of one run."""


def count_objects(store: ObjectStore, bucket: str, prefix: str) -> Amount:
    """Count the objects below a prefix, without hibali's own."""
    files = size = 0
    with contextlib.closing(store.client()) as client:
        pages = client.get_paginator("list_objects_v2")
        for page in pages.paginate(Bucket=bucket, Prefix=f"{prefix}/"):
            for found in page.get("Contents", ()):
                if "/.hibali/" not in found["Key"]:
                    files, size = files + 1, size + found["Size"]
    return Amount(files, size)


def compare(found: Amount, expected: Amount) -> None:
    """Raise `FailedError` unless the amounts are the same."""
    if found != expected:
        raise FailedError(f"target has {found}, expected {expected}")


@dataclass(frozen=True)
class FolderTarget(Target):
    """One folder per run below a local folder, which contenders may reach over the network."""

    root: Path
    expected: Amount

    def create(self, name: str) -> None:
        (self.root / name).mkdir()

    def check(self, name: str) -> None:
        compare(count_tree(self.root / name), self.expected)

    def remove(self, name: str) -> None:
        remove_tree(self.root / name)


@dataclass(frozen=True)
class ReusedTarget(Target):
    """One folder for all runs, which no run may change."""

    root: Path
    expected: Amount
    reused: bool = True

    def check(self, name: str) -> None:  # noqa: ARG002 - all runs share one destination
        compare(count_tree(self.root), self.expected)


@dataclass(frozen=True)
class BucketTarget(Target):
    """One bucket per run, removed with its objects; with `reused`, one bucket for all runs."""

    store: ObjectStore
    bucket: str
    prefix: str
    expected: Amount
    configure: Callable[[str], None]
    reused: bool = False

    def name(self, run: str) -> str:
        """Return the bucket's name for one run."""
        return self.bucket if self.reused else f"{self.bucket}-{run}"

    def create(self, name: str) -> None:
        if self.reused:
            return
        with contextlib.closing(self.store.client()) as client:
            client.create_bucket(Bucket=self.name(name))
            # the server allocates space at a bucket's first object: do it here, outside the measured time
            client.put_object(Bucket=self.name(name), Key="first", Body=b"content")
        self.configure(self.name(name))

    def check(self, name: str) -> None:
        compare(count_objects(self.store, self.name(name), self.prefix), self.expected)

    def remove(self, name: str) -> None:
        if not self.reused:
            remove_bucket(self.store, self.name(name))
            os.sync()


@dataclass(frozen=True)
class Contender:
    """A command to measure; `argv` gets the run's name, which is also the name of its destination."""

    name: str
    argv: Callable[[str], Sequence[str]]
    target: Target
    environment: Mapping[str, str]
    logins: Path | None = None  # folder of the control sockets of its persistent ssh connections
    log_in: bool = False  # whether each run begins without a connection
    warm_up: bool = False  # whether an unmeasured run comes first, to open connections or fill the target
    missing: str = ""


def with_earlier(contenders: Sequence[Contender], checkout: Path) -> tuple[list[Contender], tuple[Bar, ...]]:
    """Return hibali's contenders, each followed by itself from another checkout, and the bars that compare them.

    The other one has its own state where the runs of a case share one.
    """
    found: list[Contender] = []
    bars: list[Bar] = []
    python = HIBALI[0]
    for contender in contenders:
        if not contender.name.startswith("hibali") or contender.missing:
            continue

        def argv(run: str, own: Callable[[str], Sequence[str]] = contender.argv) -> list[str]:
            return [word.replace(python, str(checkout / ".venv" / "bin" / "python")) for word in own(run)]

        name = f"{contender.name}, before"
        state = f"{contender.environment['HIBALI_STATE']}-before"
        if Path(contender.environment["HIBALI_STATE"]).is_dir():  # what the case prepared, such as a pipeline
            shutil.copytree(contender.environment["HIBALI_STATE"], state, dirs_exist_ok=True)
        environment = {**contender.environment, "HIBALI_STATE": state}
        warm_up = contender.warm_up or contender.target.reused
        found += [
            replace(contender, warm_up=warm_up),
            replace(contender, name=name, argv=argv, environment=environment, warm_up=warm_up),
        ]
        for measure, word in (("seconds", "wall time"), ("cpu", "CPU")):
            text = f"{contender.name}: {word} at most {MOST_OF_EARLIER:g} of before"
            bars.append(Bar(text, contender.name, MOST_OF_EARLIER, measure=measure, than=(name,)))
    return found, tuple(bars)


@dataclass
class PreparedCase:
    """The contenders of a prepared case and the amount of data they move.

    `table` returns an additional table for the report after all runs.
    """

    amount: Amount
    contenders: list[Contender] = field(default_factory=list)
    table: Callable[[], list[list[str]]] | None = None


@dataclass(frozen=True)
class Brief:
    """How `make bench` shortens a case to run all of them within an hour: the part of its size, and the rounds."""

    scale: float = 1.0
    repeats: int = 3


@dataclass(frozen=True)
class Case:
    """A benchmark case; the context manager `prepare` creates the source and yields the contenders.

    In the subject, `{files}` and `{objects}` are the amount in words, and `{count}` is the number of files.
    """

    name: str
    subject: str
    prepare: Callable[[Testbed], contextlib.AbstractContextManager[PreparedCase]]
    bars: tuple[Bar, ...]
    repeats: int = 5
    brief: Brief = Brief()
    watch: bool = False  # also measure the memory of all processes together

    def describe(self, amount: Amount) -> str:
        """Return the subject with an amount."""
        return self.subject.format(
            files=amount.describe("file"), objects=amount.describe("object"), count=f"{amount.files:,}"
        )
