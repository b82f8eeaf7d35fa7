"""Test push, pull and run at sites that offer only SFTP."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.conftest import MakeTransfers
from tests.end_to_end.run_tools import Bench
from tests.services.forced_command import requested_commands
from tests.services.processes import end_all
from tests.services.sshd import SshServer, start_sshd_with_command
from tests.support.trees import Folder, Link, Tree, make_tree, read_tree

TREE: Tree = {
    b"large": os.urandom(9 << 20),
    b"empty": b"",
    b"sub/\xff not utf-8": b"bytes",
    b"sub/new\nline": b"2",
    b"sub/folder": Folder(),
    b"sub/link": Link(b"../large"),
    **{b"many/%03d" % number: b"%d" % number * 100 for number in range(300)},
}


def site_table(server: SshServer, root: Path, more: str = "", transport: str = "auto") -> str:
    return (
        f'kind = "ssh"\ndefault_root = "data"\nroots = {{ data = {json.dumps(str(root))} }}\n{more}'
        f'[sites.there.ssh]\nhost = "{server.host}"\ncommand = {json.dumps(server.command)}\n'
        f'transport = "{transport}"\n'
    )


@pytest.fixture
def add_there(hibali: Any, tmp_path: Path) -> Callable[..., Path]:
    """Return a function that makes `there` a site behind an SFTP server and returns its root."""

    def add(server: SshServer, more: str = "", transport: str = "auto") -> Path:
        root = tmp_path / "there"
        root.mkdir()
        text = f"version = 1\n[sites.there]\n{site_table(server, root, transport=transport)}{more}"
        hibali.home.config.write_text(f'{text}[sites.there.limits]\nlogin_interval = "0s"\n')
        hibali.home.config.chmod(0o600)
        return root

    return add


def test_pushed_files_are_verified_and_nothing_is_sent_twice(transfers_to: MakeTransfers) -> None:
    there = transfers_to("sftp")
    there.make(TREE)
    receipt = there.push().last
    assert (receipt["proof_moved"], receipt["files_moved"], receipt["files_failed"]) == ("digest", 305, 0)
    assert there.place.tree("data") == there.place.tree("../source")
    again = there.push().last
    assert (again["files_moved"], again["files_kept"], again["bytes_sent"]) == (0, 305, 0)
    back = there.folder / "back"
    assert there.pull(back).last["proof_moved"] == "digest"
    shutil.rmtree(there.source / "many")
    (there.source / "large").write_bytes(b"smaller")
    receipt = there.push("--delete", "--max-delete", "100%").last
    assert (receipt["files_moved"], receipt["files_deleted"]) == (1, 300)
    assert there.place.tree("data") == there.place.tree("../source")
    assert not [name for name in there.place.names("data") if b".hibali" in name]


def test_without_reading_back_only_the_size_is_claimed(
    hibali: Any, add_there: Callable[..., Path], sftp_server: SshServer, tmp_path: Path
) -> None:
    root = add_there(sftp_server, "read_back = false\n", transport="sftp")
    (tmp_path / "file").write_bytes(b"content")
    receipt = hibali("push", tmp_path / "file", "there:x/", "--json", exit=0).last
    assert (receipt["proof_moved"], receipt["bytes_sent"]) == ("size", 7)
    assert (root / "x/file").read_bytes() == b"content"
    answer = hibali("push", tmp_path / "file", "there:y/", "--require-proof", "digest", exit=6)
    assert b"verified by size only, which is weaker than required" in answer.err


def test_a_server_without_extensions_takes_and_replaces_files(
    hibali: Any, add_there: Callable[..., Path], plain_sftp_server: SshServer, tmp_path: Path
) -> None:
    root = add_there(plain_sftp_server, transport="sftp")
    source = tmp_path / "source"
    source.mkdir()
    for content in (b"first", b"second and longer"):
        (source / "file").write_bytes(content)
        assert hibali("push", source, "there:x", "--json", exit=0).last["proof_moved"] == "digest"
        assert (root / "x/file").read_bytes() == content
    assert [path.name for path in (root / "x").iterdir()] == ["file"]


@pytest.mark.heavy
def test_a_killed_push_resumes_by_agent_or_sftp(
    hibali: Any, add_there: Callable[..., Path], ssh_server: SshServer, tmp_path: Path
) -> None:
    """Check that the agent and SFTP use the same lock, journal and partial names."""
    root = add_there(ssh_server, transport="sftp")
    source = tmp_path / "source"
    source.mkdir()
    (source / "large").write_bytes(os.urandom(200 << 20))
    process = hibali.start("push", source, "there:x", "--json")
    deadline = time.monotonic() + 60
    while not any((root / "x").glob(".hibali-*")) and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not (root / "x/large").exists()
    text = hibali.home.config.read_text()
    hibali.home.config.write_text(text.replace('transport = "sftp"', 'transport = "agent"'))
    listed = hibali("ls", "there:x", "--json", exit=0).lines
    assert [line["path"] for line in listed if line["kind"] == "entry"] == []
    (source / "large").write_bytes(b"small now")
    hibali("push", source, "there:x", "--json", exit=0)
    assert [path.name for path in (root / "x").iterdir()] == ["large"]


@pytest.mark.heavy
def test_an_interrupted_large_file_is_resumed(
    hibali: Any, add_there: Callable[..., Path], sftp_server: SshServer, tmp_path: Path
) -> None:
    root = add_there(sftp_server)
    source = tmp_path / "source"
    source.mkdir()
    size = 150 << 20
    content = os.urandom(size)
    (source / "large").write_bytes(content)
    process = hibali.start("push", source, "there:x")
    wait_until(lambda: reached(root) > 40 << 20 or process.poll() is not None)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    had = reached(root)
    assert had > 40 << 20
    (partial,) = (root / "x").glob(".hibali-*")
    inode = partial.stat().st_ino
    receipt = hibali("push", source, "there:x", "--json", exit=0).last
    assert receipt["proof_moved"] == "digest"
    # the missing part is sent, the existing part is checked, and the file is read back
    assert receipt["bytes_sent"] <= (size - had) + had + size
    assert (root / "x/large").read_bytes() == content
    assert (root / "x/large").stat().st_ino == inode, "the file was sent from its beginning"
    assert [path.name for path in (root / "x").iterdir()] == ["large"]


def reached(root: Path) -> int:
    return max((path.stat().st_size for path in (root / "x").glob(".hibali-*")), default=0)


@pytest.mark.heavy
def test_a_data_mover_without_a_shell_and_with_a_home_of_its_own_works_with_absolute_roots(
    hibali: Any, add_there: Callable[..., Path], tmp_path: Path
) -> None:
    """As at CINECA: only SFTP, a home that is not that of the site, no variables; nothing is written to that home."""
    session, home = tmp_path / "mover", tmp_path / "empty"
    session.mkdir()
    home.mkdir()
    try:
        server = start_sshd_with_command(session, session / "ssh", lambda _: f"internal-sftp -d {home}")
        root = add_there(server)
        source = make_tree(tmp_path / "source", TREE)
        assert hibali("push", source, "there:data", "--json", exit=0).last["proof_moved"] == "digest"
        hibali("verify", "there:data", exit=0)
        hibali("mv", "there:data/large", "there:data/other", exit=0)
        hibali("pull", f"there:{root}/data", tmp_path / "back", exit=0)
        hibali("sync", "there:@data/data", "there:@data/copy", exit=0)
        assert read_tree(root / "copy") == read_tree(tmp_path / "back")
        hibali("rm", "-r", "--yes", "--max-delete", "400", "there:data", exit=0)
        assert hibali("sites", "check", "there", "--json").exit == 0
        assert [*home.iterdir()] == [], "hibali wrote to the home"
        assert [path.name for path in root.iterdir()] == ["copy"]
    finally:
        end_all(session)


def test_sftp_is_selected_once_if_nothing_else_works(
    hibali: Any, add_there: Callable[..., Path], automation_node_of_one_test: SshServer, tmp_path: Path
) -> None:
    """Check a host that rejects the agent with text on standard output and exit 0: the agent is tried once."""
    server = automation_node_of_one_test
    root = add_there(server)
    (tmp_path / "file").write_bytes(b"1")
    before = len(requested_commands(server))
    first = hibali("push", tmp_path / "file", "there:a/", exit=0)
    second = hibali("push", tmp_path / "file", "there:b/", exit=0)
    assert (b"SFTP" in first.err, b"SFTP" in second.err) == (True, False)
    tried = [line for line in requested_commands(server)[before:] if "python3" in line]
    assert 1 <= len(tried) <= 2
    assert (root / "b/file").read_bytes() == b"1"
    facts = hibali("sites", "check", "there", "--json", exit=0).last["facts"]
    assert facts["transport"] == "sftp"
    assert len([line for line in requested_commands(server)[before:] if "python3" in line]) > len(tried)


def test_sftp_is_selected_if_it_is_configured_or_python_is_missing(
    hibali: Any,
    add_there: Callable[..., Path],
    sftp_server: SshServer,
    ssh_server: SshServer,
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_bytes(b"1")
    root = add_there(sftp_server)
    hibali("push", tmp_path / "file", "there:a/", exit=0)
    assert (root / "a/file").read_bytes() == b"1"
    root.rename(tmp_path / "first")
    root = add_there(ssh_server, 'python = "no-such-python"\n')
    hibali("sites", "check", "there", exit=0)
    hibali("push", tmp_path / "file", "there:a/", exit=0)
    assert (root / "a/file").read_bytes() == b"1"
    agent_only = hibali.home.config.read_text().replace('"auto"', '"agent"')
    hibali.home.config.write_text(agent_only)
    hibali("push", tmp_path / "file", "there:b/", exit=3)


@pytest.fixture
def bench(hibali: Any) -> Bench:
    return Bench(hibali)


def add_cluster(bench: Bench, server: SshServer) -> None:
    work = bench.folder / "work"
    bench.add_site(
        "cluster",
        f'kind = "ssh"\nwork = "{work}"\n[sites.cluster.ssh]\nhost = "{server.host}"\n'
        f"command = {json.dumps(server.command)}\n"
        '[sites.cluster.scheduler]\nname = "slurm"\ndirectives = ["--mem=50"]\n'
        '[sites.cluster.limits]\npoll = "1s"\nlogin_interval = "0s"',
    )


def test_a_run_works_through_a_forced_command_wrapper(
    bench: Bench, slurm: Any, automation_node: SshServer
) -> None:
    add_cluster(bench, automation_node)
    run = bench.run(bench.answers(), exit=0).last
    ended = bench.hibali("runs", "wait", run["id"], "--json", exit=0).last
    # The job itself records how it ended; Slurm may not have noticed yet.
    assert ended["state"] == "SUCCEEDED"
    assert ended["tasks"][0]["native"] in {"RUNNING", "COMPLETING", "COMPLETED"}
    receipt = bench.hibali("runs", "collect", run["id"], "back", "--json", exit=0).last
    assert (receipt["files_moved"], receipt["proof_moved"]) == (1, "digest")
    assert (bench.folder / "back" / "out.txt").read_text() == "hello\n"
    assert jobs_of(slurm, run["id"]) == 1
    words = {
        line.partition(" ")[0]
        for line in requested_commands(automation_node)
        if line and "python" not in line
    }
    assert {"sbatch", "squeue"} <= words


def test_a_lost_submission_reply_is_recovered_without_a_second_job(
    bench: Bench, slurm: Any, automation_node: SshServer
) -> None:
    """Check that a command killed between the submission and its answer finds the job by its name."""
    add_cluster(bench, automation_node)
    line = bench.line(bench.answers(sleep=2), "--wait")

    def submissions() -> list[str]:
        commands = requested_commands(automation_node)  # other tests use this machine at the same time
        return [each for each in commands if each.startswith("sbatch") and str(bench.folder) in each]

    process = bench.hibali.start(*line)
    wait_until(lambda: bool(submissions()))
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for answer in (bench.folder / "work" / "runs").glob("*/submit/answer.json"):
        answer.unlink()  # the answer came in time: lose it
    ended = bench.hibali(*line, "--json", exit=0).last
    assert ended["state"] == "SUCCEEDED"
    assert jobs_of(slurm, ended["id"]) == 1
    assert len(submissions()) == 1


@pytest.mark.heavy
def test_the_forced_command_allows_only_the_commands_of_hibali(
    bench: Bench, forced_command_server: SshServer
) -> None:
    add_cluster(bench, forced_command_server)
    assert bench.hibali("sites", "check", "cluster", "--json").last["facts"]["transport"] == "agent"
    assert bench.run(bench.answers(), "--wait", exit=0).last["state"] == "SUCCEEDED"
    config = bench.hibali.home.config
    config.write_text(
        config.read_text().replace("[sites.cluster.ssh]", '[sites.cluster.ssh]\ntransport = "sftp"')
    )
    assert bench.run(bench.answers(say="again"), "--wait", exit=0).last["state"] == "SUCCEEDED"
    assert forced_command_server.run("squeue --noheader").returncode == 0
    for line in (
        "", "id", "sh -c id", "squeue; id", "squeue && id", "squeue $(id)", "squeue `id`", "squeue\nid",
        "squeue | id", "squeue >x", "exec python3 -I -S -c 'print(1)'", "/bin/id", "env squeue", "squeue 'a'",
    ):  # fmt: skip
        refused = (
            forced_command_server.run(line)
            if line
            else subprocess.run(
                [*forced_command_server.command, forced_command_server.host],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                check=False,
                timeout=60,
            )
        )
        assert (refused.returncode, refused.stdout) == (126, b""), (line, refused)


def test_the_forced_command_can_exclude_the_agent(hibali: Any) -> None:
    whole, without = (hibali("sites", "gate", *words, exit=0).out for words in ((), ("--no-agent",)))
    assert (b"python3 -I" in whole, b"python3 -I" in without) == (True, False)
    assert hibali("sites", "gate", "--json", exit=0).last["script"].encode() == whole
    hibali("sites", "gate", "--python", "x; id", exit=2)


def jobs_of(slurm: Any, run_id: str) -> int:
    wait_until(lambda: slurm.jobs_ended(run_id) > 0)
    return int(slurm.jobs_ended(run_id))


def wait_until(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)
