"""Recreate the environment of cron, and check credentials that expire."""

from __future__ import annotations

import math
import os
import pwd
import re
import shlex
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from hibali import subprocesses
from hibali.config.model import Site
from hibali.errors import HibaliError
from hibali.files import config_file, state_folder
from hibali.ssh.certificates import read_certificates
from hibali.ssh.gsi import users_proxy
from hibali.ssh_options import absolute

BARE_PATH = "/usr/bin:/bin"  # the default of cron
_INHERITED = ("HOME", "LOGNAME", "USER", "SHELL", "LANG", "LC_ALL", "LC_CTYPE", "TZ")


def hibali_argv() -> list[str]:
    """Return the command that starts this installation of hibali from anywhere, by its absolute path."""
    script = Path(sys.executable).with_name("hibali")
    return [str(script)] if os.access(script, os.X_OK) else [sys.executable, "-P", "-m", "hibali_cli"]


def needed_variables(config: str | None) -> dict[str, str]:
    """Return the variables for home, configuration and state that a command in an empty environment cannot find by itself."""
    needed = {}
    if os.environ.get("HOME", "") not in {"", _account_home()}:
        needed["HOME"] = os.environ["HOME"]
    if config or "HIBALI_CONFIG" in os.environ or "XDG_CONFIG_HOME" in os.environ:
        needed["HIBALI_CONFIG"] = str(config_file(config))
    if "HIBALI_STATE" in os.environ or "XDG_STATE_HOME" in os.environ:
        needed["HIBALI_STATE"] = str(state_folder())
    return needed


def bare_environment(config: str | None, more: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a scheduled command, independent of the process that starts it; `more` are the schedule's own variables."""
    inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    return {**inherited, "PATH": BARE_PATH, **needed_variables(config), **more}


def _account_home() -> str:
    """Return the home folder that cron uses."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:
        return ""


def local_zone() -> tzinfo:
    """Return the time zone of cron's clock, with its summer time."""
    named = os.environ.get("TZ", "").removeprefix(":")
    if named:
        try:
            return ZoneInfo(named)
        except (ZoneInfoNotFoundError, ValueError):
            pass
    try:
        with Path("/etc/localtime").open("rb") as stream:
            return ZoneInfo.from_file(stream)
    except (OSError, ValueError):
        return ZoneInfo("UTC")


_NOT_AFTER = re.compile(r"^notAfter=([A-Z][a-z]{2}) +([0-9]{1,2}) ([0-9:]{8}) ([0-9]{4}) GMT$", re.MULTILINE)
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")

Kind = Literal["certificate", "proxy"]


@dataclass(frozen=True, slots=True)
class Credential:
    """A credential that may expire: `description` names it for messages, `renew` is the command that renews it; `expires` is None if it never expires."""

    site: str
    kind: Kind
    description: str
    path: str
    expires: datetime | None
    renew: str


def x509_end(output: str) -> datetime:
    """Return the end of an X.509 proxy or certificate from `openssl x509 -noout -enddate`; raises ValueError for other text."""
    found = _NOT_AFTER.search(output)
    if found is None:
        raise ValueError("this is not a certificate")
    month, day, time, year = found.groups()
    return datetime.fromisoformat(f"{year}-{_MONTHS.index(month) + 1:02d}-{int(day):02d}T{time}+00:00")


def ssh_certificates(site: Site, host: str, paths: Iterable[str]) -> Iterable[Credential]:
    """Return the certificates in these files, with their ends; none where hibali renews them."""
    if site.ssh is None or site.ssh.certificate is not None:
        return
    for one in read_certificates(paths):
        yield Credential(
            site.name,
            "certificate",
            f"the ssh certificate {one.place} for {host}",
            one.place,
            None if math.isinf(one.end) else datetime.fromtimestamp(one.end, UTC),
            f"Get a certificate that is valid for longer, then check it: ssh-keygen -L -f {shlex.quote(one.place)}. Or name the"
            " command that gets a new one: `certificate` in the site's ssh table.",
        )


def other_credentials(site: Site, environment: Mapping[str, str]) -> list[Credential]:
    """Return the credentials of a site that ssh itself does not use: the proxy for GSI or a GridFTP server.

    If hibali makes the proxy each time (`make` in the site's table), the certificate that it is made from counts.
    """
    by_server = site.gridftp is not None and site.gridftp.wants_proxy
    if site.ssh is None or (site.ssh.auth != "gsi" and not by_server):
        return []
    settings, home = site.ssh.proxy, environment.get("HOME", "/")
    if settings.make == "no":
        path = str(users_proxy(environment))
        place = f" -out {shlex.quote(path)}" if "X509_USER_PROXY" in environment else ""
        renew = f"Create a proxy that is valid for longer: grid-proxy-init -valid 168:00{place}"
        return _x509(site.name, "proxy", "the proxy", path, renew)
    if settings.make == "grid-proxy-init":
        usual = environment.get("X509_USER_CERT") or "~/.globus/usercert.pem"  # grid-proxy-init(1), FILES
        path = absolute(settings.certificate or usual, home)
        renew = f"Get a new certificate from its issuer: openssl x509 -noout -issuer -enddate -in {shlex.quote(path)}"
        return _x509(site.name, "certificate", "the certificate that proxies are made from,", path, renew)
    return []  # only the MyProxy server knows when its credential expires


def _x509(site: str, kind: Kind, description: str, path: str, renew: str) -> list[Credential]:
    """Return the credential in a file; none if there is no such file or it is invalid, which the login reports."""
    if not Path(path).is_file():
        return []
    try:
        finished = subprocesses.run(["openssl", "x509", "-noout", "-enddate", "-in", path], timeout=15)
        expires = x509_end(finished.stdout.decode("ascii", "replace"))
    except (HibaliError, ValueError):
        return []
    return [Credential(site, kind, f"{description} {path}", path, expires, renew)]
