"""Test that nothing creates a configured root: it may be a filesystem that is not mounted, or misspelled."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hibali as api
from hibali_plugins.filesystem.filesystem import HibaliFileSystem
from tests.end_to_end.conftest import MakeTransfers
from tests.support.transfers import Transfers


@pytest.fixture(params=["local", *(pytest.param(word, marks=pytest.mark.heavy) for word in ("ssh", "sftp"))])
def place(request: pytest.FixtureRequest, transfers_to: MakeTransfers) -> Transfers:
    """Return a site whose root does not exist, and has another one that does."""
    there = transfers_to(request.param)
    there.make({b"a": b"1", b"sub/b": b"2"})
    root = there.root.parent
    root.rename(root.with_name("mounted"))
    text = there.hibali.home.config.read_text()
    other = f"[sites.there.roots]\nother = {str(root.with_name('mounted'))!r}\n"
    there.hibali.home.config.write_text(text.replace("[sites.there.roots]\n", other))
    root.with_name("mounted").joinpath("old").mkdir()
    return there


def test_a_missing_root_is_not_created(place: Transfers) -> None:
    root, source = place.root.parent, place.source
    calls: list[tuple[Any, ...]] = [
        ("push", source, "there:data"),
        ("push", source, "there:"),
        ("push", source / "a", "there:data/"),
        ("push", source / "a", "there:@data/b"),
        ("push", source, f"there:{root}/deeper"),
        ("push", source, "there:data", "--dry-run"),
        ("push", source, "there:data", "--follow", "--until", source / "a"),
        ("sync", source, "there:data"),
        ("sync", source, "there:data", "--pack"),
        ("mv", "there:@other/old", "there:@data/new"),
        ("mkdir", "there:@data/new"),
    ]
    for words in calls:
        answer = place.hibali(*words, "--json", exit=3)
        assert answer.last["code"] == "no-such-folder", str(answer)
        assert answer.last["hint"].endswith("hibali mkdir there:@data")
        assert not root.exists(), words
    assert place.hibali("sites", "check", "there", "--json").exit == 3
    place.hibali("mkdir", "there:@data", exit=0)
    place.hibali("push", source, "there:data/new/deep", exit=0)
    assert (root / "data/new/deep/sub/b").read_bytes() == b"2"


def test_python_creates_no_missing_root(place: Transfers) -> None:
    file = str(place.source / "a")
    files = HibaliFileSystem(str(place.hibali.home.config), skip_instance_cache=True)
    calls: list[Callable[[], object]] = [
        lambda: api.push(place.source, "there:data"),
        lambda: api.mkdir("there:data/new"),
        lambda: files.pipe_file("there/data/x", b"1"),
        lambda: files.put_file(file, "there/data/x"),
        lambda: files.makedirs("there/data/new"),
    ]
    for call in calls:
        with pytest.raises((FileNotFoundError, api.NotFoundError)):
            call()
        assert not place.root.parent.exists()


def test_setting_up_creates_no_folder(hibali: Any, tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    answer = hibali("init", "--yes", "--here", str(missing), "--json", exit=3)
    assert answer.last["hint"].endswith(f"mkdir -p {missing}")
    hibali("sites", "add", "one", "--local", str(missing), "--json", exit=3)
    hibali("sites", "add", "two", "--fsspec", f"file://{missing}", "--json", exit=3)
    assert not missing.exists()
