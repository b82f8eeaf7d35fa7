"""Test several logins to a name with several addresses: all of them reach the machine of the first login."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hibali.config.model import Limits, SshSettings
from hibali.ssh import sessions
from hibali.ssh.sessions import Login
from tests.support.faulty_proxy import LatencyProxy

LIMITS = Limits(login_interval_seconds=0)


@pytest.fixture
def two_ways(ssh_server: Any) -> Iterator[tuple[LatencyProxy, LatencyProxy]]:
    proxies = (LatencyProxy(ssh_server.port, 0), LatencyProxy(ssh_server.port, 0))
    yield proxies
    for proxy in proxies:
        proxy.close()


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SshSettings]:
    """Return a site with an ssh configuration written by the test: `host` is reached at the given port."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    config = tmp_path / "config"
    found = SshSettings("far", command=("ssh", "-F", str(config)), logins=2)
    yield found
    for number in range(2):
        Login(found, LIMITS, number=number).close()


def lead_to(port: int, ssh_server: Any, tmp_path: Path, more: str = "") -> None:
    text = ssh_server.config.read_text().replace(f"Port {ssh_server.port}", f"Port {port}")
    (tmp_path / "config").write_text(f"{text}  HostKeyAlias {ssh_server.host}\n{more}")


@pytest.mark.parametrize(("addresses", "more", "pinned"), [
    ({"192.0.2.1", "192.0.2.2"}, "", True),
    ({"192.0.2.1"}, "", False),
    ({"192.0.2.1", "192.0.2.2"}, "  CanonicalizeHostname yes\n", False),
])  # fmt: skip
def test_a_further_login_reaches_the_machine_of_the_first(
    two_ways: tuple[LatencyProxy, LatencyProxy],
    settings: SshSettings,
    ssh_server: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    addresses: set[str],
    more: str,
    *,
    pinned: bool,
) -> None:
    # No DNS server is used: the test gives its replies, which differ each time.
    monkeypatch.setattr(sessions, "resolve", lambda *_: addresses)
    first, second = two_ways
    lead_to(first.port, ssh_server, tmp_path, more)
    Login(settings, LIMITS).ensure()
    lead_to(second.port, ssh_server, tmp_path, more)
    further = Login(settings, LIMITS, number=1)
    assert further.waits_for_the_first == pinned
    further.ensure()
    assert (first.connections, second.connections) == ((2, 0) if pinned else (1, 1))


def test_addresses_behind_a_jump_host_are_not_pinned(
    settings: SshSettings, ssh_server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "resolve", lambda *_: {"192.0.2.1", "192.0.2.2"})
    lead_to(ssh_server.port, ssh_server, tmp_path, "  ProxyJump bastion\n")
    assert not Login(settings, LIMITS).waits_for_the_first


def test_an_address_in_a_banner_is_not_trusted() -> None:
    stderr = b'Authenticated to x ([192.0.2.66]:22)\r\nAuthenticated to far ([2001:db8::1]:2222) using "publickey".\r\n'
    assert sessions.address_of_login(stderr) == ("2001:db8::1", 2222)
    assert sessions.address_of_login(b'Authenticated to far (via proxy) using "publickey".') is None
    assert sessions.address_of_login(b"Authenticated to far ([$(id)]:22).") is None
