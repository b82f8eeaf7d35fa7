"""Test the limit of jobs in a site's queue: further jobs wait, and are submitted when others have ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.run_tools import Bench, doing


def add_site(bench: Bench, most: int) -> Path:
    work = bench.folder / "work-here"
    bench.add_site(
        "here",
        f'kind = "local"\nwork = "{work}"\n[sites.here.limits]\npoll = "0.5s"\nqueued_jobs = {most}',
    )
    return work


def waiting_tool(go: Path) -> dict[str, Any]:
    return doing(f"until [ -e {go} ]; do sleep 0.1; done; cp [IN] [OUT]")


@pytest.fixture
def go(hibali: Any) -> Path:
    return Path(hibali.home.folder) / "go"


@pytest.fixture
def bench(hibali: Any, go: Path) -> Bench:
    made = Bench(hibali, waiting_tool(go))
    add_site(made, 1)
    made.answers()
    return made


def named(bench: Bench, name: str, *more: str) -> tuple[str, ...]:
    return bench.line("answers.json", "--name", name, *more)


def begin(bench: Bench, name: str, **ends: int) -> str:
    """Start the run and return its id; ids of the same second have no order."""
    return str(bench.hibali(*named(bench, name), "--json", **ends).lines[0]["id"])


@pytest.mark.heavy
def test_jobs_beyond_the_limit_wait_and_are_submitted_when_others_end(bench: Bench, go: Path) -> None:
    first = bench.hibali(*named(bench, "first"), exit=0).out.decode().strip()
    full = bench.hibali(*named(bench, "second"), "--json", exit=5)
    run, refusal = full.lines
    assert (run["state"], run["tasks"][0]["job"]) == ("STAGED", "")
    assert run["tasks"][0]["reason"] == refusal["message"] == "the queue is full: 1 of 1 jobs"
    assert (refusal["code"], refusal["about"]) == ("queue-full", run["id"])
    again = bench.hibali(*named(bench, "second"), "--json", exit=5).lines[0]
    assert again["id"] == run["id"]
    assert len(bench.run_ids()) == 2
    usage = bench.hibali("sites", "usage", "here", "--json", exit=0).lines[0]
    assert (usage["queued_jobs"], usage["limits"]["queued_jobs"]) == (1, 1)
    assert usage["hour"]["commands"]["sh"] >= 1

    go.touch()
    # no command polled the first run since, so the command that waits for the limit does
    ended = bench.hibali("runs", "wait", run["id"], "--json", exit=0).last
    assert (ended["id"], ended["state"]) == (run["id"], "SUCCEEDED")
    assert bench.hibali("runs", "show", first, "--json", exit=0).last["state"] == "SUCCEEDED"
    assert bench.hibali("sites", "usage", "--json", exit=0).lines[0]["queued_jobs"] == 0


def test_the_same_command_submits_a_waiting_run(bench: Bench, go: Path) -> None:
    first = begin(bench, "first", exit=0)
    second = begin(bench, "second", exit=5)
    go.touch()
    bench.hibali("runs", "wait", first, exit=0)
    ended = bench.hibali(*named(bench, "second", "--wait"), "--json", exit=0).last
    assert ended["id"] == second
    assert len(bench.run_ids()) == 2


@pytest.mark.heavy
def test_a_waiting_run_can_be_cancelled_and_never_runs(bench: Bench, go: Path) -> None:
    first = begin(bench, "first", exit=0)
    second = begin(bench, "second", exit=5)
    assert bench.hibali("runs", "cancel", second, "--json", exit=0).last["state"] == "CANCELLED"
    go.touch()
    bench.hibali("runs", "wait", first, exit=0)
    assert bench.hibali(*named(bench, "second", "--wait"), "--json", exit=0).last["id"] != second
    assert not (bench.folder / "work-here" / "runs" / second / "started").exists()


@pytest.mark.heavy
def test_an_abandoned_run_releases_its_place_in_the_queue(bench: Bench, go: Path) -> None:
    """Check a command that was killed after it reserved a place and before it submitted a job."""
    go.touch()
    folder = bench.hibali.home.state / "sites" / "here" / "queued"
    folder.mkdir(parents=True)
    for each in (folder, folder.parent, folder.parent.parent):
        each.chmod(0o700)
    (folder / "20260102-030405-0a1b2c3d").write_text("1\n")
    bench.hibali(*named(bench, "first", "--wait"), exit=0)
    assert list(folder.iterdir()) == []


@pytest.mark.heavy
def test_concurrent_commands_do_not_exceed_the_limit(hibali: Any) -> None:
    bench = Bench(hibali, doing("date +%s.%N >[OUT]; sleep 1; date +%s.%N >>[OUT]"))
    work = add_site(bench, 2)
    bench.answers()
    running = [hibali.start(*named(bench, str(number), "--wait")) for number in range(6)]
    assert [process.wait(120) for process in running] == [0] * 6
    spans = []
    for path in (work / "runs").glob("*/work/out.txt"):
        begun, ended = (float(line) for line in path.read_text().split())
        spans.append((begun, ended))
    assert len(spans) == 6
    for begun, _ in spans:
        assert sum(other <= begun < ended for other, ended in spans) <= 2


@pytest.mark.heavy
def test_several_commands_that_wait_at_once_all_get_the_result(hibali: Any) -> None:
    """Check that one of the commands polls for all, and that the others read its result."""
    bench = Bench(hibali)
    add_site(bench, 10)
    bench.answers(sleep=3)
    ids = [hibali(*named(bench, str(number)), exit=0).out.decode().strip() for number in range(3)]
    waiting = [hibali.start("runs", "wait", run_id) for run_id in ids for _ in range(2)]
    assert [process.wait(120) for process in waiting] == [0] * 6


@pytest.mark.heavy
def test_a_scheduler_that_rejects_repeatedly_is_not_called_for_a_while(hibali: Any, tmp_path: Path) -> None:
    """Check that the next call from cron observes the pause, too, and that `sites check` ends it."""
    bench = Bench(hibali)
    programs, calls = tmp_path / "programs", tmp_path / "calls"
    programs.mkdir()
    for name in ("sbatch", "squeue", "scancel", "sacct"):
        text = f"#!/bin/sh\necho x >>{calls}\necho 'error: Connection refused' >&2\nexit 1\n"
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    hibali.env["PATH"] = f"{programs}:{hibali.env['PATH']}"
    bench.add_site(
        "here", f'kind = "local"\nwork = "{bench.folder}/work"\n[sites.here.scheduler]\nname = "slurm"\n'
    )
    line = bench.line(bench.answers())
    codes = [hibali(*line, "--json", exit=5).last["code"] for _ in range(7)]
    assert codes == ["scheduler-busy"] * 5 + ["paused"] * 2
    assert calls.read_text().count("x") == 5
    usage = hibali("sites", "usage", "here", "--json", exit=0).lines[0]
    [refusal] = usage["refusals"]
    assert (refusal["by"], refusal["times"], usage["hour"]["scheduler_commands"]) == ("slurm", 5, 5)
    assert refusal["paused_until"] is not None
    hibali("sites", "check", "here", exit=0)
    assert hibali(*line, "--json", exit=5).last["code"] == "scheduler-busy"
