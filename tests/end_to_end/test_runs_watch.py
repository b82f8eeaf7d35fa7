"""Test watching active runs: logs, the live table, and notices."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.run_tools import Bench, doing
from tests.schemas import check_lines
from tests.services.sshd import SshServer
from tests.support.terminal import Terminal
from tests.support.waiting import wait_for

HOSTILE = "\\033[31mevil\\007 \\342\\200\\256[bold]"


@pytest.fixture
def stepping(hibali: Any) -> Bench:
    """Return a bench whose tool prints a line, waits for the file `go`, and prints another line."""
    go = hibali.home.folder / "go"
    made = Bench(
        hibali,
        doing(
            f"touch [OUT]; echo first; echo aside >&2; until [ -e {go} ]; do sleep 0.05; done; printf '{HOSTILE}\\n'; printf last; exit [CODE]"
        ),
    )
    made.add_local_site()
    return made


def begin(bench: Bench, **answers: Any) -> str:
    return str(bench.hibali(*bench.line(bench.answers(**answers)), exit=0).out.decode().strip())


def go_on(bench: Bench) -> None:
    (bench.folder / "go").touch()


def output_of(bench: Bench, number: int = 0) -> bytes:
    """Return the output of the command that was started last, or of an earlier one."""
    return (bench.folder / f"{number}.out").read_bytes()


def test_logs_are_followed_while_they_are_written(stepping: Bench) -> None:
    run_id = begin(stepping)
    process = stepping.hibali.start("runs", "logs", "-f", run_id)
    wait_for(lambda: output_of(stepping) == b"first\n")
    wait_for(lambda: b"aside" in (stepping.folder / "0.err").read_bytes())
    assert process.poll() is None
    go_on(stepping)
    assert process.wait(60) == 0
    raw = HOSTILE.encode().decode("unicode_escape").encode("latin-1")
    assert output_of(stepping) == b"first\n" + raw + b"\nlast"
    assert f"{run_id} SUCCEEDED" in (stepping.folder / "0.err").read_text()
    lines = check_lines(stepping.hibali("runs", "logs", "-f", run_id, "--stdout", "--json", exit=0).out)
    assert [line["kind"] for line in lines] == ["log", "run"]


@pytest.mark.heavy
def test_a_followed_log_cannot_control_the_terminal_and_ctrl_c_ends_it(stepping: Bench) -> None:
    run_id = begin(stepping, code=3)
    command = stepping.hibali.command("runs", "logs", "-f", run_id)
    terminal = Terminal(command, stepping.hibali.env, cwd=stepping.folder)
    terminal.until(lambda screen: "first" in screen and "aside" in screen)
    terminal.press(b"\x03")
    assert terminal.end(15) == 130
    terminal = Terminal(command, stepping.hibali.env, cwd=stepping.folder)
    terminal.until(lambda screen: "first" in screen)
    go_on(stepping)
    assert terminal.end() == 0
    assert "\\x1b[31mevil\\x07 \\u202e[bold]\nlast" in terminal.screen()
    assert b"\x1b[31mevil" not in terminal.written


@pytest.mark.heavy
def test_a_truncated_log_is_followed_from_its_beginning(stepping: Bench) -> None:
    run_id = begin(stepping)
    process = stepping.hibali.start("runs", "logs", "-f", run_id, "--stdout")
    wait_for(lambda: output_of(stepping) == b"first\n")
    log = stepping.folder / "work-here" / "runs" / run_id / "stdout"
    os.truncate(log, 0)
    wait_for(lambda: b"stdout was truncated" in (stepping.folder / "0.err").read_bytes())
    log.write_bytes(b"anew\n")
    wait_for(lambda: output_of(stepping) == b"first\nanew\n")
    go_on(stepping)
    assert process.wait(60) == 0


def add_sftp_cluster(bench: Bench, server: SshServer) -> None:
    bench.add_site(
        "cluster",
        f'kind = "ssh"\nwork = "{bench.folder}/work"\n[sites.cluster.ssh]\nhost = "{server.host}"\n'
        f'transport = "sftp"\ncommand = {json.dumps(server.command)}\n'
        '[sites.cluster.scheduler]\nname = "slurm"\ndirectives = ["--mem=50", "--hold"]\n'
        '[sites.cluster.limits]\npoll = "1s"\nlogin_interval = "0s"',
    )


@pytest.mark.heavy
@pytest.mark.parametrize("way", ["agent", "sftp"])
def test_logs_of_a_queued_job_are_followed_by_agent_and_sftp(
    hibali: Any, slurm: Any, automation_node: SshServer, way: str
) -> None:
    bench = Bench(hibali)
    add_sftp_cluster(bench, automation_node if way == "sftp" else slurm)
    config = hibali.home.config
    config.write_text(config.read_text().replace('"sftp"', f'"{way}"'))
    run = bench.run(bench.answers(sleep=1), exit=0).last
    process = hibali.start("runs", "logs", "-f", run["id"])
    wait_for(lambda: hibali("runs", "list", "--json").lines[0]["state"] == "WAITING")
    assert output_of(bench) == b""
    job = run["tasks"][0]["job"]
    subprocess.run(["scontrol", "release", job], env={**os.environ, **slurm.env}, check=True)
    assert process.wait(120) == 0
    assert output_of(bench) == b"counted\n"
    assert b"done" in (bench.folder / "0.err").read_bytes()


def test_runs_are_watched_in_a_table_without_changing_them(stepping: Bench) -> None:
    answers = stepping.answers(code=3)
    line = stepping.line(answers)
    run_id = stepping.hibali(*line, exit=0).out.decode().strip()
    other = stepping.hibali(
        *stepping.line(stepping.answers("b.json", say="x")), "--name", "other one", exit=0
    )
    terminal = Terminal(
        stepping.hibali.command("runs", "watch"), stepping.hibali.env, columns=110, cwd=stepping.folder
    )
    seen = terminal.until(lambda screen: screen.count("RUNNING") == 2)
    assert re.search(r"2 runs: 2 running", seen)
    assert re.search(rf"{run_id[-8:]} +RUNNING +\d+ s ", seen)
    assert "other one" in seen
    go_on(stepping)
    assert terminal.end() == 7
    screen = terminal.screen()
    assert re.search(rf"{run_id[-8:]} +FAILED .*exit code 3", screen)
    assert re.search(rf"{other.out.decode().strip()[-8:]} +SUCCEEDED", screen)
    # its end was shown, but not recorded as reported
    assert stepping.hibali(*line, exit=7).out.decode().strip() == run_id
    assert stepping.hibali("runs", "watch", exit=0).out == b""


@pytest.mark.heavy
def test_ctrl_c_ends_the_table_and_the_runs_continue(stepping: Bench) -> None:
    run_id = begin(stepping)
    terminal = Terminal(
        stepping.hibali.command("runs", "watch", run_id), stepping.hibali.env, cwd=stepping.folder
    )
    terminal.until(lambda screen: "RUNNING" in screen)
    terminal.press(b"\x03")
    assert terminal.end(15) == 130  # two seconds on an idle machine
    assert "RUNNING" not in terminal.screen()
    assert terminal.written.rfind(b"\x1b[?25h") >= terminal.written.rfind(b"\x1b[?25l")
    go_on(stepping)
    assert stepping.hibali("runs", "wait", run_id, "--json", exit=0).last["state"] == "SUCCEEDED"


@pytest.mark.heavy
def test_without_a_terminal_each_change_is_a_line(stepping: Bench) -> None:
    run_id = begin(stepping)
    process = stepping.hibali.start("runs", "watch", run_id)
    wait_for(lambda: b"RUNNING" in output_of(stepping))
    records = stepping.hibali.start("runs", "watch", run_id, "--json")
    wait_for(lambda: b"RUNNING" in output_of(stepping, 1))
    go_on(stepping)
    assert (process.wait(60), records.wait(60)) == (0, 0)
    lines = [line.split()[1:3] for line in output_of(stepping).decode().splitlines()]
    assert lines[-2:] == [[run_id, "RUNNING"], [run_id, "SUCCEEDED"]]
    *runs, last = check_lines(output_of(stepping, 1))
    assert [run["state"] for run in runs][-2:] == ["RUNNING", "SUCCEEDED"]
    assert (last["kind"], last["count"], last["exit"]) == ("end", len(runs), 0)
    assert stepping.hibali("runs", "watch", "no-such-run", exit=3)


@pytest.mark.heavy
def test_runs_of_several_sites_are_watched_at_once(stepping: Bench, ssh_server: Any) -> None:
    words = ", ".join(f'"{word}"' for word in ssh_server.command)
    first = begin(stepping)
    stepping.add_site(
        "far",
        f'kind = "ssh"\nwork = "{stepping.folder}/far"\n[sites.far.ssh]\nhost = "{ssh_server.host}"\n'
        f'command = [{words}]\n[sites.far.scheduler]\nname = "direct"\n[sites.far.limits]\npoll = "1s"',
    )
    second = begin(stepping)
    process = stepping.hibali.start("runs", "wait", first, second, "--json")
    wait_for(
        lambda: {"RUNNING"} == {run["state"] for run in stepping.hibali("runs", "list", "--json").lines[:2]}
    )
    go_on(stepping)
    assert process.wait(60) == 0
    assert [run["state"] for run in check_lines(output_of(stepping))] == ["SUCCEEDED", "SUCCEEDED"]


def test_a_notice_of_the_end_is_sent_and_its_failure_changes_nothing(hibali: Any) -> None:
    bench = Bench(hibali)
    bench.add_local_site()
    script = bench.folder / "notify"
    script.write_text(f'#!/bin/sh\necho "$@" >>{bench.folder}/notices; cat >>{bench.folder}/records\n')
    script.chmod(0o755)
    failed = bench.run(bench.answers(code=3), "--wait", "--notify", f"{script} 'a b'", exit=7)
    run_id = next(line["id"] for line in failed.lines if line["kind"] == "run")
    assert (bench.folder / "notices").read_text() == f"a b {run_id} FAILED\n"
    [record] = check_lines((bench.folder / "records").read_bytes())
    assert (record["id"], record["state"], record["invocation"]["code"]) == (run_id, "FAILED", 3)
    ended = bench.run(bench.answers(), "--wait", "--notify", "/no/such/program", exit=0)
    assert f"the notification of the end of {ended.last['id']} failed" in ended.err.decode()
    assert hibali("runs", "wait", ended.last["id"], "--notify", "http://example.org/x", exit=2).out == b""
    assert hibali("runs", "watch", ended.last["id"], "--notify", f"{script}", exit=0)
    assert (bench.folder / "notices").read_text().splitlines()[-1] == f"{ended.last['id']} SUCCEEDED"
    bench.run(bench.answers(), "--notify", "true", exit=2)


@pytest.mark.heavy
def test_the_record_has_the_requested_and_used_resources(hibali: Any) -> None:
    busy = "i=0; while [ $i -lt 60000 ]; do i=$((i+1)); done; cp [IN] [OUT]"
    bench = Bench(hibali, doing(busy))
    bench.add_local_site()
    run_id = bench.run(bench.answers(), "--wait", exit=0).last["id"]
    receipt = hibali("runs", "collect", run_id, "back", "--json", exit=0).last["id"]
    shown = hibali("runs", "show", run_id, "--json", exit=0).last
    [task] = shown["tasks"]
    assert 0 < task["cpu_seconds"] < 60
    assert task["memory_bytes"] is None
    assert shown["receipts"] == [receipt]
    assert shown["hibali"] == hibali("--version").out.decode().split()[-1]
    assert shown["invocation"] == {"in": "input.txt"}
    [given] = shown["inputs"]
    assert (given["id"], Path(given["location"]).name) == ("in", "input.txt")
    assert given["identity"].startswith("sha256:")
    words = hibali("runs", "show", run_id, exit=0).out.decode()
    assert re.search(r"^CPU +\d+\.\d s$", words, re.MULTILINE)
    assert re.search(r"^input 1 +in: .*input.txt \(sha256:", words, re.MULTILINE)


@pytest.mark.heavy
def test_accounting_reports_the_memory(hibali: Any, slurm_with_accounting: Any) -> None:
    bench = Bench(hibali)
    bench.add_slurm_site(slurm_with_accounting)
    ended = bench.run(bench.answers(sleep=8), "--wait", exit=0).last  # Slurm samples every five seconds
    question = f"sacct -n -P -X --name={ended['id']} -o State"
    wait_for(lambda: slurm_with_accounting.run(question).stdout.strip() == b"COMPLETED")
    hibali("runs", "collect", ended["id"], "back", exit=0)
    [task] = hibali("runs", "show", ended["id"], "--json", exit=0).last["tasks"]
    assert task["memory_bytes"] > 100_000
    assert task["cpu_seconds"] > 0
    assert [record["kind"] for record in bench.records(ended["id"])].count("usage") == 1


@pytest.mark.heavy
def test_sigterm_ends_a_watch_with_143(stepping: Bench) -> None:
    run_id = begin(stepping)
    process = stepping.hibali.start("runs", "watch", run_id)
    wait_for(lambda: b"RUNNING" in output_of(stepping))
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 143
    go_on(stepping)
    stepping.hibali("runs", "wait", run_id, exit=0)


@pytest.mark.heavy
def test_a_sweep_is_watched_and_the_log_of_a_task_is_followed(hibali: Any, slurm: Any) -> None:
    bench = Bench(hibali)
    bench.add_slurm_site(slurm)
    line = bench.line(bench.answers(), "--param", "sleep=0,1", "--param", "say=x")
    run_id = hibali(*line, "--json", exit=0).last["id"]
    assert hibali("runs", "logs", "-f", run_id, "--task", "2", exit=0).out == b"counted\n"
    assert hibali("runs", "logs", "-f", run_id, exit=2).out == b""
    watched = hibali("runs", "watch", run_id, exit=0).out.decode().splitlines()
    assert watched[-1].endswith("SUCCEEDED 2 succeeded")
    hibali("runs", "report", run_id, "-o", "sweep.html", exit=0)
    assert "2 tasks" in (bench.folder / "sweep.html").read_text()
