"""Test what `verify --sample` says about all files."""

import pytest

from hibali_cli.handlers.verify import _describe_sample


@pytest.mark.parametrize(
    ("sample", "files", "percent"),
    [
        (40, 40, "100%"),
        (199, 200, "100%"),
        (198, 200, ">99%"),
        (990, 1000, ">99%"),
        (100_000, 1_000_000, ">99%"),
        (99, 100, "99%"),
        (100, 1000, "65%"),
        (4, 40, "10%"),
        (1, 1000, "1%"),
    ],
)
def test_only_a_certain_find_has_100_percent(sample: int, files: int, percent: str) -> None:
    assert f" with {percent} probability." in _describe_sample(sample, files)
