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
from transfers.request import Saving

_COMMAND_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class Fact:
    """Something that is not the same of both runs; None where it is not known of one, or it has no such thing."""

    what: str
    a: Any
    b: Any


def differing_facts(a: Run, b: Run) -> list[Fact]:
    """What distinguishes two runs, of all that may change what they leave; pure. Of inputs the content counts, not the place."""
    facts = [
        Fact("pipeline", a.pipeline, b.pipeline),
        Fact("digest", a.pipeline_digest, b.pipeline_digest),
        Fact("image", a.image or None, b.image or None),
        Fact("container", a.container, b.container),
        Fact("site", a.site, b.site),
        Fact("host", a.host or None, b.host or None),
        Fact("state", str(a.state), str(b.state)),
        Fact("exit code", a.exit_code, b.exit_code),
        *_inputs(a, b),
        *_values(a, b),
    ]
    return [fact for fact in facts if fact.a != fact.b]


def _inputs(a: Run, b: Run) -> list[Fact]:
    both = (_identities(a), _identities(b))
    return [
        Fact(f"input {name}", both[0].get(name), both[1].get(name))
        for name in sorted(both[0].keys() | both[1])
    ]


def _identities(run: Run) -> dict[str, str]:
    found: dict[str, list[str]] = {}
    for each in run.inputs:
        found.setdefault(each["id"], []).append(each["identity"])
    return {name: ", ".join(identities) for name, identities in found.items()}


def _values(a: Run, b: Run) -> list[Fact]:
    files = {each["id"] for run in (a, b) for each in run.inputs}
    names = sorted((a.invocation.keys() | b.invocation.keys()) - files)
    return [Fact(f"value {name}", a.invocation.get(name), b.invocation.get(name)) for name in names]


class Copies:
    """Files that a run left, as they can be read on this machine: as they were collected, or brought now."""

    def __init__(self, run: Run, left: Left, folder: Path) -> None:
        """What has to be brought comes to `folder`, which is made."""
        self._run = run
        self._left = left
        self._folder = folder
        self._found: dict[bytes, Path] = {}

    def bring(self, paths: Sequence[bytes], site: Site, tell: Listener) -> Mapping[bytes, Path]:
        """Where each of them lies here. Raises `IncompleteError` where one cannot be brought as it was."""
        wanted = [path for path in paths if not self._is_collected(path)]
        text = str(self._folder.absolute())
        target = Location(local_site(), text, text, typed_local=True)
        receipt = pull_outputs("compare", self._run, site, target, wanted, tell, saving=Saving(save=False))
        for path in wanted:
            self._found[path] = Path(text) / os.fsdecode(path)
            if receipt.exit is not Exit.DONE or not _has_digest(self._found[path], self._digest(path)):
                raise IncompleteError(
                    "not-brought",
                    "it did not come, or is not what it was a moment ago",
                    about=f"{self._run.id}: {printable(path)}",
                )
        return self._found

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
