"""A thousand tasks of `true` on Slurm: as a job array, and inside one allocation with two cores."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.case import Case, Contender, Field, Target
from benchmarks.measuring import FailedError
from benchmarks.samples import Bar, Sample
from benchmarks.stage import Stage
from benchmarks.sweep_case import set_scene

_CORES = 2
_LIMITS = 'queued_jobs = 2000\npoll = "2s"'
_TOOL = {
    "name": "Pilot Case",
    "tool-version": "1.0",
    "schema-version": "0.5",
    "description": "Does nothing, well.",
    "command-line": "true [SAY]",
    "inputs": [{"id": "say", "name": "say", "type": "String", "value-key": "[SAY]"}],
}


@dataclass(frozen=True)
class PilotTarget(Target):
    """The folders of all tasks of the run that was begun last: each has to have an end and logs of its own."""

    work: Path
    tasks: int
    told_of: dict[str, list[float]] = field(default_factory=dict)
    stays: bool = True

    def check(self, name: str) -> None:  # noqa: ARG002 - there is one place only
        ends = 0
        for folder in self._run().glob("tasks/*"):
            record = json.loads((folder / "exit.json").read_text())
            ends += record["run"].endswith(f"/{folder.name}") and record["code"] == 0
            ends -= not ((folder / "stdout").exists() and (folder / "stderr").exists())
        if ends != self.tasks:
            raise FailedError(f"{ends} of {self.tasks} tasks ended well and left their logs")

    def timed(self, sample: Sample) -> Sample:
        """From the begin of its job to the end of its last task, by the site's own files."""
        folder = self._run()
        begun = min(path.stat().st_mtime_ns for path in folder.glob("chunks/*/started/job"))
        ended = max(path.stat().st_mtime_ns for path in folder.glob("tasks/*/exit.json"))
        seconds = (ended - begun) / 1e9
        way = "pilot" if (folder / "pilot").exists() else "job array"
        self.told_of.setdefault(way, []).append(self.tasks / seconds)
        return replace(sample, seconds=seconds)

    def told(self) -> list[list[str]]:
        """Tasks a second, each time."""
        lines = [["", "tasks a second"]]
        return lines + [
            [way, ", ".join(f"{rate:.1f}" for rate in rates)] for way, rates in self.told_of.items()
        ]

    def _run(self) -> Path:
        """Ids begin with the time."""
        return max((self.work / "runs").iterdir())


@contextlib.contextmanager
def _prepare(stage: Stage) -> Iterator[Field]:
    with set_scene(stage, "pilot", _TOOL, _LIMITS) as scene:
        target = PilotTarget(scene.work, scene.amount.files)
        words = [*scene.words, "--new"]
        by_pilot = [*words, "--pilot", "--cores", str(_CORES)]
        contenders = [
            Contender("job array", lambda _: words, target, scene.environment),
            Contender("pilot", lambda _: by_pilot, target, scene.environment),
        ]
        yield Field(scene.amount, contenders, target.told)


CASES = (
    Case(
        "pilot-slurm",
        "1,000 tasks of `true` on Slurm, as a job array and by --pilot on one allocation with 2 cores; seconds are those"
        " from the begin of the job to the end of the last task",
        _prepare,
        (
            Bar(
                "at least 5 times as many tasks a second as the job array",
                "pilot",
                5.0,
                at_least=True,
                than=("job array",),
            ),
        ),
        repeats=1,
    ),
)
