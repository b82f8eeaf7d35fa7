"""Test `cat`, `du` and `mkdir`, which read or create files at a location without a transfer."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.conftest import MakeTransfers
from tests.support.backends import FolderBackend
from tests.support.transfers import Transfers, path_of
from tests.support.trees import HOSTILE_NAMES, Folder, Link

LARGE = os.urandom(9 << 20)


@pytest.fixture(
    params=["ssh", "s3", *(pytest.param(word, marks=pytest.mark.heavy) for word in ("local", "sftp"))]
)
def each_store(request: pytest.FixtureRequest, transfers_to: MakeTransfers) -> Transfers:
    return transfers_to(request.param)


def test_an_unreadable_file_is_4_for_cat_as_a_folder_is_for_ls(
    local_there: Transfers, unprivileged: Any
) -> None:
    there = local_there
    there.place.plant("data", {b"open/a": b"1", b"closed/b": b"2", b"secret": b"3"})
    (there.root / "closed").chmod(0)
    (there.root / "secret").chmod(0)
    for words in (
        ("ls", "there:data/closed"),
        ("cat", "there:data/secret"),
        ("cat", "there:data/open/a", "there:data/secret"),
    ):
        answer = unprivileged(*words, exit=4)
        assert b"[denied]" in answer.err
    (there.root / "closed").chmod(0o700)


def test_cat_prints_the_exact_bytes_of_files(each_store: Transfers) -> None:
    there = each_store
    there.place.plant("data", {b"large": LARGE, b"empty": b"", b"\x1b[31m\n": b"\x00\x1b[31m\xff"})
    answer = there.hibali("cat", "there:data/large", "there:data/empty", b"there:data/\x1b[31m\n", exit=0)
    assert answer.out == LARGE + b"\x00\x1b[31m\xff"
    assert there.hibali("cat", "there:data/none", exit=3).out == b""
    assert there.hibali("cat", "there:data", exit=2).out == b""
    assert there.hibali("cat", "there:data/large/", exit=2).err
    assert there.hibali("cat", "there:data/empty", "--json", exit=2).last["code"] == "usage"


def test_cat_verifies_pushed_files_by_digest(bucket_there: Transfers) -> None:
    there = bucket_there
    there.make({b"file": b"content"})
    there.push()
    assert there.hibali("cat", "there:data/file", exit=0).out == b"content"


def test_cat_follows_symlinks(transfers_to: MakeTransfers) -> None:
    for word in ("local", "sftp"):
        there = transfers_to(word)
        there.place.plant(
            "data",
            {
                b"real/file": b"1",
                b"real/deep/link": Link(b"../file"),
                b"way": Link(b"real/deep"),
                b"gone": Link(b"x"),
            },
        )
        assert there.hibali("cat", "there:data/way/link", exit=0).out == b"1"
        assert there.hibali("cat", "there:data/gone", exit=3).out == b""
        there.hibali.home.config.unlink()


def test_fifos_and_files_on_tape_are_not_waited_for(local_there: Transfers) -> None:
    there = local_there
    there.place.plant("data", {b"file": b"1"})
    os.mkfifo(there.root / "fifo")
    with (there.root / "hole").open("wb") as stream:
        stream.truncate(1 << 20)
    assert b"regular file" in there.hibali("cat", "there:data/fifo", exit=2).err
    assert b"--recall" in there.hibali("cat", "there:data/hole", exit=6).err
    assert there.hibali("cat", "--recall", "there:data/hole", exit=0).out == bytes(1 << 20)


def test_a_reader_may_stop_early(local_there: Transfers) -> None:
    there = local_there
    there.place.plant("data", {b"large": LARGE})
    process = subprocess.Popen(
        there.hibali.command("cat", "there:data/large"),
        env=there.hibali.env,
        cwd=there.hibali.home.folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert process.stdout is not None
    assert process.stdout.read(10) == LARGE[:10]
    process.stdout.close()
    assert process.wait(60) == 0


@pytest.mark.heavy
def test_cat_of_a_large_file_needs_little_memory(local_there: Transfers, tmp_path: Path) -> None:
    there = local_there
    there.root.mkdir()
    with (there.root / "large").open("wb") as stream:
        for _ in range(256):
            stream.write(LARGE[: 1 << 20])
    noted = tmp_path / "status"
    looked = "import os,sys,runpy,atexit;atexit.register(lambda:open(sys.argv.pop(),'w').write(open('/proc/self/status').read()))"
    python = there.hibali.command("cat", "there:data/large")[0]
    script = f"{looked};out=sys.argv[-1];sys.argv=['hibali','cat','there:data/large'];atexit.register(sys.argv.append,out);runpy.run_module('hibali_cli',run_name='__main__')"
    subprocess.run(
        [python, "-c", script, str(noted)],
        env=there.hibali.env,
        cwd=there.hibali.home.folder,
        stdout=subprocess.DEVNULL,
        check=True,
        timeout=120,
    )
    found = re.search(r"VmHWM:\s+(\d+) kB", noted.read_text())
    assert found is not None
    assert int(found.group(1)) < 220_000


def used(answer: Any) -> dict[bytes, tuple[int, int]]:
    return {path_of(line): (line["files"], line["bytes"]) for line in answer.lines if line["kind"] == "usage"}


@pytest.mark.parametrize("word", ["local", "s3"])
def test_du_counts_a_tree(transfers_to: MakeTransfers, word: str) -> None:
    there = transfers_to(word)
    there.place.plant(
        "data",
        {b"a": b"1", b"a-x": b"22", b"b/c/d": b"333", b"b/c/e": b"4444", b"b-": b"5", b"b/f": b"666666"},
    )
    answer = there.hibali("du", "there:data", "--json", exit=0)
    assert used(answer) == {b"": (6, 17)}
    assert answer.last == {"schema": 1, "kind": "end", "count": 1, "exit": 0}
    assert used(there.hibali("du", "there:data", "-d", "1", "--json", exit=0)) == {
        b"b": (3, 13),
        b"": (6, 17),
    }
    deep = there.hibali("du", "there:data", "--depth", "9", "--json", exit=0)
    assert used(deep) == {b"b/c": (2, 7), b"b": (3, 13), b"": (6, 17)}
    assert used(there.hibali("du", "there:data/b/f", "--json", exit=0)) == {b"": (1, 6)}
    assert there.hibali("du", "there:data", exit=0).out.split() == [b"17", b"B", b"6", b"."]
    assert there.hibali("du", "--bytes", "there:data", exit=0).out.split() == [b"17", b"6", b"."]
    there.hibali("du", "there:none", exit=3)


def test_du_counts_hostile_names(local_there: Transfers) -> None:
    there = local_there
    there.place.plant("data", {name + b"/in": b"12" for name in HOSTILE_NAMES if len(name) < 250})
    answer = there.hibali("du", "there:data", "-d", "1", "--json", exit=0)
    assert used(answer) == {b"": (26, 52), **{n: (1, 2) for n in HOSTILE_NAMES if len(n) < 250}}
    assert b"\x1b" not in there.hibali("du", "there:data", "-d", "1", exit=0).out


def test_du_reports_entries_that_it_cannot_count(local_there: Transfers, unprivileged: Any) -> None:
    there = local_there
    there.place.plant("data", {b"a": b"1", b"closed/b": b"2"})
    (there.root / "closed").chmod(0)
    answer = unprivileged("du", "there:data", "--json", exit=6)
    (there.root / "closed").chmod(0o755)
    assert used(answer) == {b"": (1, 1)}
    assert answer.last["code"] == "listing-incomplete"
    (there.root / "closed").chmod(0)
    assert unprivileged("ls", "-R", "there:data", "--json", exit=6).last["code"] == "listing-incomplete"
    (there.root / "closed").chmod(0o755)


def test_mkdir_creates_parent_folders(each_store: Transfers) -> None:
    there = each_store
    if not there.place.holds_folders:
        before = there.whole_state()
        answer = there.hibali("mkdir", "there:data/new", "--json", exit=0)
        assert [line["kind"] for line in answer.lines] == ["noted", "folder"]
        assert answer.last["made"] is False
        assert there.whole_state() == before
        return
    there.place.plant("data", {b"file": b"1"})
    assert there.hibali("mkdir", "there:data/x/-y/new\nline", "--json", exit=0).last["made"] is True
    assert there.tree_there() == {b"file": b"1", b"x/-y/new\nline": Folder()}
    assert there.hibali("mkdir", "there:data/x", "--json", exit=0).last["made"] is False
    for way in ("there:data/file", "there:data/file/below", "there:data/file/deep/below"):
        assert there.hibali("mkdir", way, "--json", exit=8).last["code"] == "in-the-way"
    assert there.tree_there() == {b"file": b"1", b"x/-y/new\nline": Folder()}


def test_mkdir_is_refused_where_no_folder_can_be_created(transfers_to: MakeTransfers) -> None:
    there = transfers_to("local", "")
    assert isinstance(there.place, FolderBackend)
    kept = there.place.root / "kept"
    kept.mkdir()
    (there.place.root / "way").symlink_to(kept)
    text = there.hibali.home.config.read_text().replace("data = ", f'kept = "{kept}"\ndata = ', 1)
    there.hibali.home.config.write_text(
        text.replace('kind = "local"', 'kind = "local"\nread_only = ["kept"]')
    )
    assert there.hibali("mkdir", "there:@kept/x", "--json", exit=8).last["code"] == "read-only-root"
    assert there.hibali("mkdir", "there:way/x", "--json", exit=8).last["code"] == "read-only-root"
    assert not list(kept.iterdir())


def test_ls_lists_what_matches_a_pattern_and_first_what_has_this_name(each_store: Transfers) -> None:
    there = each_store
    there.place.plant("data", {b"a/x.nii": b"1", b"a/b/y.nii": b"2", b"a/*.nii": b"3", b"z": b"4"})

    def listed(*words: str, code: int = 0) -> list[bytes]:
        answer = there.hibali("ls", *words, "--json", exit=code)
        return [path_of(line) for line in answer.lines if line["kind"] == "entry"]

    assert listed("there:data/a/?.nii") == [b"*.nii", b"x.nii"]
    assert listed("there:data/**/*.nii") == [b"a/*.nii", b"a/b/y.nii", b"a/x.nii"]
    assert listed("there:data/*/") == [b"a"]
    recursive = [b"a", b"a/*.nii", b"a/b", b"a/b/y.nii", b"a/x.nii"]
    folders = there.place.holds_folders
    assert listed("-R", "there:data/[a]") == [n for n in recursive if folders or n not in {b"a", b"a/b"}]
    assert listed("there:data/a/*.nii") == [b"*.nii"]
    assert listed("there:data/a/[!*].nii") == [b"x.nii"]
    for pattern in ("there:data/*.none", "there:data/z/*", "there:none/*"):
        assert listed(pattern, code=3) == []
