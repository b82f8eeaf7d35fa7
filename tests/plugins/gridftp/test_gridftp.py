"""Test sites with a GridFTP server: it transfers large files, all are verified, and killed transfers resume."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any, Self

import pytest

from tests.services.grid import Grid, start_gridftp
from tests.services.processes import SYSTEM_PATH, end_all, free_port
from tests.services.sshd import SshServer
from tests.support.agent_signals import wait_for_agent_exit
from tests.support.backends import FolderBackend, add_site
from tests.support.requirements import skip_or_fail
from tests.support.transfers import Transfers
from tests.support.trees import HOSTILE_NAMES, many_files, read_tree
from tests.support.waiting import wait_for

MIB = 1 << 20
SSHFTP = "/usr/share/globus/gridftp-ssh"  # the program that the client starts for sshftp://, with any GLOBUS_LOCATION


class Site:
    """An ssh site `there` with a GridFTP server for the same files, and folders of this machine."""

    def __init__(self, hibali: Any, folder: Path, server: SshServer, grid: Grid) -> None:
        self.grid = grid
        self.env = dict(grid.env)
        place = FolderBackend("ssh", folder / "site", server)
        add_site(hibali.home.config, "there", place)
        hibali.env.update(self.env)
        self.hibali = hibali
        self.transfers = Transfers(hibali, place, folder)
        self.source = self.transfers.source
        self.root = self.transfers.root
        self.back = folder / "back"
        self.use(grid.url)

    def use(self, url: str, more: str = "") -> None:
        """Configure the server at the site."""
        config = Path(self.hibali.home.config)
        text = config.read_text().partition("[sites.there.gridftp]")[0]
        config.write_text(f'{text}\n[sites.there.gridftp]\nurl = "{url}"\nleast = "1M"\n{more}\n')

    def push(self, *words: str, exit: int = 0) -> dict[str, Any]:  # noqa: A002 - as the fixture `hibali` has it
        return self.transfers.push(*words, exit=exit).last

    def pull(self, *words: str, exit: int = 0) -> dict[str, Any]:  # noqa: A002 - as above
        return self.transfers.pull(self.back, *words, exit=exit).last

    def transferred(self) -> int:
        """Return how many bytes the grid's servers have transferred to or from the site."""
        lines = self.grid.transfers.read_text(errors="replace").splitlines()
        return sum(int(line.partition("NBYTES=")[2].split()[0]) for line in lines if str(self.root) in line)


@pytest.fixture
def site(hibali: Any, tmp_path: Path, ssh_server: SshServer, grid: Grid) -> Site:
    return Site(hibali, tmp_path, ssh_server, grid)


