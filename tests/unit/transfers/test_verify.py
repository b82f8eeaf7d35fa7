"""Test drawing a sample with a seed."""

import pytest

from hibali.errors import UsageError
from transfers.verify import choose, read_share

NAMES = [b"%06d" % number for number in range(2000)]


def drawn(text: str, seed: int, names: list[bytes] = NAMES) -> list[bytes]:
    return choose(names, lambda name: name, read_share(text), seed)


def test_a_sample_has_the_requested_size() -> None:
    assert len(drawn("7", 1)) == 7
    assert len(drawn("1%", 1)) == 20
    assert len(drawn("100%", 1)) == len(NAMES)
    assert drawn("5000", 1) == NAMES
    assert len(drawn("1%", 1, NAMES[:3])) == 1
    assert drawn("50%", 1, []) == []


def test_a_seed_reproduces_the_sample_in_order() -> None:
    first = drawn("10%", 42)
    assert first == sorted(first) == drawn("10%", 42)
    assert first != drawn("10%", 43)


def test_other_files_do_not_change_the_sample_order() -> None:
    """Otherwise a new file would change the whole sample."""
    before, after = set(drawn("10%", 42, NAMES[:1000])), set(drawn("10%", 42))
    assert len(before & after) >= 30
    assert len(set(drawn("100", 42)) - set(drawn("100", 42, [*NAMES, b"new"]))) <= 1


def test_samples_cover_the_whole_tree() -> None:
    chosen = drawn("25%", 7)
    for start in range(0, 2000, 500):
        assert 80 < len([name for name in chosen if start <= int(name) < start + 500]) < 170


@pytest.mark.parametrize("text", ["", "0", "0%", "101%", "-1", "1.5", "x", "1 %", "%"])
def test_an_invalid_sample_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        read_share(text)
