"""Test other accounts on the same machine, which swap folders for symlinks and occupy hibali's names (S1, S4).

The first tests swap folders as the same account, which is the fastest; the later ones as another account in a folder that all can write.
A partial file in a folder that was elsewhere when hibali looked for partial files stays (docs/decisions/agent.md), so these tests compare committed files.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.transfers import Transfers, counts
from tests.support.trees import differences, make_tree, many_files, read_tree, state_of
from tests.support.waiting import wait_for

TREE = {b"sub/inner/" + name: content for name, content in many_files(600, 3000, folders=3).items()}


@contextmanager
def swapping(folder: Path, outside: Path) -> Iterator[Callable[[], int]]:
    """Swap `folder` for a symlink to `outside` and back all the time; yield a function that returns how often."""
    hidden = folder.with_name("hidden-by-the-other-account")
    stop = threading.Event()
    swaps = 0

    def swap() -> None:
        nonlocal swaps
        while not stop.is_set():
            with contextlib.suppress(OSError):
                folder.rename(hidden)
                folder.symlink_to(outside)
                swaps += 1
            if hidden.exists():
                with contextlib.suppress(OSError):
                    folder.unlink(missing_ok=True)
                    hidden.rename(folder)

    other_account = threading.Thread(target=swap)
    other_account.start()
    try:
        yield lambda: swaps
    finally:
        stop.set()
        other_account.join()


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """Return a folder to which a symlink could point: the same folders, with files of somebody else."""
    return make_tree(tmp_path / "outside", {b"inner/secret": b"the other account may not have this written"})


@pytest.mark.heavy
def test_nothing_is_written_through_a_folder_that_becomes_a_symlink(
    folder_there: Transfers, outside: Path
) -> None:
    there = folder_there
    there.make(TREE)
    (there.root / "sub" / "inner").mkdir(parents=True)
    before = state_of(outside)
    with swapping(there.root / "sub", outside) as swaps:
        for _ in range(3):
            answer = there.hibali(
                "push", there.source, "there:data", "--json", "--delete", "--max-delete", "100%"
            )
            assert answer.exit in {0, 3, 5, 6, 8}, str(answer)
            assert b"Traceback" not in answer.err
    assert swaps() > 20
    assert state_of(outside) == before
    for leftover in (there.root / "hidden-by-the-other-account", there.root / "sub"):
        if leftover.is_symlink():
            leftover.unlink()
    if (there.root / "hidden-by-the-other-account").exists():
        # created again while the other account had moved it away
        shutil.rmtree(there.root / "sub", ignore_errors=True)
        (there.root / "hidden-by-the-other-account").rename(there.root / "sub")
    there.push("--delete", "--max-delete", "100%")
    assert differences(there.committed_files(), TREE) == {}


@pytest.mark.heavy
def test_nothing_is_deleted_through_a_folder_that_becomes_a_symlink(
    folder_there: Transfers, outside: Path
) -> None:
    there = folder_there
    there.make({b"kept": b"1"})
    make_tree(outside / "inner", {name.removeprefix(b"sub/inner/"): b"theirs" for name in TREE})
    before = state_of(outside)
    with swapping(there.root / "sub", outside):
        for _ in range(3):
            there.place.plant("data", {b"kept": b"1"})
            with contextlib.suppress(OSError, AssertionError):
                make_tree(there.root / "plain", dict(TREE))
            answer = there.hibali(
                "push", there.source, "there:data", "--json", "--delete", "--max-delete", "100%"
            )
            assert answer.exit in {0, 3, 5, 6, 8}, str(answer)
    assert state_of(outside) == before


@pytest.mark.heavy
def test_nothing_is_read_through_a_folder_that_becomes_a_symlink(
    folder_there: Transfers, outside: Path
) -> None:
    there = folder_there
    there.make(TREE)
    make_tree(outside / "inner", {name.removeprefix(b"sub/inner/"): b"secret!" for name in TREE})
    with swapping(there.source / "sub", outside):
        for _ in range(3):
            answer = there.hibali("push", there.source, "there:data", "--json")
            assert answer.exit in {0, 3, 5, 6}, str(answer)
    for name, content in there.there().items():
        assert b"secret!" not in content, name
        assert b"the other account may not" not in content, name


def test_no_file_of_the_remote_host_is_run_by_the_agent(transfers_to: Any, ssh_server: Any) -> None:
    """Check that the agent, which is sent with each login, does not load modules, start-up files or old agents of the host."""
    there = transfers_to("ssh")
    there.make({b"a": b"1"})
    home, sprung = Path(ssh_server.home), there.folder / "sprung"
    evil = f"open({str(sprung)!r}, 'a').write(__file__ + chr(10))\n"
    names = [
        f"{name}.py"
        for name in ("os", "zlib", "json", "sitecustomize", "usercustomize", "transfers", "agent")
    ]
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    folders = [home, home / ".hibali", home / f".local/lib/{version}/site-packages", there.root]
    planted = []
    for folder in folders:
        for name in names:
            folder.mkdir(parents=True, exist_ok=True)
            if not (folder / name).exists():
                planted.append(folder / name)
                planted[-1].write_text(evil)
                planted[-1].chmod(0o755)
    (home / ".hibali").chmod(0o700)
    try:
        there.hibali("push", there.source, "there:data/in", "--json", exit=0)
        there.hibali("verify", there.source, "there:data/in", "--json", exit=0)
        assert not sprung.exists(), sprung.read_text()
        assert all(path.read_text() == evil for path in planted)
    finally:
        for path in planted:
            path.unlink(missing_ok=True)


@pytest.mark.parametrize("squat", ["file", "link", "dangling", "theirs", "open"])
def test_hibalis_own_folder_must_belong_to_the_user(
    folder_there: Transfers, outside: Path, squat: str
) -> None:
    there = folder_there
    there.make({b"a": b"1"})
    there.root.mkdir(parents=True)
    own = there.root / ".hibali"
    if squat == "file":
        own.write_bytes(b"a user's file")
    elif squat == "link":
        own.symlink_to(outside)
    elif squat == "dangling":
        own.symlink_to(outside / "not-there")
    else:
        own.mkdir()
        own.chmod(0o700 if squat == "theirs" else 0o777)
        if squat == "theirs":
            if os.geteuid() != 0:
                pytest.skip("only root may give a folder away")
            os.chown(own, 65534, 65534)
    before = (state_of(outside), state_of(there.root))
    answer = there.push(exit=8)
    assert b".hibali" in answer.err
    assert (state_of(outside), state_of(there.root)) == before


def test_a_forged_journal_causes_no_deletion_of_a_users_files(folder_there: Transfers) -> None:
    """Check that a user's file with the name of a partial file is refused by name, with or without --delete."""
    there = folder_there
    name = b".hibali-" + b"0123456789abcdef" * 2
    there.make({b"a": b"1"})
    there.place.plant("data", {name: b"a user's", b"sub/" + name: b"another"})
    for words in ((), ("--delete", "--max-delete", "100%")):
        there.hibali("push", there.source, "there:data", *words)
        left = there.place.files("data")
        assert left[name] == b"a user's"
        assert left[b"sub/" + name] == b"another"


