"""Test the packaging files: the list of packages, their licences, the conda recipe and the lock files."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import pytest

from hibali import __version__
from tests.support.folders import describes_all

CLONE = Path(__file__).resolve().parents[2]
RECIPE = (CLONE / "packaging/conda/recipe.yaml").read_text()


def lock() -> dict[str, str]:
    found = re.findall(
        r"^([A-Za-z0-9._-]+)==([^\s;]+)", (CLONE / "requirements.lock").read_text(), re.MULTILINE
    )
    return {normal(name): version for name, version in found}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((CLONE / "pyproject.toml").read_text())["project"]
    return found


@describes_all
def test_the_bill_of_materials_matches_the_lock_file() -> None:
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
    vendored = tomllib.loads((CLONE / "packaging/licences.toml").read_text())["vendored"]
    known = lock() | {each["name"]: each["version"] for each in vendored}
    foreign = {each["name"] for each in vendored}
    references = {each["bom-ref"] for each in bom["components"]}
    for each in bom["components"]:
        registry = "npm" if each["name"] in foreign else "pypi"
        assert known[each["name"]] == each["version"]
        assert each["purl"] == f"pkg:{registry}/{each['name']}@{each['version']}"
        assert each["licenses"][0]["expression"]
    names = {each["name"] for each in bom["components"]}
    required = {re.split(r"[<>=]", line)[0] for line in project()["dependencies"]}
    assert {re.sub(r"[-_.]+", "-", name) for name in required} <= names  # normalised as in PEP 503
    for each in bom["dependencies"]:
        assert set(each["dependsOn"]) <= references


def test_the_conda_recipe_has_the_dependencies_of_the_project() -> None:
    run = RECIPE.partition("  run:\n")[2].partition("\n\n")[0]
    required = {line.removeprefix("    - ").replace(" ", "") for line in run.splitlines()}
    assert required == {f"python{project()['requires-python']}", "openssh", *project()["dependencies"]}
    assert f'version: "{__version__}"' in RECIPE
    for name, place in project()["scripts"].items():
        assert f"      - {name} = {place}\n" in RECIPE


LOCKS = sorted(
    [CLONE / "requirements.lock", CLONE / "demo/tools.txt", CLONE / "benchmarks/peers.txt"]
) + sorted((CLONE / "tests").glob("*.lock"))


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.name)
def test_every_package_of_a_lock_file_has_one_version_and_hashes(path: Path) -> None:
    text = path.read_text().replace("\\\n", "")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert lines
    for line in lines:
        assert re.fullmatch(r"[a-z0-9-]+==[^\s;]+( ; [^-]+)?( +--hash=sha256:[0-9a-f]{64})+ *", line), line[
            :80
        ]
    assert len({line.partition("==")[0] for line in lines}) == len(lines)


def test_the_environment_has_exactly_the_packages_of_the_lock_file() -> None:
    found = {normal(each.metadata["Name"]): each.version for each in distributions(path=[purelib()])}
    additional = {"hibali", "pip", "setuptools"}  # from the clone, and from `python -m venv`
    assert {name: version for name, version in found.items() if name not in additional} == lock()


def purelib() -> str:
    return sysconfig.get_path("purelib")


def tiny_wheel(folder: Path) -> str:
    """Write an empty package to `folder`; return its SHA-256."""
    path = folder / "tiny_package-1.0-py3-none-any.whl"
    described = {
        "METADATA": "Metadata-Version: 2.1\nName: tiny-package\nVersion: 1.0\n",
        "WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "RECORD": "",
    }
    with zipfile.ZipFile(path, "w") as wheel:
        for name, text in described.items():
            wheel.writestr(f"tiny_package-1.0.dist-info/{name}", text)
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.heavy  # it creates three virtual environments
def test_a_package_without_a_hash_or_with_a_wrong_hash_is_not_installed(tmp_path: Path) -> None:
    """The tested script prepares every clone, also in continuous integration."""
    (tmp_path / "tests").mkdir()
    shutil.copy(CLONE / "tests/prepare.sh", tmp_path / "tests")
    right = tiny_wheel(tmp_path)
    env = {**os.environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path), "PYTHON": sys.executable}
    errors = ""
    for pinned, installed in (
        ("", False),
        (f" --hash=sha256:{'0' * 64}", False),
        (f" --hash=sha256:{right}", True),
    ):
        (tmp_path / "tests/globus.lock").write_text(f"tiny-package==1.0{pinned}\n")
        done = subprocess.run(
            ["sh", "tests/prepare.sh", "globus"],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        errors += done.stderr
        assert (tmp_path / ".cache/globus/.ready").exists() is installed
        assert bool(list(tmp_path.glob(".cache/globus/lib/*/site-packages/tiny_package*"))) is installed
    assert "DO NOT MATCH THE HASHES" in errors


def test_snakemake_is_tested_together_with_everything_that_hibali_needs() -> None:
    text = (CLONE / "tests/snakemake.lock").read_text()
    [wanted] = re.findall(r"^# from: snakemake (.*)$", text, re.MULTILINE)
    assert wanted.split() == project()["dependencies"]


@pytest.mark.parametrize(
    "plugin", sorted((CLONE / "packaging").glob("snakemake-*")), ids=lambda path: path.name
)
def test_a_plugin_of_snakemake_has_the_version_and_licence_of_hibali(plugin: Path) -> None:
    found = tomllib.loads((plugin / "pyproject.toml").read_text())["project"]
    assert (found["name"], found["version"]) == (plugin.name, __version__)
    assert found["license"] == project()["license"]
    known = dict(
        re.findall(r"^([a-z-]+)==([0-9.]+)", (CLONE / "tests/snakemake.lock").read_text(), re.MULTILINE)
    )
    for line in found["dependencies"]:
        name, least, below = re.fullmatch(r"([a-z-]+)>=([0-9.]+),<([0-9.]+)", line).groups()
        tested = __version__ if name == "hibali" else known[name]
        assert numbers(least) <= numbers(tested) < numbers(below), line


def numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))
