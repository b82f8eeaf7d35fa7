"""A person with a key and a command that gets a short-lived ssh certificate for it, as `cscs-key sign` or `step ssh` do."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path

from tests.services.sshd import SshServer


class Person:
    """The key, the ssh configuration and the signing command of one person, in a folder of the test."""

    def __init__(self, server: SshServer, folder: Path, *, seconds: int = 60, most: int = 1000) -> None:
        """Certificates are valid for `seconds`; the command fails after `most` of them."""
        self.server = server
        self.folder = folder
        folder.mkdir()
        self.config, self._signed, self._script = folder / "config", folder / "signed", folder / "sign"
        key = folder / "key"
        self.certificate = folder / "key-cert.pub"
        words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key]
        subprocess.run(words, check=True, stdin=subprocess.DEVNULL)
        login_key = f"{server.folder}/login_key"
        self.config.write_text(server.config.read_text().replace(login_key, str(key)))
        self._signed.write_text("")
        self.sign_for(seconds, most)

    def sign_for(self, seconds: int, most: int = 1000, ask: str = "", authority: str = "ca") -> None:
        """Change the command: it signs for `seconds`, fails after `most` calls, and with `ask` waits for a line on the terminal."""
        quoted = shlex.quote(str(self.folder))
        authority = shlex.quote(f"{self.server.folder}/{authority}")
        asking = f"echo {shlex.quote(ask)}; read confirmed < /dev/tty || exit 7\n" if ask else ""
        self._script.write_text(
            "#!/bin/sh\n"
            f"cd {quoted} || exit 9\n"
            f'[ "$(wc -l < signed)" -lt {most} ] || {{ echo "no more certificates today" >&2; exit 3; }}\n'
            f"{asking}"
            "echo signed >> signed\n"
            f"exec ssh-keygen -q -s {authority} -I test -n {self.server.user} -V +{seconds}s key.pub\n"
        )
        self._script.chmod(0o700)

    @property
    def signings(self) -> int:
        """The number of certificates so far."""
        return len(self._signed.read_text().splitlines())

    def site(self, more: str = "", least: str = "10m") -> str:
        """Return the tables of the site `far`; `more` are further settings of its ssh table."""
        command = f'["ssh", "-F", "{self.config}"]'
        certificate = f'{{ command = ["{self._script}"], least = "{least}" }}'
        return (
            f'[sites.far]\nkind = "ssh"\n[sites.far.ssh]\nhost = "{self.server.host}"\ncommand = {command}\n'
            f"certificate = {certificate}\n{more}\n"
        )
