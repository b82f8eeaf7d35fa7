"""Build chains of runs: pipelines, answer files, and the receipts of transfers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.end_to_end.run_tools import Answer, Bench, doing


class Chain:
    """A bench with further pipelines, and steps that run command lines."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.hibali = bench.hibali
        self.folder = bench.folder

    def add(self, descriptor: dict[str, Any]) -> str:
        """Add a trusted pipeline; return its reference."""
        (self.folder / "more.json").write_text(json.dumps(descriptor))
        reference: str = self.hibali("pipelines", "add", "more.json", exit=0).out.decode().split()[0]
        self.hibali("pipelines", "trust", reference, exit=0)
        return reference

    def step(
        self,
        name: str,
        given: Any,
        *more: str,
        of: str = "",
        exit: int | None = 0,  # noqa: A002
        **values: Any,
    ) -> Answer:
        """Run a command with an answers file of this name; `given` is the answer of the input `in`."""
        answers = f"{name}.json"
        (self.folder / answers).write_text(json.dumps({"in": given, **values}))
        return self.hibali("run", of or self.bench.reference, answers, *more, "--json", exit=exit)

    def shown(self, run_id: str) -> dict[str, Any]:
        found: dict[str, Any] = self.hibali("runs", "show", run_id, "--json", exit=0).last
        return found

    def receipts(self) -> list[dict[str, Any]]:
        """Return the receipts of all transfers so far, in the order of their ends."""
        folder = self.hibali.home.state / "operations"
        journals = sorted(folder.glob("*.jsonl"), key=lambda path: path.stat().st_mtime_ns)
        lines = [line for path in journals for line in path.read_text().splitlines()]
        return [each for each in map(json.loads, lines) if each.get("kind") == "receipt"]


def output(run: dict[str, Any], below: str = "") -> str:
    return f"run:{run['id']}/out_file{below}"


def waiting_for(go: Path, name: str) -> dict[str, Any]:
    """Return a tool that copies its input once the file `go` exists."""
    return {**doing(f"until [ -e {go} ]; do sleep 0.1; done; cp [IN] [OUT]; exit [CODE]"), "name": name}
