"""Test `hibali://`: versions of files, what is written whole or not at all, transfers, and kills."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.core import OpenFile
from fsspec.implementations.local import LocalFileSystem

import hibali as api
from hibali_plugins.filesystem.filesystem import HibaliFileSystem
from tests.end_to_end.test_python_api import run_example
from tests.services.session import REPOSITORY
from tests.support.transfers import Transfers
from tests.support.waiting import wait_for

MIB = 1024 * 1024


@pytest.fixture
def place(there: Transfers, monkeypatch: pytest.MonkeyPatch) -> Transfers:
    for name, value in there.place.env.items():
        monkeypatch.setenv(name, value)
    return there


@pytest.fixture
def files(place: Transfers) -> Iterator[HibaliFileSystem]:
    made = HibaliFileSystem(str(place.hibali.home.config), skip_instance_cache=True)
    yield made
    made.close()


def test_files_are_written_listed_read_and_removed(files: HibaliFileSystem, place: Transfers) -> None:
    files.pipe({"there/data/a": b"1", "there/data/folder/b": b"23"})
    assert place.there() == {b"a": b"1", b"folder/b": b"23"}
    assert files.ls("there/data", detail=False) == ["there/data/a", "there/data/folder"]
    assert files.find("there/data") == ["there/data/a", "there/data/folder/b"]
    assert files.glob("hibali://there/data/*/b") == ["there/data/folder/b"]
    assert (files.info("there/data/folder/b")["size"], files.isdir("there/data/folder")) == (2, True)
    assert files.cat_ranges(["there/data/folder/b"] * 2, [0, -1], [1, None]) == [b"2", b"3"]
    files.pipe_file("there/data/a", b"other")
    assert files.cat("there/data/a") == b"other"
    files.rm("there/data/folder", recursive=True)
    assert place.there() == {b"a": b"other"}
    assert files.ls("", detail=False) == ["there"]


def test_a_file_that_is_replaced_is_never_a_mixture(files: HibaliFileSystem) -> None:
    files.pipe_file("there/data/a", b"1" * 1000)
    opened = files.open("there/data/a", cache_type="none")
    assert opened.read(10) == b"1" * 10
    files.pipe_file("there/data/a", b"2" * 1000)
    with pytest.raises(OSError, match="changed"):
        opened.read(10)
    assert files.open("there/data/a").read(10) == b"2" * 10


def copied(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))  # noqa: S301 - as Dask sends it to its workers


def test_a_pinned_version_is_kept_in_copies_of_the_filesystem(files: HibaliFileSystem) -> None:
    pinned = HibaliFileSystem(files.storage_options.get("config") or files.storage_args[0], pin=True)
    files.pipe_file("there/data/a", b"1" * 1000)
    assert pinned.cat_file("there/data/a", 0, 2) == b"11"
    opened = pinned.open("there/data/a")
    assert copied(opened).read(2) == b"11"
    files.pipe_file("there/data/a", b"2" * 1000)
    for read in (
        lambda: copied(pinned).cat_file("there/data/a"),
        lambda: copied(opened),
        lambda: pinned.open("there/data/a"),
    ):
        with pytest.raises(OSError, match="replaced"):
            read()


def write_and_fail(opened: Any, content: str | bytes) -> None:
    with opened as file:
        file.write(content)
        raise ZeroDivisionError


@pytest.mark.parametrize(("mode", "content"), [("w", "half"), ("wb", b"half")])
def test_after_an_exception_nothing_appears(
    files: HibaliFileSystem, place: Transfers, mode: str, content: str | bytes
) -> None:
    for opened in (files.open("there/data/a", mode), OpenFile(files, "there/data/a", mode)):
        with pytest.raises(ZeroDivisionError):
            write_and_fail(opened, content)
    assert place.there() == {}
    with files.open("there/data/a", mode) as file:
        file.write(content)
    assert place.there() == {b"a": b"half"}


def test_a_transaction_appears_at_its_end(files: HibaliFileSystem, place: Transfers) -> None:
    with files.transaction:
        with files.open("there/data/a", "wb") as file:
            file.write(b"1")
        assert place.there() == {}
    assert place.there() == {b"a": b"1"}


def test_a_tree_is_one_transfer(files: HibaliFileSystem, place: Transfers, tmp_path: Path) -> None:
    place.make({b"a": b"1", b"folder/b": b"22", b"folder/deep/c": b"333"})
    files.put(str(place.source), "there/data", recursive=True)
    assert place.there() == {b"a": b"1", b"folder/b": b"22", b"folder/deep/c": b"333"}
    files.get("there/data", str(tmp_path / "back"), recursive=True)
    assert (tmp_path / "back/folder/deep/c").read_bytes() == b"333"
    operations = [line for line in place.hibali("history", "--json").lines if line["kind"] == "operation"]
    assert [each["files_moved"] for each in operations] == [3, 3]


def test_errors_are_those_of_files(files: HibaliFileSystem) -> None:
    files.pipe_file("there/data/a", b"1")
    with pytest.raises(FileNotFoundError):
        files.open("there/data/b")
    with pytest.raises(FileNotFoundError):
        files.ls("there/nothing")
    with pytest.raises(IsADirectoryError):
        files.cat_file("there/data")
    with pytest.raises(FileExistsError):
        files.open("there/data/a", "xb")
    with pytest.raises(OSError, match="no site"):
        files.info("nowhere/a")


def test_open_reads_ranges_and_writes_whole_files(place: Transfers) -> None:
    with api.open("there:data/a", "wb") as file:
        file.write(b"0123456789")
    with api.open("there:data/a") as file:
        file.seek(4)
        assert file.read(3) == b"456"
    with pytest.raises(FileNotFoundError):
        api.open("there:data/b")
    with api.open(place.folder / "local", "w") as file:
        file.write("here")
    assert (place.folder / "local").read_text() == "here"


def test_threads_share_connections_and_one_login(files: HibaliFileSystem, place: Transfers) -> None:
    content = os.urandom(MIB)
    files.pipe_file("there/data/a", content)
    starts = [number * 1000 for number in range(200)]
    with ThreadPoolExecutor(8) as pool:
        parts = list(pool.map(lambda start: files.cat_file("there/data/a", start, start + 1000), starts))
    assert b"".join(parts) == content[:200_000]
    if place.place.word == "ssh":
        masters = list(place.hibali.home.runtime.glob("hibali/*"))
        assert len([each for each in masters if each.is_socket()]) == 1


PUT = """
import sys
from hibali_plugins.filesystem.filesystem import HibaliFileSystem
HibaliFileSystem().put_file(sys.argv[1], "there/data/large")
"""


@pytest.mark.heavy
def test_a_put_that_is_killed_leaves_nothing_half(files: HibaliFileSystem, place: Transfers) -> None:
    old, new = b"old" * 1000, os.urandom(64 * MIB)
    files.pipe_file("there/data/large", old)
    files.close()
    source = place.folder / "large"
    source.write_bytes(new)
    table = place.hibali.home.config
    table.write_text(
        table.read_text().replace("[sites.there.limits]", '[sites.there.limits]\nbandwidth = "16M"')
    )
    env = {**place.hibali.env, "PYTHONPATH": str(REPOSITORY)}
    started = subprocess.Popen([sys.executable, "-P", "-c", PUT, source], env=env, start_new_session=True)
    wait_for(lambda: place.place.unfinished("data") or started.poll() is not None)
    if started.poll() is not None:
        print(started.stderr.read())
    os.killpg(started.pid, signal.SIGKILL)
    assert started.wait() == -signal.SIGKILL
    assert place.committed_files() == {b"large": old}
    table.write_text(table.read_text().replace('\nbandwidth = "16M"', ""))
    again = HibaliFileSystem(str(table), skip_instance_cache=True)
    _when_free(lambda: again.put_file(str(source), "there/data/large"))
    assert place.committed_files() == {b"large": new}


def _when_free(act: Callable[[], None]) -> None:
    """Repeat while the lease of the killed process has not expired."""

    def is_free() -> bool:
        try:
            act()
        except api.TryLaterError as problem:
            if problem.code != "locked":
                raise
            return False
        return True

    wait_for(is_free, seconds=200)


@pytest.mark.timeout(60)
def test_wildcards_of_the_filesystem_match_as_fsspec_has_them(
    files: HibaliFileSystem, tmp_path: Path
) -> None:
    names = ["a/b/c.txt", "a/c.txt", "a/x/y/c.txt", "_" * 200]
    files.pipe({f"there/data/{name}": b"1" for name in names})
    local = LocalFileSystem(auto_mkdir=True)
    local.pipe({f"{tmp_path}/there/data/{name}": b"1" for name in names})
    for pattern in ("*", "a/*", "a/*/", "**/c.txt", "a/**", "a/**/c.txt", "a/[b-x]/*.txt", "?/c*", "none*"):
        found = local.glob(f"{tmp_path}/there/data/{pattern}")
        assert files.glob(f"there/data/{pattern}") == [each.removeprefix(f"{tmp_path}/") for each in found], (
            pattern
        )
    assert files.glob("there/data/**/c.txt", maxdepth=2) == ["there/data/a/c.txt"]
    assert files.glob("there/data/" + "*_" * 20 + ".nii") == []


@pytest.mark.heavy
@pytest.mark.parametrize("word", ["local", "s3", "webdav"])
def test_every_name_that_is_listed_can_be_read_replaced_and_removed(
    transfers_to: Any, monkeypatch: pytest.MonkeyPatch, word: str
) -> None:
    there = transfers_to(word)
    for name, value in there.place.env.items():
        monkeypatch.setenv(name, value)
    names = (b"$x", b"a$HOME", b"${y}", b"~", b"~me", b"@root", b"sub/$z", b"sub/~", b"sub/@data")
    there.place.plant("", {name: name for name in names})
    found = HibaliFileSystem(str(there.hibali.home.config), skip_instance_cache=True)
    listed = found.find("there")
    assert {found.cat_file(each) for each in listed} == set(names)
    assert found.find("there/sub") == [each for each in listed if "/sub/" in each]
    for each in listed:
        found.pipe_file(each, b"new")
    assert set(there.place.files("").items()) == {(name, b"new") for name in names}
    for each in found.ls("there", detail=False):
        found.rm(each, recursive=True)
    assert there.place.files("") == {}
    found.close()


@pytest.mark.parametrize(
    "name",
    ["hibali_plugins.filesystem.opening.open", "hibali_plugins.filesystem.filesystem.HibaliFileSystem"],
)
def test_the_examples_of_docstrings_work(documented: Path, name: str) -> None:
    api.sync(documented / "scans", "scratch:scans")
    fsspec.register_implementation("hibali", HibaliFileSystem, clobber=True)
    run_example(name)
