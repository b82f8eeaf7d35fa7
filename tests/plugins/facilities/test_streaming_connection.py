"""Test connections to streamers that are hostile, slow or none, as the real one in test_streaming.py is not (RFC 6455)."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import socket
import struct
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from hibali.errors import HibaliError, IncompleteError, TryLaterError
from hibali_plugins.facilities.firecrest import streaming
from hibali_plugins.facilities.firecrest.client import ACTIVE
from hibali_plugins.facilities.firecrest.large import UploadTarget
from hibali_plugins.facilities.firecrest.streaming import StreamedFiles, StreamUpload
from hibali_plugins.facilities.operations import waiting
from hibali_plugins.facilities.operations.waiting import FileJobs

MIB = 1024 * 1024
_MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
CLOSED_1009 = b"\x03\xf1too much\x1b[2J"


class Server:
    """Accepts connections, and sends these bytes after the head `{accept}`; `heard` is what came. It never answers a closing one."""

    def __init__(self, sent: bytes, head: str = "", *, hangs: bool = False) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        upgrade = "HTTP/1.1 101 X\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: {accept}\r\n\r\n"
        self._sent, self._head, self._hangs = sent, head or upgrade, hangs
        self.heard, self.requests = b"", b""
        self.ended = threading.Event()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with self._listening:
            connection, _ = self._listening.accept()
        with connection:
            while b"\r\n\r\n" not in self.requests:
                self.requests += connection.recv(65536)
            key = re.search(rb"Sec-WebSocket-Key: (.*)\r", self.requests).group(1)  # type: ignore[union-attr]
            accept = base64.b64encode(hashlib.sha1(key + _MAGIC, usedforsecurity=False).digest()).decode()
            connection.sendall(self._head.format(accept=accept).encode() + self._sent)
            if self._hangs:
                self.ended.wait(60)
                return
            connection.shutdown(socket.SHUT_WR)
            while piece := connection.recv(65536):
                self.heard += piece
        self.ended.set()


class Client:
    """Stands in for FirecrestClient, with a running job whose streamer is on these ports of this machine."""

    subject = "site"
    addresses = SimpleNamespace(service="http://127.0.0.1", is_local=True)

    def __init__(self, *ports: int, state: str | None = "RUNNING") -> None:
        self._ports, self.state = ports, state
        self.cancelled: list[str] = []
        self.file_jobs = FileJobs(
            self.subject, lambda _: self.state, self.cancel, lambda state: state not in ACTIVE
        )

    def begin_stream(self, action: str, path: bytes) -> tuple[str, str]:
        del action, path
        record = {"ips": ["127.0.0.1"], "ports": [self._ports[0], self._ports[-1]], "secret": "s" * 22}
        return "7", base64.urlsafe_b64encode(json.dumps(record).encode()).decode()

    def job(self, job: str) -> Any:
        del job
        return self.state and SimpleNamespace(state=self.state, exit_code=0)

    def cancel(self, job: str) -> None:
        self.cancelled.append(job)

    def remove(self, path: bytes) -> None:
        """Nothing was written."""


def frame(code: int, content: bytes, *, final: bool = True) -> bytes:
    """Return a frame of a server."""
    size = len(content)
    head = bytes([(0x80 if final else 0) | code])
    if size < 126:
        return head + bytes([size]) + content
    return head + (struct.pack("!BH", 126, size) if size < 65536 else struct.pack("!BQ", 127, size)) + content


def download(client: Client, size: int, length: int | None = None) -> bytes:
    """Return the first bytes of a file."""
    files = StreamedFiles(client, lambda path: (path, b""))  # type: ignore[arg-type]
    try:
        return files.read(b"/f", "tag", size, 0, size if length is None else length)
    finally:
        files.close()


def upload(client: Client, size: int) -> StreamUpload:
    return StreamUpload(client, UploadTarget(b"/f", b"/f.part", size), lambda *_: None)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def no_threads_remain(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(streaming, "_CONNECT_SECONDS", 2.0)
    before = set(threading.enumerate())
    yield
    until = time.monotonic() + 20
    while left := {each for each in set(threading.enumerate()) - before if "recv_events" in each.name}:
        assert time.monotonic() < until, left
        time.sleep(0.01)


def init(size: int) -> bytes:
    return frame(2, json.dumps({"type": "init", "file_size": size}).encode())


def test_a_message_in_fragments_is_joined_and_pings_between_them_are_answered() -> None:
    end = json.dumps({"type": "eof", "sha256_hash": hashlib.sha256(b"abcd").hexdigest()}).encode()
    server = Server(
        init(4)
        + frame(2, b"ab", final=False)
        + frame(9, b"hi")
        + frame(0, b"cd")
        + frame(2, end)
        + frame(8, b"")
    )
    assert download(Client(server.port), 4) == b"abcd"
    assert server.ended.wait(20)
    assert server.heard[:2] == b"\x8a\x82"  # a masked pong
    assert b"Authorization: Bearer " + b"s" * 22 in server.requests
    assert b"permessage-deflate" not in server.requests


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"\x82",
        frame(2, b"abc")[:4],
        b"\x82\x7f" + b"\x7f" + b"\xff" * 7,
        frame(2, b"x" * (7 * MIB)),
        frame(2, b"x" * (4 * MIB), final=False) + frame(0, b"x" * (4 * MIB)),
        frame(2, b"", final=False) + frame(0, b"", final=False) * 10_000,
        b"\x89\x7e\x01\x00" + b"x" * 256,
        b"\x82\x83abcdxyz",
        b"\x83\x01x",
    ],
    ids=["silent", "head", "cut", "huge", "long", "long in pieces", "fragments", "ping", "masked", "opcode"],
)
def test_what_is_cut_too_long_or_no_frame_is_a_lost_connection_and_ends_the_job(sent: bytes) -> None:
    client = Client(Server(init(100) + sent).port)
    with pytest.raises(TryLaterError) as caught:
        download(client, 100)
    assert caught.value.code == "connection-lost"
    assert client.cancelled == ["7"]


def test_the_reason_of_the_streamer_is_shown_without_control_characters() -> None:
    client = Client(Server(init(100) + frame(8, CLOSED_1009)).port)
    with pytest.raises(IncompleteError) as caught:
        download(client, 100)
    assert caught.value.message == "the streamer closed the connection: too much\\x1b[2J"


@pytest.mark.parametrize("sent", [frame(8, CLOSED_1009), frame(2, b"") * 1000], ids=["closed", "messages"])
def test_an_upload_ends_if_the_streamer_hangs(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads nothing, and does not end the connection, also not after it closed it."""
    monkeypatch.setattr(streaming, "_MESSAGE_SECONDS", 0.5)
    server = Server(sent, hangs=True)
    client = Client(server.port)
    began = time.monotonic()
    with pytest.raises(HibaliError) as caught:  # noqa: PT012  # which write fails depends on buffers
        to = upload(client, 100 * MIB)
        for _ in range(20):
            to.write(bytes(5 * MIB))
    assert caught.value.code == ("refused-by-server" if sent[0] == 0x88 else "connection-lost")
    assert client.cancelled == ["7"]
    assert time.monotonic() - began < 30
    server.ended.set()


