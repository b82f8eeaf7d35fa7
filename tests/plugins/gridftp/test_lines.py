"""Test the input of globus-url-copy: lists are correct for every name, and pieces cover each file once."""

from __future__ import annotations

from urllib.parse import unquote_to_bytes

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hibali.errors import AccessError, TryLaterError
from hibali_plugins.gridftp.process import (
    HERE,
    DeclinedError,
    argv,
    choose_parameters,
    distribute_pieces,
    explain,
    fits_list_file,
    is_supported_path,
    least_bytes,
    list_line,
    server_path,
    url_of,
)
from transfers.model.entry import Entry, Kind
from transfers.model.units import Item, Unit

MIB = 1 << 20
URL = "gsiftp://far.test:2811"
names = st.binary(min_size=1, max_size=60).filter(lambda name: not set(name) & {0, 0x2F})
paths = st.lists(names, min_size=1, max_size=4).map(lambda parts: b"/" + b"/".join(parts))


def item(number: int, size: int) -> Item:
    return Item(number, Entry(b"x%d" % number, Kind.FILE, size, 0))


@given(paths, paths, st.integers(0, 1 << 50), st.integers(1, 1 << 40))
def test_list_lines_follow_the_manual(source: bytes, target: bytes, offset: int, length: int) -> None:
    """Test the manual's syntax: URLs in double quotes, separated by spaces; comments begin with #."""
    line = list_line(
        url_of(HERE, source), url_of(URL, target), Unit((item(0, 1),), offset, length, segment=True)
    )
    assert line.isascii()
    assert line.endswith("\n")
    before, first, between, second, rest = line.rstrip("\n").split('"')
    assert (before, between, rest) == ("", " ", f" {offset},{length}")
    assert (unquote_to_bytes(first), unquote_to_bytes(second)) == (
        HERE.encode() + source,
        URL.encode() + target,
    )
    assert not set(first + second) & set(" \t#*?[]")


@given(paths)
def test_no_name_starts_a_new_list_line(path: bytes) -> None:
    supported = is_supported_path(URL, path)
    assert supported == (
        not set(path) & {10, 13} and not path.startswith(b"/~") and fits_list_file(URL, path)
    )
    assert not is_supported_path(URL, b"/" + b"%" * 200)
    assert not is_supported_path(URL, path[1:])


@given(
    st.lists(st.tuples(st.integers(1, 3 << 30), st.floats(0, 0.99)), min_size=1, max_size=6),
    st.floats(0, 2),
    st.integers(1, 64),
)
def test_pieces_cover_the_rest_of_each_file_once(
    files: list[tuple[int, float]], round_trip: float, most: int
) -> None:
    starts = [(item(number, size), int(size * share)) for number, (size, share) in enumerate(files)]
    size = sum(one.entry.size - start for one, start in starts)
    parameters = choose_parameters(size, round_trip, most)
    assert 1 <= parameters.connections <= most
    lanes = distribute_pieces(starts, parameters)
    assert len(lanes) <= parameters.connections
    # one piece of each lane after the other, the pieces are in the order of the files and their offsets
    in_order = [lane[index] for index in range(len(lanes[0])) for lane in lanes if index < len(lane)]
    for one, start in starts:
        pieces = [unit for unit in in_order if unit.items[0].number == one.number]
        ends = [start, *(unit.offset + unit.length for unit in pieces)]
        assert [unit.offset for unit in pieces] == ends[:-1]
        assert ends[-1] == one.entry.size
        assert all(0 < unit.length <= parameters.piece for unit in pieces)


def test_parameters_depend_on_the_round_trip_time() -> None:
    assert (choose_parameters(2 << 30, 0.0005, 4).streams, choose_parameters(2 << 30, 0.0005, 4).buffer) == (
        1,
        0,
    )
    host = choose_parameters(2 << 30, 0.11, 2)
    assert (host.connections, host.streams, host.buffer, host.piece) == (2, 4, 16 * MIB, 64 * MIB)
    assert choose_parameters(5 * MIB, 0.11, 4).connections == 1
    assert least_bytes(0.0005) < 5 * MIB < least_bytes(0.11) < 64 * MIB
    assert argv("/list", host)[-2:] == ["-f", "/list"]
    assert "-tcp-bs" not in argv("/list", choose_parameters(2 << 30, 0.0005, 4))


def test_the_longest_matching_path_is_mapped() -> None:
    paths = {"/": "/all", "/data": "/d/", "/data/big": "/"}
    mapped = [server_path(path, paths) for path in (b"/data/x", b"/data/big/x", b"/database", b"/data")]
    assert mapped == [b"/d/x", b"/x", b"/all/database", b"/d"]
    assert server_path(b"/x", {}) == b"/x"


@pytest.mark.parametrize(
    ("output", "kind", "code"),
    [
        (
            b"globus_credential: The proxy credential: /tmp/\xff\xfe\n  expired 3 minutes ago.",
            AccessError,
            "proxy-expired",
        ),
        (
            b"globus_sysconfig: Could not find a valid proxy certificate file location",
            AccessError,
            "proxy-missing",
        ),
        (b"Could not find a valid trusted CA certificates directory", AccessError, "authority-unknown"),
        (
            b"The expected name for the remote host (host@a) does not match the authenticated name (host@b).",
            AccessError,
            "host-name-differs",
        ),
        (b"530 Login incorrect. : No local mapping", AccessError, "gridftp-denied"),
        (b"globus_xio: System error in connect: Connection refused", TryLaterError, "gridftp-unreachable"),
        (b"globus_libc_getaddrinfo failed.\nName or service not known", TryLaterError, "gridftp-unreachable"),
        # the output of `-st` for a server that does not answer
        (b"globus_ftp_client: the operation was aborted", TryLaterError, "gridftp-unreachable"),
        (
            b"an end-of-file was reached\nglobus_xio: An end of file occurred",
            TryLaterError,
            "gridftp-unreachable",
        ),
    ],
)
def test_errors_have_codes(output: bytes, kind: type, code: str) -> None:
    noise = b"debug: sending command\nUSER :globus-mapping:\n\nerror: "
    problem = explain(noise + output + b"\n", URL)
    assert isinstance(problem, kind)
    assert (problem.code, problem.subject) == (code, URL)  # type: ignore[union-attr]


def test_a_refused_command_is_not_a_lost_connection() -> None:
    output = b"\nerror: the server responded with an error\n500 500-Command failed. : open failed.\n500-No such file\n"
    problem = explain(output, URL)
    assert isinstance(problem, DeclinedError)
    assert "No such file" in str(problem)
