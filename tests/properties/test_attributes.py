"""Test that packed attributes are unpacked unchanged, and that only `user.*` is ever set (S2)."""

from __future__ import annotations

import os
import tempfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transfers.agent.protocol import RefusedError
from transfers.agent.writing import _pack, read_attributes, set_attributes

NAMES = (
    st.binary(min_size=1, max_size=20)
    .filter(lambda name: b"\0" not in name)
    .map(lambda name: b"user." + name)
)
SETS = st.dictionaries(NAMES, st.binary(max_size=40), max_size=5)


@given(SETS, SETS)
def test_attributes_are_set_as_they_were_read(before: dict[bytes, bytes], after: dict[bytes, bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder, open(f"{folder}/file", "w+b") as file:  # noqa: PTH123
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            for wanted in (before, after):
                set_attributes(file.fileno(), _pack(wanted))
                assert read_attributes(descriptor, b"file") == _pack(wanted)
        finally:
            os.close(descriptor)


@pytest.mark.parametrize(
    "name", [b"security.capability", b"trusted.x", b"system.posix_acl_access", b"user.a\0b"]
)
def test_another_namespace_is_refused(name: bytes) -> None:
    with tempfile.TemporaryFile() as file:
        with pytest.raises(RefusedError):
            set_attributes(file.fileno(), _pack({name: b"x"}))
        assert os.listxattr(file.fileno()) == []


@given(st.binary(min_size=1, max_size=60))
def test_noise_is_refused_and_sets_nothing(noise: bytes) -> None:
    with tempfile.TemporaryFile() as file, pytest.raises(RefusedError):
        set_attributes(file.fileno(), noise)
