"""Read the options that ssh uses for a host (ssh(1), -G), and the host keys that it knows."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from hibali import subprocesses


class SshOptions:
    """All values of each option for a host; none where ssh prints "none". False if this ssh printed no options."""

    def __init__(self, output: bytes, problem: bytes = b"") -> None:
        """Read the output of `ssh -G`; `problem` is what ssh printed if it failed."""
        self.problem = problem
        self._values: dict[str, list[str]] = {}
        for line in output.decode("utf-8", "surrogateescape").splitlines():
            name, _, value = line.partition(" ")
            if value and value != "none":
                self._values.setdefault(name, []).append(value)

    def __bool__(self) -> bool:
        """Return whether ssh printed options."""
        return bool(self._values)

    def all(self, name: str) -> list[str]:
        """Return all values of an option."""
        return self._values.get(name, [])

    def first(self, name: str, default: str = "") -> str:
        """Return the first value of an option."""
        return next(iter(self.all(name)), default)

    def known_as(self, host: str) -> str:
        """Return the name of the host in files of known host keys (sshd(8))."""
        name, port = self.first("hostname", host), self.first("port", "22")
        return self.first("hostkeyalias") or (name if port == "22" else f"[{name}]:{port}")


def query_options(
    command: Sequence[str], host: str, *, environment: Mapping[str, str] | None = None
) -> SshOptions:
    """Ask ssh for its options for a host, without contacting the host.

    Raises `NotFoundError`, `TryLaterError`.
    """
    finished = subprocesses.run([*command, "-G", "--", host], environment=environment, timeout=15)
    return SshOptions(finished.stdout if finished.exit_code == 0 else b"", finished.stderr)


_JUMP = re.compile(r"(?:ssh://)?(?:[^@]*@)?(\[[^\]]+\]|[^:]+)(?::[0-9]+)?")


def with_jump_hosts(options: SshOptions, query: Callable[[str], SshOptions]) -> list[SshOptions]:
    """Return the options for a host, and those for the hosts through which ssh reaches it (ssh_config(5), ProxyJump)."""
    jumps = map(_JUMP.fullmatch, options.first("proxyjump").split(","))
    return [options, *(query(jump[1].strip("[]")) for jump in jumps if jump)]


def is_known_host(options: SshOptions, host: str, expand: Callable[[str], str]) -> bool | None:
    """Return whether a file of known host keys has the host's; None if a command knows it, or without ssh-keygen.

    `expand` replaces what ssh replaces in a path, such as `~`.
    """
    if options.first("knownhostscommand") or shutil.which("ssh-keygen") is None:
        return None
    search = ["ssh-keygen", "-F", options.known_as(host), "-f"]
    configured = f"{options.first('userknownhostsfile')} {options.first('globalknownhostsfile')}"
    files = (expand(path) for path in configured.split())
    return any(
        Path(file).is_file() and subprocesses.run([*search, file], timeout=15).exit_code == 0
        for file in files
    )


def certificate_files(options: SshOptions, home: str) -> list[str]:
    """Return the files in which ssh with these options looks for certificates (ssh_config(5), CertificateFile)."""
    named = options.all("certificatefile") + [f"{key}-cert.pub" for key in options.all("identityfile")]
    return [absolute(path, home) for path in named]


def agent_socket(options: SshOptions, environment: Mapping[str, str]) -> str:
    """Return the socket of the agent that ssh with these options asks; "" for none (ssh_config(5), IdentityAgent)."""
    named = options.first("identityagent", "SSH_AUTH_SOCK")
    if named == "SSH_AUTH_SOCK":
        return environment.get("SSH_AUTH_SOCK", "")
    if named.startswith("$"):
        return environment.get(named[1:].strip("{}"), "")
    return absolute(named, environment.get("HOME", "/"))


def absolute(path: str, home: str) -> str:
    """Return a path with `~` replaced by the given home."""
    return home + path[1:] if path == "~" or path.startswith("~/") else path
