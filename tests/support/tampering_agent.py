"""Run an agent and change its answers: `tampering_agent.py TAMPERING`.

The relay reads the answers of a real agent frame by frame and changes them. A tampering is a name below,
or `answer:REQUEST:JSON`, which replaces the header of every answer to that request, or
`field:REQUEST:FIELD:JSON`, which replaces one field of it; `data` and `committed` select frames of those kinds.
"""

from __future__ import annotations

import json
import os
import re
import struct
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable, Iterable
from typing import BinaryIO

from transfers.agent import protocol
from transfers.agent.protocol import Frame
from transfers.remote.connection import BOOTSTRAP

Output = Iterable[Frame | bytes]
Tampering = Callable[["TamperingRelay", Frame], Output]

TAMPERINGS: dict[str, Tampering] = {}
HUGE = 1 << 62


class HangUpError(Exception):
    """The tampering closes the connection."""


def tampering(function: Tampering) -> Tampering:
    """Register a tampering by its function's name."""
    TAMPERINGS[function.__name__.replace("_", "-")] = function
    return function


class TamperingRelay:
    """Relay frames between hibali and an unmodified agent, and change some of them."""

    def __init__(self, name: str, agent: subprocess.Popen[bytes]) -> None:
        assert agent.stdin is not None
        assert agent.stdout is not None
        self.name = name
        self.requests: list[str] = []
        self._answered = 0  # the first of these requests have complete answers
        self.sent = 0
        self._to_agent: BinaryIO = agent.stdin
        self._from_agent: BinaryIO = agent.stdout
        self._from_client: BinaryIO = os.fdopen(0, "rb", 0)
        self._to_client: BinaryIO = os.fdopen(1, "wb", 0)

    @property
    def word(self) -> str:
        """The request being answered: the first one without a complete answer, else the last one."""
        return self.requests[min(self._answered, len(self.requests) - 1)] if self.requests else ""

    def open(self) -> None:
        """Forward the agent's program, and read the nonce that it will send."""
        length = self._from_client.read(8)
        packed = b""
        while len(packed) < int(length):
            packed += self._from_client.read(int(length) - len(packed))
        self._to_agent.write(length + packed)
        found = re.search(rb"main\('([0-9a-f]+)', .*\)\s*\Z", zlib.decompress(packed))
        assert found is not None
        nonce = found.group(1)
        seen = b""
        while not seen.endswith(nonce):
            seen += self._from_agent.read(1)
        self._to_client.write(nonce)

    def forward_requests(self) -> None:
        """Forward hibali's messages; runs in a thread."""
        try:
            while (frame := protocol.read_frame(self._from_client)) is not None:
                if frame.kind == protocol.REQUEST:
                    self.requests.append(str(frame.header.get("do")))
                protocol.write_frame(self._to_agent, *frame)
        except (OSError, protocol.FrameError):
            pass
        self._to_agent.close()

    def forward_answers(self) -> None:
        """Forward the agent's messages, changed by the tampering."""
        while (frame := protocol.read_frame(self._from_agent)) is not None:
            for sent in self._changed(frame):
                self.sent += 1
                if isinstance(sent, bytes):
                    self._to_client.write(sent)
                else:
                    protocol.write_frame(self._to_client, *sent)
            # Receiving continues after its first answer, until the next request.
            whole = frame.kind in {protocol.END, protocol.ERROR} or (
                frame.kind == protocol.REPLY and self.word == "start_receiving"
            )
            self._answered += whole and self._answered < len(self.requests)

    def _changed(self, frame: Frame) -> Output:
        kind, _, rest = self.name.partition(":")
        if kind not in {"answer", "field"}:
            return TAMPERINGS[self.name](self, frame)
        word, _, rest = rest.partition(":")
        if frame.kind == protocol.ERROR or word != self._subject(frame):
            return [frame]
        if kind == "answer":
            return [frame._replace(header=json.loads(rest))]
        field, _, value = rest.partition(":")
        return [frame._replace(header={**frame.header, field: json.loads(value)})]

    def _subject(self, frame: Frame) -> str:
        if not self.requests:
            return "greeting"
        return {protocol.DATA: "data", protocol.COMMITTED: "committed"}.get(frame.kind, self.word)

    def listed(self, frame: Frame) -> list[protocol.Record] | None:
        """Return the records of a listing's last message; in these tests a listing is one message."""
        if self.word != "list" or frame.kind != protocol.END:
            return None
        return list(protocol.unpack_records(bytes(frame.body)))


def packed(frame: Frame, found: list[protocol.Record], count: int | None = None) -> Frame:
    body = b"".join(map(protocol.pack_record, found))
    return frame._replace(header={**frame.header, "count": len(found) if count is None else count}, body=body)


def _with_listing(
    change: Callable[[list[protocol.Record]], list[protocol.Record]], *, count: int = 0
) -> Tampering:
    """Return a tampering of a listing; its final count is correct, unless `count` changes it."""

    def tamper(relay: TamperingRelay, frame: Frame) -> Output:
        found = relay.listed(frame)
        if found is None:
            return [frame]
        changed = change(found)
        return [packed(frame, changed, len(changed) + count)]

    return tamper


def _added(path: bytes, kind: bytes = protocol.IS_FILE, **fields: object) -> Tampering:
    def change(found: list[protocol.Record]) -> list[protocol.Record]:
        model = next(record for record in found if record.kind == protocol.IS_FILE)
        one = model._replace(path=path, kind=kind, **fields)  # type: ignore[arg-type]
        return sorted([*found, one], key=lambda r: r.path + (b"/" if r.kind == protocol.IS_FOLDER else b""))

    return _with_listing(change)


