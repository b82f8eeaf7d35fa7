"""Test adopting runs that a ledger does not know, and removing only folders of ended runs."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.run_tools import Bench, doing


@pytest.fixture
def bench(hibali: Any) -> Bench:
    made = Bench(hibali)
    made.add_local_site()
    return made


def lost_ledger(tmp_path: Path) -> dict[str, str]:
    """Return the environment of another machine, or of this one after the loss of its state folder."""
    state = tmp_path / "another-state"
    state.mkdir(mode=0o700)
    return {"HIBALI_STATE": str(state)}


def adopt(bench: Bench, env: dict[str, str], *words: str) -> list[dict[str, Any]]:
    lines = bench.hibali("runs", "adopt", *words, "--json", env=env, exit=0).lines
    assert lines[-1] == {"schema": 1, "kind": "end", "count": len(lines) - 1, "exit": 0}
    return lines[:-1]


@pytest.mark.heavy
def test_runs_of_a_lost_ledger_are_found_and_adopted_by_another(bench: Bench, tmp_path: Path) -> None:
    done = bench.run(bench.answers(), "--wait", "--name", "done", exit=0).last
    running = bench.run(bench.answers(sleep=2), exit=0).last["id"]
    env = lost_ledger(tmp_path)
    hibali = bench.hibali
    found = {each["id"]: each for each in adopt(bench, env, "here")}
    assert {name: each["fate"] for name, each in found.items()} == {done["id"]: "found", running: "found"}
    first = found[done["id"]]
    assert (first["pipeline"], first["name"]) == (done["pipeline"], "done")
    assert first["job"] == done["tasks"][0]["job"]
    assert first["ledger"]
    assert hibali("runs", "list", "--json", env=env, exit=0).lines[:-1] == []
    assert [each["fate"] for each in adopt(bench, env, running[-8:])] == ["adopted"]
    assert hibali("runs", "wait", running, "--json", env=env, exit=0).last["state"] == "SUCCEEDED"
    assert [(each["id"], each["fate"]) for each in adopt(bench, env, "--yes")] == [(done["id"], "adopted")]
    assert adopt(bench, env) == []
    hibali("runs", "collect", done["id"], "back", env=env, exit=0)
    assert (bench.folder / "back" / "out.txt").read_text() == "hello\n"
    assert adopt(bench, env, done["id"]) == []  # already known, so there is nothing to do
    hibali("runs", "adopt", "20260102-030405-0a1b2c3d", env=env, exit=3)


@pytest.mark.heavy
def test_runs_that_another_ledger_may_be_submitting_are_not_adopted(bench: Bench, tmp_path: Path) -> None:
    run_id = bench.run(bench.answers(), "--wait", exit=0).last["id"]
    folder = bench.folder / "work-here" / "runs" / run_id
    env = lost_ledger(tmp_path)
    (folder / "submit" / "answer.json").rename(tmp_path / "answer.json")
    (folder / "started").rename(tmp_path / "started")
    [left] = adopt(bench, env, "here", "--yes")
    assert (left["fate"], left["job"]) == ("left", "")
    (folder / "submit").rmdir()
    [left] = adopt(bench, env, "here", "--yes")
    assert "never submitted" in left["because"]
    assert bench.hibali("runs", "adopt", run_id, "--json", env=env, exit=8).last["code"] == "not-adopted"
    (folder / "run.json").write_text("{}")
    [left] = adopt(bench, env, "here")
    assert left["because"] == "its folder has no valid run manifest"
    assert bench.hibali("runs", "list", "--json", env=env, exit=0).lines[:-1] == []


@pytest.mark.heavy
def test_the_same_command_continues_an_adopted_run(bench: Bench, tmp_path: Path) -> None:
    line = bench.line(bench.answers(sleep=1))
    run_id = bench.hibali(*line, exit=0).out.decode().strip()
    ledger = bench.hibali.home.state
    for name in ("runs", "sites"):
        (ledger / name).rename(tmp_path / name)
    adopt(bench, {}, "--yes")
    assert bench.hibali(*line, exit=0).out.decode().strip() == run_id
    bench.hibali("runs", "wait", run_id, exit=0)


def test_a_run_is_adopted_by_another_ledger_and_its_folder_removed(bench: Bench, tmp_path: Path) -> None:
    """Check the short case of what the following tests check in steps."""
    run_id = bench.run(bench.answers(), "--wait", exit=0).last["id"]
    env = lost_ledger(tmp_path)
    assert [(each["id"], each["fate"]) for each in adopt(bench, env, "here", "--yes")] == [
        (run_id, "adopted")
    ]
    bench.hibali("runs", "collect", run_id, "back", env=env, exit=0)
    assert outcomes(bench.hibali("runs", "clean", "--json", env=env, exit=0)) == {run_id: "removed"}
    assert list((bench.folder / "work-here" / "runs").iterdir()) == []


def outcomes(answer: Any) -> dict[str, str]:
    return {each["id"]: each["fate"] for each in answer.lines if each["kind"] == "cleaned-run"}


@pytest.mark.heavy
def test_folders_are_removed_once_their_runs_have_ended_and_are_collected(bench: Bench) -> None:
    hibali, work = bench.hibali, bench.folder / "work-here" / "runs"
    ended = bench.run(bench.answers(), "--wait", exit=0).last["id"]
    running = bench.run(bench.answers(sleep=60), exit=0).last["id"]
    assert outcomes(hibali("runs", "clean", "--json", exit=0)) == {ended: "kept", running: "kept"}
    assert hibali("runs", "clean", ended, "--json", exit=8).last["code"] == "not-removed"
    hibali("runs", "collect", ended, exit=0)
    assert outcomes(hibali("runs", "clean", "--older-than", "1d", "--json", exit=0))[ended] == "kept"
    assert outcomes(hibali("runs", "clean", "--site", "here", "-n", "--json", exit=0))[ended] == "planned"
    assert (work / ended / "work" / "out.txt").exists()
    both = hibali("runs", "clean", running, ended, "--json", exit=8)  # each is tried
    assert outcomes(both) == {ended: "removed", running: "kept"}
    assert both.last["code"] == "not-removed"
    assert sorted(path.name for path in work.iterdir()) == [running]
    assert outcomes(hibali("runs", "clean", "--json", exit=0)) == {running: "kept"}
    shown = hibali("runs", "show", ended, "--json", exit=0).last
    assert shown["cleaned"] is not None
    assert hibali("runs", "collect", ended, "--json", exit=3).last["code"] == "run-cleaned"
    hibali("runs", "clean", running, "--all-ended", "--yes", exit=8)
    hibali("runs", "cancel", running, exit=0)
    assert hibali("runs", "clean", "--all-ended", "--json", exit=8).last["code"] == "unconfirmed"
    assert (work / running).exists()
    hibali("runs", "clean", "--all-ended", "--yes", exit=0)
    assert list(work.iterdir()) == []


@pytest.mark.heavy
def test_a_folder_that_does_not_belong_to_the_run_stays(bench: Bench) -> None:
    run_id = bench.run(bench.answers(), "--wait", exit=0).last["id"]
    bench.hibali("runs", "collect", run_id, exit=0)
    folder = bench.folder / "work-here" / "runs" / run_id
    precious = bench.folder / "precious"
    precious.mkdir()
    (precious / "file").write_text("1")
    folder.rename(bench.folder / "moved")
    folder.symlink_to(precious)
    assert outcomes(bench.hibali("runs", "clean", "--json", exit=0)) == {run_id: "kept"}
    assert (precious / "file").exists()
    config = bench.hibali.home.config
    config.write_text(config.read_text().replace("work-here", "elsewhere"))
    assert outcomes(bench.hibali("runs", "clean", "--json", exit=0)) == {run_id: "kept"}


@pytest.mark.heavy
@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
@pytest.mark.parametrize("when", [1, 4, 9])
def test_killed_cleaning_is_completed_by_the_same_command(hibali: Any, when: int) -> None:
    bench = Bench(hibali, doing("mkdir -p [OUT]/a/b; touch [OUT]/a/b/c [OUT]/d"))
    work = bench.add_local_site()
    run_id = bench.run(bench.answers(), "--wait", exit=0).last["id"]
    hibali("runs", "collect", run_id, exit=0)
    calls = "unlink,unlinkat,rmdir"
    words = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={calls}"]
    subprocess.run(
        [*words, "-e", f"inject={calls}:signal=SIGKILL:when={when}", *hibali.command("runs", "clean")],
        env=hibali.env,
        cwd=bench.folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        timeout=60,
    )
    hibali("runs", "clean", exit=0)
    assert list((work / "runs").iterdir()) == []
    assert hibali("runs", "show", run_id, "--json", exit=0).last["cleaned"] is not None
