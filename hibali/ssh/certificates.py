"""Renew short-lived ssh certificates before logins, once for all processes of this machine."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shlex
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from hibali import subprocesses
from hibali.config.model import CertificateSettings
from hibali.errors import AccessError, HibaliError, TryLaterError
from hibali.events import Listener, Noted, ignore
from hibali.files import (
    control_folder,
    lock_file,
    private_folder,
    read_regular,
    state_folder,
    write_atomic,
)
from hibali.ssh_options import SshOptions, absolute, agent_socket, certificate_files
from hibali.text import printable

# what ssh-keygen prints (sshkey.c, sshkey_format_cert_validity), here with TZ=UTC
_VALID = re.compile(r"\s*Valid: (?:forever|before (\S+)|(?:from|after) (\S+)(?: to (\S+))?)\s*$")
_AUTHORITY = re.compile(r"\s*Signing CA: \S+ (SHA256:\S+)")
_IN_AGENT = re.compile(rb"^\S+-cert-v01@openssh\.com \S+.*$", re.MULTILINE)
_TOOL_SECONDS = 15.0
_RENEWING_SECONDS = 120.0
_CONFIRMING_SECONDS = 300.0  # a person may have to confirm a code in a browser
# After a failure the command is not run for this time, which doubles up to the last: some services lock accounts.
_FAILED_SECONDS, _MOST_FAILED_SECONDS = 30.0, 600.0
_SKEW_SECONDS = 300.0  # the clock of the authority may be ahead of this machine's


@dataclass(frozen=True, slots=True)
class Certificate:
    """When an ssh certificate is valid, in seconds since the epoch; `place` is its file, or the agent.

    Without a beginning `begin` is 0.0, without an end `end` is infinite.
    """

    place: str
    begin: float
    end: float
    authority: str = ""  # the fingerprint of the key that signed it

    def lasts(self, least: float, now: float) -> bool:
        """Return whether it is valid for `least` seconds more, or for a quarter of its life where that is shorter."""
        return self.is_valid(now) and self.end - now >= min(least, (self.end - self.begin) / 4)

    def is_valid(self, now: float) -> bool:
        """Return whether it is valid now."""
        return self.begin - _SKEW_SECONDS <= now < self.end

    def describe(self) -> str:
        """Return for users until when it is valid, and where it is."""
        if math.isinf(self.end):
            return f"{self.place}, valid without an end"
        return f"{self.place}, valid until {datetime.fromtimestamp(self.end, UTC):%Y-%m-%d %H:%M} UTC"


def parse_certificates(listing: str, place: str) -> list[Certificate]:
    """Return the certificates that `ssh-keygen -L` lists in UTC; pure."""
    found, authority = [], ""
    for line in listing.splitlines():
        valid, signed = _VALID.match(line), _AUTHORITY.match(line)
        if signed:
            authority = signed[1]
        elif valid:
            begin, end = valid[2], valid[1] or valid[3]
            times = _seconds(begin) if begin else 0.0, _seconds(end) if end else math.inf
            found.append(Certificate(place, *times, authority))
    return found


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def read_certificates(
    paths: Iterable[str], agents: Iterable[str] = (), environment: Mapping[str, str] = os.environ
) -> Iterator[Certificate]:
    """Yield the certificates in these files and in the agents at these sockets; what cannot be read is left out."""
    plain = {**environment, "LC_ALL": "C", "TZ": "UTC"}
    for path in dict.fromkeys(paths):
        if Path(path).is_file():
            yield from _listed(["-f", path], b"", path, plain)
    for socket in filter(None, dict.fromkeys(agents)):
        try:
            held = subprocesses.run(
                ["ssh-add", "-L"], environment={**plain, "SSH_AUTH_SOCK": socket}, timeout=_TOOL_SECONDS
            )
        except HibaliError:
            continue
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


@dataclass(frozen=True, slots=True)
class _Failure:
    problem: AccessError
    at: float  # by the clock of this process
    pause: float  # seconds before the command is run again


_failures: dict[str, _Failure] = {}  # by certificate, in this process
_had: set[str] = set()  # certificates that this process once had: without a new one, the network may be down


class SiteCertificate:
    """The certificate of one site's logins; without a command there is nothing to renew.

    Certificates of other sites may be in the same agent, so that only those count which the authority signed that signed the
    last one of the command; where `file` is set, only those in it.
    """

    def __init__(
        self, settings: CertificateSettings | None, hops: Sequence[SshOptions], *, subject: str
    ) -> None:
        """`hops` are ssh's options for the host `subject`, and for the hosts through which ssh reaches it."""
        self._settings = settings or CertificateSettings(())
        self._hops = hops
        self._subject = subject
        source = repr((self._settings.command, self._settings.file))
        self._name = hashlib.sha256(source.encode()).hexdigest()[:16]

    def read(self) -> Certificate | None:
        """Return the certificate that is valid for longest; None if none is valid now."""
        authority = "" if self._settings.file or not self._settings.command else self._authority()
        valid = [one for one in self._valid() if not authority or one.authority == authority]
        return max(valid, key=lambda one: one.end, default=None)

    def _valid(self) -> Iterator[Certificate]:
        home, now, own = os.environ.get("HOME", "/"), time.time(), self._settings.file
        paths = (
            [absolute(own, home)]
            if own
            else [file for hop in self._hops for file in certificate_files(hop, home)]
        )
        agents = [] if own else [agent_socket(hop, os.environ) for hop in self._hops]
        return (one for one in read_certificates(paths, agents) if one.is_valid(now))

    def ensure(self, *, may_prompt: bool, on_event: Listener = ignore) -> bool:
        """Renew it unless it lasts; return whether the command ran.

        With `may_prompt` the command gets the terminal, where it can show a code or an address; else it can ask nobody.

        Raises:
            AccessError: `certificate-not-renewed`, `certificate-missing`.
            TryLaterError: the same, if this process had a certificate before.
        """
        if not self._settings.command or self._lasts():
            return False
        with lock_file(private_folder(control_folder() / "certificates") / f"{self._name}.lock"):
            if self._lasts():  # another process renewed it meanwhile
                return False
            try:
                self._check_failure(may_prompt=may_prompt)
                on_event(Noted(f"Getting a new ssh certificate for {self._subject}."))
                self._renew(may_prompt=may_prompt)
            except AccessError as problem:
                if self._name not in _had:
                    raise
                raise TryLaterError(
                    "unreachable", problem.message, subject=self._subject, hint=problem.hint
                ) from None
        _had.add(self._name)
        _failures.pop(self._name, None)
        return True

    def _lasts(self) -> bool:
        if not self._settings.file and not self._authority():
            return False  # nothing says yet which certificates are this site's
        found, now = self.read(), time.time()
        lasts = found is not None and (self._is_enough(found, now) or now < self._useless_until())
        if lasts:
            _had.add(self._name)
        return lasts

    def _is_enough(self, certificate: Certificate, now: float) -> bool:
        return certificate.lasts(self._settings.least_seconds, now)

    def _check_failure(self, *, may_prompt: bool) -> None:
        """Raise the last failure again, unless its pause is over or a person can do better."""
        last = _failures.get(self._name)
        if last is not None and not may_prompt and time.monotonic() - last.at < last.pause:
            raise last.problem
        if time.time() < self._useless_until() and not may_prompt:
            raise self._missing()

    def _missing(self) -> AccessError:
        return AccessError(
            "certificate-missing",
            f"{shlex.join(self._settings.command)} succeeded, but there is no new ssh certificate",
            subject=self._subject,
            hint="Set certificate.file in the site's ssh table to the file that the command writes.",
        )

    def _renew(self, *, may_prompt: bool) -> None:
        try:
            before = {(one.place, one.end) for one in self._valid()}
            renew(self._settings, subject=self._subject, may_prompt=may_prompt)
            made = [one for one in self._valid() if (one.place, one.end) not in before]
            if made:
                self._write(max(made, key=lambda one: (one.begin, one.end)).authority, 0.0)
                return
            # a command may find that the old one is good enough; one that writes elsewhere is not run at each login
            authorities = {one.authority for one in self._valid()}
            known = authorities.pop() if len(authorities) == 1 else self._authority()
            now = time.time()
            # nor is one of the same second, which looks like the one before, a reason not to run it again
            is_new = known and any(
                one.authority == known and self._is_enough(one, now) for one in self._valid()
            )
            self._write(known, 0.0 if is_new else now + _MOST_FAILED_SECONDS)
            if self.read() is None:
                raise self._missing()
        except AccessError as problem:
            last = _failures.get(self._name)
            pause = _FAILED_SECONDS if last is None else min(2 * last.pause, _MOST_FAILED_SECONDS)
            _failures[self._name] = _Failure(problem, time.monotonic(), pause)
            raise

    def _write(self, authority: str, useless_until: float) -> None:
        record = {"schema": 1, "authority": authority, "useless_until": useless_until}
        write_atomic(self._record(), json.dumps(record).encode("ascii") + b"\n")

    def _authority(self) -> str:
        """Return the fingerprint of the authority of this site's certificates; "" before the first one."""
        return str(self._read_record().get("authority", ""))

    def _useless_until(self) -> float:
        """Return until when the command is not run again, because it brought nothing (seconds since the epoch)."""
        found = self._read_record().get("useless_until")
        until = found if isinstance(found, float) else 0.0
        return until if until < time.time() + _MOST_FAILED_SECONDS + 1 else 0.0  # the clock was set back

    def _read_record(self) -> dict[str, object]:
        try:
            found = json.loads(read_regular(self._record()))
        except (HibaliError, OSError, ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    def _record(self) -> Path:
        return private_folder(state_folder() / "certificates") / f"{self._name}.json"


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
            code = subprocesses.run_in_terminal(settings.command, stdout=2, timeout=_CONFIRMING_SECONDS)
            said = b""
        else:
            finished = subprocesses.run(settings.command, timeout=_RENEWING_SECONDS, environment=environment)
            code, said = finished.exit_code, finished.stderr
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
