"""A million tiny files, planned and not carried: what that takes in memory."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator

from benchmarks.case import Case, Contender, Field, KeptTarget
from benchmarks.samples import Amount, Bar
from benchmarks.stage import HIBALI, Stage, peer_or_reason
from benchmarks.trees import copy_tree, make_tree

_FILES = 1_000_000
_BYTES = 10


def _planned(*, folders: int, identical: bool) -> Callable[[Stage], contextlib.AbstractContextManager[Field]]:
    @contextlib.contextmanager
    def prepare(stage: Stage) -> Iterator[Field]:
        with stage.place("million") as place:
            source, target = place / "source", place / "target"
            amount = make_tree(source, stage.amount(_FILES, _BYTES), folders=folders)
            target.mkdir()
            if identical:
                copy_tree(source, target)
            kept = KeptTarget(target, amount if identical else Amount(0, 0))
            stage.add_site(
                "here",
                f'kind = "local"\nroots = {{ data = {json.dumps(str(place))} }}\ndefault_root = "data"\n',
            )
            rsync, missing = peer_or_reason("rsync")
            plan = [*HIBALI, "push", "--dry-run", str(source), "here:target"]
            environment = stage.environment()
            peer = [rsync, "-a", "--dry-run", "--itemize-changes", f"{source}/", f"{target}/"]
            yield Field(
                amount,
                [
                    Contender("hibali", lambda _: plan, kept, environment),
                    Contender("rsync", lambda _: peer, kept, environment, missing=missing),
                ],
            )

    return prepare


def _case(name: str, where: str, folders: int, *, identical: bool) -> Case:
    target = "identical" if identical else "empty"
    return Case(
        f"million-{name}-{target}",
        f"plan 1,000,000 tiny files {where} against an {target} local target (push --dry-run)",
        _planned(folders=folders, identical=identical),
        (
            Bar("peak memory of the largest process under 200 MB", "hibali", 200, measure="peak"),
            Bar("peak memory of all processes together under 200 MB", "hibali", 200, measure="peak_of_all"),
        ),
        repeats=1,
        watch=True,
    )


CASES = tuple(
    _case(name, where, folders, identical=identical)
    for name, where, folders in (("folders", "in 1,000 folders", 1000), ("flat", "in one flat folder", 1))
    for identical in (False, True)
)