def test_a_download_ends_if_the_streamer_sends_pings_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(streaming, "_MESSAGE_SECONDS", 0.5)
    server = Server(init(100) + frame(9, b"hi") * 1000, hangs=True)
    with pytest.raises(TryLaterError, match="TimeoutError"):
        download(Client(server.port), 100)
    server.ended.set()


def test_a_message_after_the_end_of_an_upload_is_an_error() -> None:
    server = Server(frame(2, b"x") * 100, hangs=True)
    to = upload(Client(server.port), 1)
    to.write(b"1")
    with pytest.raises(TryLaterError):
        to.commit()
    server.ended.set()


REFUSED = "HTTP/1.1 {status} X\r\nContent-Length: 0\r\n\r\n"


@pytest.mark.parametrize(
    "head",
    [
        REFUSED.replace("{status}", "403"),
        REFUSED.replace("{status}", "200"),
        "HTTP/1.1 101 X\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: odd\r\n\r\n",
        "SSH-2.0-x\r\n",
        " ",
        "HTTP/1.1 101\r\n" + "x" * 100_000,
        "HTTP/1.1 101 X\r\n" + "A: b\r\n" * 100_000,
    ],
    ids=["refused", "page", "accept", "ssh", "nothing", "line", "lines"],
)
def test_another_server_on_the_first_port_is_passed_over(head: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "_LISTENING_SECONDS", 0.1)
    client = Client(Server(b"", head).port)
    with pytest.raises(TryLaterError, match="cannot be reached"):
        upload(client, 1)
    assert client.cancelled == ["7"]


