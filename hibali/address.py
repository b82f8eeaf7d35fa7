"""Which address a login went to, and how a further login goes to the same one."""

from __future__ import annotations

import contextlib
import ipaddress
import re
import shlex
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

from hibali import dial

# What ssh says of a login it made without a proxy, at LogLevel VERBOSE (sshconnect2.c, ssh_userauth2).
_AUTHENTICATED = re.compile(rb"^Authenticated to .* \(\[([^\]\s]+)\]:([0-9]+)\)", re.MULTILINE)
_FAMILIES = {"inet": socket.AF_INET, "inet6": socket.AF_INET6}

# Settings of ssh_config(5) under which the way to a host is more than an address; what they say where they are not used.
_OTHER_WAYS = {
    "proxycommand": "none",
    "proxyjump": "none",
    "bindaddress": "none",
    "bindinterface": "none",
    "canonicalizehostname": "false",
}

Address = tuple[str, int]


def has_several(configured: Mapping[str, str]) -> bool:
    """Whether the host's name stands for several addresses that ssh would choose from.

    `configured` is what `ssh -G` tells. False where ssh goes through another host, or in a way that an
    address alone does not describe: nobody here could say which machine that leads to.
    """
    if any(configured.get(name, unused) != unused for name, unused in _OTHER_WAYS.items()):
        return False
    name, port = configured.get("hostname", ""), configured.get("port", "22")
    family = _FAMILIES.get(configured.get("addressfamily", "any"), socket.AF_UNSPEC)
    return bool(name) and len(resolve(name, port, family)) > 1


def resolve(name: str, port: str, family: int = socket.AF_UNSPEC) -> set[str]:
    """The addresses of a name; none where it has none, which ssh will say better."""
    try:
        found = socket.getaddrinfo(name, port, family, socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return set()
    return {str(address[0]) for *_, address in found}


def address_told(said: bytes) -> Address | None:
    """Where ssh says that it logged in; None through a proxy. What a banner printed before that does not count."""
    told = _AUTHENTICATED.findall(said)
    return _address(*told[-1]) if told else None


def write_address(path: Path, address: Address | None) -> None:
    """Keep it for further logins, beside the login's socket; None forgets it."""
    path.unlink(missing_ok=True)
    if address is not None:
        path.touch(mode=0o600, exist_ok=False)
        path.write_text(f"{address[0]} {address[1]}\n", "ascii")


def read_address(path: Path) -> Address | None:
    """What was kept there."""
    with contextlib.suppress(OSError):
        words = path.read_bytes().split()
        return _address(*words) if len(words) == 2 else None
    return None


def _address(address: bytes, port: bytes) -> Address | None:
    with contextlib.suppress(ValueError):
        return str(ipaddress.ip_address(address.decode("ascii"))), int(port)
    return None


def only_to(address: Address) -> list[str]:
    """The options of ssh that lead to this address and leave everything else as it is configured for the name.

    `HostName` would do, too, but a `Match host`, a certificate's principals and a Kerberos ticket are for the name.
    """
    words = [sys.executable, "-I", "-S", dial.__file__, address[0], str(address[1])]
    command = " ".join(shlex.quote(word) for word in words).replace("%", "%%")
    return ["-o", f"ProxyCommand={command}", "-o", "ProxyUseFdpass=yes"]
