"""Test that a test session fails if it changed the tester's crontab, ssh configuration or home."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.services.session import REPOSITORY

_CRONTAB = '#!/bin/sh\ncase $1 in -l) cat "$HOME/../crontab" ;; -) cat >"$HOME/../crontab" ;; esac\n'


@pytest.mark.parametrize(
    ("act", "changed"),
    [
        ("pass", None),
        ("(home / '.ssh/config').write_text('Host *\\n')", ".ssh/config"),
        ("(home / 'hibali').mkdir()", "hibali"),
        ("subprocess.run(['crontab', '-'], input=b'@hourly true\\n', check=True)", "crontab"),
    ],
)
def test_a_session_that_changes_the_testers_own_files_fails(
    tmp_path: Path, act: str, changed: str | None
) -> None:
    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh/config").touch()
    (tmp_path / "crontab").touch()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/crontab").write_text(_CRONTAB)
    (tmp_path / "bin/crontab").chmod(0o755)
    (tmp_path / "test_one.py").write_text(
        f"import pathlib, subprocess\n\ndef test_it():\n    home = pathlib.Path.home()\n    {act}\n"
    )
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "tests.untouched_home",
            "-p",
            "no:cacheprovider",
            "test_one.py",
        ],
        cwd=tmp_path,
        env={
            **os.environ,
            "HOME": str(home),
            "PATH": f"{tmp_path}/bin:{os.environ['PATH']}",
            "PYTHONPATH": str(REPOSITORY),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert "1 passed" in done.stdout
    assert (done.returncode == 0) == (changed is None), done.stdout
    if changed is not None:
        assert "THE TESTS CHANGED THE TESTER'S OWN FILES" in done.stdout
        assert done.stdout.rstrip().splitlines()[-2].endswith(changed) or f"{changed}\n" in done.stdout
