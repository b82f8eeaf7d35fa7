"""Test reading and writing manifest lines of sha256sum and BagIt, also invalid ones."""

from __future__ import annotations

import io
import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hibali.errors import HibaliError
from tests.support.trees import HOSTILE_NAMES, make_tree
from transfers.manifest import Manifest, is_bag_name, read_manifest, write_bag_line, write_line
from transfers.model.facts import unsafe_component

DIGEST = "ab" * 32
NAMES = st.binary(min_size=1, max_size=40).filter(lambda name: unsafe_component(name) is None)


def read(text: bytes, *, bag: bool = False) -> Manifest:
    return read_manifest(io.BytesIO(text), "SHA256SUMS", bag=bag)


@given(st.sets(NAMES, min_size=1))
def test_every_name_survives_a_round_trip(names: set[bytes]) -> None:
    for bag, write in ((False, write_line), (True, write_bag_line)):
        usable = {name for name in names if not (bag and name.startswith((b" ", b"\t", b"*")))}
        text = b"".join(write(b"data/" + name, DIGEST) for name in usable) or write(b"data/a", DIGEST)
        assert text.count(b"\n") == max(len(usable), 1)
        read_back = {name.removeprefix(b"data/") for name in read(text, bag=bag).digests}
        assert read_back == (usable or {b"a"})


def test_lines_are_equal_to_those_of_sha256sum(tmp_path: Path) -> None:
    make_tree(tmp_path, {name: name for name in HOSTILE_NAMES})
    names = sorted(HOSTILE_NAMES)
    theirs = subprocess.run(["sha256sum", "--", *names], cwd=tmp_path, check=True, capture_output=True).stdout
    digests = read(theirs).digests
    assert list(digests) == names
    assert b"".join(write_line(name, digests[name]) for name in names) == theirs


@pytest.mark.parametrize(
    ("line", "name"),
    [
        (b"%s *binary", b"binary"),
        (b"%s  ./as find names it", b"as find names it"),
        (b"%s   two spaces", b" two spaces"),
        (b"%s  from another system\r", b"from another system"),
        (b"\\%s  a\\\\b\\nc\\rd", b"a\\b\nc\rd"),
        (b"%s  not\\escaped", b"not\\escaped"),
        (b"# a comment\n\n%s  name", b"name"),
    ],
)
def test_common_forms_of_lines_are_read(line: bytes, name: bytes) -> None:
    assert read(line % DIGEST.encode() + b"\n").digests == {name: DIGEST}
    assert read(line % DIGEST.upper().encode()).digests == {name: DIGEST}


@pytest.mark.parametrize(
    ("line", "name"),
    [
        (b"%s  data/a%%0Ab%%0dc%%25d", b"data/a\nb\rc%d"),
        (b"%s  data/50%% of %%41", b"data/50% of %41"),
        (b"%s  data/%%250A", b"data/%0A"),
        (b"%s\tdata/tab", b"data/tab"),
        (b"%s *data/star", b"data/star"),
        (b"%s data/one space", b"data/one space"),
    ],
)
def test_lines_of_bags_are_read(line: bytes, name: bytes) -> None:
    manifest = read(line % DIGEST.encode() + b"\n", bag=True)
    assert manifest.digests == {name: DIGEST}
    assert manifest.below == b"data/"


def test_the_manifest_of_a_bag_is_recognized_by_its_name() -> None:
    assert is_bag_name("some/bag/manifest-sha256.txt")
    assert is_bag_name("tagmanifest-sha256.txt")
    assert not is_bag_name("manifest-sha256.txt.sums")
    assert not is_bag_name("SHA256SUMS")


@pytest.mark.parametrize(
    ("line", "exit_code", "reason"),
    [
        (b"%s  ../up", 8, "'..'"),
        (b"%s  a/../../up", 8, "'..'"),
        (b"%s  /etc/passwd", 8, "absolute"),
        (b"%s  a//b", 8, "component"),
        (b"%s  .//../b", 8, "'..'"),
        (b"%s  nul\0", 8, "NUL"),
        (b"%s  good", 2, "listed twice"),
        (b"%s  ./good", 2, "listed twice"),
        (b"%sab  longer", 2, "66 digits"),
        (b"d41d8cd98f00b204e9800998ecf8427e  md5", 2, "32 digits"),
        (b"%s", 2, "expected a digest"),
        (b"%s one space", 2, "expected a digest"),
        (b"SHA256 (name) = %s", 2, "expected a digest"),
        (b"\\%s  bad\\escape", 2, "backslash"),
        (b"\\%s  at the end\\", 2, "backslash"),
        (b"%s  " + b"x" * 5000, 2, "5000 bytes"),
        (b"%s  " + b"x" * 100_000, 2, "longer than"),
    ],
)
def test_hostile_lines_are_reported_by_number(line: bytes, exit_code: int, reason: str) -> None:
    good = DIGEST.encode() + b"  good\n"
    if b"%s" in line:
        line %= DIGEST.encode()
    with pytest.raises(HibaliError) as caught:
        read(good + line + b"\n" + DIGEST.encode() + b"  after\n")
    problems = caught.value.problems  # type: ignore[attr-defined]
    assert [found["line"] for found in problems] == [2]
    assert reason in problems[0]["message"]
    assert "line 2: " in caught.value.message
    assert caught.value.exit == exit_code


def test_bad_lines_are_reported_together_up_to_a_limit() -> None:
    with pytest.raises(HibaliError) as caught:
        read(b"nonsense\n" * 3)
    assert [found["line"] for found in caught.value.problems] == [1, 2, 3]  # type: ignore[attr-defined]
    with pytest.raises(HibaliError) as caught:
        read(b"nonsense\n" * 100_000)
    assert len(caught.value.problems) == 20  # type: ignore[attr-defined]


def test_an_empty_manifest_is_refused() -> None:
    for text in (b"", b"\n\n", b"# only words\n"):
        with pytest.raises(HibaliError) as caught:
            read(text)
        assert caught.value.exit == 2


def test_reading_uses_the_memory_of_one_line() -> None:
    class Endless(io.RawIOBase):
        """A file without an end of line, like /dev/zero."""

        served = 0

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
            assert len(buffer) <= 1024 * 1024
            Endless.served += len(buffer)
            if Endless.served > 20_000_000:
                return 0
            buffer[:] = b"x" * len(buffer)
            return len(buffer)

    with pytest.raises(HibaliError) as caught:
        read_manifest(io.BufferedReader(Endless()), "endless")
    assert "longer than" in caught.value.message
    assert os.fspath("endless") in caught.value.subject