TAMPERINGS.update({
    "out-of-order": _with_listing(lambda found: [*found[-1:], *found[:-1]]),
    "backwards": _with_listing(lambda found: found[::-1]),
    "duplicate": _with_listing(lambda found: [*found, found[-1]]),
    "cut-short": _with_listing(lambda found: found[:-1], count=1),
    "all-gone": lambda relay, frame: (
        [frame] if (found := relay.listed(frame)) is None else [packed(frame, [], len(found))]
    ),
    "more-than-counted": _with_listing(lambda found: found, count=-1),
    "climb": _added(b"../outside/evil"),
    "climb-inside": _added(b"a/../../outside/evil"),
    "climb-folder": _added(b"..", protocol.IS_FOLDER),
    "absolute": _added(b"/tmp/hibali-liar-was-here"),
    "nul": _added(b"a\0b"),
    "empty-component": _added(b"a//b"),
    "empty-name": _added(b""),
    "dot": _added(b"./evil"),
    "negative-size": _added(b"negative", size=-1),
})  # fmt: skip


@tampering
def unknown_kind_of_record(relay: TamperingRelay, frame: Frame) -> Output:
    found = relay.listed(frame)
    if found is None:
        return [frame]
    return [packed(frame, [record._replace(kind=b"?") for record in found])]


@tampering
def half_a_record(relay: TamperingRelay, frame: Frame) -> Output:
    if relay.listed(frame) is None:
        return [frame]
    return [frame._replace(body=bytes(frame.body)[:-7])]


@tampering
def no_count(relay: TamperingRelay, frame: Frame) -> Output:
    if relay.listed(frame) is None:
        return [frame]
    return [frame._replace(header={})]


@tampering
def below_a_link(relay: TamperingRelay, frame: Frame) -> Output:
    """List a symlink out of the tree, and a file below it."""
    found = relay.listed(frame)
    if found is None:
        return [frame]
    model = next(record for record in found if record.kind == protocol.IS_FILE)
    outside = os.environ["LIAR_OUTSIDE"].encode()
    link = model._replace(path=b"zz", kind=protocol.IS_LINK, link=outside, size=0)
    return [packed(frame, [*found, link, model._replace(path=b"zz/evil")])]


@tampering
def hang_up_while_listing(relay: TamperingRelay, frame: Frame) -> Output:
    found = relay.listed(frame)
    if found is None:
        return [frame]
    return _then_hang_up([_raw(protocol.REPLY, b"{}", body=10_000) + b"x" * 100])


@tampering
def reply_then_hang_up(relay: TamperingRelay, frame: Frame) -> Output:
    """Send records without the end of the listing."""
    if relay.listed(frame) is None:
        return [frame]
    return _then_hang_up([frame._replace(kind=protocol.REPLY, header={})])


def _then_hang_up(sent: list[Frame | bytes]) -> Output:
    yield from sent
    raise HangUpError


def _instead(request: str, sent: bytes) -> Tampering:
    """Send raw bytes instead of the first answer to a request, and keep the connection open."""

    def tamper(relay: TamperingRelay, frame: Frame) -> Output:
        return [sent] if relay.word == request else [frame]

    return tamper


def _before(request: str, extra: Frame) -> Tampering:
    """Send an unsolicited frame before each answer to a request."""

    def tamper(relay: TamperingRelay, frame: Frame) -> Output:
        return [extra, frame] if relay.word == request else [frame]

    return tamper


def _raw(kind: bytes, header: bytes, length: int | None = None, body: int = 0) -> bytes:
    return struct.pack(">cIQ", kind, len(header) if length is None else length, body) + header


_DEEP = b'{"a":' * 50_000 + b"1" + b"}" * 50_000

for _request in ("list", "lock", "start_receiving"):
    TAMPERINGS.update({
        f"huge-header-at-{_request}": _instead(_request, _raw(protocol.END, b"", (1 << 32) - 1)),
        f"huge-body-at-{_request}": _instead(_request, _raw(protocol.END, b"{}", body=HUGE)),
        f"unknown-frame-at-{_request}": _instead(_request, _raw(b"!", b"{}")),
        f"deep-header-at-{_request}": _instead(_request, _raw(protocol.END, _DEEP)),
        f"no-json-at-{_request}": _instead(_request, _raw(protocol.END, b"\xff\xfe{")),
        f"no-object-at-{_request}": _instead(_request, _raw(protocol.END, b"[1]")),
        f"data-at-{_request}": _before(_request, Frame(protocol.DATA, {"unit": 0, "sizes": []}, b"evil")),
        f"committed-at-{_request}": _before(_request, Frame(protocol.COMMITTED, {"unit": 7, "done": [0, 1]}, b"")),
        f"request-at-{_request}": _before(_request, Frame(protocol.REQUEST, {"do": "put", "path": "/tmp/x"}, b"")),
        f"unit-at-{_request}": _before(_request, Frame(protocol.UNIT, {"unit": 1, "items": []}, b"")),
        f"empty-end-at-{_request}": _before(_request, Frame(protocol.END, {}, b"")),
    })  # fmt: skip


def main(name: str) -> None:
    """Act as the site's python."""
    agent = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", BOOTSTRAP],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
    )
    relay = TamperingRelay(name, agent)
    relay.open()
    threading.Thread(target=relay.forward_requests, daemon=True).start()
    try:
        relay.forward_answers()
    except (HangUpError, OSError, protocol.FrameError):
        agent.kill()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
