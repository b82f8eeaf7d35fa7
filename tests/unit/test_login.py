"""What ssh says, and what a user is told."""

import pytest

from hibali.login import explain_ssh, prefer_cipher

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
