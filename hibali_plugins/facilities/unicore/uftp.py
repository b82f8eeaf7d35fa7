"""Read, write and hash the contents of files over UFTP, in several sessions at a time.

A session is a control connection with the commands of FTP, and one data connection that is kept for many files; each has a login of its own
from the auth server. All commands of a request are sent at once, so a small file or a part of a large one takes few round trips. Neither
connection is encrypted. Sources: UNICORE-EU/uftpd 3.5.3 (lib/Session.py, lib/Protocol.py, lib/FTPHandler.py), UNICORE-EU/uftp 3.3.2
(authserver: AuthServiceImpl.java, messages/AuthRequest.java, messages/AuthResponse.java), read in November 2026.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from hibali.cancellation import in_this_context
from hibali.errors import AccessError, HibaliError, IncompleteError, NotFoundError, TryLaterError
from hibali.events import Listener, Noted
from hibali.http.addresses import connect_to
from hibali.http.client import CONNECT_SECONDS, SILENCE_SECONDS, Bytes, Response
from hibali.http.deadline import PIECE, RESPONSE_SECONDS, request_timeout
from hibali.http.errors import failure_of as failed_connection
from hibali.http.errors import truncated, unreachable
from hibali.http.login import Authorization
from hibali.http.rest import Call, RestClient
from hibali.request_limits import RequestLimit
from hibali.retry import growing_intervals, pause, with_retries
from hibali.subprocesses import remember_secret, without_secrets
from hibali.text import printable
from hibali_plugins.facilities.machine import failure_of, reason_in
from hibali_plugins.facilities.unicore.client import file_of, folder_of
from transfers.stores.server.files import Approve
from transfers.stores.server.reading import changed
from transfers.stores.server.records import Found

SESSIONS = 8  # at most; a server allows 16 for each account by default (MAX_CONNECTIONS)
# a server queues two connections (Server.accept_ftp: listen(2)); of more at a time, some seem to be accepted and are never greeted
_MOST_QUEUED = 2
_MOST_LINE = 8192  # also of a command that the server reads
_MOST_LINES = 100_000  # of one reply: while the server hashes, it sends a line every 30 seconds
_MOST_SHOWN = 300
_SLOWEST_HASH = 1024 * 1024  # bytes a second that a server hashes at least
_LATE_SECONDS = 10  # after the server says that it sent all
_RENAME_SECONDS = 30  # in which the outcome of a rename shows whose reply was lost
_SECRET = re.compile(r"[!-~]{1,256}")
_HOST = re.compile(r"[A-Za-z0-9.:_-]{1,253}")
_REPLY = re.compile(r"([1-5][0-9]{2})([ -]?)(.*)", re.DOTALL)
_PORT = re.compile(r"\(\|\|\|([0-9]{1,5})\|\)")
_PROPERTIES = re.compile(r"^ ([d-])\S* ([0-9]{1,18}) (-?[0-9]{1,18}) ", re.MULTILINE)  # in milliseconds
_MISSING = "does not exist or cannot be accessed"
_HASH = re.compile(r"SHA-256 [0-9]+-[0-9]+ ([0-9a-f]{64})( .*)?", re.DOTALL)
_Result = TypeVar("_Result")


def can_name(path: bytes) -> bool:
    """Return whether the server reads this path as it is: it decodes UTF-8, and removes white space at the end (Connector.read_line), also that of folders for CWD."""
    try:
        text = path.decode()
    except UnicodeDecodeError:
        return False
    return len(path) < _MOST_LINE - 64 and not re.search(r"\s(/|$)|[\r\n\0]", text)


def _absolute(path: bytes) -> str:
    """Return a path for the server, for which others are relative; those below `/` come without it."""
    return "/" + path.decode().lstrip("/")


def _shown(text: str) -> str:
    """Return what a server says, safe to print: it may repeat the secret."""
    return printable(without_secrets(text))[:_MOST_SHOWN]


def _readable(connection: socket.socket, seconds: float) -> bool:
    """Return whether there is something to read within some seconds."""
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


class _Session:
    """One login at one server; for one thread. After an error it cannot be used any more."""

    def __init__(self, control: socket.socket, subject: str) -> None:
        """Wait over a new connection until the server has greeted."""
        self._subject = subject
        self._until = time.monotonic() + CONNECT_SECONDS
        self._received = bytearray()
        self._control = control
        self._data: socket.socket | None = None
        try:
            control.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.version = printable(self._expect(220).partition(",")[0])[:_MOST_SHOWN]
            if not self.version.startswith("UFTPD "):
                raise self._unexpected(f"it is no UFTP server: {self.version}")
        except BaseException:
            self.close()
            raise

    def log_in(self, secret: str) -> None:
        """Log in, and open the data connection."""
        try:
            self._log_in(secret)
        except BaseException:
            self.close()
            raise

    def _log_in(self, secret: str) -> None:
        self._until = time.monotonic() + CONNECT_SECONDS
        self._command(
            "USER anonymous", f"PASS {secret}", "FEAT", "OPTS HASH SHA-256", "KEEP-ALIVE true", "EPSV"
        )
        self._expect(331)
        code, text = self._reply()
        if code != 230:
            raise AccessError(
                "uftp-denied",
                f"the UFTP server rejected the login: {_shown(text)}",
                subject=self._subject,
                hint="It accepts only the address from which the auth server was asked; a proxy or NAT between may have another one.",
            )
        if "SHA-256" not in self._expect(211):
            raise self._unexpected("it cannot compute SHA-256; UFTPD 3.3 or newer can")
        self._expect(200)
        self._expect(200)
        found = _PORT.search(self._expect(229))
        if found is None:
            raise self._unexpected("it names no port for data")
        self._data = socket.create_connection(
            (self._control.getpeername()[0], int(found[1])), CONNECT_SECONDS
        )

    def close(self) -> None:
        """End both connections; another thread that waits for one gets an error."""
        for each in (self._control, self._data):
            if each is not None:
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
                each.close()

    # Contents

    def read(self, path: str, offset: int, length: int) -> tuple[bytes, Found]:
        """Read a part of a file, of which there may be less, and compare it with the digest that the server computes.

        Returns it with the properties of the file, which were the same before and after.
        """
        self._begin(length)
        part = f"RANG {offset} {offset + length}"
        stat = f"STAT F {path}"
        self._command(stat, part, f"RETR {path}", part, f"HASH {path}", stat)
        found = self._properties()
        if found is None:
            raise NotFoundError("vanished", "it does not exist", subject=self._subject)
        self._expect(350)
        self._expect(150)
        content = self._receive(min(length, max(0, found.size - offset)))
        self._expect(226)
        self._expect(350)
        if self._digest() != hashlib.sha256(content).hexdigest():
            raise self._damaged()
        if self._properties() != found:
            raise changed(self._subject)
        return content, found

    def write_to_rename(self, name: str, path: str, content: Bytes) -> tuple[str, Found | None, Found | None]:
        """Write a file under a partial name; return its sha256, and the properties of both names. Then `rename` renames it.

        RNFR is sent before, because each small reply after the first one waits until that has arrived (RFC 896).
        """
        then = (f"STAT F {name}", f"STAT F {path}", f"RNFR {name}")
        digest = self.write(name, 0, content, create=True, then=then)
        found, existing = self._properties(), self._properties()
        self._expect(350)
        return digest, found, existing

    def rename(self, path: str) -> None:
        """Rename the file that was written last."""
        self._begin(0)
        self._command(f"RNTO {path}")
        self._expect(200)

    def stat(self, *paths: str) -> list[Found | None]:
        """Return the properties of files, None for a missing one."""
        self._begin(0)
        self._command(*(f"STAT F {path}" for path in paths))
        return [self._properties() for _ in paths]

    def write(self, path: str, offset: int, content: Bytes, *, create: bool, then: Sequence[str] = ()) -> str:
        """Write a part of a file, and return its sha256, which the server computes: it reports success for a part that was cut off.

        With `create` an empty file that only this account can read is made first. The replies of the commands in `then` come afterwards.
        """
        self._begin(len(content))
        empty: tuple[str, ...] = ()
        early = [350, 150]  # replies that come before all of the content was sent
        if create:
            # the command MFF cannot have a path with spaces, so it gets the last component, which is a partial name
            folder, _, name = path.rpartition("/")
            empty = (
                "RANG 1 0",
                "ALLO 0",
                f"STOR {path}",
                f"CWD {folder or '/'}",
                f"MFF UNIX.mode=600; {name}",
            )
            early = [350, 200, 150, 226, 200, 213, *early]
        part = f"RANG {offset} {offset + len(content)}"
        self._command(*empty, part, f"STOR {path}", part, f"HASH {path}", *then)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # then the server says why
            self._send(memoryview(content), early)
        for code in (*early, 226, 350):
            self._expect(code)
        digest = self._digest()
        if digest != hashlib.sha256(content).hexdigest():
            raise self._damaged()
        return digest

    def digest(self, path: str, size: int, offset: int | None) -> str:
        """Return the sha256 that the server computes of a file of this size, or of so many bytes of it."""
        self._until = time.monotonic() + RESPONSE_SECONDS + size / _SLOWEST_HASH
        self._command("RANG 1 0" if offset is None else f"RANG {offset} {offset + size}", f"HASH {path}")
        self._expect(350)
        return self._digest()

    def _digest(self) -> str:
        found = _HASH.fullmatch(self._expect(213))
        if found is None:
            raise self._unexpected("it has no SHA-256")
        return found[1]

    def _properties(self) -> Found | None:
        """Return what STAT tells of a file, None if it is missing. SIZE fails in UFTPD 3.5.3, and the times of MLST are local ones."""
        code, text = self._reply()
        if code == 500 and _MISSING in text:
            return None
        found = _PROPERTIES.search(self._checked(code, text, 211))
        if found is None:
            raise self._unexpected("it has no size")
        size, seconds = int(found[2]), int(found[3]) // 1000
        return file_of(size, seconds) if found[1] == "-" else folder_of(seconds)

    # Bytes

    def _begin(self, content: int) -> None:
        """Begin the time of a request with this much content."""
        self._until = time.monotonic() + request_timeout(content)

    def _wait(self, connection: socket.socket) -> socket.socket:
        """Return a connection whose next call ends in time."""
        connection.settimeout(max(0.001, min(SILENCE_SECONDS, self._until - time.monotonic())))
        return connection

    def _command(self, *lines: str) -> None:
        self._wait(self._control).sendall("".join(f"{line}\r\n" for line in lines).encode())

    def _receive(self, length: int) -> bytes:
        assert self._data is not None
        content = bytearray(length)
        view = memoryview(content)
        while view:
            if not _readable(self._data, _LATE_SECONDS) and (self._received or _readable(self._control, 0)):
                raise truncated(self._subject)  # all was sent: the file became shorter meanwhile
            count = self._wait(self._data).recv_into(view[:PIECE])
            if not count:
                raise truncated(self._subject)
            view = view[count:]
        return bytes(content)

    def _send(self, content: memoryview, early: list[int]) -> None:
        """Send content, and take the replies that come meanwhile off `early`; another one ends it: the server has ended the part."""
        assert self._data is not None
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(self._data, select.POLLOUT)
        while content:
            ready = [] if b"\n" in self._received else poll.poll(SILENCE_SECONDS * 1000)
            if b"\n" in self._received or any(found == self._control.fileno() for found, _ in ready):
                if not early:
                    return  # its replies say why, or its digest shows that the part was cut off
                self._expect(early.pop(0))
            elif not ready:
                raise TimeoutError
            else:
                content = content[self._wait(self._data).send(content[:PIECE]) :]

    def _line(self) -> str:
        while (end := self._received.find(b"\n")) < 0:
            if len(self._received) > _MOST_LINE:
                raise self._unexpected("a line is too long")
            received = self._wait(self._control).recv(_MOST_LINE)
            if not received:
                raise truncated(self._subject)
            if hasattr(
                socket, "TCP_QUICKACK"
            ):  # the server's next replies wait for the acknowledgement (RFC 896)
                self._control.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
            self._received += received
        line = self._received[:end].decode("utf-8", "replace").rstrip("\r")
        del self._received[: end + 1]
        return line

    def _reply(self) -> tuple[int, str]:
        """Return the code and the text of the next reply; the text of one with several lines has them all (RFC 959, 4.2)."""
        found = _REPLY.fullmatch(self._line())
        if found is None:
            raise self._unexpected("a reply has no code")
        code, more, text = found.groups()
        if more != "-":
            return int(code), text
        lines = [text]
        for _ in range(_MOST_LINES):
            line = self._line()
            if line.startswith(f"{code} "):
                return int(code), line[4:] if code == "213" else "\n".join(lines)
            lines = [*lines[-_MOST_SHOWN:], line]
        raise self._unexpected("a reply does not end")

    def _expect(self, code: int) -> str:
        """Return the text of the next reply. Raise the error that it names if it has another code."""
        return self._checked(*self._reply(), code)

    def _checked(self, found: int, text: str, code: int) -> str:
        if found == code:
            return text
        reason = _shown(text)
        if found < 400:
            raise self._unexpected(f"{found} {reason}")
        known = failure_of(reason, self._subject)
        if known is None and found == 550:
            known = NotFoundError("vanished", "it does not exist", subject=self._subject)
        if known is None and found == 534:
            known = AccessError("denied", "the site denied access", subject=self._subject)
        message = f"the UFTP server refuses the request: {reason} (reply {found})"
        raise known or IncompleteError("refused-by-server", message, subject=self._subject)

    def _damaged(self) -> IncompleteError:
        message = "the server has other data than what was sent or received"
        return IncompleteError("corrupt", message, subject=self._subject, transient=True)

    def _unexpected(self, reason: str) -> TryLaterError:
        return TryLaterError(
            "bad-answer",
            f"the UFTP server's answer is not what its documentation describes: {reason}",
            subject=self._subject,
            hint="Check the setting uftp of the site.",
            transient=False,
        )


def _closed() -> TryLaterError:
    return TryLaterError("unreachable", "the connection was closed", transient=False)


class Uftp:
    """The contents of files at one UFTP server; thread-safe. Paths are absolute, and `can_name` them."""

    def __init__(
        self,
        url: str,
        subject: str,
        login: Authorization | None,
        limit: RequestLimit,
        on_event: Listener,
    ) -> None:
        """`url` is that of a server at the auth server: https://.../rest/auth/NAME."""
        self.subject = subject
        self._on_event = on_event
        self._service = url
        self._auth = RestClient(
            url,
            subject,
            login=login,
            limit=limit,
            judge=self._judge,
            on_event=on_event,
        )
        self._changed = threading.Condition()
        self._sessions: set[_Session] = set()
        self._idle: list[_Session] = []
        self._most = min(SESSIONS, limit.connections or SESSIONS)
        self._count = 0  # sessions, and those that are being opened
        self._noted = self._closed = False
        self._pool = ThreadPoolExecutor(self._most, thread_name_prefix="uftp")
        self._room = threading.BoundedSemaphore(self._most)
        self._greeted = threading.BoundedSemaphore(_MOST_QUEUED)

    def version(self) -> str:
        """Return what the server calls itself."""
        return self._tried(lambda session: session.version)

    def read(self, path: bytes, offset: int, length: int) -> tuple[bytes, Found]:
        """Read up to `length` bytes, fewer only at the end of the file, and the properties of the file."""
        return self._tried(lambda session: session.read(_absolute(path), offset, length))

    def put_renamed(self, name: bytes, path: bytes, content: Bytes, approve: Approve) -> Found:
        """See Files.put_renamed. What fails once RNTO was sent is not tried again: the server may still rename what has the partial name."""
        old, new = _absolute(name), _absolute(path)
        sent: Found | None = None
        try:
            with contextlib.ExitStack() as held:
                session, (digest, found, existing) = self._tried(
                    lambda session: (session, session.write_to_rename(old, new, content)), held
                )
                approve(digest, found, existing)
                assert found is not None  # it was approved
                sent = found
                session.rename(new)
        except TryLaterError:
            if sent is None or not self._was_renamed(old, new, sent):
                raise
        return sent

    def _was_renamed(self, name: str, path: str, found: Found) -> bool:
        """Return whether a file was renamed whose reply was lost; wait a while for it, as the server may be slow."""
        pauses = growing_intervals(0.5, 5.0)
        until = time.monotonic() + _RENAME_SECONDS
        while time.monotonic() < until:
            try:
                if self._tried(lambda session: session.stat(name, path)) == [None, found]:
                    return True
            except TryLaterError as problem:
                if not problem.transient:
                    raise
            pause(pauses.next_pause())
        return False

    def write(self, path: bytes, offset: int, content: Bytes, *, create: bool) -> str:
        """Write a part of a file, and return its sha256; with `create` a new file in an existing folder, whose last component is a partial name."""
        return self._tried(lambda session: session.write(_absolute(path), offset, content, create=create))

    def digest(self, path: bytes, size: int, offset: int | None = None) -> str:
        """Return the sha256 that the server computes of a file of this size, or of so many bytes of it from `offset`."""
        return self._tried(lambda session: session.digest(_absolute(path), size, offset))

    def submit(self, act: Callable[..., None], *arguments: object) -> Future[None]:
        """Call `act`, which writes a part, in another thread, once fewer parts than sessions are under way: all of them are in memory."""
        self._room.acquire()
        try:
            future: Future[None] = self._pool.submit(in_this_context(act), *arguments)
        except RuntimeError:  # the pool was closed
            self._room.release()
            raise _closed() from None
        future.add_done_callback(lambda _: self._room.release())
        return future

    def close(self) -> None:
        """End all sessions, also those in use."""
        with self._changed:
            self._closed = True
            found = list(self._sessions)
            self._changed.notify_all()
        for session in found:
            session.close()
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._auth.close()

    def _tried(self, act: Callable[[_Session], _Result], held: contextlib.ExitStack | None = None) -> _Result:
        """Return the result of `act`, which is tried again after an error; the session is kept until `held` ends."""

        def attempt() -> _Result:
            with contextlib.ExitStack() as opened:
                result = act(opened.enter_context(self._session()))
                if held is not None:
                    held.push(opened.pop_all())
                return result

        return with_retries(attempt, subject=self.subject, on_event=self._on_event)

    @contextlib.contextmanager
    def _session(self) -> Iterator[_Session]:
        """Yield a session that no other thread uses; after an error it ends, and if the connection was lost the idle ones, whose network is the same."""
        session = self._take()
        try:
            yield session
        except BaseException as problem:
            with self._changed:
                ended = [session]
                if isinstance(problem, OSError | TryLaterError):
                    ended += self._idle
                    self._idle.clear()
                self._sessions.difference_update(ended)
                self._count -= len(ended)
                self._changed.notify_all()
            for each in ended:
                each.close()
            if isinstance(problem, OSError):
                raise failed_connection(problem, self.subject) from None
            raise
        with self._changed:
            self._idle.append(session)
            self._changed.notify()

    def _take(self) -> _Session:
        while True:
            with self._changed:
                while not (self._idle or self._closed or self._count < self._most):
                    self._changed.wait()
                if self._closed:
                    raise _closed()
                if self._idle:
                    return self._idle.pop()
                self._count += 1
            session = self._open()
            if session is not None:
                return session

    def _open(self) -> _Session | None:
        """Open a session; return None if that failed and others are open, as many as the server allows, or if it is not needed any more."""
        opened = False
        try:
            session = self._connect()
            with self._changed:
                opened = not self._closed
                if opened:
                    self._sessions.add(session)
                    return session
            session.close()
            return None
        except TryLaterError:
            with self._changed:
                if self._count > 1:
                    self._most = self._count - 1
                    return None
            raise
        finally:
            if not opened:
                with self._changed:
                    self._count -= 1
                    self._changed.notify_all()

    def _judge(self, _: Call, response: Response) -> HibaliError | None:
        """Return the error of a refusal of the auth server; of a failure there is no better one than that of its status."""
        if response.status in {401, 429} or not 400 <= response.status < 500:
            return None
        return self._denied(reason_in(response, "errorMessage") or f"status {response.status}")

    def _denied(self, reason: str) -> AccessError:
        message = f"the auth server refuses UFTP: {reason}"
        return AccessError(
            "uftp-denied", message, subject=self.subject, hint="Check the setting uftp of the site."
        )

    def _connect(self) -> _Session:
        record = self._auth.ask_record(Call.with_json("POST", "", {"serverPath": "", "streamCount": 1}))
        host, port, secret = (record.get(each) for each in ("serverHost", "serverPort", "secret"))
        if record.get("success") is False:
            raise self._denied(printable(str(record.get("reason")))[:_MOST_SHOWN])
        if not (
            isinstance(host, str)
            and _HOST.fullmatch(host)
            and isinstance(secret, str)
            and _SECRET.fullmatch(secret)
        ):
            raise self._auth.bad_answer("it has no host and secret")
        if not isinstance(port, int) or not 0 < port < 65536:
            raise self._auth.bad_answer("it has no port")
        remember_secret(secret)
        if not self._noted:
            self._noted = True
            self._on_event(Noted(f"{self.subject}: contents of files are sent by UFTP, without encryption."))
        try:
            with self._greeted:
                control = connect_to(host, port, CONNECT_SECONDS, self.subject, service=self._service)
                session = _Session(control, self.subject)
            session.log_in(secret)
            return session
        except UnicodeError:  # a name that cannot be looked up
            raise self._auth.bad_answer("it has no host and secret") from None
        except OSError as problem:
            reason = f"{host}:{port}: {failed_connection(problem, '').message}"
            raise unreachable(self.subject, reason, address="setting uftp, the firewall") from None
