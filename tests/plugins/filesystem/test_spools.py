"""Test the temporary files of hibali:// writers: those of killed processes are removed by the next writer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hibali_plugins.filesystem.file_objects import open_spool
from tests.services.session import REPOSITORY

WRITER = """
import os, signal
from hibali_plugins.filesystem.file_objects import open_spool
spool = open_spool()
spool.write(b"whole")
spool.flush()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_the_file_of_a_killed_writer_is_removed_by_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "hibali-other").write_bytes(b"of another program")
    (tmp_path / "hibali-write-link").symlink_to(tmp_path / "hibali-other")
    with open_spool() as living:
        env = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(REPOSITORY)}
        for _ in range(2):
            ended = subprocess.run([sys.executable, "-c", WRITER], env=env, check=False)
            assert ended.returncode == -signal.SIGKILL
        assert len(list(tmp_path.glob("hibali-write-*"))) == 3, "the second writer removed that of the first"
        with open_spool() as another:
            assert {path.name for path in tmp_path.iterdir()} == {
                "hibali-other",
                "hibali-write-link",
                Path(living.name).name,
                Path(another.name).name,
            }
    assert {path.name for path in tmp_path.iterdir()} == {"hibali-other", "hibali-write-link"}
