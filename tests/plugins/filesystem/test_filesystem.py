"""Test the options of `hibali://`, and writing to one folder from several threads and processes."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import pytest

from hibali.errors import TryLaterError
from hibali_plugins.filesystem import site_files
from hibali_plugins.filesystem.filesystem import HibaliFileSystem
from hibali_plugins.filesystem.os_errors import UnreachableError
from tests.services.fixtures import HibaliHome


@pytest.fixture
def filesystem(hibali_home: HibaliHome, tmp_path: Path) -> Iterator[HibaliFileSystem]:
    (tmp_path / "there").mkdir()
    text = f'version = 1\n[sites.there]\nkind = "local"\ndefault_root = "data"\nroots.data = "{tmp_path}/there"\n'
    hibali_home.config.write_text(text)
    hibali_home.config.chmod(0o600)
    made = HibaliFileSystem(skip_instance_cache=True)
    made.pipe_file("there/a", b"old")
    made.pipe_file("there/b", b"old")
    yield made
    made.close()


def test_an_unknown_option_is_an_error() -> None:
    with pytest.raises(TypeError, match="'storage_options'"):
        HibaliFileSystem(storage_options={"pin": True})


def test_a_later_use_with_pin_sees_the_later_version(filesystem: HibaliFileSystem) -> None:
    for content in (b"first", b"second"):
        filesystem.pipe_file("there/a", content)
        pinned = fsspec.filesystem("hibali", pin=True)
        assert pinned.cat_file("there/a") == content
    filesystem.pipe_file("there/a", b"third")
    with pytest.raises(OSError, match="replaced"):
        pinned.cat_file("there/a")


@pytest.mark.parametrize("ask", ["exists", "isfile", "isdir"])
def test_an_error_is_no_answer_whether_a_path_exists(
    filesystem: HibaliFileSystem, monkeypatch: pytest.MonkeyPatch, ask: str
) -> None:
    """fsspec's own methods would return False, and a caller would create the file anew."""

    def refuse(_: str) -> Any:
        raise UnreachableError("unreachable", "a double of a site that does not answer, which takes 45 s")

    monkeypatch.setattr(filesystem._files, "require", refuse)
    with pytest.raises(ConnectionError):
        getattr(filesystem, ask)("there/a")
    with pytest.raises(OSError, match="no site with this name"):
        getattr(HibaliFileSystem(skip_instance_cache=True), ask)("nosuch/a")


def test_missing_paths_do_not_exist(filesystem: HibaliFileSystem) -> None:
    found = [
        (filesystem.exists(path), filesystem.isfile(path)) for path in ("there/a", "there/c", "there/a/b")
    ]
    assert found == [(True, True), (False, False), (False, False)]
    assert filesystem.isdir("there")


def test_threads_replace_files_of_one_folder(filesystem: HibaliFileSystem) -> None:
    contents = {f"there/{'ab'[number % 2]}": str(number).encode() for number in range(4)}
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(filesystem.pipe_file, contents, contents.values()))
    assert filesystem.cat(["there/a", "there/b"]) == contents


@pytest.mark.parametrize("code", ["locked", "unreachable"])
def test_a_write_waits_only_for_a_lock(
    filesystem: HibaliFileSystem, monkeypatch: pytest.MonkeyPatch, code: str
) -> None:
    """A double in place of another process, whose lock would have to be timed."""
    real, attempts = site_files.synchronise, []

    def refuse_first(*arguments: Any) -> Any:
        attempts.append(1)
        if len(attempts) == 1:
            raise TryLaterError(code, "refused")
        return real(*arguments)

    monkeypatch.setattr(site_files, "synchronise", refuse_first)
    if code == "locked":
        filesystem.pipe_file("there/a", b"new")
        assert filesystem.cat_file("there/a") == b"new"
    else:
        with pytest.raises(ConnectionError):
            filesystem.pipe_file("there/a", b"new")
        assert len(attempts) == 1
