"""Test the options of `hibali://`, and writing to one folder from several threads and processes."""

from __future__ import annotations

import shutil
import threading
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
from tests.support.agent_root import open_root
from transfers.agent.lease import Lease
from transfers.model.units import PACK_BYTES
from transfers.remote.connection import Connection


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
    large = bytes(PACK_BYTES + 1)
    if code == "locked":
        filesystem.pipe_file("there/a", large)
        assert filesystem.cat_file("there/a") == large
    else:
        with pytest.raises(ConnectionError):
            filesystem.pipe_file("there/a", large)
        assert len(attempts) == 1


def test_a_small_write_waits_for_the_lock_of_another_operation(
    filesystem: HibaliFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent waits for a moment; then a transfer waits, whose first attempt begins while the lock is held."""
    real, waited = site_files.synchronise, threading.Event()

    def begin(*arguments: Any) -> Any:
        waited.set()
        return real(*arguments)

    monkeypatch.setattr(site_files, "synchronise", begin)
    other = Lease(open_root(tmp_path / "there"), "push", "another")
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(filesystem.pipe_file, "there/a", b"new")
        assert waited.wait(120)
        assert (tmp_path / "there/a").read_bytes() == b"old"
        other.release()
        writing.result(120)
    assert (tmp_path / "there/a").read_bytes() == b"new"


def test_many_small_files_are_written_and_read_in_few_requests(
    filesystem: HibaliFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site_files, "synchronise", None)  # no transfer
    requests: list[str] = []
    real = Connection.post

    def post(connection: Connection, command: str, *arguments: Any, **details: Any) -> None:
        requests.append(command)
        real(connection, command, *arguments, **details)

    monkeypatch.setattr(Connection, "post", post)
    contents = {f"there/{number % 2}/{number}": str(number).encode() for number in range(1000)}
    for _ in range(2):  # new ones, then existing ones
        filesystem.pipe(contents)
    assert requests.count("store_files") <= 20
    assert (tmp_path / "there/1/999").read_bytes() == b"999"
    with filesystem.open("there/a", "wb") as file:
        file.write(b"replaced")
    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(filesystem.cat_file, contents))
    assert found == [*contents.values()]
    assert filesystem.cat_file("there/a") == b"replaced"
    with pytest.raises(FileNotFoundError):
        filesystem.cat_file("there/missing/file")
    with pytest.raises(IsADirectoryError):
        filesystem.cat_file("there/1")
    assert sorted(each.name for each in (tmp_path / "there").iterdir()) == ["0", "1", "a", "b"]


def test_a_folder_that_was_removed_and_made_again_is_the_new_one(
    filesystem: HibaliFileSystem, tmp_path: Path
) -> None:
    for content in (b"1", b"2", b"3"):
        filesystem.pipe_file("there/folder/a", content)
        assert filesystem.cat_file("there/folder/a") == (tmp_path / "there/folder/a").read_bytes() == content
        shutil.rmtree(tmp_path / "there/folder")
