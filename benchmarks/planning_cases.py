"""Measure the CPU time and memory for planning a transfer of a million tiny files (`push --dry-run`)."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator

from benchmarks.case import Brief, Case, Contender, PreparedCase, ReusedTarget
from benchmarks.samples import Amount, Bar
from benchmarks.testbed import HIBALI, Testbed, peer_or_reason
from benchmarks.trees import copy_tree, make_tree

_FILES = 1_000_000
_BYTES = 10


def _plan(
    *, folders: int, identical: bool
) -> Callable[[Testbed], contextlib.AbstractContextManager[PreparedCase]]:
    @contextlib.contextmanager
    def prepare(testbed: Testbed) -> Iterator[PreparedCase]:
        with testbed.temporary_folder("million") as folder:
            source, target = folder / "source", folder / "target"
            amount = make_tree(source, testbed.amount(_FILES, _BYTES), folders=folders)
            target.mkdir()
            if identical:
                copy_tree(source, target)
            reused = ReusedTarget(target, amount if identical else Amount(0, 0))
            testbed.add_site(
                "here",
                f'kind = "local"\nroots = {{ data = {json.dumps(str(folder))} }}\ndefault_root = "data"\n',
            )
            rsync, no_rsync = peer_or_reason("rsync")
            rclone, no_rclone = peer_or_reason("rclone")
            plan = [*HIBALI, "push", "--dry-run", str(source), "here:target"]
            environment = testbed.environment()
            by_rclone = [rclone, "copy", "--dry-run", "--config", os.devnull, str(source), str(target)]
            by_rsync = [rsync, "-a", "--dry-run", "--itemize-changes", f"{source}/", f"{target}/"]
            yield PreparedCase(
                amount,
                [
                    Contender("hibali", lambda _: plan, reused, environment),
                    Contender("rsync", lambda _: by_rsync, reused, environment, missing=no_rsync),
                    Contender("rclone", lambda _: by_rclone, reused, environment, missing=no_rclone),
                ],
            )

    return prepare


def _case(name: str, where: str, folders: int, *, identical: bool) -> Case:
    target = "identical" if identical else "empty"
    return Case(
        f"million-{name}-{target}",
        f"plan {{count}} tiny files {where} against an {target} local target (push --dry-run)",
        _plan(folders=folders, identical=identical),
        (
            Bar("CPU at most rclone's", "hibali", 1.0, measure="cpu", than=("rclone",)),
            Bar("peak memory of the largest process under 100 MB", "hibali", 100, measure="peak"),
            Bar("peak memory of all processes together under 100 MB", "hibali", 100, measure="peak_of_all"),
        ),
        repeats=1,
        brief=Brief(repeats=1),
        watch=True,
    )


CASES = tuple(
    _case(name, where, folders, identical=identical)
    for name, where, folders in (("folders", "in 1,000 folders", 1000), ("flat", "in one flat folder", 1))
    for identical in (False, True)
)
