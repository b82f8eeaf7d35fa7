"""Run a UFTP server, a test double of its auth server, and a relay that counts, damages and cuts its connections.

The auth server is a Java program that does not run here. This double has its one request of transfers, written from its source (UNICORE-EU/uftp
5240277, 2026: authserver/AuthServiceImpl.java, TransferRequest.java, core/UFTPSessionRequest.java), and sends the same request to the command
port of uftpd: a real one where HIBALI_UFTPD names its source, otherwise the double in uftpd.py. Driven by the unmodified pyuftp 1.1.1 as well
(test_pyuftp.py).

| request | the auth server and uftpd as their sources say | the doubles |
|---|---|---|
| POST rest/auth/NAME | 401 without a known user, 404 for another name, 500 with errorMessage where uftpd refuses; serverHost, serverPort, secret | the same |
| the request to uftpd | TLS with a certificate of the auth server, in production | without TLS, which uftpd allows |
| control connection | login by the secret, once unless persistent, from the address of the client | the same |
| sessions of an account | at most MAX_CONNECTIONS (16), counted by uftpd | counted by the auth server |
| several streams of one session, encryption, compression, listings on data connections | NOOP, AES and Blowfish, gzip, LIST, MLSD | one stream; refused or not there: hibali does not use them |
"""

from __future__ import annotations

import contextlib
import getpass
import os
import random
import re
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.services.processes import answers, end_all, free_port, start, wait_until
from tests.services.rest import RefusalError, Reply, Request, RestDouble, Route
from tests.support.shared_dict import SharedCounter

SOURCE = os.environ.get("HIBALI_UFTPD", "")
# the server refuses to serve root, and to be started without the right to become another user
_REAL = """
import runpy, sys
sys.path.insert(0, sys.argv[1])
import BecomeUser
BecomeUser.become_user = lambda *_: True
runpy.run_path(sys.argv[1] + "/UFTPD.py", run_name="__main__")
"""
_PIECE = 64 * 1024


def start_uftpd(
    session: Path, folder: Path, home: Path, *, address: str = "127.0.0.1", around: Sequence[str] = ()
) -> tuple[int, int, int]:
    """Start a server whose account has this home folder; return its pid, its command port and its port."""
    commands, port = free_port(), free_port()
    environment = {
        "CMD_HOST": address,
        "CMD_PORT": str(commands),
        "SERVER_HOST": address,
        "SERVER_PORT": str(port),
        "DISABLE_IPv6": "true",
        "LOG_SYSLOG": "false",
        "HOME": str(home),
    }
    program = ["-c", _REAL, f"{SOURCE}/lib"] if SOURCE else [str(Path(__file__).with_name("uftpd.py"))]
    log = folder / "uftpd.log"
    pid = start(session, [*around, sys.executable, *program], log, environment)
    # only the port that is opened last: uftpd reads on for ever from a connection to its command port that ends without a request
    wait_until(lambda: answers(port, address), pid, log)
    return pid, commands, port


class AuthServer(RestDouble):
    """The double.

    Attributes:
        address: Where clients connect to: that of uftpd, or of a relay.
        client: The address from which clients come.
        issued: The secrets.
        sessions: How many sessions an account may have.
        secret: Changes the secret that clients are told.
    """

    prefix = "/AUTH/rest/auth"

    def __init__(self, commands: int, address: tuple[str, int], *, host: str = "127.0.0.1") -> None:
        self.address = address
        self.client = "127.0.0.1"
        self.issued: list[str] = []
        self.sessions = 16
        self.open: Callable[[], int] = lambda: 0
        self.secret: Callable[[str], str] = lambda secret: secret
        self._commands = (host, commands)
        super().__init__()

    def routes(self) -> list[tuple[str, str, Route]]:
        return [("POST", "/([A-Za-z]+)", self._authenticate)]

    def error(self, status: int, message: str) -> dict[str, object]:
        return {"status": status, "errorMessage": message}

    def _authenticate(self, request: Request, found: re.Match[str]) -> Reply:
        wanted = request.json()
        if found[1] != "JUDAC":
            raise RefusalError(404, f"No such server: '{found[1]}', please check your URL")
        if wanted.get("serverPath") is None:
            raise RefusalError(500, "NullPointerException")
        secret = "".join(random.choices("abcdefghijklmnopqrstuvwxyz", k=20))  # noqa: S311  # as the server does
        base = wanted["serverPath"]
        answer = self._ask(
            {
                "request-type": "uftp-transfer-request",
                "client-ip": wanted.get("client") or self.client,
                "user": getpass.getuser(),
                "secret": secret,
                "persistent": str(wanted.get("persistent", "false")).lower(),
                "file": f"{base}/" if base and not base.endswith("/") else base,
                "streams": str(wanted.get("streamCount", 1)),
            }
        )
        if self.open() >= self.sessions:
            answer = "ERROR::Too many active sessions"
        if not answer.startswith("OK::"):
            raise RefusalError(500, f"UFTPD server '{found[1]}': <{answer.strip()}>", expected=True)
        self.issued.append(secret)
        told = {"serverHost": self.address[0], "serverPort": self.address[1], "secret": self.secret(secret)}
        return Reply(200, {"success": True, "reason": "", **told})

    def _ask(self, fields: dict[str, str]) -> str:
        with socket.create_connection(self._commands, 20) as connection:
            connection.sendall(
                "".join(f"{key}={value}\n" for key, value in fields.items()).encode() + b"END\n"
            )
            return connection.makefile("r").read()


