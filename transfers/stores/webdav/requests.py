"""Send requests to a WebDAV server over a few kept connections (S15)."""

from __future__ import annotations

import base64
import http.client
import json
import queue
import ssl
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote_from_bytes, unquote_to_bytes, urljoin, urlsplit

from hibali.config.model import Site
from hibali.errors import AccessError, HibaliError, IncompleteError, NotFoundError, TryLaterError, UsageError
from hibali.events import Listener, ignore
from hibali.http import (
    ANSWER_SECONDS,
    MOST_ERROR,
    Deadline,
    patience_for,
    read_at_most,
    too_long,
    watch_current,
)
from hibali.retry import pause, with_retries
from hibali.subprocesses import credentials_from
from transfers.stores.s3.requests import Answer, Bytes


@dataclass(frozen=True, slots=True)
class Login:
    """A name and a password, or a token; never shown."""

    name: str = ""
    password: str = ""
    token: str = ""

    def __repr__(self) -> str:
        return "Login(...)"


def login_of(site: Site, *, secure: bool) -> Login | None:
    """What the site's credentials_command prints; nothing of it is ever shown. Raises `AccessError`."""
    if not site.credentials_command:
        return None
    host = urlsplit(site.url or "").hostname or ""
    if not secure and host not in {"localhost", "127.0.0.1", "::1"}:
        raise UsageError(
            "insecure-endpoint",
            "a login travels over https only",
            subject=site.name,
            hint="Correct the site's url.",
        )
    return credentials_from(
        site.credentials_command,
        read_login,
        key="credentials_command",
        what="login",
        subject=site.name,
        hint='Run it by hand: it has to print {"username": ..., "password": ...} or {"token": ...} as JSON.',
    )


def read_login(text: bytes) -> Login:
    """A username and a password, or a token; raises ValueError that repeats nothing of the text."""
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        raise ValueError("what it printed is not JSON") from None
    if isinstance(record, dict) and all(isinstance(value, str) and value for value in record.values()):
        if record.keys() == {"token"}:
            return Login(token=record["token"])
        if record.keys() == {"username", "password"}:
            return Login(record["username"], record["password"])
    raise ValueError("what it printed has neither a username and a password nor a token")


BUSY = frozenset({408, 425, 429, 500, 502, 503, 504})


def error_of(status: int, subject: str) -> HibaliError:
    """The error that a status stands for (RFC 9110, RFC 4918). Nothing of the answer's text is repeated: it may hold anything."""
    said = f"status {status}"
    if status in {401, 403, 407}:
        return AccessError(
            "denied",
            f"the server does not allow this ({said})",
            subject=subject,
            hint="Check the site's credentials_command, and what its login may do there.",
        )
    if status in {404, 410}:
        return NotFoundError("vanished", "there is nothing of that name", subject=subject)
    if status == 507:
        return IncompleteError("no-space", f"the server has no more room ({said})", subject=subject)
    if status == 413:
        return IncompleteError(
            "too-large", f"the server takes no file of this size ({said})", subject=subject
        )
    if status == 423:
        return IncompleteError("locked-by-another", f"another client has locked it ({said})", subject=subject)
    if status == 412:
        return IncompleteError("target-changed", "it changed after it was looked at", subject=subject)
    if status in {405, 501}:
        return IncompleteError("not-supported", f"the server cannot do this ({said})", subject=subject)
    if status in BUSY:
        return TryLaterError("busy", f"the server cannot answer now ({said})", subject=subject)
    if 300 <= status < 400:
        return elsewhere(subject)
    return IncompleteError("refused-by-server", f"the server refused the request ({said})", subject=subject)


def elsewhere(subject: str) -> UsageError:
    """It leads to where nobody configured (S15)."""
    return UsageError(
        "wrong-endpoint",
        "the server leads to another place, which is not followed",
        subject=subject,
        hint="Correct the site's url in config.toml.",
    )


def unreachable(subject: str) -> TryLaterError:
    """No answer came, or it broke off."""
    return TryLaterError(
        "unreachable", "the server cannot be reached", subject=subject, hint="Check the URL and the network."
    )


def bad_certificate(subject: str) -> AccessError:
    """The server could not prove who it is."""
    return AccessError(
        "bad-certificate",
        "the server's certificate cannot be trusted",
        subject=subject,
        hint="For a private authority set SSL_CERT_FILE to its certificate.",
    )


CONNECTIONS = 16
_SECONDS = 120.0  # of silence
_ANSWER_SECONDS = ANSWER_SECONDS
_LISTING_SECONDS = 3600.0  # one of a million names takes its time
_MOST_REDIRECTS = 3
_MOST_BODY = 4 * 1024 * 1024  # of an answer that is kept whole
_MOST_TAKEN = 1024 * 1024 * 1024  # of a listing, which is parsed as it comes and kept on disk
_PIECE = 1024 * 1024
_LONGEST_PAUSE = 30.0  # whatever Retry-After says
_SAFE = "/-_.~"

Take = Callable[[bytes], None]


