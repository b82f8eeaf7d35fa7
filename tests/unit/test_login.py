"""What ssh says, and what a user is told."""

import time
from pathlib import Path

import pytest

from hibali.errors import AccessError
from hibali.login import Login, explain_ssh, prefer_cipher
from hibali.sites import Limits, SshSettings

COMMAND = ("ssh", "-F", "my config")


@pytest.mark.parametrize(
    ("said", "code", "status"),
    [
        ("ssh: connect to host far port 22: Connection refused", "unreachable", 5),
        ("kex_exchange_identification: Connection closed by remote host", "unreachable", 5),
        ("", "unreachable", 5),
        ("root@far: Permission denied (publickey).", "login-refused", 4),
        ("Permission denied (gssapi-keyex,gssapi-with-mic)", "login-refused", 4),
        ("Host key verification failed.", "host-key", 4),
        ("Can't open user config file x: No such file or directory", "ssh-configuration", 2),
        ("/home/u/.ssh/config: line 3: Bad configuration option: prot", "ssh-configuration", 2),
    ],
)
def test_status_255_is_told_by_its_words(said: str, code: str, status: int) -> None:
    error = explain_ssh(said.encode(), COMMAND, "far")
    assert (error.code, int(error.exit)) == (code, status)
    assert "ssh -F 'my config' far" in error.hint


def test_only_what_may_pass_is_tried_again() -> None:
    assert explain_ssh(b"Connection timed out", COMMAND, "far").transient
    assert not explain_ssh(b"Permission denied (publickey).", COMMAND, "far").transient


def test_the_fast_cipher_goes_first_unless_somebody_chose() -> None:
    stock = "chacha20-poly1305@openssh.com,aes128-ctr,aes128-gcm@openssh.com"
    [_, option] = prefer_cipher(stock, stock)
    assert option == "Ciphers=aes128-gcm@openssh.com,chacha20-poly1305@openssh.com,aes128-ctr"
    assert prefer_cipher("aes256-ctr,aes128-gcm@openssh.com", stock) == []
    assert prefer_cipher("aes256-ctr", "aes256-ctr") == []
    assert prefer_cipher("", "") == []


@pytest.fixture
def logins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[SshSettings, Path]:
    """An ssh that accepts the first login to a host and refuses all others, and a file with a line for each that it refused."""
    (tmp_path / "run").mkdir(mode=0o700)
    monkeypatch.setattr("hibali.login.control_folder", lambda: tmp_path / "run")
    monkeypatch.setenv("HIBALI_STATE", str(tmp_path / "state"))
    refused, ssh = tmp_path / "refused", tmp_path / "ssh"
    ssh.write_text(
        f"#!/bin/sh\ncase $* in *ControlMaster=yes*-[123]\\ *) echo >>{refused};"
        ' echo "Permission denied (publickey)." >&2; exit 255;; esac\nexit 0\n'
    )
    ssh.chmod(0o755)
    refused.touch()
    return SshSettings("far", command=(str(ssh),)), refused


def test_a_further_login_that_was_refused_before_the_first_one_began_is_not_tried_again(
    logins: tuple[SshSettings, Path],
) -> None:
    """All begin at once, and on a busy machine in any order."""
    settings, refused = logins
    limits, since = Limits(login_interval_seconds=0.0), time.time()
    for number, code in ((1, "login-refused"), (0, ""), (2, "further-refused")):
        login = Login(settings, limits, number=number, since=since)
        if not code:
            login.ensure()
            continue
        with pytest.raises(AccessError) as caught:
            login.ensure()
        assert caught.value.code == code
    assert len(refused.read_text().splitlines()) == 1


def test_a_later_call_that_logs_in_anew_tries_further_logins_again(logins: tuple[SshSettings, Path]) -> None:
    settings, refused = logins
    limits = Limits(login_interval_seconds=0.0)
    for _ in range(2):
        Login(settings, limits).ensure()
        with pytest.raises(AccessError):
            Login(settings, limits, number=1).ensure()
    assert len(refused.read_text().splitlines()) == 2
