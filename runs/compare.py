"""Two runs side by side: what they were, what they were given, and whether what they left is the same."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hibali import shell
from hibali.errors import Exit, IncompleteError
from hibali.events import Listener
from hibali.locations import Location
from hibali.sites import Site, local_site
from hibali.text import printable
from runs.bundles.outputs import Left
from runs.collect import pull_outputs
from runs.run import Run
from transfers.receipt import Receipt
from transfers.request import Saving

_COMMAND_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class Fact:
    """Something that is not the same of both runs; None where it is not known of one, or it has no such thing."""

    what: str
    a: Any
    b: Any


def differing_facts(a: Run, b: Run) -> list[Fact]:
    """What distinguishes two runs, of all that may change what they leave; pure. Of inputs the content counts, not the place.

    How tasks of sweeps ended is told of each (runs.sweeps.compare).
    """
    single = a.sweep is None and b.sweep is None
    facts = [
        Fact("pipeline", a.pipeline, b.pipeline),
        Fact("digest", a.pipeline_digest, b.pipeline_digest),
        Fact("image", a.image or None, b.image or None),
        Fact("container", a.container, b.container),
        Fact("site", a.site, b.site),
        *(_ends(a, b) if single else ()),
        *_inputs(a, b, "id" if single else "text"),
        *_values(a, b),
    ]
    return [fact for fact in facts if fact.a != fact.b]


def _ends(a: Run, b: Run) -> list[Fact]:
    return [
        Fact("host", a.host or None, b.host or None),
        Fact("state", str(a.state), str(b.state)),
        Fact("exit code", a.exit_code, b.exit_code),
    ]


def _inputs(a: Run, b: Run, by: str) -> list[Fact]:
    """By the question that an input answers, or by its text, as of a sweep it may answer several."""
    both = (_identities(a, by), _identities(b, by))
    return [
        Fact(f"input {name}", both[0].get(name), both[1].get(name))
        for name in sorted(both[0].keys() | both[1])
    ]


def _identities(run: Run, by: str) -> dict[str, str]:
    found: dict[str, list[str]] = {}
    for each in run.inputs:
        found.setdefault(str(each.get(by)), []).append(each["identity"])
    return {name: ", ".join(identities) for name, identities in found.items()}


def _values(a: Run, b: Run) -> list[Fact]:
    others = {name for run in (a, b) for name in (*_files(run), *(run.sweep.columns if run.sweep else ()))}
    names = sorted((a.invocation.keys() | b.invocation.keys()) - others)
    return [Fact(f"value {name}", a.invocation.get(name), b.invocation.get(name)) for name in names]


def _files(run: Run) -> set[str]:
    """The questions that files answer; of a sweep those whose answers are texts of its inputs."""
    if run.sweep is None:
        return {each["id"] for each in run.inputs}
    texts = {each.get("text") for each in run.inputs}
    lists = {name: each if isinstance(each, list) else [each] for name, each in run.invocation.items()}
    return {name for name, some in lists.items() if some and all(each in texts for each in some)}


class Copies:
    """Files that a run left, as they can be read on this machine: as they were collected, or brought now.

    Those of a sweep are called `N/PATH`.
    """

    def __init__(self, run: Run, left: Left, folder: Path) -> None:
        """What has to be brought comes to `folder`, which is made."""
        self._run = run
        self._left = left
        self._folder = folder
        self._found: dict[bytes, Path] = {}

    def bring(self, paths: Sequence[bytes], site: Site, tell: Listener) -> Mapping[bytes, Path]:
        """Where each of them lies here. Raises `IncompleteError` where one cannot be brought as it was."""
        wanted = [path for path in paths if not self._is_collected(path)]
        here = self._folder.absolute()
        receipt = self._pull(wanted, site, here, tell)
        for path in wanted:
            self._found[path] = here / os.fsdecode(path)
            if receipt.exit is not Exit.DONE or not _has_digest(self._found[path], self._digest(path)):
                raise IncompleteError(
                    "not-brought",
                    "it did not come, or is not what it was a moment ago",
                    about=f"{self._run.id}: {printable(path)}",
                )
        return self._found

    def _pull(self, wanted: Sequence[bytes], site: Site, here: Path, tell: Listener) -> Receipt:
        if self._run.sweep is not None and wanted:
            from runs.sweeps.left import pull_named

            return pull_named("compare", self._run, site, here, wanted, tell)
        target = Location(local_site(), str(here), str(here), typed_local=True)
        return pull_outputs("compare", self._run, site, target, wanted, tell, saving=Saving(save=False))

    def _is_collected(self, path: bytes) -> bool:
        """Whether it lies where it was collected to, unchanged."""
        for target in reversed(self._run.collected):
            here = Path(target) / os.fsdecode(path)
            if here.is_absolute() and _has_digest(here, self._digest(path)):
                self._found[path] = here
                return True
        return False

    def _digest(self, path: bytes) -> str:
        return self._left.files[path][0]


def _has_digest(path: Path, digest: str) -> bool:
    try:
        with path.open("rb", buffering=0) as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest() == digest
    except OSError:
        return False


def is_within(words: Sequence[str], a: Path, b: Path) -> bool:
    """Whether `COMMAND A B` ends with 0. Raises `NotFoundError` for no such command, and where it is ended before it says."""
    finished = shell.run([*words, str(a), str(b)], timeout=_COMMAND_SECONDS)
    if finished.exit_code < 0:
        raise IncompleteError("no-answer", f"it was ended by signal {-finished.exit_code}", about=words[0])
    return finished.exit_code == 0