class Wire:
    """One server below one URL; may be used by many threads. Every path is bytes below that URL, not quoted."""

    def __init__(
        self, url: str, subject: str, login: Login | None = None, on_event: Listener = ignore
    ) -> None:
        """`url` is http or https; `subject` names the site in errors."""
        parts = urlsplit(url)
        self.subject = subject
        self.origin = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        self.base = "/" + quote_from_bytes(unquote_to_bytes(parts.path).strip(b"/"), safe=_SAFE)
        self._on_event = on_event
        self._host, self._port = parts.hostname or "", parts.port
        self._context = ssl.create_default_context() if parts.scheme == "https" else None
        self._login = {} if login is None else {"Authorization": _authorization(login)}
        self._idle: queue.LifoQueue[http.client.HTTPConnection] = queue.LifoQueue()

    def target(self, path: bytes, *, folder: bool = False) -> str:
        """What stands in the request line for a path; with `folder` it ends in a slash."""
        whole = self.base.rstrip("/") + "/" + quote_from_bytes(path, safe=_SAFE) if path else self.base
        return whole.rstrip("/") + "/" if folder else whole

    def address(self, path: bytes) -> str:
        """The whole URL, as Destination and If name it."""
        return self.origin + self.target(path)

    def name_in(self, href: str, folder: bytes) -> bytes | None:
        """The one component below `folder` that an href of an answer names, b"" for the folder itself; None for anything else."""
        # Behind a proxy a server may take itself for another host: the path alone is what it tells.
        path = unquote_to_bytes(urlsplit(href).path if "://" in href else href.partition("?")[0])
        above = unquote_to_bytes(self.target(folder, folder=True))
        if path.rstrip(b"/") == above.rstrip(b"/"):
            return b""
        name = path.removeprefix(above)
        if name == path or b"/" in name.removesuffix(b"/"):
            return None
        name = name.removesuffix(b"/")
        return None if name in {b"", b".", b".."} or b"\0" in name else name

    def ask(
        self,
        method: str,
        path: bytes = b"",
        *,
        folder: bool = False,
        headers: Mapping[str, str] | None = None,
        body: Bytes = b"",
        accept: Collection[int] = (),
        take: Take | None = None,
        begin: Callable[[Answer], None] | None = None,
        attempts: int = 4,
        most: int | None = None,
        content: int = 0,
    ) -> Answer:
        """Send one request, again where that may help. Raises what `error_of` says of statuses not in `accept`.

        `take` gets the body of a success piece by piece, after `begin` saw its head, up to `most` bytes; without it the body is kept, up
        to 4 MiB. `content` is how many bytes of files are expected, for which more time is given.
        """

        def once() -> Answer:
            target = self.target(path, folder=folder)
            seconds = patience_for(len(body) + content, _ANSWER_SECONDS if take is None else _LISTING_SECONDS)
            for _ in range(_MOST_REDIRECTS + 1):
                with Deadline(seconds, self.subject) as deadline:
                    answer = self._send(
                        method, target, dict(headers or {}), body, take, begin, _limit(most), deadline
                    )
                if answer.status not in {301, 302, 307, 308}:
                    return self._judged(answer, accept)
                target = self._follow(target, answer)
            raise elsewhere(self.subject)

        return with_retries(once, subject=self.subject, attempts=attempts, on_event=self._on_event)

    def _judged(self, answer: Answer, accept: Collection[int]) -> Answer:
        if answer.status < 300 or answer.status in accept:
            return answer
        if answer.status in BUSY:
            asked = answer.headers.get("retry-after", "")
            pause(min(float(asked), _LONGEST_PAUSE) if asked.isdigit() else 0.0)
        raise error_of(answer.status, self.subject)

    def _follow(self, target: str, answer: Answer) -> str:
        """Where a redirect leads at this very host; raises `UsageError` where it leads elsewhere."""
        there = urlsplit(urljoin(self.origin + target, answer.headers.get("location", "")))
        if f"{there.scheme}://{there.netloc}" != self.origin or there.query or not there.path:
            raise elsewhere(self.subject)
        return quote_from_bytes(unquote_to_bytes(there.path), safe=_SAFE)

    def put(self, path: bytes, pieces: Iterator[Bytes], size: int, headers: Mapping[str, str]) -> Answer:
        """PUT what comes in pieces, `size` bytes in all, once: what was taken from `pieces` is gone.

        An error of `pieces` is raised, and the server is left with an upload that broke off.
        """
        connection = self._connect()
        try:
            # The server's clock begins when it has everything; before that a slow line is all that can be waited for.
            with _told(self.subject):
                connection.putrequest("PUT", self.target(path), skip_accept_encoding=True)
                for name, value in {**self._login, **headers, "Content-Length": str(size)}.items():
                    connection.putheader(name, value)
                connection.endheaders()
            for piece in pieces:
                try:
                    connection.send(piece)
                except (BrokenPipeError, ConnectionResetError):
                    break  # it may have said why
                except OSError:
                    raise unreachable(self.subject) from None
            with Deadline(_ANSWER_SECONDS, self.subject) as deadline, _told(self.subject):
                deadline.watch(connection)
                answer, _ = self._receive(connection, None, None)
        finally:
            connection.close()
        if answer.status >= 300:
            raise error_of(answer.status, self.subject)
        return answer

    def _send(
        self,
        method: str,
        target: str,
        headers: dict[str, str],
        body: Bytes,
        take: Take | None,
        begin: Callable[[Answer], None] | None,
        most: int,
        deadline: Deadline,
    ) -> Answer:
        if method != "GET" or body:
            headers["Content-Length"] = str(len(body))
        while True:
            connection, used = self._take_connection()
            deadline.watch(connection)
            try:
                with _told(self.subject):
                    connection.putrequest(method, target, skip_accept_encoding=True)
                    for name, value in {**self._login, **headers}.items():
                        connection.putheader(name, value)
                    connection.endheaders(bytes(body) if len(body) <= _PIECE else None)
                    if len(body) > _PIECE:
                        connection.send(body)
                    answer, keep = self._receive(connection, take, begin, most)
            except BaseException as problem:
                connection.close()
                # A connection that was kept may have ended meanwhile: that says nothing of the server.
                if (
                    used
                    and not deadline.is_over
                    and isinstance(problem, TryLaterError)
                    and problem.code == "unreachable"
                ):
                    continue
                raise
            if keep:
                self._idle.put(connection)
            else:
                connection.close()
            return answer

    def _receive(
        self,
        connection: http.client.HTTPConnection,
        take: Take | None,
        begin: Callable[[Answer], None] | None,
        most: int = 0,
    ) -> tuple[Answer, bool]:
        """The answer, read to its end, and whether the connection can be used again."""
        watch_current(connection)
        found = connection.getresponse()
        try:
            return self._take_answer(found, connection, take, begin, most)
        except BaseException:
            found.close()  # a connection that is closed leaves it open
            raise

    def _take_answer(
        self,
        found: http.client.HTTPResponse,
        connection: http.client.HTTPConnection,
        take: Take | None,
        begin: Callable[[Answer], None] | None,
        most: int,
    ) -> tuple[Answer, bool]:
        lowered = {name.lower(): value for name, value in found.getheaders()}
        if found.status >= 300:
            body = found.read(MOST_ERROR)
            if len(body) == MOST_ERROR:  # what else it says of an error is not read
                found.close()
                return Answer(found.status, lowered, body), False
            _check_length(found, len(body), lowered, connection)
            return Answer(found.status, lowered, body), not found.will_close
        if take is None:
            body = read_at_most(found.read, _MOST_BODY, self.subject)
            _check_length(found, len(body), lowered, connection)
            return Answer(found.status, lowered, body), not found.will_close
        answer = Answer(found.status, lowered, b"")
        if begin is not None:
            begin(answer)
        count = 0
        while piece := found.read(_PIECE):
            count += len(piece)
            if count > most:
                raise too_long(self.subject, most)
            take(piece)
        _check_length(found, count, lowered, connection)
        return answer, not found.will_close

    def _take_connection(self) -> tuple[http.client.HTTPConnection, bool]:
        try:
            return self._idle.get_nowait(), True
        except queue.Empty:
            return self._connect(), False

    def _connect(self) -> http.client.HTTPConnection:
        if self._context is not None:
            return http.client.HTTPSConnection(
                self._host, self._port, timeout=_SECONDS, context=self._context
            )
        return http.client.HTTPConnection(self._host, self._port, timeout=_SECONDS)

    def close(self) -> None:
        """Let go of the connections."""
        while True:
            try:
                self._idle.get_nowait().close()
            except queue.Empty:
                return


def _limit(most: int | None) -> int:
    return _MOST_TAKEN if most is None else most


class _told:  # noqa: N801  # reads as the words it stands for
    """What http.client and ssl raise, as ours; errors of ours pass."""

    def __init__(self, subject: str) -> None:
        self._subject = subject

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, problem: BaseException | None, trace: object) -> None:
        if problem is None or isinstance(problem, HibaliError):
            return
        if isinstance(problem, ssl.SSLCertVerificationError):
            raise bad_certificate(self._subject) from None
        if isinstance(problem, (OSError, http.client.HTTPException)):
            raise unreachable(self._subject) from None


def _check_length(
    found: http.client.HTTPResponse, count: int, headers: Mapping[str, str], connection: Any
) -> None:
    """Raise where an answer broke off: http.client says nothing when it reads piece by piece."""
    told = headers.get("content-length", "")
    bodiless = found.status in {204, 304} or getattr(connection, "_method", "") == "HEAD"
    if told.isdigit() and not bodiless and int(told) != count:
        raise http.client.IncompleteRead(b"")


def _authorization(login: Login) -> str:
    if login.token:
        return f"Bearer {login.token}"
    words = f"{login.name}:{login.password}".encode()
    return "Basic " + base64.b64encode(words).decode("ascii")
