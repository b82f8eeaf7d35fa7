"""Renew short-lived ssh certificates before logins, once for all processes of this machine."""

from __future__ import annotations

import hashlib
import math
import os
import re
import shlex
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from hibali import subprocesses
from hibali.config.model import CertificateSettings
from hibali.errors import AccessError, HibaliError
from hibali.events import Listener, Noted, ignore
from hibali.files import control_folder, lock_file, private_folder
from hibali.ssh_options import SshOptions, absolute, agent_socket, certificate_files
from hibali.text import printable

# what ssh-keygen prints (sshkey.c, sshkey_format_cert_validity), here with TZ=UTC
_VALID = re.compile(
    r"^\s*Valid: (?:(forever)|(?:from|after) (\S+)|before \S+)(?: to (\S+))?\s*$", re.MULTILINE
)
_BEFORE = re.compile(r"^\s*Valid: before (\S+)\s*$", re.MULTILINE)
_IN_AGENT = re.compile(rb"^\S+-cert-v01@openssh\.com \S+.*$", re.MULTILINE)
_TOOL_SECONDS = 15.0
_RENEWING_SECONDS = 120.0  # a person may have to confirm a code in a browser
_FAILED_SECONDS = 30.0  # logins that start at the same time share one failure


@dataclass(frozen=True, slots=True)
class Certificate:
    """When an ssh certificate is valid, in seconds since the epoch; `place` is its file, or the agent.

    Without a beginning `begin` is 0.0, without an end `end` is infinite.
    """

    place: str
    begin: float
    end: float

    def lasts(self, least: float, now: float) -> bool:
        """Return whether it is valid for `least` seconds more, or for a quarter of its life where that is shorter."""
        return self.is_valid(now) and self.end - now >= min(least, (self.end - self.begin) / 4)

    def is_valid(self, now: float) -> bool:
        """Return whether it is valid now."""
        return self.begin <= now < self.end

    def describe(self) -> str:
        """Return for users until when it is valid, and where it is."""
        if math.isinf(self.end):
            return f"{self.place}, valid without an end"
        return f"{self.place}, valid until {datetime.fromtimestamp(self.end, UTC):%Y-%m-%d %H:%M} UTC"


def parse_certificates(listing: str, place: str) -> list[Certificate]:
    """Return the certificates that `ssh-keygen -L` lists in UTC; pure."""
    found = []
    for line in listing.splitlines():
        before, valid = _BEFORE.match(line), _VALID.match(line)
        if before:
            found.append(Certificate(place, 0.0, _seconds(before[1])))
        elif valid:
            begin, end = valid[2], valid[3]
            found.append(
                Certificate(place, _seconds(begin) if begin else 0.0, _seconds(end) if end else math.inf)
            )
    return found


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def read_certificates(
    paths: Iterable[str], agent: str = "", environment: Mapping[str, str] = os.environ
) -> Iterator[Certificate]:
    """Yield the certificates in these files and in the agent at this socket; what cannot be read is left out."""
    plain = {**environment, "LC_ALL": "C", "TZ": "UTC"}
    for path in dict.fromkeys(paths):
        if Path(path).is_file():
            yield from _listed(["-f", path], b"", path, plain)
    if agent:
        try:
            held = subprocesses.run(
                ["ssh-add", "-L"], environment={**plain, "SSH_AUTH_SOCK": agent}, timeout=_TOOL_SECONDS
            )
        except HibaliError:
            return
        for line in _IN_AGENT.findall(held.stdout):
            yield from _listed(["-f", "-"], line + b"\n", "the ssh agent", plain)


def _listed(
    arguments: list[str], stdin: bytes, place: str, environment: Mapping[str, str]
) -> list[Certificate]:
    try:
        listed = subprocesses.run(
            ["ssh-keygen", "-L", *arguments], stdin=stdin, environment=environment, timeout=_TOOL_SECONDS
        )
        return parse_certificates(listed.stdout.decode("utf-8", "replace"), place)
    except (HibaliError, ValueError):
        return []


_failed: dict[str, tuple[float, AccessError]] = {}  # by certificate: when its command failed, and why


class SiteCertificate:
    """The certificate of one site's logins; without a command there is nothing to renew."""

    def __init__(self, settings: CertificateSettings, options: SshOptions, *, subject: str) -> None:
        """`options` are those of ssh for the host `subject`."""
        self._settings = settings
        self._options = options
        self._subject = subject

    def read(self) -> Certificate | None:
        """Return the certificate that is valid for longest; None if none is valid now."""
        home, now = os.environ.get("HOME", "/"), time.time()
        own = self._settings.file
        paths = [absolute(own, home)] if own else certificate_files(self._options, home)
        agent = "" if own else agent_socket(self._options, os.environ)
        valid = (one for one in read_certificates(paths, agent) if one.is_valid(now))
        return max(valid, key=lambda one: one.end, default=None)

    def ensure(self, *, may_prompt: bool, on_event: Listener = ignore) -> bool:
        """Renew it unless it lasts; return whether the command ran.

        With `may_prompt` the command gets the terminal, where it can show a code or an address; else it can ask nobody.
        Raises `AccessError`: `certificate-not-renewed`, `certificate-missing`.
        """
        if not self._settings.command or self._lasts():
            return False
        name = hashlib.sha256(repr((self._settings.command, self._settings.file)).encode()).hexdigest()[:16]
        with lock_file(private_folder(control_folder() / "certificates") / f"{name}.lock"):
            if self._lasts():  # another process renewed it meanwhile
                return False
            at, problem = _failed.get(name, (0.0, None))
            if problem is not None and time.monotonic() - at < _FAILED_SECONDS:
                raise problem
            on_event(Noted(f"Getting a new ssh certificate for {self._subject}."))
            try:
                self._renew(may_prompt=may_prompt)
            except AccessError as failure:
                _failed[name] = time.monotonic(), failure
                raise
        return True

    def _lasts(self) -> bool:
        found = self.read()
        return found is not None and found.lasts(self._settings.least_seconds, time.time())

    def _renew(self, *, may_prompt: bool) -> None:
        renew(self._settings, subject=self._subject, may_prompt=may_prompt)
        if self.read() is None:
            raise AccessError(
                "certificate-missing",
                f"{shlex.join(self._settings.command)} succeeded, but there is no valid ssh certificate",
                subject=self._subject,
                hint="Set certificate.file in the site's ssh table to the file that the command writes.",
            )


def renew(
    settings: CertificateSettings,
    *,
    subject: str,
    may_prompt: bool = False,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Run the command that gets a new certificate. Raises `AccessError("certificate-not-renewed")`."""
    line = shlex.join(settings.command)
    try:
        if may_prompt:
            code, said = subprocesses.run_in_terminal(settings.command, stdout=2), b""
        else:
            finished = subprocesses.run(settings.command, timeout=_RENEWING_SECONDS, environment=environment)
            code, said = finished.exit_code, finished.stderr or finished.stdout
    except HibaliError as problem:
        code, said = 1, problem.message.encode()
    if code != 0:
        last = next((each for each in reversed(said.splitlines()) if each.strip()), b"")
        reason = printable(last.strip()[:300]) or f"it ended with {code}"
        raise AccessError(
            "certificate-not-renewed",
            f"the command for a new ssh certificate failed: {reason}",
            subject=subject,
            hint=f"Run it yourself: {line}",
        )
