"""Test a filesystem at a site that does not answer while its ssh does, as a mount that hangs: commands end (S23)."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.services.sshd import SshServer
from tests.support.agent_signals import signal_working_agent
from tests.support.slow_agents import HANGING, slow, write_python
from tests.support.trees import make_tree, many_files, read_tree
from tests.support.waiting import wait_for

MIB = 1 << 20


class Site:
    """A site whose Python the tests change, with 4 files of 3 MiB in `data`, here and there."""

    def __init__(self, hibali: Any, server: SshServer, folder: Path) -> None:
        self.hibali = hibali
        self.folder = folder
        self.python = folder / "slow-python"
        hibali.home.config.write_text(
            f'version = 1\n[sites.far]\nkind = "ssh"\nroots = {{ here = "{folder}" }}\n[sites.far.ssh]\nhost = "{server.host}"\n'
            f'python = "{self.python}"\ncommand = {json.dumps(server.command)}\n'
            '[sites.far.limits]\nlogin_interval = "0s"\nreconnect = "1s"\nstall = "2s"\n'
        )
        hibali.home.config.chmod(0o600)
        for made in (hibali.home.folder / "data", folder / "data"):
            made.mkdir()
            for number in range(4):
                (made / f"file{number}").write_bytes(bytes([number]) * 3 * MIB)
        (hibali.home.folder / "data/another").write_bytes(b"x")
        self.change(slow(0), "fsync")

    def change(self, change: str, call: str) -> None:
        write_python(self.python, change, call)

    def __call__(self, *words: str, exit: int) -> dict[str, Any]:  # noqa: A002  # as of the fixture
        found: dict[str, Any] = self.hibali(*words, "--json", exit=exit, timeout=60).last
        return found


@pytest.fixture
def site(hibali: Any, ssh_server: SshServer, tmp_path: Path) -> Site:
    return Site(hibali, ssh_server, tmp_path)


COMMANDS = [
    pytest.param("scandir", ["ls", "far:@here/data"], id="ls"),
    pytest.param("stat", ["ls", "far:@here/data"], id="ls-path", marks=pytest.mark.heavy),
    pytest.param("fsync", ["push", "data", "far:@here/data"], id="push", marks=pytest.mark.heavy),
    pytest.param("readv", ["pull", "far:@here/data", "back"], id="pull", marks=pytest.mark.heavy),
    pytest.param("read", ["verify", "far:@here/data"], id="verify", marks=pytest.mark.heavy),
    pytest.param("unlink", ["rm", "-r", "--yes", "far:@here/data"], id="rm", marks=pytest.mark.heavy),
    pytest.param("readv", ["cp", "far:@here/data/file1", "far:@here/copy"], id="cp", marks=pytest.mark.heavy),
]


@pytest.mark.parametrize(("call", "words"), COMMANDS)
def test_a_filesystem_that_does_not_answer_ends_the_command(site: Site, call: str, words: list[str]) -> None:
    if words[0] == "verify":
        site("push", "data", "far:@here/data", "--checksum", exit=0)
    site.change(HANGING, call)
    error = site(*words, exit=5)
    assert (error["code"], error["about"]) == ("stalled", "far")
    assert "stall" in error["hint"]


@pytest.mark.heavy
@pytest.mark.parametrize(("call", "words"), COMMANDS)
def test_a_slow_filesystem_ends_nothing(site: Site, call: str, words: list[str]) -> None:
    if words[0] == "verify":
        site("push", "data", "far:@here/data", "--checksum", exit=0)
    site.change(slow(0.4), call)
    site(*words, exit=0)


@pytest.mark.heavy
def test_an_agent_that_was_stopped_is_replaced_and_the_transfer_resumes(site: Site) -> None:
    config = site.hibali.home.config
    config.write_text(config.read_text().replace('reconnect = "1s"', 'reconnect = "1m"'))
    tree = make_tree(site.hibali.home.folder / "many", many_files(300, 20_000))
    process = site.hibali.start("push", tree, "far:@here/many", "--json", "--bwlimit", "2M")
    signal_working_agent(site.folder / "many", signal.SIGSTOP)
    assert process.wait(60) == 0
    receipt = json.loads((site.hibali.home.folder / "0.out").read_bytes().splitlines()[-1])
    assert (receipt["reconnects"], receipt["files_failed"]) == (1, 0)
    assert read_tree(site.folder / "many") == read_tree(tree)


@pytest.mark.heavy
def test_an_sftp_server_that_was_stopped_is_replaced(site: Site) -> None:
    config = site.hibali.home.config
    config.write_text(config.read_text().replace("python =", 'transport = "sftp"\npython ='))
    large = site.hibali.home.folder / "large"
    large.write_bytes(bytes(range(256)) * 20_000)
    process = site.hibali.start("push", large, "far:@here/data/", "--json", "--bwlimit", "400K")
    servers: list[int] = []
    wait_for(lambda: bool(servers.extend(writers_below(site.folder / "data")) or servers))
    os.kill(servers[0], signal.SIGSTOP)
    try:
        assert process.wait(60) == 0
    finally:
        os.kill(servers[0], signal.SIGKILL)
    receipt = json.loads((site.hibali.home.folder / "0.out").read_bytes().splitlines()[-1])
    assert (receipt["reconnects"], receipt["files_moved"]) == (1, 1)


def writers_below(folder: Path) -> list[int]:
    """Return the processes that have files in the folder open."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if any(str(each.readlink()).startswith(f"{folder}/") for each in (entry / "fd").iterdir()):
                found.append(int(entry.name))
    return found
