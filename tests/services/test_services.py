"""Test the servers themselves: each has the properties on which other tests rely."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

import pytest

from tests.services import fixtures
from tests.services.fixtures import Buckets, Hibali, HibaliHome
from tests.services.grid import Grid, logs_in
from tests.services.podman import Podman
from tests.services.processes import (
    MARK,
    SYSTEM_PATH,
    MissingPackageError,
    ServiceError,
    end_all,
    free_port,
    is_alive,
)
from tests.services.session import REPOSITORY
from tests.services.slurm import Slurm
from tests.services.sshd import SshServer


def test_ssh_runs_a_command_in_a_private_home(ssh_server: SshServer) -> None:
    answer = ssh_server.run('pwd; echo "$HOME"; echo aside >&2; exit 3')
    assert (answer.returncode, answer.stderr) == (3, b"aside\n")
    assert answer.stdout.decode().split() == [str(ssh_server.home)] * 2


@pytest.mark.parametrize(
    "name",
    ["cbrain", "ebrains", "firecrest", "globus", "iri", "loris", "oidc", "uftp", "unicore", "zenodo"],
)
def test_a_double_is_compared_with_the_real_service_request_by_request(name: str) -> None:
    text = importlib.import_module(f"tests.services.{name}").__doc__ or ""
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| ")]
    assert len(rows) >= 3, (
        "a table: request | what the real service does (source or run, version, date) | the double"
    )
    assert {len(row) for row in rows} == {3}


@pytest.mark.parametrize("required", [False, True])
@pytest.mark.parametrize(
    ("problem", "outcome"),
    [
        (ServiceError("munged ended"), pytest.fail.Exception),
        (MissingPackageError("munge"), pytest.skip.Exception),
    ],
)
def test_only_a_server_that_is_not_installed_is_skipped(
    monkeypatch: pytest.MonkeyPatch, problem: Exception, outcome: type[BaseException], required: bool
) -> None:
    def start(*_: object) -> NoReturn:
        raise problem

    for variable in ("CI", "HIBALI_REQUIRE_SERVICES"):
        monkeypatch.delenv(variable, raising=False)
    if required:
        monkeypatch.setenv("CI", "true")
    monkeypatch.setattr(fixtures, "ensure", start)
    with pytest.raises(pytest.fail.Exception if required else outcome, match=f"slurm: {problem}"):
        fixtures._server("slurm")
    with pytest.raises(outcome):
        fixtures._server("pbs", optional=True)


@pytest.mark.parametrize("number", range(4))
def test_all_workers_share_one_server(ssh_server: SshServer, number: int) -> None:
    listeners = ssh_server.home.parent.parent / "started"
    assert sum(1 for _ in ssh_server.home.parent.parent.glob("ssh.json")) == 1, (listeners, number)


def test_a_chatty_login_shell_prints_before_the_command(
    chatty_server: SshServer, request: pytest.FixtureRequest
) -> None:
    shell = request.node.callspec.params["chatty_server"]
    answer = chatty_server.run("echo $0; echo $HOME; pwd")
    assert b"Welcome!" in answer.stdout
    assert b"Modules" in answer.stderr
    words = answer.stdout.decode(errors="replace").split()
    if shell != "fish":  # fish has no $0
        assert any(Path(word).name == shell for word in words), words
    assert words[-2:] == [str(chatty_server.home)] * 2


def _submit(slurm: Slurm, name: str, script: str, output: Path) -> str:
    """Submit a job whose output is not in the home that all tests share."""
    answer = subprocess.run(
        [*slurm.command, slurm.host, f"sbatch --parsable --job-name={name} --output={output}"],
        input=f"#!/bin/sh\n{script}\n",
        capture_output=True,
        text=True,
        check=True,
    )
    return answer.stdout.strip()


def _wait_for_end(slurm: Slurm, name: str) -> None:
    deadline = time.monotonic() + 60
    while not slurm.jobs_ended(name):
        assert time.monotonic() < deadline, "the job did not end"
        time.sleep(0.1)


def test_a_batch_job_runs_and_is_logged(slurm: Slurm, tmp_path: Path) -> None:
    output = tmp_path / "output"
    number = _submit(slurm, "first", "echo done in $SLURM_JOB_ID; pwd; exit 3", output)
    _wait_for_end(slurm, "first")
    assert output.read_text().splitlines() == [f"done in {number}", str(slurm.home)]
    shown = subprocess.run(
        ["scontrol", "show", "job", number],
        env={"PATH": SYSTEM_PATH, **slurm.env},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "ExitCode=3:0" in shown.stdout


@pytest.mark.heavy
def test_accounting_records_an_ended_job(slurm_with_accounting: Slurm, tmp_path: Path) -> None:
    number = _submit(slurm_with_accounting, "counted", "exit 3", tmp_path / "output")
    _wait_for_end(slurm_with_accounting, "counted")
    deadline = time.monotonic() + 30
    printed = b""
    while b"FAILED|3:0" not in printed and time.monotonic() < deadline:
        printed = slurm_with_accounting.run(f"sacct -nPX -j {number} -o State,ExitCode").stdout
    assert printed == b"FAILED|3:0\n"


def test_each_bucket_has_its_own_objects(object_store: Buckets) -> None:
    bucket, other = object_store.bucket(), object_store.bucket()
    bucket.put("a/b", b"content")
    assert bucket.get("a/b") == b"content"
    assert (bucket.keys(), other.keys()) == (["a/b"], [])


def test_twenty_buckets_can_be_created(object_store: Buckets) -> None:
    for _ in range(20):
        object_store.bucket().put("key", b"content")


def test_podman_runs_the_tiny_image(podman: Podman) -> None:
    answer = podman.run("run", "--rm", "--network=none", podman.image, "echo", "hi")
    assert (answer.returncode, answer.stdout) == (0, "hi\n"), answer.stderr
    assert podman.archive.stat().st_size > 0
    assert podman.digest.startswith("sha256:")


def test_podman_works_over_ssh_and_inside_a_job(podman: Podman, slurm: Slurm, tmp_path: Path) -> None:
    line = f"podman run --rm --network=none {podman.image} echo hi"
    assert slurm.run(line).stdout == b"hi\n"
    _submit(slurm, "contained", line, tmp_path / "output")
    _wait_for_end(slurm, "contained")
    assert (tmp_path / "output").read_text() == "hi\n"


def test_the_image_is_the_same_each_time(tmp_path: Path) -> None:
    from tests.services.image import write_image

    first, second = (write_image(tmp_path / name, "x:1", {"bin/a": b"1"}, {"bin/b": "a"}) for name in "ab")
    assert first == second
    assert (
        hashlib.sha256((tmp_path / "a").read_bytes()).digest()
        == hashlib.sha256((tmp_path / "b").read_bytes()).digest()
    )


@pytest.mark.heavy
def test_a_proxy_authenticates_to_the_grid(grid: Grid, tmp_path: Path) -> None:
    assert logs_in(grid)
    info = ["grid-proxy-info", "-exists", "-valid", "0:1"]
    env = {"PATH": SYSTEM_PATH, **grid.env}
    for seconds, code in ((3600, 0), (30, 1), (-30, 1)):
        env["X509_USER_PROXY"] = str(grid.make_proxy(tmp_path / str(seconds), seconds))
        assert subprocess.run(info, env=env, check=False).returncode == code
    env["X509_USER_PROXY"] = str(tmp_path / "fetched")
    locked = ["grid-proxy-init", "-q", "-pwstdin", "-cert", grid.user_certificate, "-key", grid.locked_key]
    kept = ["-s", "localhost", "-p", str(grid.myproxy_port), "-l", "me", "-S"]
    put = ["myproxy-init", *kept, "-C", grid.user_certificate, "-y", grid.user_key]
    get = ["myproxy-logon", *kept, "-t", "1", "-o", tmp_path / "fetched"]
    for words in (locked, put, get):
        (tmp_path / "fetched").unlink(missing_ok=True)
        typed = f"{grid.passphrase}\n"
        ended = subprocess.run(words, env=env, input=typed, capture_output=True, text=True, check=False)
        assert ended.returncode == 0, ended
    assert subprocess.run(info, env=env, check=False).returncode == 0


def test_hibali_runs_with_a_private_home(hibali: Hibali, hibali_home: HibaliHome) -> None:
    answer = hibali("--version", exit=0)
    assert answer.out.startswith(b"hibali")
    assert hibali.env["HOME"] == str(hibali_home.home)
    assert len(str(hibali_home.runtime)) < 40


def test_an_ssh_master_ends_with_its_test(ssh_server: SshServer, hibali_home: HibaliHome) -> None:
    socket = hibali_home.runtime / "master"
    subprocess.run(
        [*ssh_server.command, "-M", "-S", socket, "-o", "ControlPersist=60", "-f", "-N", ssh_server.host],
        env=hibali_home.env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    argv = [*ssh_server.command, "-S", str(socket), "-O", "check", ssh_server.host]
    assert subprocess.run(argv, capture_output=True, check=False).returncode == 0
    end_all(hibali_home.runtime)
    assert subprocess.run(argv, capture_output=True, check=False).returncode != 0


def test_a_reserved_port_is_not_used_by_another_suite() -> None:
    port = free_port()
    program = (
        "import itertools, secrets\n"
        "from tests.services.processes import free_port\n"
        f"wanted = itertools.chain([{port - 11_000}], range(9_000))\n"
        "secrets.randbelow = lambda _: next(wanted)\n"
        "print(free_port())\n"
    )
    other = subprocess.run(
        [sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    assert int(other.stdout) != port


def test_servers_end_when_the_session_is_killed(tmp_path: Path) -> None:
    own = tmp_path / "test_own.py"
    own.write_text(
        "import os\n"
        "def test_it(ssh_server):\n"
        "    print(os.environ['HIBALI_TEST_SESSION'], flush=True)\n"
        "    import time; time.sleep(100)\n"
    )
    words = [sys.executable, "-m", "pytest", "-p", "tests.services.fixtures", "-s", "-q", "-c", "/dev/null"]
    # the outer session's options (PYTEST_ADDOPTS) do not apply to this one
    ours = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "HIBALI_", MARK))
    }
    with subprocess.Popen(
        [*words, "--rootdir", tmp_path, own], cwd=REPOSITORY, env=ours, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            folder = Path(process.stdout.readline().strip())
            pids = [int(line.split()[0]) for line in (folder / "started").read_text().splitlines()]
            assert json.loads((folder / "ssh.json").read_text())["port"]
        finally:
            process.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 30
    while folder.exists() or any(map(is_alive, pids)):
        assert time.monotonic() < deadline, "servers outlived their session"
        time.sleep(0.05)
