"""Test drawing a sample with a seed, and what it says about all files."""

import tracemalloc
from math import comb

import pytest

from hibali.errors import UsageError
from transfers.verify import choose, detection_probability, read_share

NAMES = [b"%06d" % number for number in range(2000)]


def drawn(text: str, seed: int, names: list[bytes] = NAMES) -> list[bytes]:
    return list(choose(names, lambda name: name, read_share(text), seed))


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


def test_a_sample_of_many_files_needs_little_memory() -> None:
    many = range(200_000)
    tracemalloc.start()
    count = sum(1 for _ in choose(many, lambda number: b"%d" % number, read_share("5%"), 1))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 10_000
    assert peak < 4_000_000  # all names would be ten times as much


@pytest.mark.parametrize(
    ("files", "sample", "damaged"),
    [(2000, 100, 20), (100, 5, 1), (50, 49, 1), (10, 5, 6), (3, 1, 3), (1, 1, 1)],
)
def test_the_probability_of_finding_damage_is_hypergeometric(files: int, sample: int, damaged: int) -> None:
    exact = 1 - comb(files - damaged, sample) / comb(files, sample)
    assert detection_probability(files, sample, damaged) == pytest.approx(exact, abs=1e-9)


@pytest.mark.heavy
def test_samples_find_damage_as_often_as_the_probability_says() -> None:
    damaged = set(NAMES[::100])
    found = sum(not damaged.isdisjoint(drawn("5%", seed)) for seed in range(400))
    assert found / 400 == pytest.approx(detection_probability(2000, 100, 20), abs=0.08)  # the seeds are fixed


@pytest.mark.parametrize("text", ["", "0", "0%", "101%", "-1", "1.5", "x", "1 %", "%"])
def test_an_invalid_sample_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        read_share(text)
