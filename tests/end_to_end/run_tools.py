"""A small pipeline and its sites, for the tests of `hibali run`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Answer = Any  # what the fixture `hibali` returns
Command = Callable[..., Answer]

# Reads one or more files, writes [OUT], prints to stdout and stderr, sleeps, and exits with the given code.
DESCRIPTOR: dict[str, Any] = {
    "name": "Count Letters",
    "tool-version": "1.0",
    "schema-version": "0.5",
    "description": "Copies its inputs and counts them.",
    "command-line": "cat [IN] [MORE] >[OUT]; echo counted; echo [SAY] >&2; sleep [SLEEP]; exit [CODE]",
    "inputs": [
        {"id": "in", "name": "in", "type": "File", "value-key": "[IN]"},
        {
            "id": "more",
            "name": "more",
            "type": "File",
            "value-key": "[MORE]",
            "list": True,
            "optional": True,
        },
        {
            "id": "out",
            "name": "out",
            "type": "String",
            "value-key": "[OUT]",
            "optional": True,
            "default-value": "out.txt",
        },
        {
            "id": "say",
            "name": "say",
            "type": "String",
            "value-key": "[SAY]",
            "optional": True,
            "default-value": "done",
        },
        {
            "id": "sleep",
            "name": "sleep",
            "type": "Number",
            "value-key": "[SLEEP]",
            "optional": True,
            "default-value": 0,
        },
        {
            "id": "code",
            "name": "code",
            "type": "Number",
            "integer": True,
            "value-key": "[CODE]",
            "optional": True,
            "default-value": 0,
        },
    ],
    "output-files": [{"id": "out_file", "name": "out", "path-template": "[OUT]"}],
}


def doing(command: str) -> dict[str, Any]:
    """Return the same inputs with another command line."""
    unused = ": [IN] [MORE] [OUT] [SAY] [SLEEP] [CODE]"  # the schema requires that every key is used
    return {**DESCRIPTOR, "command-line": f"{unused}; {command}"}


class Bench:
    """hibali with a trusted pipeline and input files, for one test."""

    def __init__(self, hibali: Any, descriptor: dict[str, Any] | None = None) -> None:
        self.hibali = hibali
        self.folder: Path = hibali.home.folder
        self.site = ""
        self._write("tool.json", descriptor or DESCRIPTOR)
        self.reference = hibali("pipelines", "add", "tool.json", exit=0).out.decode().split()[0]
        hibali("pipelines", "trust", self.reference, exit=0)

    def _write(self, name: str, document: dict[str, Any]) -> None:
        (self.folder / name).write_text(json.dumps(document))

    def add_site(self, name: str, table: str) -> None:
        """Add a site to config.toml; `table` is TOML below `[sites.NAME]`."""
        path = self.hibali.home.config
        text = path.read_text() if path.exists() else "version = 1\n"
        path.write_text(f"{text}[sites.{name}]\n{table}\n")
        path.chmod(0o600)
        self.site = name

    def add_local_site(self, name: str = "here", container: str = "bare") -> Path:
        """Add a site on this machine, and return its work folder."""
        work = self.folder / f"work-{name}"
        self.add_site(
            name,
            f'kind = "local"\nwork = "{work}"\n[sites.{name}.container]\nname = "{container}"\n'
            f'[sites.{name}.limits]\npoll = "1s"',
        )
        return work

    def add_slurm_site(self, slurm: Any, name: str = "cluster") -> Path:
        """Add the cluster as an ssh site, and return its work folder."""
        work = self.folder / f"work-{name}"
        words = ", ".join(f'"{word}"' for word in slurm.command)
        self.add_site(
            name,
            f'kind = "ssh"\nwork = "{work}"\n[sites.{name}.ssh]\nhost = "{slurm.host}"\ncommand = [{words}]\n'
            f'[sites.{name}.scheduler]\nname = "slurm"\ndirectives = ["--mem=50"]\n'
            f'[sites.{name}.limits]\npoll = "1s"',
        )
        return work

    def answers(self, name: str = "answers.json", **values: Any) -> str:
        """Write a file of answers; `in` is a small file unless given."""
        (self.folder / "input.txt").write_text("hello\n")
        self._write(name, {"in": "input.txt", **values})
        return name

    def line(self, answers: str, *more: str) -> tuple[str, ...]:
        """Return the arguments of a `run` command."""
        return ("run", self.reference, answers, "--site", self.site, *more)

    def run(self, answers: str, *more: str, exit: int | None = None) -> Answer:  # noqa: A002
        """Call `hibali run` with `--json`."""
        return self.hibali(*self.line(answers, *more), "--json", exit=exit)

    def records(self, run_id: str) -> Iterator[dict[str, Any]]:
        """Yield the records of a run in the ledger."""
        path = self.hibali.home.state / "runs" / f"{run_id}.jsonl"
        for line in path.read_text().splitlines():
            yield json.loads(line)

    def run_ids(self) -> list[str]:
        """Return the ids of all runs of this test, oldest first; the order within one second is undefined."""
        folder = self.hibali.home.state / "runs"
        return sorted(path.stem for path in folder.glob("*.jsonl"))


VARYING = "mkdir [OUT]; cp [IN] [OUT]/same; echo [SAY] >[OUT]/note; [ [CODE] = 0 ] || touch [OUT]/more"


def varying_bench(hibali: Any) -> Bench:
    """Return a pipeline whose outputs depend on the answers, at a site on this machine."""
    bench = Bench(hibali, doing(VARYING))
    bench.add_local_site()
    return bench


def run_at(bench: Bench, *more: str, **answers: Any) -> str:
    """Return the id of a run that has ended."""
    lines = bench.run(bench.answers(**answers), "--wait", *more, exit=0).lines
    return next(str(line["id"]) for line in lines if line["kind"] == "run")