def test_a_source_file_with_the_name_of_a_partial_file_is_refused(there: Transfers, tmp_path: Path) -> None:
    name = b".hibali-" + b"0123456789abcdef" * 2
    there.make({b"a": b"1", b"sub/" + name: b"a user's"})
    answer = there.push(exit=8)
    assert name in answer.err
    assert there.there() == {}
    there.push("--exclude", ".hibali-*")
    assert there.there() == {b"a": b"1"}
    there.place.plant("data", {name: b"a user's"})
    answer = there.pull(tmp_path / "back", exit=8)
    assert name in answer.err
    assert not (tmp_path / "back").exists() or read_tree(tmp_path / "back") == {}


def test_the_target_may_be_a_symlink_that_the_user_named(folder_there: Transfers, tmp_path: Path) -> None:
    there = folder_there
    there.make({b"a": b"1"})
    real = tmp_path / "real"
    real.mkdir()
    there.root.parent.mkdir(parents=True, exist_ok=True)
    there.root.symlink_to(real)
    assert counts(there.push())["files_moved"] == 1
    assert read_tree(real) == {b"a": b"1"}
    assert there.root.is_symlink()
    assert counts(there.push())["files_moved"] == 0


def test_a_name_in_use_by_another_kind_stays(folder_there: Transfers, outside: Path) -> None:
    """Check that a symlink in place of a folder is not followed, and is reported as a failure without --delete."""
    there = folder_there
    there.make({b"sub/inner/new": b"1", b"other": b"2"})
    there.root.mkdir(parents=True)
    (there.root / "sub").symlink_to(outside)
    before = state_of(outside)
    answer: Any = there.push(exit=6)
    assert b"sub" in answer.err
    assert state_of(outside) == before
    there.push("--delete", "--max-delete", "100%")
    assert state_of(outside) == before
    assert there.there() == {b"sub/inner/new": b"1", b"other": b"2"}


