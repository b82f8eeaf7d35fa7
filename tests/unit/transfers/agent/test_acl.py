"""Test access control lists: the kernel's format, and that a change gives nothing to anyone else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transfers.agent import acl
from transfers.agent.acl import GROUP, GROUP_OBJ, MASK, NO_ID, OTHER, USER, USER_OBJ, Acl, Person

BITS = st.integers(0, 7)
IDS = st.integers(1, 5)


@st.composite
def lists(draw: st.DrawFn) -> Acl:
    found = {(tag, NO_ID): draw(BITS) for tag in (USER_OBJ, GROUP_OBJ, OTHER)}
    further = draw(st.dictionaries(st.tuples(st.sampled_from([USER, GROUP]), IDS), BITS, max_size=5))
    return {**found, **further, (MASK, NO_ID): draw(BITS)} if further else found


PEOPLE = st.builds(
    lambda uid, groups: Person((USER, uid), uid, groups),
    IDS | st.just(99),
    st.sets(st.integers(1, 7), max_size=3),
)
KEYS = st.tuples(st.sampled_from([USER, GROUP]), IDS)


def rights(found: Acl, person: Person) -> set[int]:
    """Return what a person may do with a file of uid 50 and gid 6."""
    return {bits for bits in range(1, 8) if acl.may(found, (50, 6), person, bits)}


@given(lists(), KEYS, BITS, PEOPLE)
def test_granting_gives_nothing_to_others_and_exactly_that_to_the_person(
    found: Acl, key: tuple[int, int], bits: int, person: Person
) -> None:
    new = acl.granted(found, key, bits)
    assert new[key] & new[MASK, NO_ID] == bits
    concerned = person.uid == key[1] if key[0] == USER else key[1] in person.groups
    if not concerned:
        assert rights(new, person) == rights(found, person)


@given(lists(), KEYS, BITS)
def test_withdrawing_what_was_granted_restores_the_rights(
    found: Acl, key: tuple[int, int], bits: int
) -> None:
    before = acl.withdrawn(found, key)
    after = acl.withdrawn(acl.granted(before, key, bits), key)
    for uid in range(1, 8):
        for groups in ({1}, {6}, {2, 6}, set()):
            person = Person((USER, uid), uid, groups)
            assert rights(after, person) == rights(before, person)
    assert ((MASK, NO_ID) in after) == any(tag in {USER, GROUP} for tag, _ in after)


@given(lists())
def test_lists_survive_the_format(found: Acl) -> None:
    assert acl.unpack(acl.pack(found)) == found


@given(lists(), KEYS, BITS)
def test_the_kernel_accepts_what_is_granted(found: Acl, key: tuple[int, int], bits: int) -> None:
    path = Path(os.environ["PYTEST_ACL_FILE"])
    new = acl.granted(found, key, bits)
    os.setxattr(path, acl.ACCESS.decode(), acl.pack(new))
    assert acl.read_list(os.fsencode(path), path.stat().st_mode) == new


@pytest.fixture(autouse=True)
def _file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Create a file at a filesystem with lists."""
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("PYTEST_ACL_FILE", str(tmp_path / "file"))


@pytest.mark.parametrize("value", [b"", b"\2\0\0", b"\1\0\0\0", b"\2\0\0\0\1\0\7"])
def test_other_formats_are_refused(value: bytes) -> None:
    with pytest.raises(ValueError, match="access control list"):
        acl.unpack(value)


def test_unknown_people_are_refused() -> None:
    for who in ("user:no-such-account", "group:no-such-group", "robot:x", "user:99999999999999999999"):
        with pytest.raises(acl.RefusedError, match="there is no"):
            acl.find_person(who)
    assert acl.find_person("user:0").uid == 0
    assert acl.find_person("group:0").groups == {0}
    assert acl.find_person("user:4294967").groups == set()


def test_bits_are_set_without_a_list_as_chmod_does(tmp_path: Path) -> None:
    descriptor = os.open(tmp_path / "file", os.O_RDWR)
    try:
        acl.set_bits(descriptor, 0o640)
        assert os.fstat(descriptor).st_mode & 0o777 == 0o640
        acl.set_like(descriptor, os.fsencode(tmp_path / "none"), 0o644, execute=True)
        assert os.fstat(descriptor).st_mode & 0o777 == 0o755
    finally:
        os.close(descriptor)
