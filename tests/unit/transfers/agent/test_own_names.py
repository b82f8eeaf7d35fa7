"""Test partial names: the same seed finds them again, no other one does."""

import hashlib
import hmac

from hypothesis import given
from hypothesis import strategies as st

from transfers.agent import protocol
from transfers.model.facts import is_own_name, is_partial_name

seeds = st.binary(min_size=16, max_size=16)


@given(seeds, seeds, st.binary(min_size=1, max_size=100))
def test_recognize_partial_name_only_by_its_seed(seed: bytes, other: bytes, path: bytes) -> None:
    name = protocol.partial_name(seed, path)
    assert is_partial_name(name)
    assert protocol.has_partial_shape(name)
    assert protocol.is_partial_of(seed, name)
    assert protocol.partial_name(seed, path) == name
    assert seed == other or not protocol.is_partial_of(other, name)


@given(st.binary(min_size=1, max_size=100), st.binary(min_size=1, max_size=100))
def test_partial_names_are_an_hmac_of_the_path(seed: bytes, path: bytes) -> None:
    nonce = hmac.new(seed, b"path:" + path, hashlib.sha256).hexdigest()[:16]
    seal = hmac.new(seed, b"seal:" + nonce.encode(), hashlib.sha256).hexdigest()[:16]
    assert protocol.partial_name(seed, path) == f".hibali-{nonce}{seal}".encode()


def test_similar_name_of_a_user_is_not_a_partial_name() -> None:
    for name in (
        b".hibali-x",
        b".hibali-" + b"0" * 31,
        b".hibali-" + b"G" * 32,
        b".hibali-" + b"0" * 32 + b"\n",
    ):
        assert not is_partial_name(name)
        assert not protocol.has_partial_shape(name)


def test_own_names_match_exactly() -> None:
    assert is_own_name(b"x/.hibali/manifest.jsonl")
    assert is_own_name(b".hibali/lock")
    assert not is_own_name(b".hibali/notes.txt")
    assert not is_own_name(b"my.hibali/lock")
