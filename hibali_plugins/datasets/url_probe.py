"""Test the URLs of annexed contents with requests of one byte: the status, the size, and whether a page comes in place of data."""

from __future__ import annotations

import configparser
import ftplib
import ipaddress
import os
import re
import socket
import time
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

from hibali.config.model import SITE_NAME, Site, login_url_problem
from hibali.errors import AccessError, HibaliError, IncompleteError, RefusedError, TryLaterError
from hibali.http.client import Response
from hibali.http.errors import is_failing
from hibali.http.fetch import send_once
from hibali.plugins import if_offered
from hibali.text import printable
from hibali_plugins.datasets.remote_probe import git_line, private_address, quoted
from hibali_plugins.datasets.repository import Repository
from hibali_plugins.datasets.sources import Config, Outcome, Sample, Source, origin_of, without_login
from transfers.stores.web_login import authorize, has_password, site_above

_MOST_REDIRECTS = 5
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_TOTAL = re.compile(r"bytes (?:[0-9]+-[0-9]+|\*)/([0-9]{1,18})")
_HTML = frozenset({"text/html", "application/xhtml+xml"})
_PAGES = (b".html", b".htm", b".xhtml")
_MOST_PROVIDERS = 100
_PROVIDER_BYTES = 64 * 1024
_DEFAULT_SCHEMES = "http https ftp"  # git-annex's own annex.security.allowed-url-schemes


