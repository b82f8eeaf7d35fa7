"""Test logins that the server accepts and then ends: a closed account, an expired password, a server for rsync or SFTP only."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.services.sshd import SshServer
from tests.support.restartable_server import restartable_server

CLOSED = "echo 'The account of J. Doe was closed on 2026-01-01. Write to help@example.org.'"
EXPIRED = "echo 'WARNING: Your password has expired.' >&2; echo 'Password change required but no TTY available.' >&2; exit 1"
SFTP_ONLY = "echo 'This service allows sftp connections only.'; exit 1"


@pytest.fixture
def forced(tmp_path: Path) -> Iterator[tuple[SshServer, Path]]:
    """Return an sshd, and the file of its forced command."""
    script = tmp_path / "forced"
    script.touch(mode=0o755)
    with restartable_server("ssh", tmp_path, sshd=f"ForceCommand {script}") as own:
        yield own.place.server, script


def add_site(hibali: Any, server: SshServer, more: str = "") -> None:
    hibali.home.config.write_text(
        f'version = 1\n[sites.far]\nkind = "ssh"\n[sites.far.limits]\nlogin_interval = "0s"\n'
        f'[sites.far.ssh]\nhost = "{server.host}"\ncommand = {json.dumps(server.command)}\n{more}'
    )
    hibali.home.config.chmod(0o600)


def refusal(hibali: Any, *words: str, exit: int) -> dict[str, Any]:  # noqa: A002
    answer = hibali(*words, "--json", exit=exit, timeout=60)
    assert not [line for line in answer.lines if line["kind"] == "retried"], str(answer)
    last: dict[str, Any] = answer.last
    return last if last["kind"] == "error" else last["failures"][-1]


REFUSALS = {
    "closed": (CLOSED, "closed on 2026-01-01"),
    "closed-stderr": (f"{CLOSED} >&2", "closed on 2026-01-01"),
    "expired": (EXPIRED, "Your password has expired"),
    "rrsync": ("exec rrsync -ro /tmp", "rrsync"),
    "sftp-only": (SFTP_ONLY, "sftp connections only"),
    "silent": ("exit 1", "status 1"),
}
# `auto` tries the agent first, then SFTP
TRANSPORTS = [("auto", name) for name in ("expired", "silent")] + [("agent", "closed"), ("sftp", "rrsync")]


@pytest.mark.parametrize(
    ("script", "said", "transport"),
    [
        pytest.param(
            *said,
            transport,
            id=f"{name}-{transport}",
            marks=() if (transport, name) in TRANSPORTS else pytest.mark.heavy,
        )
        for name, said in REFUSALS.items()
        for transport in ("auto", "agent", "sftp")
    ],
)
def test_a_refused_session_is_4_with_the_servers_words_and_not_retried(
    hibali: Any, forced: tuple[SshServer, Path], script: str, said: str, transport: str
) -> None:
    server, file = forced
    if "rrsync" in script and shutil.which("rrsync") is None:
        script = "echo '/usr/bin/rrsync error: SSH_ORIGINAL_COMMAND does not run rsync.' >&2; exit 1"
    file.write_text(f"#!/bin/sh\n{script}\n")
    add_site(hibali, server, f'transport = "{transport}"\n')
    (hibali.home.folder / "data").mkdir()
    (hibali.home.folder / "data/a").write_text("1")
    for words in (("push", "data", "far:data"), ("ls", "far:")):
        error = refusal(hibali, *words, exit=4)
        assert error["code"] == "session-refused", error
        assert said in error["message"]
        assert "python" not in error["hint"].lower()


def test_a_login_node_under_maintenance_is_5_with_its_notice(
    hibali: Any, forced: tuple[SshServer, Path]
) -> None:
    """Sshd prints /etc/nologin and ends with status 254."""
    server, file = forced
    file.write_text("#!/bin/sh\necho 'Down for maintenance until Friday 18:00.' >&2\nexit 254\n")
    add_site(hibali, server)
    (hibali.home.folder / "data").mkdir()
    for words in (("ls", "far:"), ("push", "data", "far:data")):
        error = refusal(hibali, *words, exit=5)
        assert (error["code"], "until Friday 18:00" in error["message"]) == ("no-logins-now", True)


def test_a_python_that_cannot_run_is_still_explained_as_that(
    hibali: Any, forced: tuple[SshServer, Path]
) -> None:
    server, file = forced
    file.write_text("#!/bin/sh\nexec python3 -c 'import no_such_module'\n")
    add_site(hibali, server, 'transport = "agent"\n')
    error = refusal(hibali, "ls", "far:", exit=5)
    assert (error["code"], "no_such_module" in error["message"]) == ("agent-not-started", True)


def test_a_refused_chroot_is_not_retried_for_minutes(hibali: Any, tmp_path: Path) -> None:
    """Sshd closes the connection right after it accepted the login."""
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with restartable_server("ssh", tmp_path, sshd=f"ChrootDirectory {tmp_path}/open") as own:
        add_site(hibali, own.place.server)
        (hibali.home.folder / "data").mkdir()
        error = refusal(hibali, "push", "data", "far:data", exit=5)
        assert "UNKNOWN port" not in error["message"]
        assert "just after the login" in error["message"]
