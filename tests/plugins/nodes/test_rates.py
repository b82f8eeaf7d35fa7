"""Test how hibali learns how many compute nodes are useful."""

from __future__ import annotations

import pytest

from hibali_plugins.nodes.rates import Measurement, ShardTime, measured, useful_nodes

GB = 10**9


def known(*pairs: tuple[int, float]) -> list[Measurement]:
    return [Measurement(nodes, rate, 0.0) for nodes, rate in pairs]


@pytest.mark.parametrize(
    ("asked", "rates", "useful"),
    [
        (8, [], 8),
        (8, [(8, 5.0)], 8),
        (32, [(1, 1.0), (16, 5.0), (32, 2.8)], 16),
        (32, [(16, 5.0)], 32),
        (16, [(4, 4.0), (8, 4.1)], 4),
        (2, [(4, 4.0), (8, 4.1)], 2),
        (64, [(8, 8.0), (16, 15.0)], 64),
    ],
)
def test_nodes_that_add_nothing_are_not_asked_for(
    asked: int, rates: list[tuple[int, float]], useful: int
) -> None:
    assert useful_nodes(asked, known(*rates)) == useful


def test_only_shards_that_ran_together_for_some_time_are_a_measurement() -> None:
    together = [ShardTime(100.0, 200.0, 5 * GB), ShardTime(105.0, 198.0, 5 * GB)]
    assert measured(together, 7.0) == (2, GB / 10, 7.0)
    assert measured([together[0], ShardTime(190.0, 290.0, 5 * GB)], 7.0) is None, "one waited in the queue"
    assert measured([ShardTime(0.0, 10.0, 5 * GB)], 7.0) is None
    assert measured([ShardTime(0.0, 100.0, 5)], 7.0) is None
    assert measured([], 7.0) is None
