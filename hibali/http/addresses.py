"""Contact addresses that a service hands out: they grant access themselves, so no login is sent there (S15)."""

from __future__ import annotations

import contextlib
import ipaddress
import re
import socket
import threading
from collections import OrderedDict
from typing import Any
from urllib.parse import urlsplit

from hibali.config.model import is_loopback_host
from hibali.errors import IncompleteError
from hibali.http.client import HttpClient
from hibali.text import printable

_LONGEST_ADDRESS = 16 * 1024
_PLAIN_ADDRESS = re.compile(r"[!-~]+")
_KEPT_CLIENTS = 4
_THIS_NETWORK = ipaddress.IPv4Network("0.0.0.0/8")
_LOOPBACK = ipaddress.IPv6Address("::1")
_EMBEDDING = [ipaddress.IPv6Network(each) for each in ("::/96", "::ffff:0:0/96", "64:ff9b::/96")]


def is_local(service: str) -> bool:
    """Return whether the service at a URL is on this machine, or behind a tunnel from here: it may hand out addresses here."""
    return is_loopback_host(urlsplit(service).hostname or "")


def is_near(host: str) -> bool:
    """Return whether a host name, without a look-up, or an address is this machine, or one that only its own link reaches."""
    name = host.lower().rstrip(".")
    try:
        found = _address(name)
    except ValueError:
        return name == "localhost" or name.endswith(".localhost")
    return found.is_loopback or found.is_link_local or found.is_multicast or found in _THIS_NETWORK


def is_private(address: str) -> bool:
    """Return whether an address is in a private network, or not of the public internet for another reason. Raise `ValueError`."""
    return not _address(address).is_global


def is_public(host: str) -> bool:
    """Return whether a host has only addresses of the public internet, or none that this machine can find."""
    try:
        found = _addresses_of(host, 443)
    except (OSError, UnicodeError):
        return True  # the request says why
    return not any(is_near(address) or is_private(address) for _, address in found)


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Return an address, of an IPv6 one the IPv4 address in it (RFC 4291, 2.5.5; RFC 6052, 2.1). Raise `ValueError`."""
    found = ipaddress.ip_address(text.partition("%")[0])
    if found != _LOOPBACK and any(found in each for each in _EMBEDDING):
        return ipaddress.IPv4Address(int(found) & 0xFFFFFFFF)
    return found


def _is_own(address: str, family: int) -> bool:
    """Return whether an interface of this machine has this address: the route to it then begins there. Nothing is sent."""
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((address, 9))
        return bool(probe.getsockname()[0] == address)
    return False


def connect_to(
    host: str, port: int, seconds: float, subject: str, *, service: str, private: bool = False
) -> socket.socket:
    """Connect to a host that the service at a URL names.

    Unless that service `is_local`, this is no address of this machine; unless it has a private one itself, or they are
    configured as `private`, no private one. Raises `OSError`, and `IncompleteError("unsafe-address")`.
    """
    found = _addresses_of(host, port)
    if not is_local(service):
        if any(is_near(address) or _is_own(address, family) for family, address in found):
            raise _unsafe("of this machine", host, subject)
        if not private and any(is_private(address) for _, address in found):
            known = _addresses_of(urlsplit(service).hostname or "", 443)
            if not any(is_private(address) for _, address in known):
                raise _unsafe("in a private network", host, subject)
    problem: OSError | None = None
    for _, address in found:
        try:
            return socket.create_connection((address, port), seconds)
        except OSError as refused:
            problem = problem or refused
    raise problem or OSError("it has no address")


def _addresses_of(host: str, port: int) -> list[tuple[int, str]]:
    """Return the addresses of a host with their families. Raise `OSError`."""
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [(family, str(address[0])) for family, *_, address in found]


def _unsafe(where: str, host: str, subject: str) -> IncompleteError:
    return IncompleteError(
        "unsafe-address",
        f"the service names an address {where}: {printable(host)}",
        subject=subject,
        hint="Report it to the site.",
    )


class Addresses:
    """The servers at such addresses; thread-safe."""

    def __init__(self, service: str, subject: str) -> None:
        """`service` is the URL of the service, `subject` the site in errors."""
        self.service = service
        self.is_local = is_local(service)
        self._subject = subject
        self._guard = threading.Lock()
        self._clients: OrderedDict[str, HttpClient] = OrderedDict()

    def allows(self, address: Any) -> bool:
        """Return whether an address may be contacted: https, or http to this machine if the service is here."""
        if not isinstance(address, str) or len(address) > _LONGEST_ADDRESS:
            return False
        try:
            parts = urlsplit(address)
            _ = parts.port
        except ValueError:
            return False
        plain = parts.scheme == "http" and self.is_local and is_loopback_host(parts.hostname or "")
        safe = (parts.scheme == "https" or plain) and parts.hostname and "@" not in parts.netloc
        return bool(safe and _PLAIN_ADDRESS.fullmatch(address))

    def checked(self, address: Any, *, public: bool = False) -> str:
        """Return an address that may be contacted, with `public` only on the public internet or of the service's own host.

        Raise `IncompleteError("unsafe-address")`.
        """
        if self.allows(address):
            host, own = (urlsplit(each).hostname or "" for each in (str(address), self.service))
            if not public or self.is_local or host == own or is_public(host):
                return str(address)
        raise IncompleteError(
            "unsafe-address",
            f"the service named an address that hibali does not contact: only https{' to public servers' * public} is allowed",
            subject=self._subject,
            hint="Report it to its operator.",
        )

    def client_of(self, address: str) -> tuple[HttpClient, str]:
        """Return the client of the host of an allowed address, and the path and query there."""
        parts = urlsplit(address)
        origin = f"{parts.scheme}://{parts.netloc}"
        with self._guard:
            client = self._clients.pop(origin, None) or HttpClient(origin, self._subject)
            self._clients[origin] = client
            while len(self._clients) > _KEPT_CLIENTS:
                self._clients.popitem(last=False)[1].close()
        return client, (parts.path or "/") + (f"?{parts.query}" if parts.query else "")

    def close(self) -> None:
        """Close the connections."""
        with self._guard:
            clients = list(self._clients.values())
            self._clients.clear()
        for client in clients:
            client.close()
