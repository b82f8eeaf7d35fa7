"""Test that overlapping sources and targets are refused, where a collection and a site have the same files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.test_overlap import refused
from tests.support.globus_sites import globus_sites
from tests.support.trees import make_tree, read_tree


def test_a_collection_and_a_site_that_maps_its_paths_to_it_are_compared(
    hibali: Any, globus: Any, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    sites = globus_sites(hibali, globus, tmp_path, request.getfixturevalue)
    root = make_tree(sites.add_local("near", tmp_path / "near"), {b"data/a/x": b"1", b"data/y": b"2"})
    config = hibali.home.config
    config.write_text(
        f'{config.read_text()}[sites.shown]\nkind = "globus"\nroots = {{ all = "/" }}\ndefault_root = "all"\n'
        f'[sites.shown.globus]\ncollection = "{sites.collections["near"].id}"\n'
    )
    for source, target in (
        ("shown:data/a", "shown:data"),
        ("near:data", "shown:data/new"),
        ("shown:data", "near:"),
        ("near:data/y", "shown:data/y"),
    ):
        refused(hibali, "sync", source, target)
    assert read_tree(root) == {b"data/a/x": b"1", b"data/y": b"2"}
    hibali("sync", "near:data/y", "shown:data/z", exit=0)
