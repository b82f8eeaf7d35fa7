"""Contact addresses that a service hands out: they grant access themselves, so no login is sent there (S15)."""

from __future__ import annotations

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


def is_local(service: str) -> bool:
    """Return whether the service at a URL is on this machine, which may hand out addresses here."""
    parts = urlsplit(service)
    return parts.scheme == "http" and is_loopback_host(parts.hostname or "")


def is_near(host: str) -> bool:
    """Return whether a host name, without a look-up, or an address is this machine, or one that only its own link reaches."""
    name = host.lower().rstrip(".")
    try:
        address = ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return name == "localhost" or name.endswith(".localhost")
    found = getattr(address, "ipv4_mapped", None) or address
    return found.is_loopback or found.is_link_local or found.is_unspecified or found.is_multicast


def connect_to(host: str, port: int, seconds: float, subject: str, *, local: bool) -> socket.socket:
    """Connect to a host that a service names, at no address that `is_near` unless the service is `local`.

    Raises `OSError`, and `IncompleteError("unsafe-address")`.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    if not local and any(is_near(str(address[0])) for *_, address in found):
        raise IncompleteError(
            "unsafe-address",
            f"the service names an address of this machine: {printable(host)}",
            subject=subject,
            hint="Report it to the site.",
        )
    problem: OSError | None = None
    for *_, address in found:
        try:
            return socket.create_connection((str(address[0]), port), seconds)
        except OSError as refused:
            problem = problem or refused
    raise problem or OSError("it has no address")


class Addresses:
    """The servers at such addresses; thread-safe."""

    def __init__(self, service: str, subject: str) -> None:
        """`service` is the URL of the service, `subject` the site in errors."""
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
