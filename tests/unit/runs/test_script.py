"""The job script, run by a real shell: once, whatever happens, with a record of how it ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from hibali.errors import UsageError
from runs.script import job_script, start_script

RUN = "20260102-030405-0a1b2c3d"


def lay(tmp_path: Path, start: str) -> Path:
    folder = tmp_path / RUN
    (folder / "work").mkdir(parents=True)
    (folder / "job.sh").write_text(job_script(RUN, ()))
    (folder / "start").write_text(start_script((), start))
    return folder


def execute(folder: Path, **environment: str) -> int:
    return subprocess.run(
        ["/bin/sh", folder / "job.sh", "7"],
        cwd=folder,
        env={**os.environ, **environment},
        check=False,
        capture_output=True,
    ).returncode


def test_it_records_how_the_tool_ended_and_what_it_said(tmp_path: Path) -> None:
    folder = lay(tmp_path, "echo out; echo err >&2; pwd >where; exit 3")
    assert execute(folder) == 3
    record = json.loads((folder / "exit.json").read_text())
    assert (record["run"], record["code"], record["job"], record["signal"]) == (RUN, 3, "7", "")
    assert (folder / "stdout").read_text() == "out\n"
    assert (folder / "stderr").read_text() == "err\n"
    assert (folder / "work" / "where").read_text().strip() == str(folder / "work")
    assert (folder / "exit.json").stat().st_mode & 0o077 == 0


def test_the_scheduler_names_the_job(tmp_path: Path) -> None:
    folder = lay(tmp_path, "true")
    assert execute(folder, SLURM_JOB_ID="12;$(id)") == 0
    assert (folder / "started" / "job").read_text() == "12id\n"


def test_a_second_job_does_nothing(tmp_path: Path) -> None:
    folder = lay(tmp_path, "echo once >>count")
    assert execute(folder) == 0
    before = (folder / "exit.json").read_bytes()
    assert execute(folder) == 75
    assert (folder / "work" / "count").read_text() == "once\n"
    assert (folder / "exit.json").read_bytes() == before
    assert (folder / "again").read_text() == "7\n"


def test_in_another_folder_it_does_nothing(tmp_path: Path) -> None:
    folder = lay(tmp_path, "echo ran >ran")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    ended = subprocess.run(["/bin/sh", folder / "job.sh"], cwd=elsewhere, check=False, capture_output=True)
    assert ended.returncode == 75
    assert not list(elsewhere.iterdir())


def test_where_the_marker_cannot_be_written_nothing_runs(tmp_path: Path) -> None:
    folder = lay(tmp_path, "echo ran >ran")
    (folder / "started").write_text("in the way")
    assert execute(folder) == 75
    assert not (folder / "exit.json").exists()
    assert not (folder / "work" / "ran").exists()


def test_a_signal_is_passed_on_and_recorded(tmp_path: Path) -> None:
    folder = lay(tmp_path, "exec sleep 60")
    process = subprocess.Popen(["/bin/sh", folder / "job.sh"], cwd=folder)
    while not (folder / "stderr").exists():
        time.sleep(0.01)
    time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 143
    record = json.loads((folder / "exit.json").read_text())
    assert (record["code"], record["signal"]) == (143, "TERM")


def test_a_wish_that_stood_there_before_the_end_is_recorded(tmp_path: Path) -> None:
    folder = lay(tmp_path, "touch ../cancel")
    assert execute(folder) == 0
    record = json.loads((folder / "exit.json").read_text())
    assert (record["code"], record["signal"]) == (0, "cancel")


def test_nothing_but_the_identifier_and_directives_varies() -> None:
    one = job_script(RUN, ("#SBATCH --mem=1M",)).replace(RUN, "")
    other = job_script("20270102-030405-ffffffff", ()).replace("20270102-030405-ffffffff", "")
    assert one.replace("#SBATCH --mem=1M\n", "") == other
    for hostile in ("", "x; id", RUN + "\nid", "../" + RUN):
        with pytest.raises(UsageError):
            job_script(hostile, ())


def test_the_prologue_runs_in_a_login_shell_before_the_tool(tmp_path: Path) -> None:
    folder = lay(tmp_path, "true")
    (folder / "start").write_text(
        start_script(["shopt -q login_shell && WHO=login", "export WHO"], 'exec sh -c "echo $WHO"')
    )
    assert execute(folder, HOME=str(tmp_path)) == 0
    assert (folder / "stdout").read_text() == "login\n"
    with pytest.raises(UsageError):
        start_script(["one\ntwo"], "true")
