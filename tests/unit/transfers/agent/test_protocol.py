"""Test frames and records: round trips with any bytes, and malformed input."""

import contextlib
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transfers.agent import protocol
from transfers.agent.protocol import Record, RecordError, pack_record, unpack_records


@given(st.binary(max_size=300), st.binary(max_size=300))
def test_frame_round_trip(path: bytes, body: bytes) -> None:
    stream = io.BytesIO()
    protocol.write_frame(stream, protocol.DATA, {"path": protocol.text_of(path)}, body)
    stream.seek(0)
    frame = protocol.read_frame(stream)
    assert frame is not None
    assert (frame.kind, protocol.bytes_of(frame.header["path"]), bytes(frame.body)) == (
        protocol.DATA,
        path,
        body,
    )
    assert protocol.read_frame(stream) is None


@given(st.binary(min_size=1, max_size=60))
def test_noise_raises_only_frame_error(noise: bytes) -> None:
    with contextlib.suppress(protocol.FrameError):
        protocol.read_frame(io.BytesIO(noise))


@pytest.mark.parametrize(
    "head",
    [
        b"?" + b"\0" * 12,
        b"d" + b"\xff" * 12,
        b"d" + b"\0\0\0\1" + b"\0" * 8 + b"{",
        b"d" + b"\0\0\0\2" + b"\0" * 8 + b"[]",
        b"d\0\0",
    ],
    ids=["unknown kind", "huge", "not JSON", "not an object", "cut short"],
)
def test_reject_malformed_frame(head: bytes) -> None:
    with pytest.raises(protocol.FrameError):
        protocol.read_frame(io.BytesIO(head))


numbers = st.integers(0, 2**63 - 1)


@given(
    st.lists(
        st.tuples(st.binary(min_size=1, max_size=50), numbers, st.integers(-(2**62), 2**62)), max_size=20
    )
)
def test_record_round_trip(values: list[tuple[bytes, int, int]]) -> None:
    records = [
        Record(path, b"f", size, mtime, 0o644, 1, 2, 3, 4, b"", 0, 4096) for path, size, mtime in values
    ]
    assert list(unpack_records(b"".join(pack_record(record) for record in records))) == records


@given(st.binary(max_size=200))
def test_packed_noise_is_rejected_or_valid(noise: bytes) -> None:
    with contextlib.suppress(RecordError):
        list(unpack_records(noise))
