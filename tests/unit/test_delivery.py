"""What is said of the things that are shipped: the list of packages, their licences, the conda recipe."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

from hibali import __version__

CLONE = Path(__file__).resolve().parents[2]
RECIPE = (CLONE / "packaging/conda/recipe.yaml").read_text()


def lock() -> dict[str, str]:
    lines = (CLONE / "requirements.lock").read_text().splitlines()
    pairs = [line.split("==") for line in lines if "==" in line]
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in pairs}


def project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((CLONE / "pyproject.toml").read_text())["project"]
    return found


def test_the_list_of_what_is_shipped_is_that_of_the_lock() -> None:
    done = subprocess.run(
        [sys.executable, "packaging/sbom.py", "--check"],
        cwd=CLONE,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    bom = json.loads((CLONE / "packaging/sbom.cdx.json").read_text())
    assert (bom["bomFormat"], bom["specVersion"]) == ("CycloneDX", "1.6")
    known = lock()
    references = {each["bom-ref"] for each in bom["components"]}
    for each in bom["components"]:
        assert known[each["name"]] == each["version"]
        assert each["purl"] == f"pkg:pypi/{each['name']}@{each['version']}"
        assert each["licenses"][0]["expression"]
    names = {each["name"] for each in bom["components"]}
    assert {re.split(r"[<>=]", line)[0] for line in project()["dependencies"]} <= names
    for each in bom["dependencies"]:
        assert set(each["dependsOn"]) <= references


def test_the_conda_recipe_asks_for_what_the_project_asks_for() -> None:
    run = RECIPE.partition("  run:\n")[2].partition("\n\n")[0]
    asked = {line.removeprefix("    - ").replace(" ", "") for line in run.splitlines()}
    assert asked == {f"python{project()['requires-python']}", "openssh", *project()["dependencies"]}
    assert f'version: "{__version__}"' in RECIPE
    for name, place in project()["scripts"].items():
        assert f"      - {name} = {place}\n" in RECIPE
