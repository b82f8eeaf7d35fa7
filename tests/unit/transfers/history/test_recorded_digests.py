"""Test that recorded digests are used only for unchanged files."""

from __future__ import annotations

from pathlib import Path

import pytest

from transfers.history.recorded_digests import DigestCache
from transfers.model.entry import Entry, Kind

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


def test_digests_of_unchanged_files_are_found() -> None:
    for entry in (FILE, OBJECT):
        keep(entry)
    assert cache().find([FILE]) == cache().find([OBJECT]) == DIGEST
    assert cache(question="another place").find([FILE]) is None
    # a pair of files has another key than a single file
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
def test_a_changed_identity_invalidates_the_digest(change: dict[str, object]) -> None:
    keep(FILE)
    assert cache().find([FILE._replace(**change)]) is None  # type: ignore[arg-type]


def test_both_files_must_be_unchanged() -> None:
    other = FILE._replace(inode=77)
    keep(FILE, other)
    assert cache().find([FILE, other]) == DIGEST
    assert cache().find([FILE, other._replace(ctime_ns=5)]) is None
    assert cache().find([FILE._replace(ctime_ns=5), other]) is None


@pytest.mark.parametrize(
    "bare", [OBJECT._replace(etag=None), FILE._replace(inode=0), FILE._replace(ctime_ns=0)]
)
def test_files_without_an_identity_are_never_cached(bare: Entry) -> None:
    keep(bare)
    assert cache().find([bare]) is None


def test_an_invalid_line_is_ignored_and_the_file_hashed_again(state: Path) -> None:
    keep(FILE)
    (file,) = (state / "digests").glob("*.jsonl")
    file.write_bytes(
        b'{"path":"a"}\n[]\n{"kind":1}\nnull\n{"path":"k","identity":1,"sha256":"short"}\n'
        + file.read_bytes()
        + b'{"path":"torn","ident'
    )
    assert cache().find([FILE]) == DIGEST


def test_the_cache_is_kept_only_on_request_and_belongs_to_its_key() -> None:
    keep(FILE)
    cache(keep=False).close()
    assert cache().find([FILE]) is None
    keep(FILE)
    cache().discard()
    assert cache().empty


def test_outdated_lines_are_compacted(state: Path) -> None:
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
