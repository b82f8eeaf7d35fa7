"""Send requests to addresses that a service hands out: they grant access themselves, so no login is sent there (S15)."""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from typing import Any
from urllib.parse import urlsplit

from hibali.config.model import is_loopback_host
from hibali.http.client import HttpClient

_LONGEST_ADDRESS = 16 * 1024
_PLAIN_ADDRESS = re.compile(r"[!-~]+")
_KEPT_CLIENTS = 4


class Addresses:
    """The servers at such addresses; thread-safe."""

    def __init__(self, service: str, subject: str) -> None:
        """`service` is the URL of the service, `subject` the site in errors."""
        parts = urlsplit(service)
        self.is_local = parts.scheme == "http" and is_loopback_host(parts.hostname or "")
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