def random_file(path: Path, size: int, times: int = 1) -> bytes:
    """Write a file of `size` MiB: random bytes, repeated `times` times."""
    content = os.urandom(size * MIB // times) * times
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return content


def test_large_files_are_transferred_in_both_directions_and_verified(site: Site) -> None:
    small = site.transfers.make({b"small/" + name: name for name in HOSTILE_NAMES})
    for name in (*HOSTILE_NAMES, b"folder\r\nDELE x/y"):
        random_file(small / "large" / os.fsdecode(name), 1)
    os.utime(site.source / "small" / "*", ns=(1, 1_234_567_890_123_456_789))
    tree = read_tree(site.source)
    size = sum(len(leaf) for leaf in tree.values() if isinstance(leaf, bytes))
    before = site.transferred()
    receipt = site.push()
    assert (receipt["mover"], receipt["proof_moved"], receipt["bytes_moved"]) == ("gridftp", "digest", size)
    assert size <= receipt["bytes_sent"] <= size + MIB
    # except one in a folder whose name no FTP command can contain, and one with the longest name
    assert site.transferred() - before == (len(HOSTILE_NAMES) - 1) * MIB
    assert read_tree(site.root) == tree
    assert site.push()["files_moved"] == 0
    receipt = site.pull()
    assert (receipt["mover"], receipt["proof_moved"], receipt["bytes_moved"]) == ("gridftp", "digest", size)
    assert read_tree(site.back) == tree
    # and, in this direction, the two with line ends in their names
    assert site.transferred() - before == 2 * (len(HOSTILE_NAMES) - 1) * MIB - 2 * MIB
    assert site.hibali("verify", site.back, "there:data", "--json", exit=0).last["proof_tree"] == "digest"
    # one file under another name, and without GridFTP
    one = next((site.source / "large").glob("*rome*"), site.source / "large" / "*")
    assert site.hibali("push", one, "there:one", "--json", exit=0).last["mover"] == "gridftp"
    assert (site.root.parent / "one").read_bytes() == one.read_bytes()
    site.use(site.grid.url, 'use = "never"')
    assert site.hibali("push", one, "there:two", "--json", exit=0).last["mover"] == "stream"
    assert not site.transfers.place.unfinished("")
    assert not any(site.root.parent.rglob(".hibali"))


def kill(process: Any, site: Site, root: Path) -> None:
    """Kill the command and all processes that it started; wait until none changes or records anything below `root`."""
    os.killpg(process.pid, signal.SIGKILL)
    process.wait(60)
    wait_for_agent_exit(site.transfers, root)
    wait_for(lambda: not copying(site))


def copying(site: Site) -> list[int]:
    """Return the transfer programs of this test."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes().split(b"\0")
                ours = os.fsencode(site.hibali.home.runtime) in (entry / "environ").read_bytes()
                found += [int(entry.name)] if words[0].endswith(b"globus-url-copy") and ours else []
    return found


def recorded_bytes(root: Path) -> int:
    """Return how many bytes of the largest partial file are recorded."""
    marks = [0]
    with contextlib.suppress(FileNotFoundError):
        for line in (root / ".hibali" / "begun").read_bytes().splitlines():
            with contextlib.suppress(ValueError):
                marks.append(int(json.loads(line).get("to", 0)))
    return max(marks)


def check_kill_and_resume(site: Site, size: int, least: int) -> None:
    """Transfer a file of that many MiB in both directions: kill it halfway, and check that the same command transfers the rest."""
    content = random_file(site.source / "large", size, 16)
    for words, root in (
        (("push", site.source, "there:data"), site.root),
        (("pull", "there:data", site.back), site.back),
    ):
        process = site.hibali.start(*words, "--json")
        wait_for(lambda root=root: recorded_bytes(root) >= least * MIB)
        kill(process, site, root)
        assert not (root / "large").exists()
        there = recorded_bytes(root)
        receipt = site.hibali(*words, "--json", exit=0).last
        assert (receipt["mover"], receipt["proof_moved"]) == ("gridftp", "digest")
        assert len(content) - there <= receipt["bytes_sent"] <= len(content) - there + MIB
        assert (root / "large").read_bytes() == content
        assert [path.name for path in root.iterdir()] == ["large"]


@pytest.mark.heavy
def test_a_killed_transfer_resumes_inside_a_file(site: Site) -> None:
    site.use(site.grid.url, "connections = 2")
    check_kill_and_resume(site, 256, 16)


@pytest.mark.heavy
def test_a_killed_transfer_of_a_gigabyte_resumes(site: Site) -> None:
    check_kill_and_resume(site, 1024, 300)


class OwnGridftp:
    """A server of one test, with certificates of the grid; it is stopped as by a power failure."""

    def __init__(self, grid: Grid, folder: Path) -> None:
        self.grid = grid
        self.session = folder / "own"
        self.session.mkdir()
        self.port = free_port()
        self.pid = 0

    @property
    def url(self) -> str:
        return f"gsiftp://localhost:{self.port}"

    def start(self) -> None:
        self.pid = start_gridftp(self.session, self.grid, self.port)

    def stop(self) -> None:
        end_all(self.session)

    def signal_connections(self, number: int) -> None:
        """Send a signal to each process that serves a connection; the server accepts new connections."""
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError, IndexError):
                above = (entry / "stat").read_bytes().rpartition(b") ")[2].split()[1]
                if int(above) == self.pid:
                    os.kill(int(entry.name), number)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *details: object) -> None:
        self.stop()


@pytest.mark.heavy
def test_a_stopped_server_and_an_expired_proxy_are_reported_during_a_transfer(
    site: Site, tmp_path: Path
) -> None:
    content = random_file(site.source / "large", 768, 48)
    proxy = tmp_path / "proxy"
    site.hibali.env["X509_USER_PROXY"] = str(proxy)
    push = ("push", site.source, "there:data", "--json")

    def half_way(least: int) -> Any:
        process = site.hibali.start(*push)
        wait_for(lambda: recorded_bytes(site.root) >= least * MIB or process.poll() is not None)
        assert process.poll() is None, "the transfer ended before it could be interrupted"
        return process

    def last_line(process: Any, code: int) -> dict[str, Any]:
        assert process.wait(60) == code
        number = site.hibali._running.index(process)
        lines = (site.hibali.home.folder / f"{number}.out").read_bytes().splitlines()
        return json.loads(lines[-1])

    with OwnGridftp(site.grid, tmp_path) as own:
        site.use(own.url, "connections = 1")
        # no proxy at all: at once, with the command to type
        error = site.hibali(*push, exit=4).last
        assert (error["code"], error["about"]) == ("proxy-missing", own.url)
        assert "grid-proxy-init" in error["hint"]
        # a proxy that is too old for the next login
        site.grid.make_proxy(proxy)
        process = half_way(8)
        own.signal_connections(signal.SIGSTOP)
        site.grid.make_proxy(proxy, -60)
        own.signal_connections(signal.SIGKILL)
        assert last_line(process, 4)["code"] == "proxy-expired"
        site.grid.make_proxy(proxy)
        # a server that stops, and one that is not there
        process = half_way(recorded_bytes(site.root) // MIB + 8)
        own.stop()
        assert last_line(process, 5)["code"] == "gridftp-unreachable"
        assert site.hibali(*push, exit=5).last["code"] == "gridftp-unreachable"
        assert not (site.root / "large").exists()
        there = recorded_bytes(site.root)
        own.start()
        receipt = site.push()
    assert receipt["mover"] == "gridftp"
    assert receipt["bytes_sent"] <= len(content) - there + MIB
    assert (site.root / "large").read_bytes() == content
    assert not site.transfers.place.unfinished("")


def test_files_that_the_server_cannot_transfer_are_sent_over_ssh(site: Site, tmp_path: Path) -> None:
    content = random_file(site.source / "large", 4)
    site.use(site.grid.url, 'paths = { "/" = "/nowhere" }')
    answer = site.transfers.push()
    assert (answer.last["mover"], answer.last["proof_moved"]) == ("stream", "digest")
    assert b"the server refused" in answer.err
    assert (site.root / "large").read_bytes() == content
    # without the program, too
    (tmp_path / "bin").mkdir()
    for name in ("ssh", "python3"):
        (tmp_path / "bin" / name).symlink_to(f"/usr/bin/{name}")
    site.hibali.env["PATH"] = str(tmp_path / "bin")
    answer = site.transfers.pull(site.back)
    assert answer.last["mover"] == "stream"
    assert b"globus-gass-copy-progs" in answer.err


@pytest.mark.heavy
def test_gridftp_over_ssh_needs_no_certificates(site: Site, ssh_server: SshServer, tmp_path: Path) -> None:
    content = random_file(site.source / "large", 40, 4)
    start = ssh_server.home / ".globus" / "sshftp"
    start.parent.mkdir(exist_ok=True)
    words = f"-ssh -c {site.grid.folder}/gridftp.conf -data-interface 127.0.0.1 -Z {tmp_path}/transferred"
    if os.geteuid() == 0:  # the server accepts this account only with this configuration
        words += " -aa -anonymous-user root -allow-root"
    start.write_text(f"#!/bin/sh\nexec env PATH={SYSTEM_PATH} globus-gridftp-server {words}\n")
    start.chmod(0o755)
    # the client's script calls /usr/bin/ssh with the account's own configuration, which a test must not change
    client = tmp_path / "gridftp-ssh"
    client.write_text(f"#!/bin/sh\nexec ssh -F {ssh_server.config} $2 .globus/sshftp\n")
    client.chmod(0o755)
    for name in ("X509_CERT_DIR", "X509_USER_PROXY"):
        del site.hibali.env[name]
    site.use(f"sshftp://{ssh_server.host}")
    inside = ["unshare", "--mount", "--propagation", "slave", "sh", "-c"]
    inside += [f'mount --bind "$1" {SSHFTP} && shift && exec "$@"', "sh", str(client)]
    if subprocess.run([*inside, "true"], check=False, capture_output=True).returncode != 0:
        skip_or_fail("no mount namespace can be made here")
    for words in (("push", site.source, "there:data"), ("pull", "there:data", site.back)):
        command = [*inside, *site.hibali.command(*words, "--json")]
        ended = subprocess.run(command, env=site.hibali.env, capture_output=True, check=False, timeout=60)
        assert ended.returncode == 0, ended
        assert json.loads(ended.stdout.splitlines()[-1])["mover"] == "gridftp"
    assert (site.back / "large").read_bytes() == content
    assert (tmp_path / "transferred").read_text().count("NBYTES") >= 2


@pytest.mark.heavy
def test_a_killed_transfer_of_thousands_of_files_resumes(site: Site) -> None:
    """Send small files in packs together with files for the server."""
    tree = many_files(5000, 8000)
    site.transfers.make(tree)
    contents = {f"large{number}": random_file(site.source / f"large{number}", 48, 4) for number in range(4)}
    for least in (1000, 4000):
        process = site.hibali.start("push", site.source, "there:data", "--json")
        wait_for(lambda least=least: len(list(site.root.rglob("*"))) >= least)
        kill(process, site, site.root)
    committed = sum(path.is_file() and ".hibali" not in str(path) for path in site.root.rglob("*"))
    receipt = site.push()
    assert receipt["mover"] == "gridftp"
    assert receipt["files_moved"] + receipt["files_kept"] == len(tree) + len(contents)
    assert receipt["files_kept"] >= committed
    assert {name: (site.root / name).read_bytes() for name in contents} == contents
    assert site.push()["files_moved"] == 0
    assert not site.transfers.place.unfinished("")


@pytest.mark.heavy
def test_a_program_that_hangs_ends_the_command(site: Site, tmp_path: Path) -> None:
    """A mount that hangs here blocks the program's read, with its own limits."""
    random_file(site.source / "large", 4)
    program = tmp_path / "bin/globus-url-copy"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\nexec sleep 1000\n")
    program.chmod(0o755)
    site.hibali.env["PATH"] = f"{program.parent}:{site.hibali.env['PATH']}"
    config = Path(site.hibali.home.config)
    config.write_text(config.read_text().replace("there.limits]\n", 'there.limits]\nstall = "2s"\n'))
    error = site.hibali("push", site.source, "there:data", "--json", exit=5, timeout=60).last
    assert (error["code"], error["about"]) == ("stalled", site.grid.url)
