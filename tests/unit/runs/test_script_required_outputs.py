"""Test the check for required outputs in the job, in a real shell, for any path and pattern."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from runs.model import Output
from runs.schedulers.base import JobVariables
from runs.script import job_script, required_script, start_script

RUN = "20260102-030405-0a1b2c3d"
HOSTILE = "-n $(touch pwned) 'a\"b\n*[x]"


def end(
    tmp_path: Path, start: str, *outputs: Output, shell: str = "/bin/sh"
) -> tuple[int, dict[str, object]]:
    """Run a job whose tool has to leave these outputs: the job's exit code, and its record."""
    folder = tmp_path / RUN
    (folder / "work").mkdir(parents=True)
    (folder / "job.sh").write_text(job_script(RUN, (), JobVariables()))
    (folder / "start").write_text(start_script((), start))
    (folder / "outputs.sh").write_text(required_script(outputs))
    done = subprocess.run([shell, "job.sh", "7"], cwd=folder, check=False, capture_output=True)
    return done.returncode, json.loads((folder / "exit.json").read_text())


@pytest.mark.parametrize("shell", ["/bin/sh", "/bin/bash"])
def test_exit_code_0_without_the_required_output_is_a_failure(tmp_path: Path, shell: str) -> None:
    outputs = [Output("one", "a/b.txt"), Output("two", "c.txt"), Output("three", "d", optional=True)]
    code, record = end(tmp_path, "touch c.txt", *outputs, shell=shell)
    assert (code, record["code"], record["missing"]) == (9, 0, ["one"])
    assert b'"code":0,"signal":""' not in (tmp_path / RUN / "exit.json").read_bytes()


def test_a_tool_that_fails_keeps_its_own_exit_code(tmp_path: Path) -> None:
    code, record = end(tmp_path, "exit 3", Output("one", "a.txt"))
    assert (code, record["code"], "missing" in record) == (3, 3, False)


def test_a_removed_work_folder_has_no_outputs(tmp_path: Path) -> None:
    code, record = end(tmp_path, 'rm -rf "$PWD"', Output("one", "a.txt"))
    assert (code, record["missing"]) == (9, ["one"])


@pytest.mark.parametrize(
    ("path", "pattern", "left", "found"),
    [
        (HOSTILE, False, HOSTILE, True),
        (HOSTILE, False, "x", False),
        (f"a*{HOSTILE.replace('*[x]', '')}", True, f"abc{HOSTILE.replace('*[x]', '')}", True),
        ("sub-*_bold.nii", True, "sub-01_bold.nii", True),
        ("sub-*_bold.nii", True, "sub-01_T1w.nii", False),
        ("*.txt", True, ".hidden.txt", False),
        ("run?.txt", True, "runä.txt", True),
        ("[!a]*.txt", True, "b.txt", True),
        ("[*]*.txt", True, "*b.txt", True),
        ("[open", True, "[open", True),
        ("a b/*", True, "a b/c d", True),
        ("a*/*b/?c*", True, "ab/b/dc", True),
        ("a*/*b/?c*", True, "ab/b/c", False),
        ("a*a", True, "a", False),
        ("*a*b*a", True, "ab", False),
        ("*-n*'*", True, "x-n'", True),
        (".", False, "x", True),
    ],
)
def test_paths_and_patterns_match_the_same_in_the_shell(
    tmp_path: Path, *, path: str, pattern: bool, left: str, found: bool
) -> None:
    target = tmp_path / RUN / "work" / left
    code, _ = end(tmp_path, "true", Output("one", path, is_pattern=pattern))
    assert code == (0 if path == "." else 9)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.touch()
    script = required_script([Output("one", path, is_pattern=pattern)])
    finished = subprocess.run(["/bin/sh", "-c", script], cwd=tmp_path / RUN, check=True, capture_output=True)
    assert finished.stdout == (b"" if found else b'"one"')
    assert not list(tmp_path.rglob("pwned"))


@pytest.mark.parametrize("shell", ["/bin/sh", "/bin/bash"])
@pytest.mark.parametrize("pattern", ["*a" * 12 + "b", "[ab]*?" * 12 + "c"])
def test_a_name_that_a_tool_chose_cannot_keep_the_job_alive(tmp_path: Path, shell: str, pattern: str) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (work / ("a" * 250)).touch()
    script = required_script([Output("one", pattern, is_pattern=True)])
    done = subprocess.run([shell, "-c", script], cwd=tmp_path, check=True, capture_output=True, timeout=20)
    assert done.stdout == b'"one"'


def test_so_many_missing_outputs_fit_into_the_record(tmp_path: Path) -> None:
    outputs = [Output(f"output_{number:0190d}", f"{number}.txt") for number in range(300)]
    code, record = end(tmp_path, "true", *outputs)
    assert code == 9
    assert os.path.getsize(tmp_path / RUN / "exit.json") < 16384  # noqa: PTH202
    assert isinstance(record["missing"], list)