class Relay:
    """A second address of a server, on loopback, which also passes on the data connections of its sessions.

    Attributes:
        bytes: How many bytes of data went `up` and `down`.
        lines: What clients and server said in control connections.
        open: How many control connections are open.
        damage: Changes data; gets the direction and the data.
        ask: Changes what the client says.
        answer: Changes a line of the server.
    """

    def __init__(self, target: tuple[str, int], *, plain: bool = False) -> None:
        """Listen; with `plain` a connection is passed on as it is, whatever its protocol."""
        self._target = target
        self.bytes = SharedCounter()
        self.lines: list[bytes] = []
        self.open = 0
        self.damage: Callable[[str, bytes], bytes] = lambda _, content: content
        self.ask: Callable[[bytes], bytes] = lambda lines: lines
        self.answer: Callable[[bytes], bytes] = lambda line: line
        self._sockets: list[socket.socket] = []
        self.address = self._listen(target, self._pass_data if plain else self._pass_control)

    def _listen(
        self,
        target: tuple[str, int],
        serve: Callable[[socket.socket, socket.socket], None],
        *,
        once: bool = False,
    ) -> tuple[str, int]:
        server = socket.create_server(("127.0.0.1", 0))
        self._sockets.append(server)

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    client, _ = server.accept()
                    self._sockets.append(client)
                    threading.Thread(target=self._serve, args=(client, target, serve), daemon=True).start()
                    if once:
                        return

        threading.Thread(target=accept, daemon=True).start()
        return "127.0.0.1", server.getsockname()[1]

    def _serve(
        self,
        client: socket.socket,
        target: tuple[str, int],
        serve: Callable[[socket.socket, socket.socket], None],
    ) -> None:
        with contextlib.suppress(OSError), client, socket.create_connection(target) as server:
            self._sockets.append(server)
            serve(client, server)

    def _pass_control(self, client: socket.socket, server: socket.socket) -> None:
        self.open += 1
        try:
            self._both(client, server, self._pass_commands, self._pass_replies)
        finally:
            self.open -= 1

    def _pass_data(self, client: socket.socket, server: socket.socket) -> None:
        up = lambda source, target: self._pass_bytes(source, target, "up")  # noqa: E731
        down = lambda source, target: self._pass_bytes(source, target, "down")  # noqa: E731
        self._both(client, server, up, down)

    @staticmethod
    def _both(
        client: socket.socket,
        server: socket.socket,
        up: Callable[[socket.socket, socket.socket], None],
        down: Callable[[socket.socket, socket.socket], None],
    ) -> None:
        def pass_on(act: Callable[..., None], source: socket.socket, target: socket.socket) -> None:
            with contextlib.suppress(OSError):
                act(source, target)
            for each in (source, target):
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

        thread = threading.Thread(target=pass_on, args=(up, client, server), daemon=True)
        thread.start()
        pass_on(down, server, client)
        thread.join()

    def _pass_commands(self, source: socket.socket, target: socket.socket) -> None:
        while received := source.recv(_PIECE):
            self.lines.append(received)
            target.sendall(self.ask(received))

    def _pass_replies(self, source: socket.socket, target: socket.socket) -> None:
        for line in source.makefile("rb"):
            self.lines.append(line)
            found = re.search(rb"^229 .*\(\|\|\|([0-9]+)\|\)", line)
            if found:
                _, port = self._listen((self._target[0], int(found[1])), self._pass_data, once=True)
                target.sendall(self.answer(b"229 Entering Extended Passive Mode (|||%d|)\n" % port))
            else:
                target.sendall(self.answer(line))

    def _pass_bytes(self, source: socket.socket, target: socket.socket, direction: str) -> None:
        while received := source.recv(_PIECE):
            self.bytes.add(direction, len(received))
            target.sendall(self.damage(direction, received))

    def cut(self) -> None:
        """End all connections, and accept no more."""
        sockets, self._sockets = self._sockets, []
        for each in sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


class UftpSite:
    """A server for the files of a double of UNICORE/X, behind a relay, and its auth server."""

    def __init__(self, folder: Path, unicore: Any) -> None:
        folder.mkdir()
        self._folder = folder
        _, commands, port = start_uftpd(folder, folder, unicore.home)
        self.server = ("127.0.0.1", port)
        self.relay = Relay(self.server)
        self.auth = AuthServer(commands, self.relay.address)
        self.auth.accepts = unicore.accepts
        self.auth.open = lambda: self.relay.open
        self.url = f"{self.auth.url}/JUDAC"
        self.setting = f'uftp = "{self.url}"\n'

    def close(self) -> None:
        """End the servers."""
        self.relay.cut()
        self.auth.close()
        end_all(self._folder)
