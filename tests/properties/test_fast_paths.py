"""Test that shortcuts for frequent cases have the same results as the complete code."""

from __future__ import annotations

import json
from xml.sax.saxutils import escape

from hypothesis import given
from hypothesis import strategies as st

from tests.support.manifests import read_lines, write_lines
from transfers.actions import name_problem, plain_names
from transfers.entry import Verification
from transfers.stores.base import Facts
from transfers.stores.s3 import listing, requests
from transfers.stores.s3.manifest import Known

COMPONENTS = st.sampled_from(
    [
        b"a",
        b"-",
        b".",
        b"..",
        b"",
        b"a.b",
        b".hibali",
        b"lock",
        b".hibali-" + b"0" * 32,
        b"\xff",
        "é".encode(),
        b"x" * 99,
        b"y" * 100,
        b"a b",
        b"a\n",
        b"\0",
    ]
)
PATHS = st.lists(COMPONENTS, min_size=1, max_size=9).map(b"/".join)
FACTS = st.builds(
    Facts,
    kind=st.just("x"),
    read_verification=st.just(Verification.SIZE),
    write_verification=st.just(Verification.SIZE),
    name_bytes=st.sampled_from([0, 50, 99, 255]),
    path_bytes=st.sampled_from([0, 100, 800, 4096]),
    utf8_names=st.booleans(),
    refuses=st.sampled_from([(), (b"\\",), (b"-",), (b"a.",)]),
)


@given(PATHS, FACTS)
def test_a_plain_name_can_be_held(path: bytes, facts: Facts) -> None:
    if plain_names(facts)(path):
        assert name_problem(path, facts) is None


KEYS = st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "Z", "S")), min_size=1, max_size=12)
ROWS = st.lists(
    st.tuples(KEYS, st.integers(0, 10**12), st.sampled_from(["", "owner", "checksum"]), st.booleans()),
    max_size=12,
)


def contents(key: str, size: int, more: str, *, amazon: bool) -> str:
    """Return an entry as servers write it: in the order of Amazon or of SeaweedFS, with or without optional elements."""
    elements = [
        f"<ETag>&quot;e{size}&quot;</ETag>",
        f"<Size>{size}</Size>",
        "<LastModified>2026-01-02T03:04:05Z</LastModified>",
    ]
    if amazon:
        elements = [elements[2], elements[0], elements[1]]
    elements.append(
        {"": "", "owner": "<Owner><ID>i</ID></Owner>", "checksum": "<ChecksumType>c</ChecksumType>"}[more]
    )
    return f"<Contents><Key>{escape(key)}</Key>{''.join(elements)}</Contents>"


@given(ROWS)
def test_a_page_split_into_rows_equals_a_parsed_page(rows: list[tuple[str, int, str, bool]]) -> None:
    listed = "".join(contents(key, size, more, amazon=amazon) for key, size, more, amazon in rows)
    body = f'<?xml version="1.0"?>\n<ListBucketResult xmlns="s3"><Name>b</Name>{listed}<KeyCount>1</KeyCount></ListBucketResult>'.encode()
    whole = list(listing._entries(requests.parse(body, "x"), b"", "x", encoded=False))
    cut, rest = requests.cut_rows(body, b"Contents", listing._COLUMNS)
    root = requests.parse(rest, "x")
    found = listing._from_rows(cut, b"", "x", encoded=False)
    found += listing._entries(root, b"", "x", encoded=False)
    assert sorted(found) == sorted(whole)
    assert requests.text(root, "KeyCount") == "1"
    if rows and not rows[0][2] and "&" not in escape(rows[0][0]):
        assert cut, "the usual layout uses the fast path"


LINES = st.dictionaries(
    KEYS.map(str.encode),
    st.builds(
        Known,
        etag=st.text(max_size=5),
        size=st.integers(0, 10**15),
        sha256=st.sampled_from([None, "ab" * 32]),
        mtime_ns=st.integers(-(10**18), 10**18),
        mode=st.integers(-1, 0o777),
    ),
    max_size=8,
)


@given(LINES, st.lists(st.sampled_from([b"{}", b"no json", b'{"key":"a"}', b""]), max_size=3))
def test_a_manifest_read_quickly_is_the_manifest(lines: dict[bytes, Known], odd: list[bytes]) -> None:
    content = write_lines(lines)
    assert read_lines(content) == lines
    assert read_lines(b"\n".join([*odd, content])) == lines
    assert read_lines(content.rstrip(b"\n")) == lines
    spaced = b"".join(json.dumps(json.loads(line)).encode() + b"\n" for line in content.splitlines())
    assert read_lines(spaced) == lines
