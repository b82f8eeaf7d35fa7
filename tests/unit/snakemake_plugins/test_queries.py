"""Test the queries of Snakemake's storage plugin, and which folders it lists."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

_PACKAGE = Path(__file__).resolve().parents[3] / "packaging/snakemake-storage-plugin-hibali"


def _load() -> Any:
    """Load the module without its package, which needs Snakemake."""
    path = _PACKAGE / "snakemake_storage_plugin_hibali/queries.py"
    spec = importlib.util.spec_from_file_location("snakemake_storage_plugin_queries", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


queries = _load()


@pytest.mark.parametrize(
    "query",
    [
        "hibali://juwels/scans/{subject}.nii.gz",
        "hibali://juwels//p/scratch/a",
        "hibali://a-b.c_1/@root/{x,[^/]+}.txt",
    ],
)
def test_valid_queries(query: str) -> None:
    assert queries.find_problem(query) is None


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("s3://bucket/key", "does not begin"),
        ("hibali:///a", "name of a site"),
        ("hibali://{site}/a", "name of a site"),
        ("hibali://juwels", "empty"),
        ("hibali://juwels/", "empty"),
        ("hibali://juwels/a/", "ends with a slash"),
        ("hibali://juwels/a//b", "two in a row"),
        ("hibali://juwels/a/../b", "component"),
        ("hibali://juwels/./b", "component"),
    ],
)
def test_invalid_queries_have_a_reason(query: str, reason: str) -> None:
    assert reason in queries.find_problem(query)


def test_two_queries_never_have_the_same_local_copy() -> None:
    paths = ["here/a", "here//a", "here/a/b", "here//a/b", "there/a"]
    assert len({queries.local_suffix(path) for path in paths}) == len(paths)
    assert all(".." not in queries.local_suffix(path) for path in paths)
    assert queries.place_of("here//a/b") == "here:/a/b"


def test_the_home_of_a_site_and_its_root_are_never_listed() -> None:
    assert list(queries.folders_above("here/a/b/c")) == ["here/a/b", "here/a"]
    assert list(queries.folders_above("here//a/b/c")) == ["here//a/b", "here//a"]
    assert queries.folder_of("here/a") == queries.folder_of("here//a") == ""


def test_files_in_folders_of_their_own_need_few_listings() -> None:
    listings, chosen = queries.Listings(), []
    for number in range(100):
        folder = f"here/data/s{number}"
        if not any(each in {folder, "here/data"} for each in chosen):
            chosen.append(listings.choose(folder))
    assert chosen[-1] == "here/data"
    assert len(chosen) == 9
    assert listings.choose("here/results/s1") == "here/results/s1"


def test_folders_two_levels_deep_are_listed_together() -> None:
    listings = queries.Listings()
    chosen = [listings.choose(f"here/project/data/s{number}/first") for number in range(9)]
    assert chosen[-1] == "here/project/data"
    assert listings.choose("here/project/results") == "here/project/results"
