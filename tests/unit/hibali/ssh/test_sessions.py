"""Test how errors of ssh become messages to users."""

import itertools
import threading
import time
from pathlib import Path

import pytest

from hibali.config.model import Limits, SshSettings
from hibali.errors import AccessError
from hibali.ssh.explain import explain_ssh
from hibali.ssh.sessions import Login, prefer_cipher
from tests.support.waiting import wait_for

COMMAND = ("ssh", "-F", "my config")


@pytest.mark.parametrize(
    ("output", "code", "status"),
    [
        ("ssh: connect to host remote port 22: Connection refused", "unreachable", 5),
        ("kex_exchange_identification: Connection closed by remote host", "unreachable", 5),
        ("", "unreachable", 5),
        ("root@remote: Permission denied (publickey).", "login-refused", 4),
        (
            "Could not chdir to home directory /home/me: Permission denied\nclient_loop: send disconnect: Broken pipe",
            "unreachable",
            5,
        ),
        ("Permission denied (gssapi-keyex,gssapi-with-mic)", "login-refused", 4),
        ("Host key verification failed.", "host-key", 4),
        (
            "@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @\nHost key verification failed.",
            "host-key-changed",
            4,
        ),
        (
            "Your account has expired; please contact your system administrator.\nConnection closed by ::1 port 22",
            "session-refused",
            4,
        ),
        (
            "mux_client_request_session: session request failed: Session open refused by peer\nConnection closed by UNKNOWN port 65535",
            "session-limit",
            5,
        ),
        ("Accounts that have expired are deleted.\nConnection closed by ::1 port 22", "unreachable", 5),
        ("Unable to negotiate with ::1 port 22: no matching host key type found.", "ssh-configuration", 2),
        ("Can't open user config file x: No such file or directory", "ssh-configuration", 2),
        ("/home/u/.ssh/config: line 3: Bad configuration option: prot", "ssh-configuration", 2),
    ],
)
def test_exit_code_255_is_explained_by_the_message_of_ssh(output: str, code: str, status: int) -> None:
    error = explain_ssh(output.encode(), COMMAND, "remote")
    assert (error.code, int(error.exit)) == (code, status)
    assert "UNKNOWN port" not in error.message
    assert code == "session-limit" or "ssh -F 'my config' remote" in error.hint


# Recorded: Debian 12's OpenSSH 9.2p1 with GSSAPIKeyExchange and libglobus-gssapi-gsi4 14.20, LogLevel DEBUG1 (shortened).
UNTRUSTED = (
    "debug1: No credentials were supplied, or the credentials were unavailable or inaccessible\n"
    "No Kerberos credentials available (default cache: FILE:/tmp/krb5cc_0)\n\n\n\r\n"
    "debug1: SSH2_MSG_KEXINIT sent\r\ndebug1: Calling gss_init_sec_context\r\n"
    "debug1: Invalid credential was supplied\nGSS Minor Status Error Chain:\n"
    "globus_gsi_gssapi: SSL handshake problems\n"
    "globus_gsi_callback_module: Could not verify credential\n"
    "globus_gsi_callback_module: Can't get the local trusted CA certificate: Untrusted self-signed certificate in chain"
    " with hash f1600d47\n\n\n\r\ngss_init_context failed\r\n"
)
# From the documentation of BigData Express, "Host certificate errors": a gsissh of the Grid Community Toolkit, with -v.
HANDSHAKE = (
    "debug1: Delegating credentials\r\ndebug1: GSS Major Status: Authentication Failed\n\nGSS Minor Status Error Chain:\n"
    "globus_gsi_gssapi: SSL handshake problems\nOpenSSL Error: ../crypto/rsa/rsa_pk1.c:67: in library: rsa routines, function"
    " RSA_padding_check_PKCS1_type_1: invalid padding\n\n\r\ngss_init_context failed\r\n"
)
# Where ssh logs errors of GSSAPI by itself (ssh_log_gssapi_errors of the patch): the same words, without the prefix. The chain is
# that of issue 456 of ESGF/esgf-installer, Globus Toolkit 6.
LOGGED = (
    "GSS Major Status: Authentication Failed\nGSS Minor Status Error Chain:\nglobus_gsi_callback_module: Can't get the local trusted"
    " CA certificate: Cannot find trusted CA certificate with hash ba60fab8 in /root/.globus/certificates\n\n\r\n"
    "gss_init_context failed\r\n"
)
NAMED = (
    "debug1: The operation is forbidden by local security policy\nGSS Minor Status Error Chain:\nglobus_gsi_gssapi: Authorization"
    " denied: The expected name for the remote host (host@other.test) does not match the authenticated name of the remote host"
    " (host@localhost).\n\n\r\ngss_init_context failed\r\n"
)


