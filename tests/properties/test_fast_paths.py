"""Test that shortcuts for frequent cases have the same results as the complete code."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator
from xml.sax.saxutils import escape

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hibali.documents import line_of_json
from hibali.errors import IncompleteError
from hibali.events import Moved
from hibali.text import path_fields
from tests.properties.trees import parents
from tests.support.manifests import read_lines, write_lines
from transfers.agent import listing as agent_listing
from transfers.agent.listing import Pages
from transfers.agent.protocol import (
    END,
    IS_FILE,
    IS_FOLDER,
    IS_LINK,
    IS_SPECIAL,
    Frame,
    Record,
    pack_record,
    pack_records,
    unpack_records,
)
from transfers.history import journal
from transfers.model.entry import Entry, Kind, Verification
from transfers.model.facts import Facts, name_problem, plain_names
from transfers.model.rules import Rules
from transfers.model.store import Side
from transfers.model.units import Problem
from transfers.planning.planner import TransferPlan, plan_transfer
from transfers.stores.agent_listing import AgentListing
from transfers.stores.s3 import listing, requests
from transfers.stores.server.manifest import Known, line_of, record_of

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


ODD_NAMES = st.sampled_from(
    [b"a/b", b"", b'a"b', b"a\\b", b"\x7f", b"a\nb", b"\xff", "é".encode(), b'","size":1,"x":"']
)
TAGS = st.sampled_from([None, "", "ab" * 32, 'quoted "tag"', "\\", "é", "\ud800"])


@given(ODD_NAMES, st.builds(Known, TAGS.map(str), st.integers(), TAGS, st.integers(), st.integers(-1, 0o777)))
def test_a_manifest_line_written_quickly_is_the_line(path: bytes, known: Known) -> None:
    assert line_of(path, known) == line_of_json(record_of(path, known)).encode("ascii") + b"\n"


@given(ODD_NAMES, st.sampled_from(["file", Kind.LINK]), TAGS, TAGS, st.integers(), st.integers(-1, 0o7777))
def test_a_journal_line_written_quickly_is_the_line(
    path: bytes, kind: str, digest: str | None, etag: str | None, number: int, mode: int
) -> None:
    event = Moved(path, kind, number, digest, Verification.DIGEST, number, mode, etag, number)
    fields = {"entry": kind, "size": number, "mtime_ns": number, "mode": mode, "sha256": digest, "etag": etag}
    record = {"kind": "moved", **path_fields(path), **fields, "inode": number, "proof": "digest"}
    assert journal._journal_line(event) == line_of_json(record)


# Names that sort between `a` and `a/`, and names that are not plain.
PAGE_PARTS = st.sampled_from([b"a", b"a-x", b"a.b", b"a0", b"b", b".dot", b"\xff"])
PAGE_PATHS = st.lists(PAGE_PARTS, min_size=1, max_size=3).map(b"/".join)
FOLDER_RECORD = Record(b"", IS_FOLDER, 0, 7, 0o755, 1, 2, 1, 5, b"", 0, 0)
SPOOLS = {"moves", "adjustments", "deletions"}
RECORDS = st.builds(
    Record,
    path=st.just(b""),
    kind=st.sampled_from([IS_FILE, IS_FILE, IS_FILE, IS_LINK, IS_SPECIAL]),
    size=st.sampled_from([0, 3, 8192]),
    mtime_ns=st.sampled_from([1_600_000_000_000_000_001, 2**63 + 1, 2**63 + 2]),
    mode=st.sampled_from([0o644, 0o755]),
    device=st.just(1),
    inode=st.just(2),
    links=st.just(1),
    ctime_ns=st.just(5),
    link=st.just(b""),
    offline=st.sampled_from([0, 0, 0, 1]),
    allocated=st.sampled_from([0, 8192]),
)
RECORDED_TREES = st.dictionaries(PAGE_PATHS, RECORDS, max_size=14)
AGENT = Facts(
    kind="local", read_verification=Verification.DIGEST, write_verification=Verification.DIGEST, holes=True
)


def whole_tree(leaves: dict[bytes, Record], *, hostile: bool = False) -> list[Record]:
    """Return the records of a tree in order; only a hostile agent lists names below a file."""
    found: dict[bytes, Record] = {}
    for path, record in leaves.items():
        above = list(parents(path))
        if not hostile and any(found.get(one, FOLDER_RECORD).kind != IS_FOLDER for one in above):
            continue
        if path in found:
            continue
        found.update((one, FOLDER_RECORD._replace(path=one)) for one in above if one not in found)
        size = record.size if record.kind == IS_FILE else 0
        link = b"to" if record.kind == IS_LINK else b""
        found[path] = record._replace(path=path, size=size, link=link)
    return sorted(found.values(), key=order_of)


def order_of(record: Record) -> bytes:
    return record.path + b"/" if record.kind == IS_FOLDER else record.path


class PagesSide(Side):
    """A side that an agent lists, in small pages or (`whole`) only as entries."""

    def __init__(self, records: list[Record], *, whole: bool) -> None:
        self._records = records
        self.whole = whole

    @property
    def facts(self) -> Facts:
        return AGENT

    @property
    def in_pages(self) -> bool:
        return not self.whole

    def pages(self) -> AgentListing:
        packed = Pages()
        for record in self._records:
            folder = record.path if record.kind == IS_FOLDER else record.path.rpartition(b"/")[0]
            packed.add(folder, [record])
        packed.end()
        header = {"count": len(self._records), "orphans": [], "problems": [], "pages": packed.pages}
        return AgentListing(iter([Frame(END, header, packed.block)]), Trusting(), lambda _: None)  # type: ignore[arg-type]

    def list(self) -> Iterator[Entry]:
        return self.pages()

    def digest(self, entries: Iterable[Entry]) -> Iterator[tuple[Entry, str | None, Problem | None]]:
        raise NotImplementedError


class Trusting:
    """The part of a connection that a listing needs."""

    subject = "there"

    @contextlib.contextmanager
    def understanding(self) -> Iterator[None]:
        yield


def planned(source: list[Record], target: list[Record] | None, rules: Rules, *, whole: bool) -> object:
    """Return everything that a plan has, or the code of the error."""
    sides = [PagesSide(records or [], whole=whole) for records in (source, target)]
    try:
        plan = plan_transfer(*sides, rules, target_exists=target is not None)
    except IncompleteError as problem:
        return problem.code
    with contextlib.closing(plan):
        spools = plan.moves, plan.adjustments, plan.deletions
        counts = [getattr(plan, name) for name in TransferPlan.__slots__ if name not in SPOOLS]
        assert [len(list(spool)) for spool in spools] == [len(spool) for spool in spools]
        return [sorted(spool, key=lambda action: action.entry.order) for spool in spools], counts


FILE_RECORD = FOLDER_RECORD._replace(kind=IS_FILE, size=3, mode=0o644)


# The listing is wrong: the plan is closed before the error.
@example({b"a-x": FILE_RECORD, b"a/b": FILE_RECORD, b"a/b/b": FILE_RECORD}, None, False, Rules())
@given(
    RECORDED_TREES,
    st.none() | RECORDED_TREES,
    st.booleans(),
    st.builds(
        Rules,
        delete=st.booleans(),
        links=st.sampled_from(["keep", "skip"]),
        specials=st.sampled_from(["fail", "skip"]),
        recall=st.booleans(),
        modes=st.sampled_from(["execute", "execute", "keep"]),
    ),
)
def test_a_plan_from_pages_is_the_plan_from_entries(
    source: dict[bytes, Record], target: dict[bytes, Record] | None, similar: bool, rules: Rules
) -> None:
    at_target = None if target is None else whole_tree({**source, **target} if similar else target)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(agent_listing, "_CUT", 1)
        for records in (whole_tree(source), whole_tree(source, hostile=True)):
            quickly = planned(records, at_target, rules, whole=False)
            completely = planned(records, at_target, rules, whole=True)
            if records == whole_tree(source):
                assert quickly == completely
            else:
                assert quickly in (completely, "listing-violation")


@given(st.lists(RECORDS, max_size=4), st.sampled_from([b"", b"x"]))
def test_records_packed_together_are_those_packed_singly(records: list[Record], attributes: bytes) -> None:
    named = [record._replace(path=b"%d" % at, attributes=attributes) for at, record in enumerate(records)]
    assert pack_records(named) == b"".join(map(pack_record, named))
    assert list(unpack_records(pack_records(named))) == named
