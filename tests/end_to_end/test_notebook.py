"""Test the notebook of docs/notebooks.md: it is executed, and its outputs are shown in a browser in light and dark."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.run_tools import Bench
from tests.services.session import REPOSITORY
from tests.support import science
from tests.support.browser import browser
from tests.support.requirements import require_prepared

DRAW = "HIBALI_PICTURES" in os.environ  # HIBALI_PICTURES=1 redraws the picture of the page
PYTHON = REPOSITORY / ".cache/science/bin/python"
SOURCES = REPOSITORY / "docs/notebooks"


@pytest.fixture
def bench(hibali: Any, ssh_server: Any) -> Bench:
    """Return the ssh site `juwels`, at which python3 has nibabel, and the trusted pipeline."""
    require_prepared(PYTHON, "science")
    made = Bench(hibali, json.loads((SOURCES / "threshold.json").read_text()))
    command = ", ".join(f'"{word}"' for word in ssh_server.command)
    made.add_site(
        "juwels",
        f'kind = "ssh"\nwork = "{made.folder}/work"\ndefault_root = "data"\n'
        f'[sites.juwels.roots]\ndata = "{made.folder}/data"\n'
        f'[sites.juwels.ssh]\nhost = "{ssh_server.host}"\ncommand = [{command}]\n'
        f'[sites.juwels.scheduler]\nname = "direct"\nprologue = [\'export PATH="{PYTHON.parent}:$PATH"\']\n'
        '[sites.juwels.container]\nname = "bare"\n[sites.juwels.limits]\npoll = "1s"\n',
    )
    for name in ("threshold.json", "threshold.py", "dask-cluster.json"):
        shutil.copy(SOURCES / name, made.folder)
    hibali("pipelines", "add", "dask-cluster.json", exit=0)
    hibali("pipelines", "trust", "dask-cluster", exit=0)
    (made.folder / "data").mkdir()
    (made.folder / "scans").mkdir()
    [shipped] = (REPOSITORY / ".cache/science/lib").glob("python3*/site-packages/nibabel/tests/data")
    shutil.copy(shipped / "anatomical.nii", made.folder / "scans")
    return made


def execute(bench: Bench) -> list[dict[str, str]]:
    """Execute the notebook; return the data of each cell's outputs by its type."""
    kept = {key: value for key, value in bench.hibali.env.items() if not key.startswith("PYTHON")}
    done = subprocess.run(
        [PYTHON, "-P", "-m", science.__name__, "notebook"],
        env=kept,
        cwd=bench.folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    cells = json.loads((bench.folder / "executed.ipynb").read_text())["cells"]
    return [
        {kind: "".join(text) for output in cell["outputs"] for kind, text in output.get("data", {}).items()}
        for cell in cells
    ]


@pytest.mark.heavy
@pytest.mark.timeout(900)
def test_the_notebook_of_the_page_is_executed_and_shown(bench: Bench, tmp_path: Path) -> None:
    outputs = execute(bench)
    pushed, planned, run, sweep, collected = (outputs[number]["text/html"] for number in (1, 2, 4, 5, 6))
    assert "1 file moved" in pushed
    assert "Nothing would change." in planned
    assert "succeeded" in run
    assert sweep.count('class="succeeded"') >= 16
    assert "2 files moved" in collected
    assert outputs[9]["text/plain"] == str((bench.folder / "scans/anatomical.nii").stat().st_size)
    assert outputs[-1]["text/plain"] == "True"
    usage = bench.hibali("sites", "usage", "juwels", "--json", exit=0).lines[0]
    assert usage["hour"]["logins"] == 1
    plot = f'<img alt="plot" src="data:image/png;base64,{outputs[8]["image/png"].strip()}">'
    page = tmp_path / "notebook.html"
    page.write_text(
        '<!DOCTYPE html><html lang="en"><meta charset="utf-8"><title>Notebook</title><main>'
        f"{pushed}{run}{sweep}{plot}</main></html>"
    )
    with browser(tmp_path / "profile") as shown:
        for dark in (True, False):
            shown.open(page, width=900, dark=dark)
            colour = shown.evaluate(
                "getComputedStyle(document.querySelector('.hibali')).getPropertyValue('--succeeded').trim()"
            )
            assert colour == ("#4fb783" if dark else "#2f8f5b")
            assert shown.evaluate("document.documentElement.scrollWidth") <= 900
        assert shown.said == []
        shown.photograph(tmp_path / "notebook.png", height=1200)
    if DRAW:
        shutil.copy(tmp_path / "notebook.png", REPOSITORY / "docs/pictures")
