"""Count the structure of the code: lines, modules, floors, and what four commands load (`make structure`)."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import grimp

from benchmarks.peers import REPOSITORY
from tests.services.processes import MissingPackageError, ServiceError
from tests.services.session import end_session, ensure, prepare_session

PLUGINS = "hibali_plugins"


class Row(NamedTuple):
    """One figure: counted by this module at the commit 12bc83b4, and the aim.

    The 366 lines of the 3 modules that write pages, which were in the wheel then and are in docs/tools now, are not in it.
    """

    before: str
    aim: str


TABLE = {
    "production lines": Row("125957", "117000"),
    "production modules": Row("510", "440"),
    "core lines": Row("88277", "78000"),
    "core modules": Row("342", "285"),
    "floors of transfers": Row("circles", "9"),
    "folders that import each other": Row("14", "0"),
    "push over ssh: files / modules": Row("73 / 143", "50 / 80"),
    "push to S3: files / modules": Row("88 / 154", "55 / 85"),
    "ls: files / modules": Row("49 / 131", "-"),
    "run --wait: files / modules": Row("103 / 239", "90 / 150"),
}
DESCRIPTOR = {
    "name": "Copy",
    "tool-version": "1.0",
    "schema-version": "0.5",
    "description": "Copies a file.",
    "command-line": "cat [IN] >out.txt",
    "inputs": [{"id": "in", "name": "in", "type": "File", "value-key": "[IN]"}],
    "output-files": [{"id": "out", "name": "out", "path-template": "out.txt"}],
}


class Count(NamedTuple):
    """Lines and modules; the `__init__.py` of a package is no module."""

    lines: int
    modules: int


def packages_of(root: Path) -> list[str]:
    """Return the packages of the wheel."""
    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))
    return list(project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"])


def count(root: Path, packages: Sequence[str]) -> Count:
    """Count the production code."""
    lines = modules = 0
    for package in packages:
        for path in (root / package).rglob("*.py"):
            if path.name != "__init__.py":
                lines, modules = lines + path.read_bytes().count(b"\n"), modules + 1
    return Count(lines, modules)


def import_edges(graph: grimp.ImportGraph, package: str) -> dict[str, set[str]]:
    """Return which direct children of a package (folders and modules) import which others; all imports count."""
    edges: dict[str, set[str]] = {child: set() for child in graph.find_children(package)}
    for child, found in edges.items():
        for module in {child, *graph.find_descendants(child)}:
            for imported in graph.find_modules_directly_imported_by(module):
                other = ".".join(imported.split(".")[: package.count(".") + 2])
                if other in edges and other != child:
                    found.add(other)
    return edges


def mutual_imports(edges: Mapping[str, set[str]]) -> list[tuple[str, str]]:
    """Return the pairs that import each other."""
    return sorted(
        (one, other) for one in edges for other in edges[one] if one < other and one in edges[other]
    )


def count_floors(edges: Mapping[str, set[str]]) -> int | None:
    """Return the length of the longest chain of imports; None if a chain is a circle."""
    heights: dict[str, int] = {}

    def height(name: str, above: frozenset[str]) -> int:
        if name in above:
            raise RecursionError
        if name not in heights:
            heights[name] = 1 + max((height(each, above | {name}) for each in edges[name]), default=0)
        return heights[name]

    try:
        return max((height(name, frozenset()) for name in edges), default=0)
    except RecursionError:
        return None


class Tracer:
    """Trace commands in a home of their own. The second of two equal commands counts: the first logs in and probes the server.

    Args:
        folder: A short path, because sockets are below it.
        root: The checkout whose code runs.
    """

    def __init__(self, folder: Path, root: Path, packages: Sequence[str]) -> None:
        self.session = folder / "s"
        self._home, self._output = folder / "h", folder / "trace.json"
        self._start = (
            sys.executable,
            "-P",
            str(REPOSITORY / "benchmarks" / "traced_command.py"),
            str(self._output),
            ",".join(packages),
        )
        self._config = self._home / "config.toml"
        (self._home / "src").mkdir(parents=True)
        (self._home / "src/a.txt").write_text("one\n")
        self._config.write_text("version = 1\n")
        self._config.chmod(0o600)
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "HIBALI_"))},
            "HOME": str(self._home),
            "HIBALI_CONFIG": str(self._config),
            "HIBALI_STATE": str(self._home / "state"),
            "PYTHONPATH": str(root),
        }
        prepare_session(self.session)

    def cases(self) -> dict[str, Callable[[], tuple[list[str], list[str]]]]:
        """Return what starts a case's servers, and returns its two equal commands."""
        return {
            "push over ssh": self._ssh,
            "push to S3": self._bucket,
            "ls": lambda: (["ls", "src"], ["ls", "src"]),
            "run --wait": self._slurm,
        }

    def trace(self, command: Sequence[str]) -> str:
        """Run a command; return its files whose functions ran, and its loaded modules."""
        subprocess.run(
            (*self._start, *command), cwd=self._home, env=self._environment, check=True, capture_output=True
        )
        found = json.loads(self._output.read_text())
        return f"{found['files']} / {found['modules']}"

    def _add_site(self, table: str) -> None:
        with self._config.open("a") as stream:
            stream.write(table)

    def _ssh(self) -> tuple[list[str], list[str]]:
        server = ensure(self.session, "ssh")
        self._add_site(
            f'[sites.far]\nkind = "ssh"\n[sites.far.ssh]\nhost = "far"\ncommand = ["ssh", "-F", "{server.config}"]\n'
        )
        return ["push", "src", "far:t1"], ["push", "src", "far:t2"]

    def _bucket(self) -> tuple[list[str], list[str]]:
        store = ensure(self.session, "object-store")
        self._environment |= store.env
        store.client().create_bucket(Bucket="traced")
        self._add_site(f'[sites.store]\nkind = "s3"\n[sites.store.s3]\nendpoint = "{store.endpoint}"\n')
        return ["push", "src", "store:traced/t1"], ["push", "src", "store:traced/t2"]

    def _slurm(self) -> tuple[list[str], list[str]]:
        slurm = ensure(self.session, "slurm")
        words = ", ".join(f'"{word}"' for word in slurm.command)
        self._add_site(
            f'[sites.cluster]\nkind = "ssh"\nwork = "{self._home}/work"\n[sites.cluster.ssh]\nhost = "{slurm.host}"\n'
            f'command = [{words}]\n[sites.cluster.scheduler]\nname = "slurm"\ndirectives = ["--mem=50"]\n'
            '[sites.cluster.limits]\npoll = "1s"\n'
        )
        (self._home / "copy.json").write_text(json.dumps(DESCRIPTOR))
        (self._home / "answers.json").write_text('{"in": "src/a.txt"}')
        self.trace(["pipelines", "add", "copy.json"])
        self.trace(["pipelines", "trust", "copy@1.0"])
        command = ["run", "copy@1.0", "answers.json", "--site", "cluster", "--wait"]
        return command, [*command, "--new"]


