"""Test that a test session fails if it changed the tester's crontab, ssh configuration or home."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.services.session import REPOSITORY

_CRONTAB = '#!/bin/sh\ncase $1 in -l) cat "$HOME/../crontab" ;; -) cat >"$HOME/../crontab" ;; esac\n'


# in one session, because starting one takes a second
_ACTS = {
    ".ssh/config": "(home / '.ssh/config').write_text('Host *\\n')",
    "hibali": "(home / 'hibali').mkdir()",
    "crontab": "subprocess.run(['crontab', '-'], input=b'@hourly true\\n', check=True)",
}


@pytest.mark.parametrize("acts", [{}, _ACTS], ids=["nothing", "everything"])
def test_a_session_that_changes_the_testers_own_files_fails(tmp_path: Path, acts: dict[str, str]) -> None:
    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh/config").touch()
    (tmp_path / "crontab").touch()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/crontab").write_text(_CRONTAB)
    (tmp_path / "bin/crontab").chmod(0o755)
    lines = "".join(f"    {act}\n" for act in acts.values())
    (tmp_path / "test_one.py").write_text(
        f"import pathlib, subprocess\n\ndef test_it():\n    home = pathlib.Path.home()\n{lines}"
    )
    words = ("-q", "-p", "tests.untouched_home", "-p", "no:cacheprovider", "test_one.py")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *words],
        cwd=tmp_path,
        env={
            **os.environ,
            "HOME": str(home),
            "PATH": f"{tmp_path}/bin:{os.environ['PATH']}",
            "PYTHONPATH": str(REPOSITORY),
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert "1 passed" in done.stdout
    assert (done.returncode == 0) == (not acts), done.stdout
    _, found, named = done.stdout.partition("THE TESTS CHANGED THE TESTER'S OWN FILES")
    assert bool(found) == bool(acts)
    changed = [line for line in named.splitlines()[1:] if line.endswith(tuple(_ACTS))]
    assert sorted(line.removeprefix(f"{home}/") for line in changed) == sorted(acts)
