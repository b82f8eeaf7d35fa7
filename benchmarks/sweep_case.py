"""A thousand tasks on Slurm, and what the login node sees of them: connections and commands, minute by minute."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.case import Case, Contender, Field, Target
from benchmarks.measuring import FailedError
from benchmarks.samples import Amount, Bar
from benchmarks.stage import HIBALI, Stage
from tests.services.session import ensure
from tests.services.slurm import Slurm
from tests.support.counted_slurm import CountedSlurm, counted_slurm

_TASKS = 1000
_MOST_COMMANDS = 30
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
    """The folders of all tasks at the site: each has to hold what its tool wrote, by one login and few commands."""

    work: Path
    node: CountedSlurm
    tasks: int
    stays: bool = True

    def check(self, name: str) -> None:  # noqa: ARG002 - there is one place only
        written = len(list(self.work.glob("runs/*/tasks/*/work/out.txt")))
        commands, logins = len(self.node.commands()), self.node.logins
        if written != self.tasks:
            raise FailedError(f"{written} of {self.tasks} tasks left their output")
        if commands > _MOST_COMMANDS or logins != 1:
            raise FailedError(f"{logins} logins and {commands} scheduler commands")

    def told(self) -> list[list[str]]:
        """The view of the login node; minutes count from the first thing it saw."""
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
            told = ", ".join(f"{count} {name}" for name, count in sorted(names.items()))
            lines.append([str(number), str(connections[number]), str(channels[number]), told or "0"])
        return [*lines, ["in all", str(len(opened)), str(len(sessions)), str(len(commands))]]


@dataclass(frozen=True)
class TemplateContext:
    """A tool at a cluster that counts what it is asked, and the line that runs it once for each row of a table."""

    node: CountedSlurm
    work: Path
    amount: Amount
    words: list[str]
    environment: dict[str, str]


@contextlib.contextmanager
def set_scene(stage: Stage, name: str, tool: dict[str, Any], limits: str) -> Iterator[TemplateContext]:
    """Everything that is not measured; `limits` are lines of the site's table of that name."""
    slurm: Slurm = ensure(stage.folder, "slurm")
    with stage.place(name) as place, counted_slurm(place, slurm) as node:
        work = place / "work"
        stage.add_site("cluster", node.table(work, limits))
        descriptor, table = place / "tool.json", place / "table.csv"
        descriptor.write_text(json.dumps(tool))
        count = stage.amount(_TASKS, 1).files
        table.write_text("say\n" + "".join(f"t{number}\n" for number in range(1, count + 1)))
        environment = stage.environment()
        reference = _prepared(environment, "pipelines", "add", str(descriptor)).split()[0]
        _prepared(environment, "pipelines", "trust", reference)
        words = [*HIBALI, "run", reference, "--each", str(table), "--site", "cluster", "--wait", "--quiet"]
        yield TemplateContext(node, work, Amount(count, 0, "tasks"), words, environment)


@contextlib.contextmanager
def _prepare(stage: Stage) -> Iterator[Field]:
    with set_scene(stage, "sweep", _TOOL, _LIMITS) as scene:
        target = SweepTarget(scene.work, scene.node, scene.amount.files)
        contender = Contender("hibali", lambda _: scene.words, target, scene.environment)
        yield Field(scene.amount, [contender], target.told)


def _prepared(environment: dict[str, str], *words: str) -> str:
    """What it prints, of a step that is not measured; raises `FailedError`."""
    ended = subprocess.run(
        [*HIBALI, *words], env=environment, check=False, capture_output=True, stdin=subprocess.DEVNULL
    )
    if ended.returncode:
        raise FailedError(f"{words[1]}: {ended.stderr[-300:].decode(errors='replace')}")
    return ended.stdout.decode()


CASES = (
    Case(
        "sweep-slurm",
        "1,000 tasks as a job array on Slurm, submitted and followed to the end (poll = 10s, growing)",
        _prepare,
        (Bar("peak memory under 150 MB", "hibali", 150, measure="peak"),),
        repeats=1,
    ),
)
