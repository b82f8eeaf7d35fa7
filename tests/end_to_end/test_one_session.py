"""Test servers that allow one session over a login: sshd with MaxSessions 1, and tinysshd."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.services.sshd import sftp_server_program
from tests.support.restartable_server import restartable_server

COMMANDS = (
    ("push d far:d", 0),
    ("ls far:d", 0),
    ("ls far:d/f*", 0),
    ("ls far:no/such", 3),
    ("pull far:no back", 3),
    ("cat far:d/f1", 0),
    ("verify far:d", 0),
    ("pull far:d back", 0),
    ("cp far:d far:e", 0),
    ("mv far:e far:g", 0),
    ("rm far:g/f1", 0),
    ("rm -r far:g --yes", 0),
    ("sync d far:d --delete", 0),
    ("sites check far", 0),
)
TINYSSHD = Path("/usr/sbin/tinysshd")


def add_site(hibali: Any, root: Path, host: str, command: list[str], more: str) -> None:
    root.mkdir()
    hibali.home.config.write_text(
        f'version = 1\n[sites.far]\nkind = "ssh"\nroots = {{ data = "{root}" }}\ndefault_root = "data"\n'
        f'[sites.far.limits]\nlogin_interval = "0s"\nreconnect = "0s"\n'
        f'[sites.far.ssh]\nhost = "{host}"\ncommand = {json.dumps(command)}\n{more}'
    )
    hibali.home.config.chmod(0o600)
    (hibali.home.folder / "d").mkdir()
    for number in range(3):
        (hibali.home.folder / "d" / f"f{number}").write_text(str(number))


def check_commands(hibali: Any, commands: tuple[tuple[str, int], ...]) -> None:
    for line, code in commands:
        answer = hibali(*line.split())
        assert answer.exit == code, (line, str(answer))


def commands_over(transport: str) -> tuple[tuple[str, int], ...]:
    """Return the commands; without an agent a site cannot copy within itself."""
    copy = ("sync far:d far:e", 0)
    return tuple(copy if transport == "sftp" and each[0].startswith("cp") else each for each in COMMANDS)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Any]:
    with restartable_server("ssh", tmp_path, sshd="MaxSessions 1") as own:
        yield own.place.server


@pytest.mark.parametrize("transport", ["agent", "sftp"])
def test_commands_work_where_a_login_has_one_session(
    hibali: Any, host: Any, tmp_path: Path, transport: str
) -> None:
    add_site(hibali, tmp_path / "data", host.host, host.command, f'transport = "{transport}"\n')
    check_commands(hibali, commands_over(transport))


def test_where_a_second_login_is_refused_the_reason_is_ssh_s_own(
    hibali: Any, host: Any, tmp_path: Path
) -> None:
    """Hibali's logins after the first one may not prompt: as with a second factor, only the first one succeeds."""
    add_site(hibali, tmp_path / "data", host.host, host.command, 'transport = "sftp"\n')
    hibali("push", "d", "far:d", exit=0)
    keys = Path(host.folder) / "authorized_keys"
    keys.write_text("")
    error = hibali("sync", "far:d", "far:e", "--json", exit=5).last
    assert (error["code"], "Session open refused by peer" in error["message"]) == ("session-limit", True)
    commands = (("ls far:no/such", 3), ("cat far:d/f1", 0), ("rm far:d/f1", 0), ("rm -r far:d --yes", 0))
    check_commands(hibali, commands)


@pytest.fixture
def tiny(tmp_path: Path) -> list[str]:
    """Return the ssh command that reaches a tinysshd as the host `tiny`, with a private home for its account."""
    if not TINYSSHD.exists() or os.geteuid() != 0:
        pytest.skip("it needs the package tinysshd, and root for a private home")
    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True, mode=0o700)
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", home / "key"], check=True)
    (home / ".ssh/authorized_keys").write_bytes((home / "key.pub").read_bytes())
    subprocess.run(["tinysshd-makekey", tmp_path / "keys"], check=True, capture_output=True)
    (tmp_path / "passwd").write_text("root:x:0:0:root:/mnt:/bin/sh\n")
    (tmp_path / "serve").write_text(
        f"#!/bin/sh\nmount --bind {tmp_path}/passwd /etc/passwd\n"
        f"mount --bind {home} /mnt\n"  # tinysshd refuses a home below /tmp, which others may write
        f"exec {TINYSSHD} -q -x sftp={sftp_server_program()} {tmp_path}/keys\n"
    )
    (tmp_path / "config").write_text(
        f"Host tiny\n ProxyCommand unshare --mount --propagation slave sh {tmp_path}/serve\n User root\n"
        f" IdentityFile {home}/key\n IdentitiesOnly yes\n"
        f" UserKnownHostsFile {tmp_path}/known_hosts\n StrictHostKeyChecking no\n"
    )
    command = ["ssh", "-F", str(tmp_path / "config")]
    subprocess.run([*command, "tiny", "true"], check=True, stdin=subprocess.DEVNULL, timeout=60)
    return command


@pytest.mark.heavy  # each command logs in: tinysshd ends a connection with its session
@pytest.mark.parametrize("transport", ["agent", "sftp"])
def test_commands_work_with_tinysshd(hibali: Any, tiny: list[str], tmp_path: Path, transport: str) -> None:
    add_site(hibali, tmp_path / "data", "tiny", tiny, f'transport = "{transport}"\n')
    check_commands(hibali, commands_over(transport))
