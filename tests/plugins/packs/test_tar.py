"""Test that every tar program reads the tar files, with any names, and skips unreadable members."""

from __future__ import annotations

import io
import os
import tarfile

from hypothesis import given
from hypothesis import strategies as st

from hibali_plugins.packs.format import end_of, filler, header_of, padding
from transfers.model.entry import Entry, Kind

COMPONENTS = st.binary(min_size=1, max_size=130).map(
    lambda name: name.replace(b"/", b"_").replace(b"\0", b"0")
)
PATHS = st.lists(COMPONENTS.filter(lambda name: name not in {b".", b".."}), min_size=1, max_size=4).map(
    b"/".join
)
TIMES = st.integers(-(2**40), 2**62)


def read(content: bytes) -> list[tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(content), errors="surrogateescape") as archive:
        return archive.getmembers()


@given(PATHS, st.sampled_from([Kind.FILE, Kind.FOLDER, Kind.LINK]), TIMES, st.integers(-1, 0o777), COMPONENTS)
def test_a_header_describes_its_entry(path: bytes, kind: Kind, time: int, mode: int, link: bytes) -> None:
    entry = Entry(
        path, kind, 3 if kind is Kind.FILE else 0, time, mode, link=link if kind is Kind.LINK else b""
    )
    content = b"abc" if kind is Kind.FILE else b""
    body = header_of(entry) + content + padding(len(content))
    (member,) = read(body + end_of(len(body)))
    assert os.fsencode(member.name) == path.rstrip(b"/")
    assert (member.isfile(), member.isdir(), member.issym()) == (
        kind is Kind.FILE,
        kind is Kind.FOLDER,
        kind is Kind.LINK,
    )
    assert os.fsencode(member.linkname) == entry.link
    assert abs(member.mtime - time / 1e9) < 1e-3 * max(1.0, abs(time) / 1e15)
    assert mode < 0 or member.mode == mode


@given(st.integers(3, 1000))
def test_unreadable_members_are_skipped_by_tar(blocks: int) -> None:
    entry = Entry(b"after", Kind.FILE, 0, 1, 0o644)
    gap = filler(blocks * 512)
    assert len(gap) == blocks * 512
    body = gap + header_of(entry)
    assert [member.name for member in read(body + end_of(len(body)))] == ["after"]


def test_a_size_beyond_the_octal_field_is_recorded_exactly() -> None:
    header = header_of(Entry(b"x", Kind.FILE, 9 * 1024**3, 1, 0o644))
    with tarfile.open(fileobj=io.BytesIO(header)) as archive:
        member = archive.firstmember
    assert member is not None
    assert member.size == 9 * 1024**3


def test_a_tar_file_is_padded_to_a_whole_record() -> None:
    for size in (0, 512, 9216, 9728, 10240):
        assert (size + len(end_of(size))) % 10240 == 0
        assert len(end_of(size)) >= 1024
