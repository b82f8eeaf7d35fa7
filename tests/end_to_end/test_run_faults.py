"""Test a run whose client or remote agent is killed at a system call: after the same command the tool has run once."""

from __future__ import annotations

import shutil
import subprocess
from typing import Any

import pytest

from tests.end_to_end.run_tools import Bench, doing

pytestmark = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
SAMPLE = [("fsync", 3), ("fsync", 9), ("rename", 4), ("mkdir", 12)]
SWEEP = [(call, when) for call in ("fsync", "rename", "mkdir") for when in range(1, 31)]


def check_killed_and_repeated(hibali: Any, call: str, when: int) -> None:
    bench = Bench(hibali, doing("echo once >>[OUT]"))
    work = bench.add_local_site()
    line = bench.line(bench.answers(), "--wait")
    # rename(2) has newer variants that do the same
    calls = {"rename": "rename,renameat,renameat2", "mkdir": "mkdir,mkdirat"}.get(call, call)
    inject = f"inject={calls}:signal=SIGKILL:when={when}"
    subprocess.run(
        [
            "strace",
            "-f",
            "-qq",
            "-o",
            "/dev/null",
            "-e",
            f"trace={calls}",
            "-e",
            inject,
            *hibali.command(*line),
        ],
        env=hibali.env,
        cwd=bench.folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        timeout=60,
    )
    ended = hibali(*line, "--json", "--max-time", "60s")
    ids = [each for each in bench.run_ids() if any(bench.records(each))]  # a record file alone is no run yet
    if ended.exit == 0:
        assert ended.last["state"] == "SUCCEEDED"
    else:  # the job itself was killed: its end is unknown, and it is not started again
        assert (ended.exit, ended.last["code"]) in {(5, "run-lost"), (7, "run-failed")}, ended
    outputs = [path for each in ids for path in (work / "runs" / each / "work").glob("out.txt")]
    assert all(path.read_text() == "once\n" for path in outputs)
    assert len(outputs) <= len(ids) <= 2
    if ended.exit == 0 and len(ids) == 2:  # killed after the end was reported
        assert any(record["kind"] == "reported" for record in bench.records(ids[0]))


@pytest.mark.heavy
@pytest.mark.parametrize(("call", "when"), SAMPLE)
def test_a_run_killed_at_a_system_call_runs_once(hibali: Any, call: str, when: int) -> None:
    check_killed_and_repeated(hibali, call, when)


@pytest.mark.heavy
@pytest.mark.parametrize(("call", "when"), SWEEP)
def test_a_run_killed_at_any_system_call_runs_once(hibali: Any, call: str, when: int) -> None:
    check_killed_and_repeated(hibali, call, when)
