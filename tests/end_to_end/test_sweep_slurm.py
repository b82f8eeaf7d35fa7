"""Test sweeps on a real Slurm by ssh: job arrays with few status queries, each task once, and failed tasks again."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from hibali.text import read_ranges
from tests.end_to_end.run_tools import Bench
from tests.support.recording_slurm import RecordingSlurm, recording_slurm
from tests.support.slurm_requeue import requeue_job, start_job_now
from tests.support.sweeps import descriptor_in, ran

TASKS = 1000
FAILING = tuple(range(7, TASKS, 60))[:17]


def wait_until(condition: Callable[[], bool], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def bench(hibali: Any, slurm: Any) -> Bench:
    made = Bench(hibali, descriptor_in(hibali.home.folder))
    made.add_slurm_site(slurm)
    return made


@pytest.mark.heavy
def test_a_small_sweep_by_ssh(bench: Bench) -> None:
    bench.answers()
    run = bench.run("answers.json", "--param", "say=a,b", "--wait", exit=0).last
    assert [(task["number"], task["index"], task["exit_code"]) for task in run["tasks"]] == [
        (1, 1, 0),
        (2, 2, 0),
    ]
    assert {task["job"] for task in run["tasks"]} == {run["tasks"][0]["job"]}
    assert ran(bench) == ["a", "b"]
    shown = bench.run("answers.json", "--param", "say=a,b,c", "--dry-run", exit=0).last
    assert "--array=1-3" in shown["submit"]


@pytest.mark.heavy
def test_tasks_beyond_the_queue_limit_are_submitted_when_others_end(
    hibali: Any, slurm: Any, tmp_path: Path
) -> None:
    with recording_slurm(tmp_path, slurm) as node:
        bench = Bench(hibali, descriptor_in(hibali.home.folder))
        bench.add_site("cluster", node.table(bench.folder / "work", 'queued_jobs = 4\npoll = "1s"'))
        bench.answers(sleep=1)
        run = bench.run("answers.json", "--param", "say=a,b,c,d,e,f,g", exit=0).last
        assert run["counts"] == {"SUBMITTED": 4, "STAGED": 3}
        assert bench.hibali("runs", "wait", run["id"], "--json", exit=0).last["counts"] == {"SUCCEEDED": 7}
        assert ran(bench) == list("abcdefg")
        assert sum(name == "sbatch" for _, name in node.commands()) == 4


@pytest.mark.heavy
def test_cancelling_a_sweep_ends_its_jobs_and_submits_no_more(bench: Bench) -> None:
    config = bench.hibali.home.config
    config.write_text(config.read_text().replace('poll = "1s"', 'poll = "1s"\nqueued_jobs = 4'))
    bench.answers(sleep=60)
    run = bench.run("answers.json", "--param", "say=a,b,c,d,e,f", exit=0).last
    wait_until(lambda: len(ran(bench)) == 4)
    bench.hibali("runs", "cancel", run["id"], exit=0)
    ended = bench.hibali("runs", "wait", run["id"], "--json", exit=7)
    assert ended.lines[-2]["counts"] == {"CANCELLED": 6}
    assert ran(bench) == list("abcd")
    bench.hibali("runs", "collect", run["id"], "back", exit=7)


def slurm_here(hibali: Any, slurm: Any, path: str = "") -> Bench:
    """Add the cluster as a site on this machine; `path` precedes the PATH of its programs."""
    hibali.env |= {**slurm.env, "PATH": f"{path}:{os.environ['PATH']}" if path else os.environ["PATH"]}
    bench = Bench(hibali, descriptor_in(hibali.home.folder))
    bench.add_site(
        "here",
        f'kind = "local"\nwork = "{bench.folder}/work"\n[sites.here.scheduler]\nname = "slurm"\n'
        'directives = ["--mem=50"]\n[sites.here.limits]\npoll = "1s"\nqueued_jobs = 2',
    )
    return bench


@pytest.mark.heavy
@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
@pytest.mark.parametrize(("call", "when"), [("fsync", 8), ("fsync", 25), ("rename", 12), ("mkdir", 20)])
def test_a_sweep_killed_at_a_system_call_runs_each_task_once(
    hibali: Any, slurm: Any, call: str, when: int
) -> None:
    bench = slurm_here(hibali, slurm)
    bench.answers()
    line = bench.line("answers.json", "--param", "say=a,b,c,d", "--wait", "--collect", "back")
    calls = {"rename": "rename,renameat,renameat2", "mkdir": "mkdir,mkdirat"}.get(call, call)
    strace = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={calls}"]
    subprocess.run(
        [*strace, "-e", f"inject={calls}:signal=SIGKILL:when={when}", *hibali.command(*line)],
        env=hibali.env,
        cwd=bench.folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        timeout=120,
    )
    bench.hibali(*line, exit=0)
    ids = [each for each in bench.run_ids() if any(bench.records(each))]  # a record file alone is no run yet
    assert ran(bench) == list("abcd") * len(ids)
    reported = [any(record["kind"] == "reported" for record in bench.records(each)) for each in ids]
    assert reported == [True] * len(ids)
    assert len(list(bench.folder.glob("back/*/out.txt"))) == 4


@pytest.mark.heavy
def test_a_lost_reply_and_a_kill_never_submit_a_second_array(hibali: Any, slurm: Any, tmp_path: Path) -> None:
    real = shutil.which("sbatch")
    programs = tmp_path / "programs"
    programs.mkdir()
    wrapper = programs / "sbatch"
    wrapper.write_text(
        f'#!/bin/sh\n{real} "$@" >{tmp_path}/output\nif mkdir {tmp_path}/killed; then kill -9 "$PPID"; fi\ncat {tmp_path}/output\n'
    )
    wrapper.chmod(0o755)
    bench = slurm_here(hibali, slurm, str(programs))
    bench.answers()
    line = bench.line("answers.json", "--param", "say=a,b,c", "--wait")
    bench.hibali(*line, exit=5)
    bench.hibali(*line, exit=0)
    [run_id] = bench.run_ids()
    wait_until(lambda: slurm.jobs_ended(f"{run_id}-1") == 1)  # an array of one task
    assert ran(bench) == list("abc")


@pytest.mark.heavy
def test_a_requeued_task_runs_its_tool_once(bench: Bench, slurm: Any) -> None:
    bench.answers(sleep=60)
    run = bench.run("answers.json", "--param", "say=a,b", exit=0).last
    wait_until(lambda: len(ran(bench)) == 2)
    folder = bench.folder / "work-cluster" / "runs" / run["id"]
    job = f"{(folder / 'chunks' / '1' / 'started' / 'job').read_text().strip()}_1"
    requeue_job(slurm, job)
    wait_until((folder / "tasks" / "1" / "exit.json").exists)
    wait_until(lambda: start_job_now(slurm, job))
    wait_until((folder / "tasks" / "1" / "again").exists, 150.0)
    bench.hibali("runs", "cancel", run["id"], exit=0)
    bench.hibali("runs", "wait", run["id"], "--max-time", "60s")
    assert ran(bench) == ["a", "b"]


@pytest.fixture
def node(slurm: Any, tmp_path: Path) -> Iterator[RecordingSlurm]:
    with recording_slurm(tmp_path, slurm) as counted:
        yield counted


class Followed:
    """A command that is killed repeatedly, and the maximum of its memory over all calls."""

    def __init__(self, bench: Bench, line: tuple[str, ...]) -> None:
        self._bench = bench
        self._line = line
        self.peak_kilobytes = 0

    def run(self, until: Callable[[], bool]) -> int | None:
        """Start the command, kill it when the condition is true, and return its exit code if it ended before."""
        process = self._bench.hibali.start(*self._line)
        while process.poll() is None:
            self._measure(process.pid)
            if until():
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                return None
            time.sleep(0.2)
        return process.returncode

    def _measure(self, pid: int) -> None:
        try:
            status = Path(f"/proc/{pid}/status").read_text()
        except OSError:
            return
        for line in status.splitlines():
            if line.startswith("VmHWM:"):
                self.peak_kilobytes = max(self.peak_kilobytes, int(line.split()[1]))


def seconds_of(text: str) -> float:
    layout = "%Y-%m-%dT%H:%M:%S.%fZ" if "." in text else "%Y-%m-%dT%H:%M:%SZ"
    return datetime.strptime(text, layout).replace(tzinfo=UTC).timestamp()


@pytest.mark.heavy
@pytest.mark.timeout(1200)
def test_a_thousand_tasks_need_one_login_and_thirty_commands(hibali: Any, node: RecordingSlurm) -> None:
    bench = Bench(hibali, descriptor_in(hibali.home.folder))
    bench.add_site("cluster", node.table(bench.folder / "work", 'queued_jobs = 2000\npoll = "10s"'))
    bench.answers()
    rows = [f"t{number},{3 if number in FAILING else 0}\n" for number in range(1, TASKS + 1)]
    (bench.folder / "table.csv").write_text("say,code\n" + "".join(rows))
    line = bench.line(
        "answers.json", "--each", "table.csv", "--wait", "--collect", "back", "--table", "all.jsonl"
    )

    def noted(kind: str, word: str = "") -> bool:
        ids = bench.run_ids()
        found = list(bench.records(ids[0])) if ids else []
        return any(record["kind"] == kind and word in json.dumps(record) for record in found)

    followed = Followed(bench, line)
    assert followed.run(lambda: noted("chunk")) is None
    assert followed.run(lambda: noted("tasks", "SUCCEEDED")) is None
    assert followed.run(lambda: False) == 7
    commands = node.commands()
    assert len(commands) <= 30, commands
    assert node.logins == 1
    assert followed.peak_kilobytes < 150 * 1024

    [run_id] = bench.run_ids()
    ends: dict[int, float] = {}
    for record in bench.records(run_id):
        if record["kind"] == "tasks":
            for number, code, _, ended, *_ in record["ends"]:
                assert number not in ends
                assert code == (3 if number in FAILING else 0)
                ends[number] = seconds_of(record["at"]) - seconds_of(ended)
    assert sorted(ends) == list(range(1, TASKS + 1))
    assert max(ends.values()) < 120, max(ends.values())
    expected = sorted(f"t{number}" for number in range(1, TASKS + 1))
    assert ran(bench) == expected
    outputs = {path.parent.name: path.read_text() for path in bench.folder.glob("back/*/out.txt")}
    succeeded = [n for n in range(1, TASKS + 1) if n not in FAILING]
    assert outputs == {f"say=t{n},code=0": f"hello\nt{n}\n" for n in succeeded}
    table = [json.loads(text) for text in (bench.folder / "all.jsonl").read_text().splitlines()]
    assert [row["task"] for row in table if row["exit_code"] == 3] == list(FAILING)
    assert all(len(row["outputs"][0]["sha256"]) == 64 for row in table if row["state"] == "SUCCEEDED")
    size = (hibali.home.state / "runs" / f"{run_id}.jsonl").stat().st_size
    assert size < 400 * TASKS  # the ledger records each task a few times in all, not at each poll

    (bench.folder / "mended").touch()
    again = bench.hibali(
        "runs", "rerun", run_id, "--failed", "--wait", "--collect", "back", "--json", exit=0, timeout=300
    ).last
    assert tuple(task["number"] for task in again["tasks"]) == FAILING
    assert ran(bench) == sorted([*expected, *(f"t{number}" for number in FAILING)])
    assert len(list(bench.folder.glob("back/*/out.txt"))) == TASKS
    prepared = next(iter(bench.records(again["id"])))
    assert read_ranges(prepared["sweep"]["tasks"]) == FAILING
    assert node.logins == 1
