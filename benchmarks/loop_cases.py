"""Over ssh on loopback: where the line costs nothing, and only what we do counts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace

from benchmarks.case import Case, Contender, Field, FolderTarget, KeptTarget
from benchmarks.link_cases import LARGE, SMALL
from benchmarks.samples import Amount, Bar
from benchmarks.ssh_words import Way, way_to
from benchmarks.stage import Stage
from benchmarks.trees import make_tree

_WHOLE = "-W"


@contextlib.contextmanager
def _way(stage: Stage, files: int, size: int, *, memory: bool = False) -> Iterator[tuple[Way, Amount]]:
    with stage.place("loop") as place, stage.place("targets", memory=memory) as targets:
        amount = make_tree(place / "source", stage.amount(files, size))
        target = FolderTarget(targets, amount)
        yield way_to(stage, stage.ssh().config, place / "source", target), amount


@contextlib.contextmanager
def _large(stage: Stage) -> Iterator[Field]:
    with _way(stage, *LARGE, memory=True) as (way, amount):
        yield Field(
            amount,
            [
                *(way.hibali(), way.rsync(_WHOLE, cipher=True), way.scp(cipher=True)),
                *(way.rsync(_WHOLE), way.scp()),
                way.hibali(kept=True),
                *(way.rsync(_WHOLE, cipher=True, kept=True), way.scp(cipher=True, kept=True)),
            ],
        )


@contextlib.contextmanager
def _small(stage: Stage) -> Iterator[Field]:
    with _way(stage, *SMALL) as (way, amount):
        yield Field(amount, [way.hibali(), way.rsync("--fsync"), way.rsync()])


@contextlib.contextmanager
def _unchanged(stage: Stage) -> Iterator[Field]:
    with _way(stage, 100_000, 1 << 10) as (way, amount):
        contenders = [
            _again(contender, f"kept-{contender.name}", way) for contender in (way.hibali(), way.rsync())
        ]
        yield Field(amount, contenders)


def _again(contender: Contender, kept: str, way: Way) -> Contender:
    """The same onto one target, which a first run fills."""
    (way.target.root / kept).mkdir()
    return replace(
        contender,
        words=lambda _: contender.words(kept),
        target=KeptTarget(way.target.root / kept, way.target.expected),
        warm_up=True,
    )


CASES = (
    Case(
        "loop-large",
        "push one file of 2 GiB over ssh on loopback onto tmpfs (hibali prefers aes128-gcm by itself)",
        _large,
        (
            Bar(
                "at most 1.05 of the faster of rsync -W and scp with the same cipher",
                "hibali",
                1.05,
                than=("rsync -W, aes128-gcm", "scp, aes128-gcm"),
            ),
            Bar("faster than rsync -W and scp with their defaults", "hibali", 1.0, than=("rsync -W", "scp")),
        ),
    ),
    Case(
        "loop-small-disk",
        "push 10,000 files of 10 KiB over ssh on loopback onto a disk",
        _small,
        (Bar("at most 1.3 of rsync --fsync", "hibali", 1.3, than=("rsync --fsync",)),),
    ),
    Case(
        "loop-unchanged",
        "push 100,000 files of 1 KiB of which none changed, over ssh on loopback",
        _unchanged,
        (Bar("at most 1.3 of rsync", "hibali", 1.3, than=("rsync",)),),
    ),
)
