"""What a site is entered with that may expire, as ssh-keygen and openssl tell it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path

from hibali import shell
from hibali.errors import HibaliError
from hibali.proxy import users_proxy
from hibali.sites import Site
from runs.unattended.credentials import Credential, Kind, certificate_end, x509_end
from runs.unattended.surroundings import local_zone


def ssh_certificates(site: Site, host: str, paths: Iterable[str]) -> Iterable[Credential]:
    """Those in these files, and until when they are good."""
    for path in dict.fromkeys(paths):
        if not Path(path).is_file():
            continue
        try:
            listed = shell.run(
                ["ssh-keygen", "-L", "-f", path], environment={**os.environ, "LC_ALL": "C"}, timeout=15
            )
            expires = certificate_end(listed.stdout.decode("utf-8", "replace"), local_zone())
        except (HibaliError, ValueError):
            continue
        renew = f"Get a certificate that is good for longer, then see: ssh-keygen -L -f {shlex.quote(path)}"
        yield Credential(
            site.name, "certificate", f"the ssh certificate {path} for {host}", path, expires, renew
        )


def other_credentials(site: Site, environment: Mapping[str, str]) -> list[Credential]:
    """What a site is entered with besides what ssh itself uses: the proxy of one with GSI or a GridFTP server.

    Where hibali makes the proxy each time (`make` in the site's table), it is the certificate it is made from that has to hold.
    """
    by_server = site.gridftp is not None and site.gridftp.wants_proxy
    if site.ssh is None or (site.ssh.auth != "gsi" and not by_server):
        return []
    settings, home = site.ssh.proxy, environment.get("HOME", "/")
    if settings.make == "no":
        path = str(users_proxy(environment))
        place = f" -out {shlex.quote(path)}" if "X509_USER_PROXY" in environment else ""
        renew = f"Make one that is good for longer: grid-proxy-init -valid 168:00{place}"
        return _x509(site.name, "proxy", "the proxy", path, renew)
    if settings.make == "grid-proxy-init":
        usual = environment.get("X509_USER_CERT") or "~/.globus/usercert.pem"  # grid-proxy-init(1), FILES
        path = absolute(settings.certificate or usual, home)
        renew = f"Get a new one from whoever signed it: openssl x509 -noout -issuer -enddate -in {shlex.quote(path)}"
        return _x509(site.name, "certificate", "the certificate that proxies are made from,", path, renew)
    return []  # only a MyProxy server knows how long the credential there is good


def _x509(site: str, kind: Kind, words: str, path: str, renew: str) -> list[Credential]:
    """The credential in a file; none where there is no such file or it says nothing: the login itself will say so."""
    if not Path(path).is_file():
        return []
    try:
        told = shell.run(["openssl", "x509", "-noout", "-enddate", "-in", path], timeout=15)
        expires = x509_end(told.stdout.decode("ascii", "replace"))
    except (HibaliError, ValueError):
        return []
    return [Credential(site, kind, f"{words} {path}", path, expires, renew)]


def absolute(path: str, home: str) -> str:
    """A path with the `~` of the home that is meant, whosever this one is."""
    return home + path[1:] if path == "~" or path.startswith("~/") else path