def trace_cases(root: Path, packages: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Trace all cases; a case whose servers are not installed says so."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="st") as folder:
        Path(folder).chmod(0o711)  # other accounts reach the socket of MUNGE
        tracer = Tracer(Path(folder), root, packages)
        try:
            for name, prepare in tracer.cases().items():
                try:
                    first, second = prepare()
                    tracer.trace(first)
                    yield name, tracer.trace(second)
                except (MissingPackageError, ServiceError) as problem:
                    yield name, f"not traced: {problem}"
        finally:
            end_session(tracer.session)


def main() -> int:
    """Print the table, and the folders that import each other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, default=REPOSITORY, help="another checkout, to compare")
    parser.add_argument("--no-traces", action="store_true", help="count only")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    root = options.root.resolve()
    packages = packages_of(root)
    sys.path.insert(0, str(root))
    graph = grimp.build_graph(*packages, cache_dir=None)
    edges = {package: import_edges(graph, package) for package in packages}
    pairs = [pair for package in packages for pair in mutual_imports(edges[package])]
    whole = count(root, packages)
    core = count(root, [package for package in packages if package != PLUGINS])
    now = {
        "production lines": str(whole.lines),
        "production modules": str(whole.modules),
        "core lines": str(core.lines),
        "core modules": str(core.modules),
        "floors of transfers": str(count_floors(edges["transfers"]) or "circles"),
        "folders that import each other": str(len(pairs)),
    }
    if not options.no_traces:
        now |= {f"{name}: files / modules": found for name, found in trace_cases(root, packages)}
    print(f"{'':32} {'12bc83b4':>10} {'aim':>10} {'now':>12}")
    for name, row in TABLE.items():
        print(f"{name:32} {row.before:>10} {row.aim:>10} {now.get(name, '-'):>12}")
    for one, other in pairs:
        print(f"{one} and {other} import each other")
    if options.json:
        options.json.write_text(json.dumps(now, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
