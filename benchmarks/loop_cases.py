"""Compare transfers over ssh on loopback, where the network is not the bottleneck."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace

from benchmarks.case import Brief, Case, Contender, FolderTarget, PreparedCase, ReusedTarget
from benchmarks.link_cases import LARGE, SMALL
from benchmarks.samples import Amount, Bar
from benchmarks.ssh_contenders import SshTransfer, ssh_transfer
from benchmarks.testbed import Testbed
from benchmarks.trees import make_tree

_WHOLE = "-W"


@contextlib.contextmanager
def _loopback_transfer(
    testbed: Testbed, files: int, size: int, *, memory: bool = False
) -> Iterator[tuple[SshTransfer, Amount]]:
    with (
        testbed.temporary_folder("loop") as folder,
        testbed.temporary_folder("targets", memory=memory) as targets,
    ):
        amount = make_tree(folder / "source", testbed.amount(files, size))
        target = FolderTarget(targets, amount)
        yield ssh_transfer(testbed, testbed.ssh().config, folder / "source", target), amount


@contextlib.contextmanager
def _large(testbed: Testbed) -> Iterator[PreparedCase]:
    with _loopback_transfer(testbed, *LARGE, memory=True) as (transfer, amount):
        yield PreparedCase(
            amount,
            [
                *(transfer.hibali(), transfer.rsync(_WHOLE, cipher=True), transfer.scp(cipher=True)),
                transfer.rsync_and_sha256(_WHOLE, cipher=True),
                *(transfer.rsync(_WHOLE), transfer.scp()),
                transfer.hibali(kept=True),
                *(transfer.rsync(_WHOLE, cipher=True, kept=True), transfer.scp(cipher=True, kept=True)),
            ],
        )


@contextlib.contextmanager
def _small(testbed: Testbed) -> Iterator[PreparedCase]:
    with _loopback_transfer(testbed, *SMALL) as (transfer, amount):
        yield PreparedCase(amount, [transfer.hibali(), transfer.rsync("--fsync"), transfer.rsync()])


@contextlib.contextmanager
def _unchanged(testbed: Testbed) -> Iterator[PreparedCase]:
    with _loopback_transfer(testbed, 100_000, 1 << 10) as (transfer, amount):
        contenders = [
            _again(contender, f"kept-{contender.name}", transfer)
            for contender in (transfer.hibali(), transfer.rsync())
        ]
        yield PreparedCase(amount, contenders)


def _again(contender: Contender, kept: str, transfer: SshTransfer) -> Contender:
    """Return the contender with a single target, which an unmeasured first run fills."""
    (transfer.target.root / kept).mkdir()
    return replace(
        contender,
        argv=lambda _: contender.argv(kept),
        target=ReusedTarget(transfer.target.root / kept, transfer.target.expected),
        warm_up=True,
    )


CASES = (
    Case(
        "loop-large",
        "push {files} over ssh on loopback onto tmpfs (hibali prefers aes128-gcm by itself)",
        _large,
        (
            Bar(
                "at most 1.05 of the faster of rsync -W and scp with the same cipher",
                "hibali",
                1.05,
                than=("rsync -W, aes128-gcm", "scp, aes128-gcm"),
            ),
            Bar(
                "at most 1.15 of rsync -W with the same cipher and one sha256",
                "hibali",
                1.15,
                than=("rsync -W, aes128-gcm, and sha256",),
            ),
            Bar("faster than rsync -W and scp with their defaults", "hibali", 1.0, than=("rsync -W", "scp")),
        ),
        brief=Brief(repeats=2),
    ),
    Case(
        "loop-small-disk",
        "push {files} over ssh on loopback onto a disk",
        _small,
        (Bar("at most 1.3 of rsync --fsync", "hibali", 1.3, than=("rsync --fsync",)),),
    ),
    Case(
        "loop-unchanged",
        "push {files} of which none changed, over ssh on loopback",
        _unchanged,
        (Bar("at most 1.3 of rsync", "hibali", 1.3, than=("rsync",)),),
    ),
)
