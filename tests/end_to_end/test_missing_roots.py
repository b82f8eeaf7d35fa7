"""Test that nothing creates a configured root: it may be a filesystem that is not mounted, or misspelled."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hibali as api
from tests.support.transfers import Transfers


def test_a_missing_root_is_not_created(unmounted: Transfers) -> None:
    root, source = unmounted.root.parent, unmounted.source
    calls: list[tuple[Any, ...]] = [
        ("push", source, "there:data"),
        ("push", source, "there:"),
        ("push", source / "a", "there:data/"),
        ("push", source / "a", "there:@data/b"),
        ("push", source, f"there:{root}/deeper"),
        ("push", source, "there:data", "--dry-run"),
        ("sync", source, "there:data"),
        ("mv", "there:@other/old", "there:@data/new"),
        ("mkdir", "there:@data/new"),
    ]
    for words in calls:
        answer = unmounted.hibali(*words, "--json", exit=3)
        assert answer.last["code"] == "no-such-folder", str(answer)
        assert answer.last["hint"].endswith("hibali mkdir there:@data")
        assert not root.exists(), words
    assert unmounted.hibali("sites", "check", "there", "--json").exit == 3
    unmounted.hibali("mkdir", "there:@data", exit=0)
    unmounted.hibali("push", source, "there:data/new/deep", exit=0)
    assert (root / "data/new/deep/sub/b").read_bytes() == b"2"


def test_python_creates_no_missing_root(unmounted: Transfers) -> None:
    calls: list[Callable[[], object]] = [
        lambda: api.push(unmounted.source, "there:data"),
        lambda: api.mkdir("there:data/new"),
    ]
    for call in calls:
        with pytest.raises((FileNotFoundError, api.NotFoundError)):
            call()
        assert not unmounted.root.parent.exists()


def test_adding_a_site_creates_no_folder(hibali: Any, tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    hibali("sites", "add", "one", "--local", str(missing), "--json", exit=3)
    assert not missing.exists()
