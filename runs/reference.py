"""`run:ID[.TASK]/OUTPUT-ID[/PATH]`: an output of a run of this ledger, or of tasks of a sweep, as an answer; pure."""

from __future__ import annotations

import re
from collections.abc import Container
from dataclasses import dataclass, replace

from hibali.errors import NotFoundError, UsageError
from hibali.nearest import nearest
from hibali.text import printable
from runs.run import FROM_RUN, RUN_ID, Output, Run
from runs.sweeps.sweep import part_of, tasks_as_runs

_RUN = rf"{FROM_RUN}({RUN_ID.pattern})(?:\.([1-9][0-9]{{0,8}}))?"
_REFERENCE = re.compile(rf"{_RUN}/([^/]+)(?:/(.*))?", re.DOTALL)
_IDENTITY = re.compile(rf"{_RUN}/([^/:]+)(?:/(.*)|:(.*))?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Reference:
    """An output of a run, by its id; `below` is a path in a folder that is an output, "" for all of it.

    Of a sweep `task` is the number of the task that is meant, 0 for all of them in their order.
    """

    run: str
    output: str
    below: str = ""
    task: int = 0

    @property
    def text(self) -> str:
        """As users write it: it stands for one content for ever, because a run leaves its outputs once."""
        of = f"{FROM_RUN}{self.run}{f'.{self.task}' if self.task else ''}"
        return "/".join(part for part in (of, self.output, self.below) if part)


@dataclass(frozen=True, slots=True)
class Named:
    """What an input's identity says of an output: `path` is that of one file of a pattern, printable; "" for all of it."""

    reference: Reference
    path: str = ""

    @property
    def text(self) -> str:
        """The identity."""
        return f"{self.reference.text}:{self.path}" if self.path else self.reference.text


def read_named(identity: str) -> Named | None:
    """What `Named.text` wrote; None for an identity of another kind."""
    found = _IDENTITY.fullmatch(identity)
    if found is None:
        return None
    return Named(Reference(found[1], found[3], found[4] or "", int(found[2] or 0)), found[5] or "")


def read_reference(text: str, sites: Container[str]) -> Reference | None:
    """What an answer refers to; None where it is a path.

    A site may be called `run`: what does not begin with a run's id is a path there. Raises `UsageError` for what is
    neither, or climbs.
    """
    if not text.startswith(FROM_RUN):
        return None
    found = _REFERENCE.fullmatch(text)
    if found is None:
        if FROM_RUN.rstrip(":") in sites and not RUN_ID.match(text.removeprefix(FROM_RUN)):
            return None
        raise UsageError(
            "bad-reference",
            "the output of a run is written run:ID/OUTPUT-ID, or run:ID/OUTPUT-ID/PATH for what is below a folder;"
            " of one task of a sweep run:ID.TASK/OUTPUT-ID",
            about=printable(text),
            hint="`hibali runs show ID --json` lists its outputs. A local file of that name: ./run:...",
        )
    below = (found[4] or "").removesuffix("/")
    if (below and not {"", ".", ".."}.isdisjoint(below.split("/"))) or "\0" in below:
        raise UsageError("bad-reference", "a path below an output cannot climb", about=printable(text))
    return Reference(found[1], found[3], below, int(found[2] or 0))


def parts_meant(run: Run, reference: Reference) -> list[Run]:
    """The run itself, or of a sweep the tasks that are meant, as runs by themselves, in their order.

    Raises `UsageError` for a task of a run that is no sweep, `NotFoundError` for one that is not there.
    """
    if run.sweep is None or reference.task:
        return [part_of(run, reference.task)]
    return tasks_as_runs(run, run.sweep.tasks)


def find_output(run: Run, reference: Reference) -> Output:
    """What is meant of what the run, or one task of a sweep, declares: its path is that of the reference.

    It has to be there, optional or not. Raises `NotFoundError` where there is no such output, `UsageError` for a path below a pattern.
    """
    found = next((each for each in run.outputs if each.id == reference.output), None)
    if found is None:
        known = [each.id for each in run.outputs]
        near = nearest(reference.output, known)
        raise NotFoundError(
            "no-such-output",
            "the run has no output of this id",
            about=printable(reference.text),
            hint=f"Is it {near}?" if near else f"It has: {', '.join(known) or 'none'}",
        )
    if not reference.below:
        return replace(found, optional=False)
    if found.is_pattern:
        raise UsageError(
            "bad-reference",
            "this output is a pattern, and all that it matches is taken together",
            about=printable(reference.text),
            hint=f"Write {replace(reference, below='').text} as an item of a list.",
        )
    path = reference.below if found.path == "." else f"{found.path}/{reference.below}"
    return replace(found, path=path, optional=False, is_list=False)
