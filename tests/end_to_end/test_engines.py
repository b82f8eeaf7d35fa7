"""Test the recipes for workflow engines as documented: their tasks call hibali, and a second call computes nothing."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.run_tools import Bench
from tests.services.session import REPOSITORY
from tests.support.command_tree import misunderstood
from tests.support.external_programs import calls_of, environment_with_hibali
from tests.support.folders import describes_all
from tests.support.requirements import require_prepared

_PAGE = REPOSITORY / "docs" / "workflow-engines.md"


def recipe(heading: str) -> str:
    """Return the code below a heading of the page."""
    found = re.search(
        rf"^## {heading}$.*?^```python\n(.*?)^```$", _PAGE.read_text(), re.MULTILINE | re.DOTALL
    )
    assert found is not None
    return found[1]


def logs_of_pilot(bench: Bench) -> str:
    """Return the ends of what the bootstrap and the agent of RADICAL-Pilot wrote."""
    logs = (bench.hibali.home.home / "radical.pilot.sandbox").glob("*/pilot.*/*_0.[eo]*")
    return "\n".join(f"{log.name}: {log.read_text(errors='replace')[-500:]}" for log in sorted(logs))


@pytest.mark.heavy
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("heading", "engine", "times"),
    [("Parsl", "parsl", 2), ("Dask", "dask", 2), ("RADICAL-Pilot", "radical", 1)],
)
def test_a_task_of_an_engine_calls_hibali(hibali: Any, heading: str, engine: str, times: int) -> None:
    python = REPOSITORY / ".cache" / engine / "bin" / "python"
    require_prepared(python, engine)
    bench = Bench(hibali)
    bench.add_local_site()
    for name in ("one", "two"):
        bench.answers(f"{name}.json", say=name)
    text = recipe(heading).replace("segment@1.0", bench.reference).replace("juwels", "here")
    (bench.folder / "recipe.py").write_text(text)
    environment = environment_with_hibali(bench.hibali, python.parent) | {
        "VIRTUAL_ENV": str(python.parent.parent),  # as if activated, for RADICAL-Pilot
        "PWD": str(bench.folder),
    }

    def run() -> list[str]:
        output = bench.folder / "recipe.out"
        with output.open("wb") as stream:  # not a pipe: processes of an engine may outlive the recipe
            words = [python, "recipe.py"]
            done = subprocess.run(
                words,
                cwd=bench.folder,
                env=environment,
                stdout=stream,
                stderr=stream,
                check=False,
                timeout=400,
            )
        printed = output.read_text()
        if "pilot failed" in printed:  # before any task: RADICAL-Pilot could not start its own agent here
            pytest.skip(
                f"RADICAL-Pilot cannot start its agent on this machine: {printed} {logs_of_pilot(bench)}"
            )
        assert done.returncode == 0, printed
        return [line for line in printed.split() if line.endswith("out.txt")]  # and the ids of runs

    for again in range(1, times + 1):  # RADICAL-Pilot takes half a minute to start
        paths = [Path(path) for path in run()]
        assert [(bench.folder / path).read_text() for path in paths] == ["hello\n", "hello\n"]
        assert (len(bench.run_ids()), calls_of(bench)) == (2, 2 * again)


@describes_all
def test_the_options_on_the_page_exist() -> None:
    named = set(re.findall(r"--[a-z][a-z-]+", _PAGE.read_text())) - {"--to"}  # of `pipelines export`
    assert {
        option: why for option in named if "No such option" in (why := misunderstood(["run", option]) or "")
    } == {}
    for heading in ("Parsl", "Dask", "RADICAL-Pilot"):
        compile(recipe(heading), heading, "exec")
