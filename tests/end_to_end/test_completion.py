"""Test completion in real shells: sites, paths that were listed before, pipelines and runs, without any login."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from runs.store import RunStore
from tests.end_to_end.run_tools import DESCRIPTOR
from tests.support.requirements import skip_or_fail
from tests.support.terminal import Terminal

CLONE = Path(__file__).resolve().parents[2]
BASH_COMPLETION = shlex.quote(f"{CLONE}/completions/hibali.bash")  # a clone may be in any folder


@pytest.fixture
def known(hibali: Any) -> Any:
    """Add a site that was listed, one whose ssh program leaves a trace, and a pipeline."""
    folder: Path = hibali.home.folder
    data = folder / "data"
    (data / "raw").mkdir(parents=True)
    (data / "raw data").mkdir()
    (data / "read.me").touch()
    for hostile in ("hostile\n$(touch mark)", "$(touch mark)", "*", ":s"):
        (data / hostile).touch()
    hibali("sites", "add", "here", "--local", data, "--no-check", exit=0)
    script = folder / "marks"
    script.write_text(f"#!/bin/sh\ntouch {folder}/mark\nexit 255\n")
    script.chmod(0o700)
    words = ("--ssh", "far", "--ssh-command", str(script), "--root", "scratch=/s", "--no-check")
    hibali("sites", "add", "far", *words, exit=0)
    hibali("ls", "here:", exit=0)
    (folder / "file").write_text("x")
    hibali("push", "file", "here:deep/er/file", exit=0)
    (folder / "tool.json").write_text(json.dumps(DESCRIPTOR))
    hibali("pipelines", "add", "tool.json", exit=0)
    return hibali


def offered(hibali: Any, line: str) -> set[str]:
    """Return the completions of bash for the typed command."""
    words = line.split(" ")
    script = (
        f"source {BASH_COMPLETION} 2>/dev/null; compopt() {{ :; }}; "
        f"COMP_LINE={shlex.quote(line)}; COMP_POINT=${{#COMP_LINE}}; COMP_WORDS=({shlex.join(words)}); "
        f"COMP_CWORD={len(words) - 1}; _hibali_completion hibali; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    )
    env = {**hibali.env, "PATH": f"{bin_of(hibali)}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", script], env=env, capture_output=True, text=True, check=True, timeout=60
    )
    assert not done.stderr
    return {word for word in done.stdout.splitlines() if word}


def bin_of(hibali: Any) -> Path:
    """Return a folder with hibali as a program."""
    folder: Path = hibali.home.folder / "bin"
    if not folder.exists():
        folder.mkdir()
        program = folder / "hibali"
        program.write_text(f'#!/bin/sh\nexec {shlex.join(map(str, hibali.command()))} "$@"\n')
        program.chmod(0o700)
    return folder


@pytest.mark.heavy
def test_names_are_completed_without_contacting_a_site(known: Any) -> None:
    assert offered(known, "hibali sites show ") == {"far", "here"}
    assert offered(known, "hibali sites check f") == {"far"}
    assert offered(known, "hibali ls ") == {"far:", "here:"}
    assert offered(known, "hibali ls far:") == {"@scratch/"}
    assert offered(known, "hibali ls here:r") == {"raw/", "raw\\ data/", "read.me"}
    assert {"\\$\\(touch\\ mark\\)", "\\*"} <= offered(known, "hibali ls here:")
    assert offered(known, "hibali ls here:de") == {"deep/"}
    assert offered(known, "hibali pull here:deep/er/") == {"deep/er/file"}
    assert offered(known, "hibali sync here:r") == {"raw/", "raw\\ data/", "read.me"}
    assert offered(known, "hibali run cou") == {"count-letters"}
    assert offered(known, "hibali pipelines show count-letters@") == {"1.0"}
    assert offered(known, "hibali sites add x --scheduler sl") == {"slurm"}
    assert offered(known, "hibali sites add x --kind ss") == {"ssh"}
    assert offered(known, "hibali sites add x --transport ") == {"agent", "auto", "sftp"}
    assert offered(known, "hibali runs show 2") == set()
    assert "--dry-run" in offered(known, "hibali push --dry")
    assert offered(known, "hibali ls :r") == set()
    known("config", "set", "default-site", "here", exit=0)
    assert offered(known, "hibali ls :r") == {"raw/", "raw\\ data/", "read.me"}
    for typed in (":", ":./", "here:", "here:./"):
        assert "./:s" in offered(known, f"hibali ls {typed}")
    assert ":s" not in offered(known, "hibali ls :")
    assert offered(known, "hibali ls :./re") == {"./read.me"}
    known("ls", ":./:s", exit=0)
    known.home.config.write_text("not toml [")
    assert offered(known, "hibali sites show ") == set()
    assert not (known.home.folder / "mark").exists()


def test_runs_are_completed_by_names_and_parts_of_ids(known: Any) -> None:
    fields = {"pipeline": "bet@1.0", "pipeline_digest": "d", "site": "here", "scheduler": "direct"}
    fields |= {"container": "bare", "outputs": []}
    run_id = "20260102-030405-0a1b2c3d"
    RunStore().begin(run_id, "k" * 64, {**fields, "name": "$(touch mark)"})
    assert offered(known, "hibali runs show ") == {"latest", "0a1b2c3d", "\\$\\(touch\\ mark\\)"}
    assert offered(known, "hibali runs cancel 2") == {run_id}
    for last, name in (("1", "--yes"), ("2", "20260104")):
        RunStore().begin(f"{run_id[:-1]}{last}", "k" * 64, {**fields, "name": name})
    assert offered(known, "hibali runs clean ") >= {"latest", "0a1b2c31", "0a1b2c32"}
    assert not offered(known, "hibali runs clean ") & {"--yes", "20260104"}
    assert offered(known, "hibali runs logs latest:") == {"bet"}
    operations = offered(known, "hibali history show ")
    assert "latest" in operations
    assert {len(word) for word in operations - {"latest"}} == {8}
    assert not (known.home.folder / "mark").exists()


def test_bash_completes_paths_below_folders_of_a_site(known: Any) -> None:
    env = {**known.env, "PATH": f"{bin_of(known)}:{os.environ['PATH']}", "PS1": "> "}
    terminal = Terminal(["bash", "--norc", "--noprofile", "-i"], env, cwd=known.home.folder, columns=100)
    terminal.until(lambda screen: screen.endswith(">"))
    (known.home.folder / "hibali.bash").symlink_to(CLONE / "completions" / "hibali.bash")
    terminal.press(b"source ./hibali.bash\r")
    terminal.until(lambda screen: screen.endswith("hibali.bash\n>"))
    terminal.press(b"hibali ls he\t")
    terminal.until(lambda screen: screen.endswith("hibali ls here:"))
    terminal.press(b"dee\t")
    terminal.until(lambda screen: screen.endswith("hibali ls here:deep/"))
    terminal.press(b"e\t")
    terminal.until(lambda screen: screen.endswith("here:deep/er/"))
    terminal.press(b"\r")
    terminal.until(lambda screen: "\nfile\n" in screen)
    terminal.press(b"exit\r")
    assert terminal.end() == 0


@pytest.mark.parametrize(("shell", "file"), [("zsh", "_hibali"), ("fish", "hibali.fish")])
def test_other_shells_accept_their_scripts(known: Any, shell: str, file: str) -> None:
    env = {**known.env, "PATH": f"{bin_of(known)}:{os.environ['PATH']}"}
    try:
        subprocess.run([shell, "-n", str(CLONE / "completions" / file)], env=env, check=True, timeout=60)
    except FileNotFoundError:
        skip_or_fail(f"{shell} is missing")
    variables = {
        "_HIBALI_COMPLETE": f"{shell}_complete",
        "COMP_WORDS": "hibali ls here:re",
        "COMP_CWORD": "2",
    }
    variables |= {"COMP_CWORD": "here:re"} if shell == "fish" else {}
    done = subprocess.run(
        ["hibali"], env=env | variables, capture_output=True, text=True, check=True, timeout=60
    )
    assert "here:read.me" in done.stdout
