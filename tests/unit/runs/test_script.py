"""Test the job script in a real shell: it runs once, and records how it ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from hibali.errors import UsageError
from runs.schedulers.base import JobVariables, load_scheduler
from runs.script import job_script, start_script

RUN = "20260102-030405-0a1b2c3d"


def prepare(tmp_path: Path, start: str, run: str = RUN, scheduler: str = "slurm") -> Path:
    folder = tmp_path / run
    (folder / "work").mkdir(parents=True)
    (folder / "job.sh").write_text(job_script(run, (), load_scheduler(scheduler).variables))
    (folder / "start").write_text(start_script((), start))
    return folder


def execute(folder: Path, *words: str, **environment: str) -> int:
    return subprocess.run(
        ["/bin/sh", folder / "job.sh", *(words or ("7",))],
        cwd=folder,
        env={**os.environ, **environment},
        check=False,
        capture_output=True,
    ).returncode


def test_the_exit_code_and_output_of_the_tool_are_recorded(tmp_path: Path) -> None:
    folder = prepare(tmp_path, "echo out; echo err >&2; pwd >where; exit 3")
    assert execute(folder) == 3
    record = json.loads((folder / "exit.json").read_text())
    assert (record["run"], record["code"], record["job"], record["signal"]) == (RUN, 3, "7", "")
    assert (folder / "stdout").read_text() == "out\n"
    assert (folder / "stderr").read_text() == "err\n"
    assert (folder / "work" / "where").read_text().strip() == str(folder / "work")
    assert (folder / "exit.json").stat().st_mode & 0o077 == 0


def test_the_job_id_comes_from_the_scheduler(tmp_path: Path) -> None:
    folder = prepare(tmp_path, "true")
    assert execute(folder, "", SLURM_JOB_ID="12[3].srv;$(id)") == 0
    assert (folder / "started" / "job").read_text() == "12[3].srvid\n"


def test_arguments_take_precedence_over_variables_for_the_job_id(tmp_path: Path) -> None:
    folder = prepare(tmp_path, "true")
    assert execute(folder, "1:2:ab:host", SLURM_JOB_ID="12") == 0
    assert (folder / "started" / "job").read_text() == "1:2:ab:host\n"


OTHER = "20260102-030405-0a1b2c3e"


@pytest.mark.parametrize(
    ("start", "after", "expected"),
    [
        ("true", "7", 0),
        ("true", "7/7", 0),
        ("exit 3", "7", 75),
        ("kill -TERM $PPID; sleep 60", "7", 75),
        ("true", "8", 75),
        ("true", "7/8", 75),
        ("true", "*", 75),
    ],
)
def test_a_job_checks_the_results_of_earlier_jobs(
    tmp_path: Path, start: str, after: str, expected: int
) -> None:
    execute(prepare(tmp_path, start, OTHER))
    folder = prepare(tmp_path, 'echo "ran ${HIBALI_AFTER-}" >ran')
    assert execute(folder, "9", HIBALI_AFTER=after) == expected
    assert json.loads((folder / "exit.json").read_text())["code"] == expected
    assert (folder / "work" / "ran").exists() == (expected == 0)
    assert ("must succeed first" in (folder / "stderr").read_text()) == (expected != 0)


def test_a_second_job_does_nothing(tmp_path: Path) -> None:
    folder = prepare(tmp_path, "echo once >>count")
    assert execute(folder) == 0
    before = (folder / "exit.json").read_bytes()
    assert execute(folder) == 75
    assert (folder / "work" / "count").read_text() == "once\n"
    assert (folder / "exit.json").read_bytes() == before
    assert (folder / "again").read_text() == "7\n"


def test_in_another_folder_it_does_nothing(tmp_path: Path) -> None:
    folder = prepare(tmp_path, "echo ran >ran")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    ended = subprocess.run(["/bin/sh", folder / "job.sh"], cwd=elsewhere, check=False, capture_output=True)
    assert ended.returncode == 75
    assert not list(elsewhere.iterdir())


def test_nothing_runs_if_the_marker_cannot_be_written(tmp_path: Path) -> None:
    folder = prepare(tmp_path, "echo ran >ran")
    (folder / "started").write_text("in the way")
    assert execute(folder) == 75
    assert not (folder / "exit.json").exists()
    assert not (folder / "work" / "ran").exists()


@pytest.mark.parametrize("name", ["TERM", "INT", "HUP", "USR1", "USR2"])
def test_a_signal_is_passed_on_and_recorded(tmp_path: Path, name: str) -> None:
    folder = prepare(tmp_path, ": >begun; exec sleep 60")
    process = subprocess.Popen(["/bin/sh", folder / "job.sh"], cwd=folder)
    while not (folder / "work" / "begun").exists():
        time.sleep(0.01)
    process.send_signal(getattr(signal, f"SIG{name}"))
    assert process.wait(60) == 143
    record = json.loads((folder / "exit.json").read_text())
    assert (record["code"], record["signal"]) == (143, name)


def test_a_signal_that_reaches_the_tool_first_is_recorded(tmp_path: Path) -> None:
    folder = prepare(tmp_path, "(sleep 0.3; kill -TERM $PPID) >/dev/null 2>&1 & kill -TERM $$")
    assert execute(folder) == 143
    record = json.loads((folder / "exit.json").read_text())
    assert (record["code"], record["signal"]) == (143, "TERM")


def test_a_tool_that_a_signal_ended_on_its_own_failed(tmp_path: Path) -> None:
    folder = prepare(tmp_path, "kill -SEGV $$")
    assert execute(folder) == 139
    record = json.loads((folder / "exit.json").read_text())
    assert (record["code"], record["signal"]) == (139, "")


def test_a_cancel_request_before_the_end_is_recorded(tmp_path: Path) -> None:
    folder = prepare(tmp_path, "touch ../cancel")
    assert execute(folder) == 0
    record = json.loads((folder / "exit.json").read_text())
    assert (record["code"], record["signal"]) == (0, "cancel")


def test_nothing_but_the_identifier_and_directives_varies() -> None:
    one = job_script(RUN, ("#SBATCH --mem=1M",), JobVariables()).replace(RUN, "")
    other = job_script("20270102-030405-ffffffff", (), JobVariables()).replace("20270102-030405-ffffffff", "")
    assert one.replace("#SBATCH --mem=1M\n", "") == other
    for hostile in ("", "x; id", RUN + "\nid", "../" + RUN):
        with pytest.raises(UsageError):
            job_script(hostile, (), JobVariables())


def test_the_prologue_runs_in_a_login_shell_before_the_tool(tmp_path: Path) -> None:
    folder = prepare(tmp_path, "true")
    (folder / "start").write_text(
        start_script(["shopt -q login_shell && WHO=login", "export WHO"], 'exec sh -c "echo $WHO"')
    )
    assert execute(folder, HOME=str(tmp_path)) == 0
    assert (folder / "stdout").read_text() == "login\n"
    with pytest.raises(UsageError):
        start_script(["one\ntwo"], "true")


@pytest.mark.parametrize(
    ("lines", "failed"),
    [
        (["module_x load FSL", "export A=1"], "exit code 127: module_x load FSL"),
        (["load() { return 3; }", "load FSL"], "exit code 3: load FSL"),
        (["if true; then", "cd /nowhere", "fi"], "exit code 1: cd /nowhere"),
        (["set -e", "false"], "exit code 1: false"),
        ([". ./script", "false"], "exit code 1: false"),
        (
            ["[ -d /nowhere ] && export A=1", "test -e /nowhere || export A=2", "if false; then", ":", "fi"],
            "",
        ),
    ],
)
def test_a_failing_line_of_the_prologue_ends_the_run_before_its_tool(
    tmp_path: Path, lines: list[str], failed: str
) -> None:
    folder = prepare(tmp_path, "true")
    (folder / "work" / "script").write_text("false\nls /nowhere\ntrue\n")
    (folder / "start").write_text(start_script(lines, "echo ran"))
    assert execute(folder, HOME=str(tmp_path)) == (75 if failed else 0)
    assert (folder / "stdout").read_text() == ("" if failed else "ran\n")
    unmet = folder / "unmet"
    assert (unmet.read_text() if unmet.exists() else "") == (
        f"a line of the prologue failed with {failed}\n" if failed else ""
    )


@pytest.mark.parametrize("prologue", [(), ("export PYTHONPATH=/of/the/site",)])
def test_a_tool_does_not_get_what_a_bashrc_sets_for_shells_and_python(
    tmp_path: Path, prologue: tuple[str, ...]
) -> None:
    lines = "export PYTHONPATH=/mine PYTHONHOME=/mine IFS=_ CDPATH=/ OTHER=kept\n"
    (tmp_path / ".bash_profile").write_text(lines)
    (tmp_path / "start").write_text(start_script(prologue, "a=x_y; printf '<%s>' $a; exec env"))
    mine = {"PYTHONPATH": "/mine", "PYTHONHOME": "/mine", "IFS": "_", "CDPATH": "/", "OTHER": "kept"}
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), **mine}
    done = subprocess.run(
        ["/bin/sh", tmp_path / "start"], env=env, check=True, capture_output=True, text=True
    )
    seen = dict(line.partition("=")[::2] for line in done.stdout.splitlines())
    assert done.stdout.startswith("<x_y>")
    assert "OTHER=kept" in done.stdout
    assert {name: seen.get(name) for name in ("PYTHONHOME", "CDPATH", "IFS")} == dict.fromkeys(
        ("PYTHONHOME", "CDPATH", "IFS")
    )
    assert ("PYTHONPATH=/of/the/site" in done.stdout) is bool(prologue)
    assert "PYTHONPATH=/mine" not in done.stdout