class UrlProbe:
    """The tests of the URLs of one repository; thread-safe.

    A login is sent only to URLs below that of the site which has it (S15, S16), and never after a redirect to another host.
    """

    def __init__(self, repository: Repository, config: Config, sites: Iterable[Site], seconds: float) -> None:
        self._repository = repository
        self._seconds = seconds
        self._schemes = (config.get("annex.security.allowed-url-schemes") or _DEFAULT_SCHEMES).split()
        allowed = config.get("annex.security.allowed-ip-addresses") or config.get(
            "annex.security.allowed-http-addresses"
        )
        self._allowed = frozenset(allowed.split())
        self._sites = tuple(sites)
        self._authorizations = {site.name: authorize(site) for site in self._sites}

    def allows(self, source: Source) -> None:
        """Raise `IncompleteError` if git-annex would not use the URLs of this server, or they are not valid."""
        scheme = source.address.partition(":")[0]
        if not scheme:
            raise IncompleteError(
                "bad-url",
                "these URLs are not valid, so nothing can be fetched from them",
                subject=printable(source.samples[0].url)[:200],
                hint=f"To see them: {git_line(self._repository, 'annex', 'whereis', '--in=web')}",
            )
        if scheme not in self._schemes:
            schemes = " ".join([*self._schemes, scheme])
            raise IncompleteError(
                "url-scheme-refused",
                f"git-annex fetches nothing from {scheme} URLs unless that is allowed",
                subject=source.address,
                hint=f"If you trust the dataset: git config --global annex.security.allowed-url-schemes {quoted(schemes)}",
            )

    def test(self, source: Source, outcome: Outcome) -> None:
        """Request a few URLs of a web server, and note which of its samples are absent. Raises the first problem."""
        deadline = time.monotonic() + self._seconds
        for sample in source.samples:
            try:
                self._test_sample(sample, deadline)
            except (AccessError, TryLaterError):
                raise  # the other URLs of this server have the same problem
            except HibaliError as problem:
                if problem.code == "private-address":
                    raise
                outcome.problems.append(problem)
                outcome.absent.add(sample.key.name)
        outcome.partial = len(outcome.absent) < len(source.samples)
        if outcome.problems:
            raise outcome.problems.pop(0)

    def reach(self, url: str) -> None:
        """Raise the problem of a server that answers nothing, whatever it answers."""
        self._request(url, time.monotonic() + self._seconds)

    def _test_sample(self, sample: Sample, deadline: float) -> None:
        if sample.url.partition(":")[0] == "ftp":
            self._test_ftp(sample, deadline)
            return
        response, url = self._request(sample.url, deadline)
        self._check_status(response.status, sample)
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        size = _size_of(response)
        fits = size == sample.key.size
        if kind in _HTML and not fits and not sample.key.name.lower().endswith(_PAGES):
            moved = (
                f", after a redirect to {origin_of(url)}" if origin_of(url) != origin_of(sample.url) else ""
            )
            raise self._wrong(
                sample, f"it answers an HTML page in place of the data{moved}: a login page, or it was moved"
            )
        if 0 <= sample.key.size != size and size >= 0:
            raise self._wrong(sample, f"it has {size} bytes there, but {sample.key.size} bytes are recorded")

    def _wrong(self, sample: Sample, message: str) -> IncompleteError:
        return IncompleteError(
            "wrong-content",
            message,
            subject=shown(sample.url),
            hint=f"Open it in a browser. To see other copies: {git_line(self._repository, 'annex', 'whereis', '--in=web')}",
        )

    def _request(self, url: str, deadline: float) -> tuple[Response, str]:
        """Request one byte, following redirects; return the head of the answer and its URL."""
        for _ in range(_MOST_REDIRECTS + 1):
            response = self._send(url, deadline)
            location = response.headers.get("location", "")
            if response.status not in _REDIRECTS or not location:
                return response, url
            url = urljoin(url, location)
            if urlsplit(url).scheme not in {"http", "https"}:
                break
        raise IncompleteError(
            "too-many-redirects",
            "its redirects lead nowhere",
            subject=shown(url),
            hint=f"To see where: curl --head --location {quoted(shown(url))}",
        )

    def _send(self, url: str, deadline: float) -> Response:
        site = site_above(url, self._sites)
        authorization = None if site is None else self._authorizations[site.name]
        header = authorization.header() if authorization is not None else ""
        response = self._send_once(url, header, deadline)
        if response.status == 401 and authorization is not None and authorization.renew(header):
            response = self._send_once(url, authorization.header(), deadline)
        return response

    def _send_once(self, url: str, header: str, deadline: float) -> Response:
        parts = urlsplit(url)
        headers = {"Accept": "*/*", "Accept-Encoding": "identity", "Range": "bytes=0-0"}
        headers |= {"Authorization": header} if header else {}
        try:
            return send_once(
                parts._replace(netloc=parts.netloc.rpartition("@")[2], fragment=""),
                "GET",
                headers,
                trusted=bool(header) or self._trusts(parts.hostname or "", parts.port),
                seconds=max(0.1, deadline - time.monotonic()),
                begin=lambda _: True,  # the content is not read
            )
        except RefusedError:
            raise private_address(shown(url), _private_address_of(parts.hostname or "")) from None

    def _test_ftp(self, sample: Sample, deadline: float) -> None:
        parts = urlsplit(sample.url)
        host = parts.hostname or ""
        if not (self._trusts(host, parts.port) or all(map(_is_public, _addresses(host)))):
            raise private_address(shown(sample.url), _private_address_of(host))
        try:
            with ftplib.FTP(timeout=max(0.1, deadline - time.monotonic())) as ftp:  # noqa: S321  # git-annex does it, too
                ftp.connect(host, parts.port or 21)
                ftp.login(unquote(parts.username or ""), unquote(parts.password or ""))
                ftp.voidcmd("TYPE I")
                size = ftp.size(unquote(parts.path))
        except ftplib.error_perm as problem:
            status = str(problem)[:3]
            if status == "530":
                raise self._refused(sample.url, f"status {status}") from None
            raise self._dead(sample.url, f"status {status}") from None
        except (OSError, EOFError, ftplib.Error):
            raise TryLaterError(
                "unreachable", "the server cannot be reached", subject=shown(sample.url)
            ) from None
        if size is not None and 0 <= sample.key.size != size:
            raise self._wrong(sample, f"it has {size} bytes there, but {sample.key.size} bytes are recorded")

    def _check_status(self, status: int, sample: Sample) -> None:
        if status in {200, 206} or (status == 416 and sample.key.size == 0):
            return
        if status in {401, 403, 407}:
            raise self._refused(sample.url, f"status {status}")
        if is_failing(status):
            raise TryLaterError(
                "busy",
                f"the server is busy or failing (status {status})",
                subject=shown(sample.url),
                hint="Run the same command again later.",
            )
        raise self._dead(sample.url, f"status {status}")

    def _dead(self, url: str, status: str) -> IncompleteError:
        return IncompleteError(
            "dead-url",
            f"the server has nothing at this URL ({status})",
            subject=shown(url),
            hint=f"To see other copies: {git_line(self._repository, 'annex', 'whereis', '--in=web')}",
        )

    def _refused(self, url: str, status: str) -> AccessError:
        """Return the problem of a server that wants a login, with the command that configures or renews it."""
        site = site_above(url, self._sites)
        message = f"the server refuses access ({status})"
        origin = origin_of(url)
        if site is not None:
            prompts = site.login_url and not has_password(site)
            hint = (
                f"To log in: hibali sites login {site.name}"
                if prompts
                else f"To check its login: hibali sites check {site.name}"
            )
            return AccessError(
                "credentials-refused", f"{message} with the login of {site.name}", subject=origin, hint=hint
            )
        name = _site_name(url)
        login_url = self._known_login_url(origin)
        if login_url:
            hint = if_offered(
                "url",
                f"To log in: hibali sites add {name} --url {quoted(origin)} --set login_url={quoted(login_url)} --no-check && hibali sites login {name}",
            )
        else:
            hint = if_offered(
                "url",
                f"If you have a login: hibali sites add {name} --url {quoted(origin)} --credentials-command COMMAND",
            )
        return AccessError("credentials-refused", f"{message} without a login", subject=origin, hint=hint)

    def _known_login_url(self, origin: str) -> str:
        """Return where a LORIS at this origin gives tokens, as the dataset's own settings of DataLad say; "" if unknown."""
        folder = Path(os.fsdecode(self._repository.root)) / ".datalad" / "providers"
        for file in sorted(folder.glob("*.cfg"))[:_MOST_PROVIDERS]:
            parser = configparser.ConfigParser(interpolation=None, strict=False)
            try:
                with file.open("rb") as stream:
                    parser.read_string(stream.read(_PROVIDER_BYTES).decode("utf-8", "replace"))
            except (OSError, configparser.Error):
                continue
            for section in parser.values():
                url = section.get("url", "")
                if section.get("type") == "loris-token" and login_url_problem(origin, url) is None:
                    return url
        return ""

    def _trusts(self, host: str, port: int | None) -> bool:
        """Return whether git-annex is allowed to connect to the private addresses of a host."""
        if "all" in self._allowed or host in self._allowed:
            return True
        private = [address for address in _addresses(host) if not _is_public(address)]
        return bool(private) and all(
            address in self._allowed or f"[{address}]:{port}" in self._allowed for address in private
        )


def shown(url: str) -> str:
    """Return a URL for people, without a login, and without its query, which can be a secret."""
    before, mark, _ = without_login(url).partition("?")
    return before + ("?..." if mark else "")


def _size_of(response: Response) -> int:
    """Return the size of the whole content; -1 if the server does not say it."""
    total = _TOTAL.fullmatch(response.headers.get("content-range", ""))
    if total is not None:
        return int(total[1])
    encoded = response.headers.get("content-encoding", "identity").lower() != "identity"
    length = response.headers.get("content-length", "")
    return int(length) if length.isdigit() and response.status == 200 and not encoded else -1


def _addresses(host: str) -> list[str]:
    try:
        return [str(found[4][0]).partition("%")[0] for found in socket.getaddrinfo(host, None)]
    except (OSError, UnicodeError):
        return []


def _private_address_of(host: str) -> str:
    return next((address for address in _addresses(host) if not _is_public(address)), host)


def _is_public(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_global
    except ValueError:
        return False


def _site_name(url: str) -> str:
    """Return a name for a site at the host of a URL."""
    name = re.sub(r"[^a-z0-9-]", "-", (urlsplit(url).hostname or "").partition(".")[0].lower())
    return name if SITE_NAME.fullmatch(name) else "web"
