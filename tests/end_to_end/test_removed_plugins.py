"""Test that hibali works without a folder of hibali_plugins, and that nothing of the folder is left in its commands."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Collection
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from runs.store import RunStore
from tests.services.session import REPOSITORY

PACKAGES = ("hibali", "hibali_api", "hibali_cli", "registry", "runs", "transfers")
PLUGINS = "hibali_plugins"
RUN = "20260102-030405-0a1b2c3d"
FOLDERS = sorted(path.parent.name for path in (REPOSITORY / PLUGINS).glob("*/entry_points.txt"))
# Prints everything that hibali offers; it runs in a tree without some folders.
PROGRAM = """
import json, sys
import click, hibali
from hibali.config.kinds import kind_names
from hibali.plugins import built_in_names
from docs.tools.generate import contexts_of
from hibali_cli.help_text import EVERY_OPTION
from hibali_cli.root import root
contexts = list(contexts_of(click.Context(root, info_name="hibali")))
for each in contexts:
    each.meta[EVERY_OPTION] = True
print(json.dumps({
    "commands": [each.command_path for each in contexts],
    "help": {each.command_path: each.get_help() for each in contexts},
    "kinds": kind_names(),
    "services": built_in_names("runs.services"),
    "api": dir(hibali),
}))
"""


@cache
def declared(folder: str) -> dict[str, list[str]]:
    """Return the names that a folder declares, by group, read without hibali."""
    found: dict[str, list[str]] = {}
    for line in (REPOSITORY / PLUGINS / folder / "entry_points.txt").read_text().splitlines():
        if line.startswith("["):
            names = found.setdefault(line.strip("[]").removeprefix("hibali."), [])
        elif line:
            names.append(line.partition(" = ")[0])
    return found


def tree_without(folder: Path, removed: Collection[str]) -> dict[str, str]:
    """Make links to the sources without these plugins; return the environment of a Python that runs them."""
    (folder / PLUGINS).mkdir()
    for package in (*PACKAGES, "docs"):
        (folder / package).symlink_to(REPOSITORY / package)
    for each in ("__init__.py", *(name for name in FOLDERS if name not in removed)):
        (folder / PLUGINS / each).symlink_to(REPOSITORY / PLUGINS / each)
    paths = {name: str(folder / name) for name in ("HOME", "HIBALI_STATE", "HIBALI_CONFIG")}
    return {**os.environ, **paths, "PYTHONPATH": str(folder)}


def call(environment: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    command = (sys.executable, "-P", *words)
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)


def offers(environment: dict[str, str]) -> dict[str, Any]:
    done = call(environment, "-c", PROGRAM)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return offers(tree_without(tmp_path_factory.mktemp("whole"), ()))


def removed_with(folder: str) -> set[str]:
    """Return a folder and those that require it."""
    return {folder, *(each for each in FOLDERS if folder in declared(each).get("requires", []))}


def names_in(folders: Collection[str], group: str) -> set[str]:
    return {name for folder in folders for name in declared(folder).get(group, [])}


# of commands, sites, schedulers, routes, containers and services
_LIGHT = {"archives", "authoring", "batch_systems", "globus", "site_containers", "facilities"}


@pytest.mark.parametrize(
    "folder", [each if each in _LIGHT else pytest.param(each, marks=pytest.mark.heavy) for each in FOLDERS]
)
def test_a_removed_plugin_leaves_no_trace(folder: str, whole: dict[str, Any], tmp_path: Path) -> None:
    removed = removed_with(folder)
    left = offers(tree_without(tmp_path, {folder}))
    commands = {f"hibali {name.replace('.', ' ')}" for name in names_in(removed, "commands")}
    assert commands <= set(whole["commands"])
    assert left["commands"] == [
        path
        for path in whole["commands"]
        if not any(path == each or path.startswith(f"{each} ") for each in commands)
    ]
    for path in commands:
        group, _, name = path.rpartition(" ")
        # the line of the command in the help of its group; a longer section may make the column wider
        assert any(line.split()[:1] == [name] for line in whole["help"][group].splitlines())
        assert not any(line.split()[:1] == [name] for line in left["help"][group].splitlines())
    for name in names_in(removed, "options"):
        path = f"hibali {name.rpartition('.')[0].replace('.', ' ')}"
        assert whole["help"][path] != left["help"][path]
    for kind in names_in(removed, "stores"):
        assert f"--{kind} " in whole["help"]["hibali sites add"]
        assert f"--{kind}" not in left["help"]["hibali sites add"]
    for group, found in (("stores", "kinds"), ("services", "services"), ("api", "api")):
        assert set(whole[found]) - set(left[found]) == names_in(removed, group), group


@pytest.mark.skipif(not FOLDERS, reason="all folders were removed")
def test_help_without_any_plugin_names_no_command_or_option_of_one(
    whole: dict[str, Any], tmp_path: Path
) -> None:
    left = offers(tree_without(tmp_path, FOLDERS))
    declarations = re.compile(r"^ +(?:-\w, )?(--[a-z][a-z-]+)(?: / (--[a-z][a-z-]+))?", re.MULTILINE)
    options = {
        name: {
            each for text in found["help"].values() for pair in declarations.findall(text) for each in pair
        }
        for name, found in (("whole", whole), ("left", left))
    }
    removed = (options["whole"] - options["left"]) | (set(whole["commands"]) - set(left["commands"]))
    shown = {"participants": "--each-participant", "exchange": "--zenodo", "schedules": "hibali schedule"}
    assert {name for folder, name in shown.items() if folder in FOLDERS} <= removed
    named = re.compile(rf"(?<![\w-])(?:{'|'.join(map(re.escape, sorted(removed)))})(?![\w-])")
    found = {path: named.findall(" ".join(text.split())) for path, text in left["help"].items()}
    assert {path: names for path, names in found.items() if names} == {}
    assert "Zenodo" not in left["help"]["hibali pipelines search"]


def record_run(folder: Path, service: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HIBALI_STATE", str(folder / "HIBALI_STATE"))
        fields = {
            "pipeline": "p@1",
            "pipeline_digest": "d",
            "site": "xx",
            "name": "",
            "container": "bare",
            "outputs": [],
        }
        RunStore().begin(RUN, "k" * 64, {**fields, "scheduler": service})


@pytest.mark.heavy
@pytest.mark.parametrize("folder", FOLDERS)
def test_what_a_removed_plugin_added_is_refused_clearly(folder: str, tmp_path: Path) -> None:
    environment = tree_without(tmp_path, {folder})
    for name in sorted(names_in({folder}, "commands")):
        done = call(environment, "-m", "hibali_cli", *name.split("."))
        assert done.returncode == 2, done.stderr
        assert f"No such command {name.rpartition('.')[2]!r}" in done.stderr
    for service in sorted(names_in({folder}, "services")):
        record_run(tmp_path, service)
        for words in (("list", "--json"), ("show", RUN)):
            done = call(environment, "-m", "hibali_cli", "runs", *words)
            assert (done.returncode, RUN in done.stdout) == (0, True), done.stderr
    for kind in sorted(names_in({folder}, "stores")):
        (tmp_path / "HIBALI_CONFIG").write_text(f'[sites.xx]\nkind = "{kind}"\n')
        (tmp_path / "HIBALI_CONFIG").chmod(0o600)
        done = call(environment, "-m", "hibali_cli", "sites", "list")
        assert (done.returncode, f"{kind!r} must be one of ssh, s3" in done.stderr) == (2, True)


@pytest.mark.heavy
def test_hibali_works_without_any_plugin(tmp_path: Path) -> None:
    environment = tree_without(tmp_path, FOLDERS)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.txt").write_text("one\n")
    for words in (
        ("sync", str(tmp_path / "data"), str(tmp_path / "copy")),
        ("verify", str(tmp_path / "data"), str(tmp_path / "copy")),
        ("runs", "list"),
        ("pipelines", "list"),
    ):
        done = call(environment, "-m", "hibali_cli", *words)
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "copy" / "a.txt").read_text() == "one\n"


@pytest.mark.parametrize(
    "words", [("ls", "packed"), ("sync", "packed", "copy"), ("sync", "--delete", "data", "packed")]
)
def test_packed_places_are_refused_without_packs(words: tuple[str, ...], tmp_path: Path) -> None:
    environment = tree_without(tmp_path, {"packs"})
    (tmp_path / "data").mkdir()
    (tmp_path / "packed" / ".hibali" / "packs").mkdir(parents=True)
    paths = {name: str(tmp_path / name) for name in ("data", "packed", "copy")}
    done = call(environment, "-m", "hibali_cli", *(paths.get(word, word) for word in words))
    assert (done.returncode, "this location is packed" in done.stderr) == (8, True), done.stderr
    assert sorted(path.name for path in (tmp_path / "packed").rglob("*")) == [".hibali", "packs"]


def test_nothing_is_deleted_in_a_dataset_without_datasets(tmp_path: Path) -> None:
    environment = tree_without(tmp_path, {"datasets"})
    (tmp_path / "data").mkdir()
    (tmp_path / "study" / ".datalad").mkdir(parents=True)
    (tmp_path / "study" / ".git").mkdir()
    words = ("sync", "--delete", str(tmp_path / "data"), str(tmp_path / "study"))
    done = call(environment, "-m", "hibali_cli", *words)
    assert (done.returncode, "this hibali has no datasets" in done.stderr) == (8, True), done.stderr
    assert (tmp_path / "study" / ".git").is_dir()


def test_globus_is_refused_without_its_folder(tmp_path: Path) -> None:
    environment = tree_without(tmp_path, {"globus"})
    (tmp_path / "data").mkdir()
    words = ("sync", "--via", "globus", str(tmp_path / "data"), str(tmp_path / "copy"))
    done = call(environment, "-m", "hibali_cli", *words)
    assert (done.returncode, "this hibali has no globus" in done.stderr) == (2, True), done.stderr
    assert not (tmp_path / "copy").exists()


def test_only_the_loader_names_the_folder_of_plugins() -> None:
    """import-linter does not see `import_module`."""
    found = {
        path.relative_to(REPOSITORY).as_posix()
        for package in PACKAGES
        for path in (REPOSITORY / package).rglob("*.py*")
        if path.suffix in {".py", ".pyi"} and PLUGINS in path.read_text("utf-8")
    }
    assert found <= {"hibali/plugins.py", "hibali/__init__.pyi"}


@pytest.mark.parametrize("folder", ["support", "services", "properties", "contracts/job_services"])
def test_what_all_tests_use_imports_no_plugin(folder: str) -> None:
    """Otherwise tests of the core cannot be collected without it: `sh tests/without_plugins.sh`."""
    imports = re.compile(r"^\s*(?:from|import) (?:hibali_plugins|tests\.plugins)\b", re.MULTILINE)
    paths = sorted((REPOSITORY / "tests" / folder).rglob("*.py"))
    assert paths
    assert [path.name for path in paths if imports.search(path.read_text("utf-8"))] == []


def test_no_two_plugins_declare_the_same_name() -> None:
    names = [
        (group, name)
        for folder in FOLDERS
        for group, each in declared(folder).items()
        if group != "requires"
        for name in each
    ]
    assert len(names) == len(set(names))


def test_without_setup_no_command_of_it_is_suggested(tmp_path: Path) -> None:
    environment = tree_without(tmp_path, {"setup"})
    first = call(environment, "-m", "hibali_cli").stdout
    assert "hibali sites add NAME --ssh HOST   add one yourself" in first
    (tmp_path / "HIBALI_CONFIG").write_text('[sites.xx]\nkind = "local"\n')
    (tmp_path / "HIBALI_CONFIG").chmod(0o600)
    later = call(environment, "-m", "hibali_cli").stdout
    assert "hibali ls xx:" in later
    assert re.findall("hibali (?:init|doctor|sites import)", first + later) == []
    assert "Did you mean" not in call(environment, "-m", "hibali_cli", "setup").stderr