# Another account. It gets the folder as its working directory, because it cannot enter the folders above.

OTHER_ACCOUNT = 65534
SWAP = """
$SIG{TERM} = sub { print "$swaps\\n"; exit 0 };
while (1) {
    rename("sub", "taken") and symlink($ARGV[0], "sub") and $swaps++;
    unlink("sub");
    rename("taken", "sub");
}
"""
SWAP_OURS = """
$SIG{TERM} = sub { print "$swaps\\n"; exit 0 };
while (1) {
    rename(".hibali", "taken-" . $swaps) and symlink($ARGV[0], ".hibali") and $swaps++;
    select(undef, undef, undef, 0.05);
    unlink(".hibali");
    mkdir(".hibali") and rmdir(".hibali");
}
"""


@contextmanager
def other_account(folder: Path, script: str, outside: Path) -> Iterator[Callable[[], int]]:
    """Run a script as another account in `folder`, which all can write; yield a function that returns the number of swaps."""
    if os.geteuid() != 0 or shutil.which("perl") is None:
        pytest.skip("this needs root, to use a second account, and perl")
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o777)
    process = subprocess.Popen(
        ["perl", "-e", script, str(outside)],
        cwd=folder,
        user=OTHER_ACCOUNT,
        group=OTHER_ACCOUNT,
        extra_groups=[],
        stdout=subprocess.PIPE,
        text=True,
    )
    outputs: list[str] = []
    try:
        yield lambda: int(outputs[0] or 0)
    finally:
        process.terminate()
        outputs.append(process.communicate(timeout=60)[0])


def test_folders_swapped_by_another_account_during_a_push_are_not_followed(
    folder_there: Transfers, outside: Path
) -> None:
    there = folder_there
    there.make(TREE)
    (there.root / "sub" / "inner").mkdir(parents=True)
    (there.root / "sub" / "inner").chmod(0o777)
    before = state_of(outside)
    with other_account(there.root, SWAP, outside) as swaps:
        codes = set()
        for _ in range(3):
            answer = there.hibali("push", there.source, "there:data", "--json")
            codes.add(answer.exit)
            assert b"Traceback" not in answer.err
        assert state_of(outside) == before
    assert swaps() > 100
    assert codes <= {0, 6, 8}, codes
    assert state_of(outside) == before
    with contextlib.suppress(OSError):
        (there.root / "sub").unlink()  # the symlink, if the script was stopped between two swaps
    shutil.rmtree(there.root / "taken", ignore_errors=True)
    there.push()
    assert differences(there.committed_files(), TREE) == {}


def test_a_push_stops_when_another_account_removes_its_lock(folder_there: Transfers, outside: Path) -> None:
    """Check that hibali stops without its lock, whose content no one else can forge, and writes nothing through a symlink."""
    there = folder_there
    there.make(many_files(600, 3000))
    before = state_of(outside)
    with other_account(there.root, SWAP_OURS, outside) as swaps:
        for _ in range(3):
            answer = there.hibali("push", there.source, "there:data", "--json")
            assert answer.exit in {0, 5, 6, 8}, str(answer)
            assert b"Traceback" not in answer.err
    assert swaps() > 0
    assert state_of(outside) == before
    for left in there.root.glob("taken-*"):
        shutil.rmtree(left)
    for name, content in there.committed_files().items():
        assert content == (there.source / os.fsdecode(name)).read_bytes(), name
    own = there.root / ".hibali"  # what the script was about to remove when it was stopped
    if own.is_symlink():
        own.unlink()
    elif own.exists() and own.stat().st_uid == OTHER_ACCOUNT:
        own.rmdir()
    there.push("--delete", "--max-delete", "100%")
    assert differences(there.committed_files(), many_files(600, 3000)) == {}


@pytest.mark.parametrize("script", ['mkdir ".hibali"', 'symlink $ARGV[0], ".hibali"', 'open(F, ">.hibali")'])
def test_entries_of_another_account_under_hibalis_names_are_refused(
    local_there: Transfers, outside: Path, script: str
) -> None:
    there = local_there
    there.make({b"a": b"1"})
    before = state_of(outside)
    with other_account(there.root, f"{script}; sleep 600", outside):
        wait_for(lambda: os.path.lexists(there.root / ".hibali"))
        answer = there.push(exit=8)
    assert b".hibali" in answer.err
    assert b"a" not in there.there()
    assert state_of(outside) == before
