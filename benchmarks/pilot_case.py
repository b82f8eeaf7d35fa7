"""Compare 1,000 tasks of `true` on Slurm as a job array and in a pilot job with two cores."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks.case import Brief, Case, Contender, PreparedCase, Target
from benchmarks.measuring import FailedError
from benchmarks.samples import Bar, Sample
from benchmarks.sweep_case import prepare_sweep
from benchmarks.testbed import Testbed

_CORES = 2
_LIMITS = 'queued_jobs = 2000\npoll = "2s"'
_TOOL = {
    "name": "Pilot Case",
    "tool-version": "1.0",
    "schema-version": "0.5",
    "description": "Does nothing, successfully.",
    "command-line": "true [SAY]",
    "inputs": [{"id": "say", "name": "say", "type": "String", "value-key": "[SAY]"}],
}


@dataclass(frozen=True)
class PilotTarget(Target):
    """The task folders of the latest run; each must have an exit record and logs."""

    work: Path
    tasks: int
    rates: dict[str, list[float]] = field(default_factory=dict)
    reused: bool = True

    def check(self, name: str) -> None:  # noqa: ARG002 - all runs share one destination
        complete = 0
        for folder in self._run().glob("tasks/*"):
            record = json.loads((folder / "exit.json").read_text())
            complete += record["run"].endswith(f"/{folder.name}") and record["code"] == 0
            complete -= not ((folder / "stdout").exists() and (folder / "stderr").exists())
        if complete != self.tasks:
            raise FailedError(f"{complete} of {self.tasks} tasks succeeded and left their logs")

    def adjust(self, sample: Sample) -> Sample:
        """Take the seconds from the start of the job to the end of the last task, by the times of the site's files."""
        folder = self._run()
        begun = min(path.stat().st_mtime_ns for path in folder.glob("chunks/*/started/job"))
        ended = max(path.stat().st_mtime_ns for path in folder.glob("tasks/*/exit.json"))
        seconds = (ended - begun) / 1e9
        kind = "pilot" if (folder / "pilot").exists() else "job array"
        self.rates.setdefault(kind, []).append(self.tasks / seconds)
        return replace(sample, seconds=seconds)

    def table(self) -> list[list[str]]:
        """Return the tasks per second of each run."""
        lines = [["", "tasks a second"]]
        return lines + [
            [kind, ", ".join(f"{rate:.1f}" for rate in rates)] for kind, rates in self.rates.items()
        ]

    def _run(self) -> Path:
        """Return the latest run's folder; run ids begin with the time."""
        return max((self.work / "runs").iterdir())


@contextlib.contextmanager
def _prepare(testbed: Testbed) -> Iterator[PreparedCase]:
    with prepare_sweep(testbed, "pilot", _TOOL, _LIMITS) as sweep:
        target = PilotTarget(sweep.work, sweep.amount.files)
        array_argv = [*sweep.argv, "--new"]
        pilot_argv = [*array_argv, "--pilot", "--cores", str(_CORES)]
        contenders = [
            Contender("job array", lambda _: array_argv, target, sweep.environment),
            Contender("pilot", lambda _: pilot_argv, target, sweep.environment),
        ]
        yield PreparedCase(sweep.amount, contenders, target.table)


CASES = (
    Case(
        "pilot-slurm",
        "{count} tasks of `true` on Slurm, as a job array and by --pilot on one allocation with 2 cores; seconds are those"
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
        brief=Brief(0.5, 1),
    ),
)
