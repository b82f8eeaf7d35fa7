"""Test which addresses that a service names are contacted."""

from __future__ import annotations

import socket
from contextlib import closing

import pytest

from hibali.errors import IncompleteError
from hibali.http.addresses import Addresses, connect_to, is_local, is_near, is_private

PUBLIC = "https://192.88.99.1/service"  # no name, so nothing is looked up


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1", "0.1.2.3", "::", "::1", "::127.0.0.1", "::ffff:127.0.0.1", "64:ff9b::7f00:1",
        "169.254.169.254", "64:ff9b::a9fe:a9fe", "fe80::1%eth0", "224.0.0.1", "localhost.", "a.localhost",
    ],
)  # fmt: skip
def test_what_is_this_machine_or_its_link_is_near(host: str) -> None:
    assert is_near(host)


@pytest.mark.parametrize("host", ["10.0.0.1", "9.9.9.9", "64:ff9b::909:909", "2620:fe::fe", "example.org"])
def test_what_other_machines_have_is_not_near(host: str) -> None:
    assert not is_near(host)


def test_what_an_ipv6_address_stands_for_decides_whether_it_is_private() -> None:
    assert all(map(is_private, ["10.0.0.1", "fd00::1", "64:ff9b::a00:1", "::ffff:10.0.0.1"]))
    assert not any(map(is_private, ["9.9.9.9", "2620:fe::fe", "64:ff9b::909:909"]))


def test_a_service_behind_a_tunnel_is_local() -> None:
    assert all(map(is_local, ["https://localhost:8443/a", "http://127.0.0.1/", "https://[::1]/"]))
    assert not any(map(is_local, ["https://localhost.example/", PUBLIC]))


def own_address() -> str:
    """Return an address of an interface of this machine, to which nothing is sent."""
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as probe:
        try:
            probe.connect(("192.88.99.1", 9))
        except OSError:
            pytest.skip("this machine has no network")
        return str(probe.getsockname()[0])


def refused(host: str, service: str) -> str:
    with socket.create_server(("", 0)) as server, pytest.raises(IncompleteError) as raised:
        connect_to(host, server.getsockname()[1], 5, "site", service=service, private=True)
    assert raised.value.code == "unsafe-address"
    return raised.value.message


def test_no_address_of_an_interface_of_this_machine_is_contacted() -> None:
    assert "of this machine" in refused(own_address(), PUBLIC)
    assert "of this machine" in refused(own_address(), "https://10.9.9.9/")


def test_a_local_service_may_name_this_machine() -> None:
    with socket.create_server(("", 0)) as server:
        port = server.getsockname()[1]
        connect_to(own_address(), port, 5, "site", service="https://localhost/").close()


def test_private_addresses_are_contacted_only_if_they_are_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    reached: list[str] = []

    def connect(address: tuple[str, int], _: float) -> socket.socket:
        reached.append(address[0])
        return socket.socket()

    monkeypatch.setattr(socket, "create_connection", connect)
    for host in ("10.99.99.99", "64:ff9b::a63:6363"):
        with pytest.raises(IncompleteError, match="private network"):
            connect_to(host, 9, 5, "site", service="https://9.9.9.9/")
        assert reached == []
    connect_to("10.99.99.99", 9, 5, "site", service="https://10.1.1.1/").close()
    connect_to("10.99.99.99", 9, 5, "site", service="https://9.9.9.9/", private=True).close()
    connect_to("9.9.9.9", 9, 5, "site", service="https://9.9.9.9/").close()
    assert reached == ["10.99.99.99", "10.99.99.99", "9.9.9.9"]


def test_only_https_and_public_hosts_where_that_is_required_are_contacted() -> None:
    addresses = Addresses("https://archive.example.org/api", "site")
    assert addresses.checked("https://10.1.1.1/x?a=b") == "https://10.1.1.1/x?a=b"
    assert addresses.checked("https://archive.example.org/x", public=True)
    assert addresses.checked("https://9.9.9.9/x", public=True)
    for address, public in (
        ("http://9.9.9.9/x", False),
        ("https://10.1.1.1/x", True),
        ("https://127.0.0.1/", True),
    ):
        with pytest.raises(IncompleteError) as raised:
            addresses.checked(address, public=public)
        assert raised.value.code == "unsafe-address"
        assert address not in str(raised.value)
