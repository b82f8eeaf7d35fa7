"""Test that SFTP replies that violate the protocol are refused (S3), with a program that plays the server."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hibali.errors import HibaliError, IncompleteError, TryLaterError
from transfers.stores.sftp.channel import Channel
from transfers.stores.sftp.client import Client
from transfers.stores.sftp.opening import facts_of
from transfers.stores.sftp.paths import SafePaths
from transfers.stores.sftp.store import SftpStore

# FAULT, NAMES and VERSION are replaced by each test.
_SERVER = """
import os, struct, sys, time
def exactly(count):
    found = b""
    while len(found) < count:
        part = os.read(0, count - len(found))
        if not part: sys.exit(0)
        found += part
    return found
def read_packet():
    length = struct.unpack(">I", exactly(4))[0]
    return exactly(length)
def text(value): return struct.pack(">I", len(value)) + value
def reply(kind, identifier, content=b""):
    os.write(1, struct.pack(">IBI", len(content) + 5, kind, identifier) + content)
ATTRS = lambda mode, size=0: struct.pack(">IQII", 0x5, size, mode, 0)[:16]
def names(*given): return struct.pack(">I", len(given)) + b"".join(text(n) + text(b"") + ATTRS(m, s) for n, m, s in given)
FOLDER, FILE = 0o40755, 0o100644
read_packet()
os.write(1, struct.pack(">IBI", 5, 2, VERSION))
listed = False
while True:
    packet = read_packet()
    kind, identifier = packet[0], struct.unpack(">I", packet[1:5])[0]
    FAULT
    if kind in (7, 17): reply(105, identifier, ATTRS(FOLDER))
    elif kind == 16: reply(104, identifier, names((b"/", FOLDER, 0)))
    elif kind == 11: reply(102, identifier, text(b"h"))
    elif kind == 12 and not listed:
        listed = True
        reply(104, identifier, names(*NAMES))
    elif kind == 12: reply(101, identifier, struct.pack(">I", 1) + text(b"") + text(b""))
    else: reply(101, identifier, struct.pack(">I", 0) + text(b"") + text(b""))
"""

Play = Callable[..., SftpStore]


@pytest.fixture
def play(tmp_path: Path) -> Play:
    """Return a function that starts a store over a server with these names, which runs `fault` for each request."""

    def start(names: str = "()", fault: str = "pass", version: int = 3, stall: float = 0.0) -> SftpStore:
        script = tmp_path / "server.py"
        script.write_text(
            _SERVER.replace("VERSION", str(version)).replace("NAMES", names).replace("FAULT", fault)
        )
        client = Client(Channel([sys.executable, str(script)], "there", stall=stall))
        return SftpStore(client, b"/root", facts_of(read_back=True), read_back=True)

    return start


def test_a_valid_listing_is_read(play: Play) -> None:
    store = play('((b"b", FILE, 3), (b".", FOLDER, 0), (b"a", FILE, 1))')
    assert [(entry.path, entry.size) for entry in store.list()] == [(b"a", 1), (b"b", 3)]
    store.close()


@pytest.mark.parametrize("name", ['b"../x"', 'b"a/b"', 'b""', 'b"a\\0"', 'b"/etc"'])
def test_an_invalid_name_ends_the_listing(play: Play, name: str) -> None:
    store = play(f"(({name}, FILE, 1),)")
    with pytest.raises(IncompleteError) as caught:
        list(store.list())
    assert caught.value.code == "listing-violation"
    store.close()


def test_a_repeated_name_ends_the_listing(play: Play) -> None:
    store = play('((b"a", FILE, 1), (b"a", FILE, 2))')
    with pytest.raises(IncompleteError):
        list(store.list())
    store.close()


INVALID_REPLIES = {
    "too long": 'os.write(1, b"\\xff\\xff\\xff\\xff")',
    "empty": 'os.write(1, b"\\0\\0\\0\\0")',
    "reply to no request": "identifier += 1000",
    "another kind": "kind == 17 and reply(103, identifier, text(b'x')); kind = 0 if kind == 17 else kind",
    "cut off": "os.write(1, b'\\0\\0\\0\\x50\\x69'); sys.exit(0)",
    "silence": "sys.exit(0)",
    "attributes end early": "kind == 17 and reply(105, identifier, b'\\0\\0\\0\\x0f'); kind = 0 if kind == 17 else kind",
}


@pytest.mark.parametrize("fault", INVALID_REPLIES)
def test_an_invalid_reply_is_a_protocol_error(play: Play, fault: str) -> None:
    store = play(fault=INVALID_REPLIES[fault])
    with pytest.raises(HibaliError) as caught:
        list(store.list())
    assert caught.value.code in {"protocol", "connection-lost"}
    store.close()


def test_a_server_that_does_not_answer_a_request_is_ended(play: Play) -> None:
    store = play(fault="time.sleep(1000 if kind == 11 else 0.2)", stall=1.0)
    store.stat()
    with pytest.raises(TryLaterError, match="no progress for 1 s") as caught:
        list(store.list())
    assert (caught.value.code, caught.value.subject) == ("stalled", "there")
    store.close()


def test_another_version_is_refused(play: Play) -> None:
    with pytest.raises(IncompleteError):
        play(version=6)


def test_a_program_that_is_no_sftp_server_is_refused(tmp_path: Path) -> None:
    for argv, error in (
        (["echo", "This account can only run transfers"], IncompleteError),
        (["true"], TryLaterError),
    ):
        with pytest.raises(error):
            Channel(argv, "there")
    assert list(tmp_path.iterdir()) == []


def test_unsafe_names_are_never_sent_to_the_server(play: Play) -> None:
    store = play(fault="assert b'..' not in packet")
    safe_paths = SafePaths(store._client, b"/root")
    for path in (b"../x", b"a/../../x", b"/x", b"", b"a\0b", b"a//b"):
        assert safe_paths.parents([path], make=True)[path].code == "unsafe-name"
    assert safe_paths.parents([b"a/b"]) == {}
    store.close()