def test_a_redirect_is_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "_LISTENING_SECONDS", 0.1)
    other = Server(b"")
    head = f"HTTP/1.1 302 X\r\nLocation: ws://127.0.0.1:{other.port}/\r\nContent-Length: 0\r\n\r\n"
    with pytest.raises(TryLaterError, match="cannot be reached"):
        upload(Client(Server(b"", head).port), 1)
    assert other.requests == b""


def test_the_secret_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(0)
    with pytest.raises(IncompleteError):
        download(Client(Server(init(100) + frame(8, CLOSED_1009)).port), 100)
    assert "s" * 22 not in caplog.text


def test_the_proxy_of_the_environment_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("all_proxy", "socks5://127.0.0.1:1")
    with pytest.raises(IncompleteError, match="too much"):
        download(Client(Server(init(100) + frame(8, CLOSED_1009)).port), 100)


def test_the_wait_for_a_streamer_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if each of many ports accepts a connection and says nothing."""
    monkeypatch.setattr(streaming, "_LISTENING_SECONDS", 0.5)
    monkeypatch.setattr(streaming, "_CONNECT_SECONDS", 0.2)
    tried: list[int] = []
    real = streaming.connect

    def counted(site: Any, host: str, port: int, *rest: Any) -> Any:
        tried.append(port)
        return real(site, host, listening.getsockname()[1], *rest)

    monkeypatch.setattr(streaming, "connect", counted)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        client = Client(2000, 3000)
        with pytest.raises(TryLaterError, match="cannot be reached"):
            upload(client, 1)
    assert len(tried) <= 4
    assert client.cancelled == ["7"]


@pytest.mark.parametrize(
    ("state", "limit", "message"),
    [
        ("PENDING", "_LONGEST_WAIT", "that streams the file did not start within"),
        (None, "_NOT_LISTED_SECONDS", "that streams the file is not listed"),
        ("FAILED", "", "that streams the file ended as FAILED"),
    ],
    ids=["pending", "unlisted", "failed"],
)
def test_the_wait_in_the_queue_ends(
    state: str | None, limit: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if limit:
        monkeypatch.setattr(waiting, limit, 0.2)
    client = Client(2000, state=state)
    with pytest.raises(TryLaterError, match=message) as caught:
        upload(client, 1)
    assert caught.value.code == "transfer-failed"
    assert client.cancelled == ["7"]


@pytest.mark.parametrize("begin", [upload, download])
def test_a_job_that_waits_in_the_queue_is_cancelled_when_the_client_is_closed(begin: Any) -> None:
    client = Client(2000, state="PENDING")
    problems: list[HibaliError] = []

    def act() -> None:
        with pytest.raises(HibaliError) as caught:
            begin(client, 1)
        problems.append(caught.value)

    other = threading.Thread(target=act)
    other.start()
    while not client.file_jobs._open:
        time.sleep(0.01)
    client.file_jobs.close()
    other.join(10)
    assert [each.code for each in problems] == ["interrupted"]
    assert set(client.cancelled) == {"7"}


def test_a_long_wait_in_the_queue_is_noted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "_SILENT_SECONDS", 0.1)
    monkeypatch.setattr(waiting, "_LONGEST_WAIT", 1.0)
    events: list[Any] = []
    client = Client(2000, state="PENDING")
    client.file_jobs._on_event = events.append
    with pytest.raises(TryLaterError):
        upload(client, 1)
    said = "site: waiting at most 0 h for the service's job 7 that streams the file: PENDING"
    assert [each.message for each in events] == [said]


def test_closing_waits_for_the_answer_that_names_a_job() -> None:
    client, asked, answered = Client(2000), threading.Event(), threading.Event()

    def create() -> str:
        asked.set()
        answered.wait(10)
        return "8"

    creating = threading.Thread(target=client.file_jobs.begin, args=(create,))
    creating.start()
    assert asked.wait(10)
    closing = threading.Thread(target=client.file_jobs.close)
    closing.start()
    closing.join(0.2)
    assert closing.is_alive()
    answered.set()
    closing.join(10)
    assert client.cancelled == ["8"]
    with pytest.raises(TryLaterError, match="interrupted"):
        client.file_jobs.begin(create)
