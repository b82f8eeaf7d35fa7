"""Test that every change of the catalogue is a commit, also after a killed call."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from registry.catalogue import Catalogue
from registry.catalogue_folder import Deprecation
from tests.properties.descriptors import make_document, make_input


def raw(version: str = "1.0", **more: object) -> bytes:
    return json.dumps(
        {**make_document("tool [A]", make_input("a")), "tool-version": version, **more}
    ).encode()


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


def git(state: Path, *arguments: str) -> str:
    folder = state / "catalogue"
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null"}
    line = ["git", "-C", str(folder), *arguments]
    return subprocess.run(line, check=True, capture_output=True, text=True, env=environment).stdout


def test_changes_are_commits_with_messages(state: Path) -> None:
    catalogue = Catalogue(state, history=True)
    added = catalogue.add(raw())
    catalogue.add(raw())
    catalogue.add(raw("2.0"))
    catalogue.deprecate("tool@1.0", Deprecation("tool@2.0", ""))
    catalogue.remove("tool@1.0")
    subjects = git(state, "log", "--format=%s").splitlines()
    assert subjects == ["Remove tool@1.0", "Deprecate tool@1.0", "Add tool@2.0", "Add tool@1.0"]
    assert f"sha256 {added.digest}" in git(state, "log", "--format=%b")
    assert git(state, "status", "--porcelain") == ""
    git(state, "fsck", "--strict")
    assert "tool/2.0/descriptor.json" in git(state, "ls-files").splitlines()


def test_the_catalogue_is_a_datalad_dataset(state: Path) -> None:
    Catalogue(state, history=True).add(raw())
    from datalad.distribution.dataset import Dataset

    dataset = Dataset(str(state / "catalogue"))
    assert dataset.is_installed()
    assert dataset.id


def test_a_catalogue_without_history_gets_one_with_all_entries(state: Path) -> None:
    Catalogue(state).add(raw("1"))
    assert not (state / "catalogue" / ".git").exists()
    Catalogue(state, history=True).add(raw("2"))
    assert {"tool/1/descriptor.json", "tool/2/descriptor.json"} < set(git(state, "ls-files").splitlines())


def test_hooks_and_settings_of_the_account_run_nothing(
    state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Catalogue(state, history=True).add(raw("1"))
    trap = tmp_path / "trap"
    trap.write_text(f"#!/bin/sh\ntouch {tmp_path}/sprung\n")
    trap.chmod(0o755)
    hooks = state / "catalogue" / ".git" / "hooks"
    hooks.mkdir(exist_ok=True)
    for name in ("pre-commit", "post-commit", "reference-transaction", "post-index-change"):
        (hooks / name).symlink_to(trap)
    git(state, "config", "core.fsmonitor", str(trap))
    config = tmp_path / "gitconfig"
    config.write_text(
        f"[core]\n\tfsmonitor = {trap}\n[commit]\n\tgpgSign = true\n[gpg]\n\tprogram = {trap}\n[user]\n\tname = Ada\n\temail = a@b\n"
    )
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
    Catalogue(state, history=True).add(raw("2"))
    monkeypatch.delenv("GIT_DIR")
    assert not (tmp_path / "sprung").exists()
    assert not (tmp_path / "elsewhere").exists()


def test_concurrent_adds_are_all_recorded(state: Path) -> None:
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda number: Catalogue(state, history=True).add(raw(str(number))), range(12)))
    assert len(git(state, "ls-tree", "-r", "--name-only", "main").splitlines()) == 12 + 2
    assert git(state, "status", "--porcelain") == ""


KILLED = """
import os, sys
from pathlib import Path
from hibali import subprocesses
from registry import git
from registry.catalogue import Catalogue
left = int(sys.argv[2])
def guarded(*words, real=subprocesses.run, **named):
    global left
    left -= 1
    if left == 0:
        os._exit(9)
    return real(*words, **named)
git.run = guarded
Catalogue(Path(sys.argv[1]), history=True).add(Path(sys.argv[3]))
"""


@pytest.mark.heavy
def test_after_a_kill_before_any_git_call_the_next_one_records_the_change(tmp_path: Path) -> None:
    (tmp_path / "tool.json").write_bytes(raw())
    for step in range(1, 20):
        here = tmp_path / f"state-{step}"
        line = [sys.executable, "-c", KILLED, str(here), str(step), str(tmp_path / "tool.json")]
        ended = subprocess.run(line, check=False, cwd=Path(__file__).parents[3]).returncode
        Catalogue(here, history=True).add(raw("2"))
        listed = git(here, "ls-tree", "-r", "--name-only", "main").splitlines()
        assert {"tool/1.0/descriptor.json", "tool/2/descriptor.json"} <= set(listed)
        assert git(here, "status", "--porcelain") == ""
        if ended == 0:
            assert step > 4
            return
    pytest.fail("it never came to an end")
