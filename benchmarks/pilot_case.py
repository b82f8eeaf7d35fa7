"""A thousand tasks of `true` on Slurm: as a job array, and inside one allocation with two cores."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.case import Case, Contender, Field, Target
from benchmarks.measuring import FailedError
from benchmarks.samples import Amount, Bar, Sample
from benchmarks.stage import HIBALI, Stage
from benchmarks.sweep_case import hibali
from tests.services.session import ensure
from tests.services.slurm import Slurm
from tests.support.counted_slurm import counted_slurm

_TASKS = 1000
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
    slurm: Slurm = ensure(stage.folder, "slurm")
    with stage.place("pilot") as place, counted_slurm(place, slurm) as node:
        work = place / "work"
        stage.add_site("cluster", node.table(work, _LIMITS))
        tool, table = place / "tool.json", place / "table.csv"
        tool.write_text(json.dumps(_TOOL))
        amount = stage.amount(_TASKS, 1)
        table.write_text("say\n" + "".join(f"t{number}\n" for number in range(1, amount.files + 1)))
        environment = stage.environment()
        reference = hibali(environment, "pipelines", "add", str(tool)).split()[0]
        hibali(environment, "pipelines", "trust", reference)
        words = [
            *HIBALI,
            "run",
            reference,
            "--each",
            str(table),
            "--site",
            "cluster",
            "--new",
            "--wait",
            "--quiet",
        ]
        target = PilotTarget(work, amount.files)
        contenders = [
            Contender("job array", lambda _: words, target, environment),
            Contender("pilot", lambda _: [*words, "--pilot", "--cores", str(_CORES)], target, environment),
        ]
        yield Field(Amount(amount.files, 0, "tasks"), contenders, target.told)


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
