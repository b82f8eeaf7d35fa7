"""Digests on record, believed only while nothing about the file changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from transfers.entry import Entry, Kind
from transfers.recorded_digests import DigestCache

DIGEST = "ab" * 32
FILE = Entry(b"new\nline \xff", Kind.FILE, 5, 1, 0o644, 2, 3, 1, 4)
OBJECT = Entry(b"key", Kind.FILE, 5, 1, etag="tag")


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HIBALI_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


def cache(*, keep: bool = True, question: str = "place") -> DigestCache:
    return DigestCache("digests", question, keep=keep)


def keep(*entries: Entry) -> None:
    one = cache()
    one.add(entries, DIGEST)
    one.close()


def test_what_is_unchanged_is_found_again() -> None:
    for entry in (FILE, OBJECT):
        keep(entry)
    assert cache().find([FILE]) == cache().find([OBJECT]) == DIGEST
    assert cache(question="another place").find([FILE]) is None
    # two files of one name are another question than one
    assert cache().find([FILE, FILE]) is None


@pytest.mark.parametrize(
    "change",
    [
        {"size": 6},
        {"mtime_ns": 9},
        {"ctime_ns": 9},
        {"device": 9},
        {"inode": 9},
        {"etag": "x"},
        {"path": b"x"},
    ],
)
def test_any_change_of_identity_means_hashing(change: dict[str, object]) -> None:
    keep(FILE)
    assert cache().find([FILE._replace(**change)]) is None  # type: ignore[arg-type]


def test_both_of_two_files_have_to_be_unchanged() -> None:
    other = FILE._replace(inode=77)
    keep(FILE, other)
    assert cache().find([FILE, other]) == DIGEST
    assert cache().find([FILE, other._replace(ctime_ns=5)]) is None
    assert cache().find([FILE._replace(ctime_ns=5), other]) is None


@pytest.mark.parametrize(
    "bare", [OBJECT._replace(etag=None), FILE._replace(inode=0), FILE._replace(ctime_ns=0)]
)
def test_a_store_that_tells_too_little_is_never_believed(bare: Entry) -> None:
    keep(bare)
    assert cache().find([bare]) is None


def test_a_torn_or_foreign_line_costs_a_hashing_and_no_more(state: Path) -> None:
    keep(FILE)
    (file,) = (state / "digests").glob("*.jsonl")
    file.write_bytes(
        b'{"path":"a"}\n[]\n{"kind":1}\nnull\n{"path":"k","identity":1,"sha256":"short"}\n'
        + file.read_bytes()
        + b'{"path":"torn","ident'
    )
    assert cache().find([FILE]) == DIGEST


def test_it_begins_anew_unless_kept_and_ends_with_the_question() -> None:
    keep(FILE)
    cache(keep=False).close()
    assert cache().find([FILE]) is None
    keep(FILE)
    cache().discard()
    assert cache().empty


def test_what_was_overtaken_is_left_out_one_day(state: Path) -> None:
    one = cache()
    one.begin({"seed": 7})
    for number in range(10_100):
        one.add([FILE._replace(inode=number + 1)], DIGEST)
    one.close()
    (file,) = (state / "digests").glob("*.jsonl")
    again = cache()
    assert again.header["seed"] == 7
    assert again.find([FILE._replace(inode=10_100)]) == DIGEST
    assert file.read_bytes().count(b"\n") == 2
