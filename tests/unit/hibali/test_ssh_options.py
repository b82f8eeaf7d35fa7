"""The options that ssh prints for a host, and the host keys that it knows."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from hibali.ssh_options import SshOptions, is_known_host, with_jump_hosts

_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl"


def test_options_have_all_values_and_none_where_ssh_prints_none() -> None:
    options = SshOptions(
        b"hostname a.example.org\nidentityfile ~/.ssh/one\nidentityfile ~/.ssh/two\nproxyjump none\n"
    )
    assert options
    assert options.all("identityfile") == ["~/.ssh/one", "~/.ssh/two"]
    assert options.first("hostname", "a") == "a.example.org"
    assert options.first("proxyjump") == ""
    assert not SshOptions(b"", b"unknown option -- G")


@pytest.mark.parametrize(("jump", "hosts"), [
    ("none", []),
    ("ela", ["ela"]),
    ("me@ela.cscs.ch:22,ssh://you@b", ["ela.cscs.ch", "b"]),
    ("[2001:db8::1]:2222", ["2001:db8::1"]),
])  # fmt: skip
def test_jump_hosts_are_named_without_account_and_port(jump: str, hosts: list[str]) -> None:
    asked: list[str] = []

    def query(host: str) -> SshOptions:
        asked.append(host)
        return SshOptions(b"hostname " + host.encode())

    options = SshOptions(b"hostname a\nproxyjump " + jump.encode())
    assert [each.first("hostname") for each in with_jump_hosts(options, query)] == ["a", *hosts]
    assert asked == hosts


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="needs ssh-keygen")
def test_a_host_key_is_known_by_alias_or_address_and_port(tmp_path: Path) -> None:
    (tmp_path / "known").write_text(f"[a.example.org]:2222 {_KEY}\nother {_KEY}\n", "ascii")

    def known(*more: str) -> bool | None:
        lines = ("hostname a.example.org", "userknownhostsfile ~/missing ~/known", *more)
        options = SshOptions("\n".join(lines).encode("ascii"))
        return is_known_host(options, "a", lambda path: path.replace("~", str(tmp_path)))

    assert known("port 2222") is True
    assert known("port 22") is False
    assert known("hostkeyalias other") is True
    assert known("knownhostscommand /bin/true") is None