@pytest.mark.parametrize(
    ("output", "code", "expected_words"),
    [
        (UNTRUSTED, "authority-unknown", ("SSL handshake problems", "hash f1600d47")),
        (HANDSHAKE, "gss-failed", ("GSS Major Status: Authentication Failed", "OpenSSL Error: ", "padding")),
        (LOGGED, "authority-unknown", ("GSS Major Status: ", "/root/.globus/certificates")),
        (NAMED, "host-name-differs", ("(host@other.test) does not match", "(host@localhost)")),
        ("gss_init_context failed\r\n", "gss-failed", ("gss_init_context failed",)),
        (
            "GSSAPI Error: \nGSS Major Status: Authentication Failed\n\r\n",
            "gss-failed",
            ("GSSAPI Error:", "GSS Major Status: Authentication Failed"),
        ),
        (
            "Unable to negotiate with 127.0.0.1 port 2222: no matching key exchange method found. Their offer: gss-group14-sha256-x\r\n",
            "gss-failed",
            ("Their offer: gss-",),
        ),
    ],
)
def test_gsi_errors_before_the_login_are_complete_and_not_retried(
    output: str, code: str, expected_words: tuple[str, ...]
) -> None:
    error = explain_ssh(output.encode(), COMMAND, "remote")
    assert (error.code, int(error.exit), error.transient) == (code, 4, False)
    assert all(words in error.message for words in expected_words), error.message
    assert "Kerberos" not in error.message
    assert "\n" not in error.message
    assert "ssh -F 'my config' -v remote" in error.hint


def test_failed_gssapi_attempts_are_not_reported_as_the_reason() -> None:
    tried = UNTRUSTED.replace("gss_init_context failed\r\n", "")
    lost = explain_ssh(f"{tried}Connection closed by remote host\r\n".encode(), COMMAND, "remote")
    assert (lost.code, lost.message) == ("unreachable", "Connection closed by remote host")
    output = (
        f"{tried}debug1: No more authentication methods to try.\r\nremote: Permission denied (publickey).\r\n"
    )
    denied = explain_ssh(output.encode(), COMMAND, "remote")
    assert denied.code == "login-refused"
    assert denied.message.endswith(": remote: Permission denied (publickey).")


def test_only_temporary_errors_are_retried() -> None:
    assert explain_ssh(b"Connection timed out", COMMAND, "remote").transient
    assert not explain_ssh(b"Permission denied (publickey).", COMMAND, "remote").transient


def test_the_fast_cipher_is_preferred_unless_ciphers_are_configured() -> None:
    stock = "chacha20-poly1305@openssh.com,aes128-ctr,aes128-gcm@openssh.com"
    [_, option] = prefer_cipher(stock, stock)
    assert option == "Ciphers=aes128-gcm@openssh.com,chacha20-poly1305@openssh.com,aes128-ctr"
    assert prefer_cipher("aes256-ctr,aes128-gcm@openssh.com", stock) == []
    assert prefer_cipher("aes256-ctr", "aes256-ctr") == []
    assert prefer_cipher("", "") == []


@pytest.fixture
def logins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[SshSettings, Path]:
    """Return an ssh that accepts only the first login to a host, and a file with a line for each refused
    one."""
    (tmp_path / "run").mkdir(mode=0o700)
    monkeypatch.setattr("hibali.ssh.sessions.control_folder", lambda: tmp_path / "run")
    monkeypatch.setenv("HIBALI_STATE", str(tmp_path / "state"))
    refused, ssh = tmp_path / "refused", tmp_path / "ssh"
    ssh.write_text(
        f"#!/bin/sh\ncase $* in *ControlMaster=yes*-[123]\\ *) echo >>{refused};"
        ' echo "Permission denied (publickey)." >&2; exit 255;; esac\nexit 0\n'
    )
    ssh.chmod(0o755)
    refused.touch()
    return SshSettings("remote", command=(str(ssh),)), refused


def test_further_logins_refused_before_the_first_are_not_retried(
    logins: tuple[SshSettings, Path],
) -> None:
    """All start at once, in any order on a busy machine."""
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


def test_a_new_login_clears_refusals_of_further_logins(logins: tuple[SshSettings, Path]) -> None:
    settings, refused = logins
    limits = Limits(login_interval_seconds=0.0)
    for _ in range(2):
        Login(settings, limits).ensure()
        with pytest.raises(AccessError):
            Login(settings, limits, number=1).ensure()
    assert len(refused.read_text().splitlines()) == 2


def test_logins_that_wait_for_their_turn_are_not_made_after_a_refusal(
    logins: tuple[SshSettings, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host that accepted further logins last week refuses them now: only one of three finds that out."""
    settings, refused = logins
    limits = Limits(login_interval_seconds=0.5)
    Login(settings, limits).ensure()
    Login(settings, limits)._pace.note_further(accepted=True)
    turns = itertools.count()
    found: list[str] = []

    def pause(seconds: float) -> None:
        del seconds
        if next(turns):
            wait_for(lambda: any(tmp_path.joinpath("run").glob("*.refused")))

    monkeypatch.setattr("hibali.ssh.sessions.pause", pause)

    def log_in(number: int) -> None:
        with pytest.raises(AccessError) as caught:
            Login(settings, limits, number=number).ensure()
        found.append(caught.value.code)

    threads = [threading.Thread(target=log_in, args=(number,)) for number in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == ["further-refused", "further-refused", "login-refused"]
    assert len(refused.read_text().splitlines()) == 1
