"""Count the connections and commands on a login node, per minute, during 1,000 tasks on Slurm."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.case import Brief, Case, Contender, PreparedCase, Target
from benchmarks.measuring import FailedError
from benchmarks.samples import Amount, Bar
from benchmarks.testbed import HIBALI, Testbed
from tests.services.session import ensure
from tests.services.slurm import Slurm
from tests.support.recording_slurm import RecordingSlurm, recording_slurm

_TASKS = 1000
_MAX_COMMANDS = 30
_LIMITS = 'queued_jobs = 2000\npoll = "10s"'
_TOOL = {
    "name": "Sweep Case",
    "tool-version": "1.0",
    "schema-version": "0.5",
    "description": "Writes one line.",
    "command-line": "echo [SAY] >out.txt",
    "inputs": [{"id": "say", "name": "say", "type": "String", "value-key": "[SAY]"}],
    "output-files": [{"id": "out", "name": "out", "path-template": "out.txt"}],
}


@dataclass(frozen=True)
class SweepTarget(Target):
    """The task folders at the site: each must have its output, with one login and few scheduler commands in total."""

    work: Path
    node: RecordingSlurm
    tasks: int
    reused: bool = True

    def check(self, name: str) -> None:  # noqa: ARG002 - all runs share one destination
        written = len(list(self.work.glob("runs/*/tasks/*/work/out.txt")))
        commands, logins = len(self.node.commands()), self.node.logins
        if written != self.tasks:
            raise FailedError(f"{written} of {self.tasks} tasks left their output")
        if commands > _MAX_COMMANDS or logins != 1:
            raise FailedError(f"{logins} logins and {commands} scheduler commands")

    def table(self) -> list[list[str]]:
        """Return connections, sessions and commands per minute since the first of them."""
        commands, sessions = self.node.commands(), self.node.sessions()
        first = min(seconds for seconds, _ in (*commands, *sessions))
        opened: dict[str, float] = {}
        for seconds, connection in sessions:
            opened.setdefault(connection, seconds)

        def minute(seconds: float) -> int:
            return int((seconds - first) // 60) + 1

        connections = Counter(minute(seconds) for seconds in opened.values())
        channels = Counter(minute(seconds) for seconds, _ in sessions)
        called = [(minute(seconds), name) for seconds, name in commands]
        lines = [["minute", "new connections", "sessions on them", "scheduler commands"]]
        last = max([*channels, *(number for number, _ in called)])
        for number in range(1, last + 1):
            names = Counter(name for at, name in called if at == number)
            counts = ", ".join(f"{count} {name}" for name, count in sorted(names.items()))
            lines.append([str(number), str(connections[number]), str(channels[number]), counts or "0"])
        return [*lines, ["in all", str(len(opened)), str(len(sessions)), str(len(commands))]]


@dataclass(frozen=True)
class SweepContext:
    """A cluster that counts connections and commands, and the command that runs a tool for each row of a table."""

    node: RecordingSlurm
    work: Path
    amount: Amount
    argv: list[str]
    environment: dict[str, str]


@contextlib.contextmanager
def prepare_sweep(testbed: Testbed, name: str, tool: dict[str, Any], limits: str) -> Iterator[SweepContext]:
    """Set up the cluster, the tool and the table, unmeasured; `limits` are lines of the site's table `limits`."""
    slurm: Slurm = ensure(testbed.folder, "slurm")
    with testbed.temporary_folder(name) as folder, recording_slurm(folder, slurm) as node:
        work = folder / "work"
        testbed.add_site("cluster", node.table(work, limits))
        descriptor, table = folder / "tool.json", folder / "table.csv"
        descriptor.write_text(json.dumps(tool))
        count = testbed.amount(_TASKS, 1).files
        table.write_text("say\n" + "".join(f"t{number}\n" for number in range(1, count + 1)))
        environment = testbed.environment()
        reference = _hibali(environment, "pipelines", "add", str(descriptor)).split()[0]
        _hibali(environment, "pipelines", "trust", reference)
        argv = [*HIBALI, "run", reference, "--each", str(table), "--site", "cluster", "--wait", "--quiet"]
        yield SweepContext(node, work, Amount(count, 0, "tasks"), argv, environment)


@contextlib.contextmanager
def _prepare(testbed: Testbed) -> Iterator[PreparedCase]:
    with prepare_sweep(testbed, "sweep", _TOOL, _LIMITS) as sweep:
        target = SweepTarget(sweep.work, sweep.node, sweep.amount.files)
        contender = Contender("hibali", lambda _: sweep.argv, target, sweep.environment)
        yield PreparedCase(sweep.amount, [contender], target.table)


def _hibali(environment: dict[str, str], *argv: str) -> str:
    """Run an unmeasured hibali command and return its stdout; raises `FailedError`."""
    completed = subprocess.run(
        [*HIBALI, *argv], env=environment, check=False, capture_output=True, stdin=subprocess.DEVNULL
    )
    if completed.returncode:
        raise FailedError(f"{argv[1]}: {completed.stderr[-300:].decode(errors='replace')}")
    return completed.stdout.decode()


CASES = (
    Case(
        "sweep-slurm",
        "{count} tasks as a job array on Slurm, submitted and followed to the end",
        _prepare,
        (Bar("peak memory under 150 MB", "hibali", 150, measure="peak"),),
        repeats=1,
        brief=Brief(repeats=1),
    ),
)
