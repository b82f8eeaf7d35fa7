"""Test runs on this machine, as processes that survive the exit of hibali."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from hibali.plugins import if_offered
from tests.end_to_end.run_tools import Bench, doing
from tests.services.session import REPOSITORY
from transfers.history.operations import read_operation

SNAKEMAKE_JOB = (
    REPOSITORY
    / "packaging/snakemake-executor-plugin-hibali/snakemake_executor_plugin_hibali/snakemake-job.json"
)


@pytest.fixture
def bench(hibali: Any) -> Bench:
    made = Bench(hibali)
    made.add_local_site()
    return made


def test_a_run_goes_from_answers_to_verified_outputs(bench: Bench) -> None:
    ended = bench.run(bench.answers(), "--wait", exit=0).last
    assert ended["kind"] == "run"
    assert ended["state"] == "SUCCEEDED"
    assert [task["exit_code"] for task in ended["tasks"]] == [0]
    receipt = bench.hibali("runs", "collect", ended["id"], "results", "--json", exit=0).last
    assert (receipt["operation"], receipt["files"], receipt["proof_moved"]) == ("collect", 1, "digest")
    assert (bench.folder / "results" / "out.txt").read_text() == "hello\n"
    shown = bench.hibali("runs", "show", ended["id"], "--json", exit=0).last
    assert (shown["state"], shown["collected"]) == ("SUCCEEDED", True)


def test_the_process_survives_our_exit(hibali: Any) -> None:
    go = hibali.home.folder / "go"
    bench = Bench(hibali, doing(f"until [ -e {go} ]; do sleep 0.1; done; cp [IN] [OUT]"))
    bench.add_local_site()
    run_id = bench.hibali(*bench.line(bench.answers()), exit=0).out.decode().strip()
    assert bench.hibali("runs", "show", run_id, "--json", exit=0).last["state"] == "RUNNING"
    go.touch()
    ended = bench.hibali("runs", "wait", run_id, "--json", exit=0).last
    assert ended["state"] == "SUCCEEDED"


@pytest.mark.heavy  # it waits for the site's interval between logins
def test_a_process_at_an_ssh_site_survives_the_login(hibali: Any, ssh_server: Any) -> None:
    bench = Bench(hibali)
    words = ", ".join(f'"{word}"' for word in ssh_server.command)
    bench.add_site(
        "login",
        f'kind = "ssh"\nwork = "{bench.folder}/far"\n[sites.login.ssh]\nhost = "{ssh_server.host}"\n'
        f'command = [{words}]\npersist = "no"\n[sites.login.scheduler]\nname = "direct"\n'
        '[sites.login.limits]\npoll = "1s"',
    )
    run_id = hibali(*bench.line(bench.answers(sleep=2)), exit=0).out.decode().strip()
    assert hibali("runs", "wait", run_id, "--json", exit=0).last["state"] == "SUCCEEDED"
    hibali("runs", "collect", run_id, "back", exit=0)
    assert (bench.folder / "back" / "out.txt").read_text() == "hello\n"


def test_a_failed_tool_is_exit_7_and_its_logs_can_be_read(bench: Bench) -> None:
    failed = bench.run(bench.answers(code=3, say="it's $(broken)"), "--wait", exit=7)
    assert failed.last["code"] == "run-failed"
    run_id = failed.lines[-2]["id"]
    assert bench.hibali("runs", "logs", run_id, "--stdout", exit=0).out == b"counted\n"
    assert bench.hibali("runs", "logs", run_id, "--stderr", exit=0).out == b"it's $(broken)\n"
    assert bench.hibali("runs", "collect", run_id, "--json", exit=7).last["kind"] == "receipt"
    assert (bench.folder / run_id / "out.txt").read_text() == "hello\n"


def test_a_failed_tool_is_7_even_when_outputs_are_missing(hibali: Any) -> None:
    bench = Bench(hibali, doing("false [IN]"))
    bench.add_local_site()
    run_id = bench.run(bench.answers(), "--wait", exit=7).lines[-2]["id"]
    hibali("runs", "collect", run_id, exit=7)


def test_the_history_counts_a_missing_output_of_a_collection(hibali: Any) -> None:
    tool = doing("echo a >[OUT]")
    gone = {"id": "gone", "name": "gone", "path-template": "gone.nii"}
    bench = Bench(hibali, {**tool, "output-files": [*tool["output-files"], gone]})
    bench.add_local_site()
    run_id = bench.run(bench.answers(), "--wait", exit=9).lines[-2]["id"]
    receipt = bench.hibali("runs", "collect", run_id, "--json", exit=9).last
    assert (receipt["files_moved"], receipt["files_failed"]) == (1, 1)
    journal = hibali.home.state / "operations" / f"{receipt['id']}.jsonl"
    assert read_operation(journal).number("files_failed") == 1
    assert b"gone.nii" in journal.read_bytes()
    if if_offered("history", "history"):
        assert b"gone.nii" in hibali("history", "show", receipt["id"], exit=0).out


def test_a_run_without_a_required_output_failed_although_its_tool_ended_with_0(hibali: Any) -> None:
    bench = Bench(hibali, doing("true [IN]"))
    bench.add_local_site()
    answers = bench.answers(out="gone.nii")
    failed = bench.run(answers, "--wait", "--collect", "back", exit=9)
    run = failed.lines[-2]
    assert (run["state"], run["tasks"][0]["exit_code"], run["tasks"][0]["missing_outputs"]) == (
        "FAILED",
        0,
        ["out_file"],
    )
    assert (failed.last["code"], failed.last["exit"]) == ("outputs-missing", 9)
    assert "gone.nii" in failed.last["message"]
    assert not (bench.folder / "back").exists()
    assert hibali("runs", "wait", run["id"], "--json", exit=9).last["code"] == "outputs-missing"
    assert b"out_file: gone.nii" in hibali("runs", "wait", run["id"], exit=9).err
    collected = hibali("runs", "collect", run["id"], "--json", exit=9)
    assert collected.last["exit"] == 9
    assert any(line.get("path") == "gone.nii" for line in collected.lines), collected
    assert hibali("runs", "collect", run["id"], exit=9).err.count(b"gone.nii")
    assert b"out_file is missing" in hibali("runs", "show", run["id"], exit=0).out
    later = bench.run(answers, "--after", run["id"], exit=7)
    assert later.last["code"] == "needed-run-failed"


def test_an_output_that_vanished_after_a_success_is_reported(bench: Bench) -> None:
    ended = bench.run(bench.answers(), "--wait", exit=0).last
    (bench.folder / "work-here" / "runs" / ended["id"] / "work" / "out.txt").unlink()
    collected = bench.hibali("runs", "collect", ended["id"], "--json", exit=6)
    assert any(line.get("path") == "out.txt" for line in collected.lines), collected
    shown = bench.hibali("runs", "show", ended["id"], "--json").last
    assert (shown["state"], shown["collected"]) == ("SUCCEEDED", False)


def test_a_symlink_as_output_is_reported_and_not_followed(hibali: Any) -> None:
    bench = Bench(hibali, doing("ln -s /etc/passwd [OUT]"))
    bench.add_local_site()
    run_id = bench.run(bench.answers(), "--wait", exit=0).last["id"]
    collected = hibali("runs", "collect", run_id, "results", exit=6)
    assert b"out.txt" in collected.err
    assert not (bench.folder / "results" / "out.txt").exists()


def test_the_same_command_continues_a_run_until_its_end_was_reported(bench: Bench) -> None:
    line = bench.line(bench.answers(sleep=1))
    first = bench.hibali(*line, exit=0).out.decode().strip()
    assert bench.hibali(*line, exit=0).out.decode().strip() == first
    assert bench.hibali(*line, "--new", exit=0).out.decode().strip() != first
    assert bench.hibali(*line, "--name", "other", exit=0).out.decode().strip() != first
    bench.hibali("runs", "wait", *bench.run_ids(), exit=0)
    assert bench.hibali(*line, exit=0).out.decode().strip() not in {first, ""}


def test_another_answer_or_content_is_a_new_run(bench: Bench) -> None:
    bench.hibali(*bench.line(bench.answers(sleep=2)), exit=0)
    bench.hibali(*bench.line(bench.answers(sleep=2, say="else")), exit=0)
    answers = bench.answers(sleep=2)
    (bench.folder / "input.txt").write_text("other\n")
    bench.hibali(*bench.line(answers), exit=0)
    assert len(bench.run_ids()) == 3


def test_simultaneous_identical_commands_are_one_run(bench: Bench) -> None:
    line = bench.line(bench.answers(sleep=1), "--wait")
    running = [bench.hibali.start(*line) for _ in range(3)]
    assert [process.wait(60) for process in running] == [0, 0, 0]
    work = bench.folder / "work-here" / "runs"
    started = [path.name for path in work.iterdir() if (path / "exit.json").exists()]
    assert sorted(started) == bench.run_ids()
    assert len(started) < 3  # a later command may see the reported end; never one run for each


def test_a_run_can_be_cancelled(bench: Bench) -> None:
    run_id = bench.hibali(*bench.line(bench.answers(sleep=60)), exit=0).out.decode().strip()
    bench.hibali("runs", "cancel", run_id, exit=0)
    assert bench.hibali("runs", "wait", run_id, "--json", exit=7).last["code"] == "run-cancelled"
    bench.hibali("runs", "cancel", run_id, exit=0)


def test_waiting_can_be_ended_early(bench: Bench) -> None:
    answers = bench.answers(sleep=600)
    run_id = bench.run(answers, exit=0).last["id"]
    assert bench.run(answers, "--wait", "--max-time", "3s", exit=5).last["code"] == "max-time"
    assert bench.run_ids() == [run_id]
    bench.hibali("runs", "cancel", run_id, exit=0)


def test_a_dry_run_shows_the_script_and_changes_nothing(bench: Bench) -> None:
    shown = bench.run(bench.answers(say="; touch x;"), "--dry-run", exit=0).last
    assert shown["files"]["job.sh"].startswith("#!/bin/sh\n")
    assert "'; touch x;'" in shown["files"]["command"]
    assert "touch" not in shown["files"]["job.sh"] + shown["files"]["start"]
    assert not (bench.folder / "work-here").exists()
    assert bench.run_ids() == []


def test_a_work_folder_that_others_can_write_is_refused(bench: Bench) -> None:
    work = bench.folder / "work-here"
    work.mkdir()
    work.chmod(0o777)
    assert bench.run(bench.answers(), exit=8).last["code"] == "not-private"
    work.chmod(0o755)
    bench.run(bench.answers(), "--wait", exit=0)


def test_nothing_runs_without_a_container_without_consent(hibali: Any) -> None:
    bench = Bench(hibali)
    bench.add_local_site()
    (hibali.home.state / "trust.jsonl").unlink()
    refused = bench.run(bench.answers(), exit=8).last
    assert refused["code"] == "not-trusted"
    assert f"hibali pipelines trust {bench.reference}" in refused["hint"]
    assert bench.run_ids() == []


@pytest.mark.parametrize("name", ["snakemake-job", "harmless"])
def test_no_consent_lets_an_invocation_run_the_job_of_a_snakemake(hibali: Any, name: str) -> None:
    bench = Bench(hibali)
    bench.add_local_site()
    found = hibali("pipelines", "add", SNAKEMAKE_JOB, "--name", name, "--json", exit=0).last
    earlier = {"schema": 1, "kind": "trust", "digest": found["digest"], "reference": "snakemake-job@1.0"}
    with (hibali.home.state / "trust.jsonl").open("a") as consents:
        consents.write(json.dumps({**earlier, "at": "2026-11-01T00:00:00Z"}) + "\n")
    (bench.folder / "evil.json").write_text(json.dumps({"sources": "answers.json", "command": "touch evil"}))
    bench.answers()
    line = ("run", f"{name}@1.0", bench.folder / "evil.json", "--site", "here")
    for words in (line, ("pipelines", "trust", f"{name}@1.0"), line):
        refused = hibali(*words, "--json", exit=8).last
        assert (refused["code"], "snakemake --executor hibali" in refused["hint"]) == ("own-pipeline", True)
    assert not hibali("pipelines", "show", name, "--json", exit=0).last["trusted"]
    assert bench.run_ids() == []


def test_a_default_inside_the_image_is_not_searched_on_this_machine(hibali: Any) -> None:
    tool = doing("echo [ATLAS] >[OUT]")
    atlas = {"id": "atlas", "name": "a", "type": "File", "value-key": "[ATLAS]", "optional": True}
    inputs = [*tool["inputs"], {**atlas, "default-value": "/opt/no-such-atlas.nii"}]
    bench = Bench(
        hibali, {**tool, "inputs": inputs, "container-image": {"type": "docker", "image": "lab/tool:1"}}
    )
    bench.add_local_site()
    for name, values in (("left", {}), ("repeated", {"atlas": "/opt/no-such-atlas.nii"})):
        run_id = bench.run(bench.answers(**values), "--wait", "--new", exit=0).last["id"]
        hibali("runs", "collect", run_id, name, exit=0)
        assert (bench.folder / name / "out.txt").read_text() == "/opt/no-such-atlas.nii\n"
    assert "other.nii" in bench.run(bench.answers(atlas="/opt/other.nii"), exit=3).last["about"]


def test_all_problems_are_reported_before_anything_starts(bench: Bench) -> None:
    answers = bench.answers(sleep="soon", code=1.5)
    message = bench.run(answers, exit=2).last["message"]
    assert "sleep" in message
    assert "code" in message
    (bench.folder / "missing.json").write_text(
        json.dumps({"in": "no-such", "more": ["neither", "input.txt"]})
    )
    missing = bench.run("missing.json", exit=3).last
    assert "no-such" in missing["message"]
    assert "neither" in missing["message"]
    bench.hibali("run", bench.reference, answers, "--site", "nowhere", exit=2)
    bench.hibali("runs", "show", "../x", exit=3)
    assert bench.run_ids() == []


def test_hostile_names_and_values_reach_the_tool_unchanged(bench: Bench) -> None:
    hostile = "-n $(touch pwned) 'a\"b\n*.txt"
    (bench.folder / hostile).write_text("strange\n")
    (bench.folder / "hard").mkdir()
    text = "`touch pwned`; [OUT] \\ é"
    answers = bench.answers(more=[hostile, "input.txt"], say=text, out="-o [IN].txt")
    run_id = bench.run(answers, "--wait", exit=0).last["id"]
    assert bench.hibali("runs", "logs", run_id, "--stderr").out.decode() == text + "\n"
    bench.hibali("runs", "collect", run_id, "hard", exit=0)
    assert [path.name for path in (bench.folder / "hard").iterdir()] == ["-o [IN].txt"]
    assert (bench.folder / "hard" / "-o [IN].txt").read_text() == "hello\nstrange\nhello\n"
    assert not list(bench.folder.rglob("pwned"))


def test_an_input_at_the_site_is_used_in_place_and_a_second_run_transfers_nothing(bench: Bench) -> None:
    there = bench.folder / "there.txt"
    there.write_text("in place\n")
    answers = bench.answers(more=[f"here:{there}"])
    first = bench.run(answers, "--wait", exit=0).last["id"]
    cached = [path for path in (bench.folder / "work-here" / "cache").rglob("*") if path.is_file()]
    assert [path.read_text() for path in cached if len(path.name) == 64] == ["hello\n"]
    operations = set((bench.hibali.home.state / "operations").iterdir())
    second = bench.run(answers, "--wait", exit=0).last["id"]
    assert second != first
    assert set((bench.hibali.home.state / "operations").iterdir()) == operations
    command = bench.folder / "work-here" / "runs" / second / "command"
    assert str(there) in command.read_text()


def test_a_tool_cannot_change_the_cache(hibali: Any) -> None:
    bench = Bench(hibali, doing("echo more >>[IN]; cp [IN] [OUT]"))
    bench.add_local_site()
    for expected in ("SUCCEEDED", "SUCCEEDED"):
        ended = bench.run(bench.answers(), "--wait", exit=0).last
        assert ended["state"] == expected
        hibali("runs", "collect", ended["id"], exit=0)
        assert (bench.folder / ended["id"] / "out.txt").read_text() == "hello\nmore\n"
    assert (bench.folder / "input.txt").read_text() == "hello\n"


def test_an_input_of_another_site_is_cached_once_and_repaired_when_damaged(bench: Bench) -> None:
    host = bench.folder / "far"
    (host / "tree").mkdir(parents=True)
    (host / "tree" / "a").write_text("first\n")
    bench.add_site("store", f'kind = "local"\nroots = {{ data = "{host}" }}\ndefault_root = "data"')
    bench.site = "here"
    (bench.folder / "there.json").write_text(json.dumps({"in": "store:tree/a"}))
    operations = bench.hibali.home.state / "operations"
    for moved in (1, 0):
        before = set(operations.glob("*")) if operations.exists() else set()
        bench.run("there.json", "--wait", exit=0)
        assert len(set(operations.glob("*")) - before) == moved
    [cached] = [path for path in (bench.folder / "work-here").rglob("sha256/*/*") if path.is_file()]
    times = (cached.stat().st_atime_ns, cached.stat().st_mtime_ns)
    cached.write_text("FIRST\n")
    os.utime(cached, ns=times)
    run_id = bench.run("there.json", "--wait", exit=0).last["id"]
    bench.hibali("runs", "collect", run_id, "back", exit=0)
    assert (bench.folder / "back" / "out.txt").read_text() == "first\n"


def test_folders_can_be_inputs_and_outputs(hibali: Any) -> None:
    bench = Bench(hibali, doing("mkdir -p [OUT]; cp -R [IN]/. [OUT]/"))
    bench.add_local_site()
    tree = bench.folder / "tree"
    (tree / "deep").mkdir(parents=True)
    (tree / "deep" / "a b").write_text("1")
    (tree / "deep" / "new\nline").write_text("2")
    (bench.folder / "folder.json").write_text(json.dumps({"in": "tree", "out": "result"}))
    bench.run("folder.json", "--wait", exit=0)
    operations = len(list((bench.hibali.home.state / "operations").iterdir()))
    run_id = bench.run("folder.json", "--wait", exit=0).last["id"]
    assert len(list((bench.hibali.home.state / "operations").iterdir())) == operations
    bench.hibali("runs", "collect", run_id, "back", exit=0)
    found = {path.name: path.read_text() for path in (bench.folder / "back").rglob("*") if path.is_file()}
    assert found == {"a b": "1", "new\nline": "2"}


def test_a_failing_line_of_the_prologue_is_the_reason_of_the_failed_run(hibali: Any) -> None:
    """`module load` at a site without modules gave the result of whatever software was found instead."""
    bench = Bench(hibali)
    bench.add_local_site()
    config = hibali.home.config
    table = '[sites.here.scheduler]\nname = "direct"\nprologue = ["export A=1", "module_ load FSL"]\n'
    config.write_text(config.read_text() + table)
    run, error = bench.run(bench.answers(), "--wait", exit=7).lines[-2:]
    assert run["state"] == "FAILED"
    reason = "not started: a line of the prologue failed with exit code 127: module_ load FSL"
    assert run["tasks"][0]["reason"] == reason
    assert error["message"] == f"the tool was {reason}"
    sweep = bench.run(bench.answers(), "--param", "say=a,b", "--wait", exit=7).lines[-2]
    assert [each["reason"] for each in sweep["tasks"]] == [reason] * 2
