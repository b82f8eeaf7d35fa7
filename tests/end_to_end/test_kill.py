"""Test kills at any moment: no partial file ever has its final name, and the same command resumes."""

from __future__ import annotations

import json
import os
import signal
import time
from typing import Any

import pytest

from tests.support import strace
from tests.support.agent_signals import signal_working_agent, wait_for_agent_exit
from tests.support.transfers import Transfers, counts
from tests.support.trees import File, Folder, Leaf, Link, Tree, many_files, read_tree, sha256
from tests.support.watcher import Watcher

FILES = 5000
MORE = 16 << 20  # the amount of data that may have been in transfer at the kill
MIDDLE = (0.1, 0.4, 0.8)
TEN = (1, 250, 700, 1200, 1800, 2400, 3000, 3600, 4300, 4900)


@pytest.fixture(scope="module")
def thousands() -> dict[bytes, bytes]:
    return many_files(FILES, 8000)


def _kill(process: Any) -> None:
    """Kill the command and its process group at once."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)


def _kill_when_seen(there: Transfers, tree: dict[bytes, bytes], count: int) -> dict[bytes, bytes]:
    """Start a push, watch the target, kill the push when `count` files are committed, and return the committed files."""
    right = {name: {sha256(content)} for name, content in tree.items()}
    with Watcher(there.place, "data", right) as watcher:
        process = there.hibali.start("push", there.source, "there:data", "--json")
        watcher.when(count, lambda: _kill(process))
        process.wait(120)
        wait_for_agent_exit(there)
    return there.committed_files()


def _check_resumed(there: Transfers, tree: dict[bytes, bytes], committed: dict[bytes, bytes]) -> None:
    """Check that the same command transfers the rest, and repeats at most the data that was in transfer."""
    assert committed.items() <= tree.items()
    rest = sum(map(len, tree.values())) - sum(map(len, committed.values()))
    receipt = counts(there.push())
    assert rest <= receipt["bytes_moved"] <= rest + MORE
    assert rest <= receipt["bytes_sent"] <= rest + MORE
    assert receipt["files_moved"] + receipt["files_kept"] == len(tree)
    if there.place.word != "s3":
        assert receipt["files_moved"] == len(tree) - len(committed)
    _check_complete(there, tree)


def _check_complete(there: Transfers, tree: Tree) -> None:
    assert there.there() == {name: leaf for name, leaf in tree.items() if isinstance(leaf, bytes)}
    there.check_no_own_files()
    again = counts(there.push())
    assert (again["files_moved"], again["bytes_sent"]) == (0, 0)


@pytest.mark.parametrize(
    ("word", "files"),
    [
        ("ssh", 1000),
        pytest.param("ssh", 5000, marks=pytest.mark.heavy),
        pytest.param("s3", 1000, marks=pytest.mark.heavy),
    ],
)
def test_a_push_killed_three_times_resumes_each_time(transfers_to: Any, word: str, files: int) -> None:
    there = transfers_to(word)
    tree = many_files(files, 8000)
    there.make(tree)
    committed: dict[bytes, bytes] = {}
    for point in MIDDLE:
        now = _kill_when_seen(there, tree, int(files * point))
        assert now.items() >= committed.items()
        assert len(now) >= files * point
        committed = now
    _check_resumed(there, tree, committed)


@pytest.mark.heavy
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("word", "point"), [*(("ssh", point) for point in TEN), ("s3", 1), ("s3", 1800)])
def test_a_push_killed_at_any_of_ten_points_resumes(
    transfers_to: Any, thousands: dict[bytes, bytes], word: str, point: int
) -> None:
    there = transfers_to(word)
    there.make(thousands)
    _check_resumed(there, thousands, _kill_when_seen(there, thousands, point))


def _is_partly_sent(there: Transfers) -> bool:
    """Return whether a large file is being sent and recorded; unrecorded uploads to a bucket are left to `sites clean`."""
    unfinished = there.place.unfinished("data")
    if there.place.word != "s3":
        return bool(unfinished)
    noted = (path.read_bytes() for path in there.hibali.home.state.rglob("*") if path.is_file())
    return bool(unfinished) and any(b'"upload"' in content for content in noted)


def test_a_kill_inside_a_large_file_leaves_no_partial_file_visible(there: Transfers) -> None:
    """Check that the partial file is never visible, and is gone after the next push."""
    content = os.urandom(1 << 20) * 64
    there.make({b"large": content, b"small": b"1"})
    right = {b"large": {sha256(content)}, b"small": {sha256(b"1")}}
    with Watcher(there.place, "data", right):
        process = there.hibali.start("push", there.source, "there:data")
        while not _is_partly_sent(there) and process.poll() is None:
            time.sleep(0.01)
        _kill(process)
        assert process.wait() == -signal.SIGKILL
        wait_for_agent_exit(there)
    there.push()
    _check_complete(there, {b"large": content, b"small": b"1"})


@pytest.mark.heavy
@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.heavy)])
def test_an_interrupted_push_leaves_no_files_behind(there: Transfers, number: int) -> None:
    tree = many_files(1500, 8000)
    there.make(tree)
    right = {name: {sha256(content)} for name, content in tree.items()}
    with Watcher(there.place, "data", right) as watcher:
        process = there.hibali.start("push", there.source, "there:data", "--json")
        watcher.when(200, lambda: process.send_signal(number))
        process.wait(60)
        wait_for_agent_exit(there)
    assert process.returncode in {0, 128 + number}
    last = json.loads((there.hibali.home.folder / "0.out").read_bytes().splitlines()[-1])
    assert last["exit"] == process.returncode
    there.push()
    _check_complete(there, tree)


# The agents: a process that holds the lock of the target.


@pytest.mark.heavy
def test_a_killed_agent_is_5_and_its_lock_ends_with_it(folder_there: Transfers) -> None:
    there = folder_there
    tree = many_files(3000, 8000)
    there.make(tree)
    right = {name: {sha256(content)} for name, content in tree.items()}
    with Watcher(there.place, "data", right):
        # it takes 12 seconds, so that it is not finished before a busy machine lets this process kill the agent
        process = there.hibali.start("push", there.source, "there:data", "--json", "--bwlimit", "2M")
        signal_working_agent(there.root, signal.SIGKILL)
        process.wait(60)
        wait_for_agent_exit(there)
    lines = [json.loads(line) for line in (there.hibali.home.folder / "0.out").read_bytes().splitlines()]
    assert process.returncode == 5, lines[-1]
    assert (lines[-1]["kind"], lines[-1]["exit"]) == ("error", 5)
    assert b"Traceback" not in (there.hibali.home.folder / "0.err").read_bytes()
    committed = there.committed_files()
    began = time.monotonic()
    assert counts(there.push())["files_moved"] == len(tree) - len(committed)
    assert time.monotonic() - began < 60  # immediately, and not when the lease expires
    _check_complete(there, tree)


def test_two_commands_do_not_write_to_one_target_at_once(folder_there: Transfers) -> None:
    there = folder_there
    there.make(many_files(3000, 8000))
    process = there.hibali.start("push", there.source, "there:data", "--json")
    deadline = time.monotonic() + 20
    while not (there.root / ".hibali/lock").exists():
        assert time.monotonic() < deadline
        time.sleep(0.005)
    holder = json.loads((there.root / ".hibali/lock").read_bytes())["pid"]
    os.kill(holder, signal.SIGSTOP)
    try:
        answer = there.push(exit=5)
    finally:
        os.kill(holder, signal.SIGCONT)
    assert answer.last["code"] == "locked"
    assert str(process.pid) in answer.last["message"]
    assert process.wait(60) == 0
    assert counts(there.push())["files_moved"] == 0


def test_a_lock_of_another_machine_holds_until_its_lease_expires(folder_there: Transfers) -> None:
    there = folder_there
    there.make({b"a": b"1"})
    folder = there.root / ".hibali"
    folder.mkdir(parents=True, mode=0o700)
    lock = folder / "lock"
    lock.write_text(
        json.dumps(
            {
                "version": 1,
                "host": "elsewhere",
                "boot": "b",
                "pid": 1,
                "start": "1",
                "token": "t",
                "lease": 120,
            }
        )
    )
    answer = there.push(exit=5)
    assert answer.last["code"] == "locked"
    assert "elsewhere" in answer.last["message"]
    assert there.there() == {}
    past = time.time() - 121
    os.utime(lock, (past, past))
    there.push()
    _check_complete(there, {b"a": b"1"})


# At any system call: the tree below has every kind of change.

OLD_TIME = 1_500_000_000_000_000_000
BEFORE: dict[bytes, Leaf] = {
    b"same": File(b"kept as it is", mtime_ns=OLD_TIME),
    b"changed": File(b"the old content", mtime_ns=OLD_TIME),
    b"gone": b"to be deleted",
    b"folder/gone": b"with its folder",
    b"was-folder/below": b"makes room",
    b"was-file": b"makes room for a folder",
    b"link": Link(b"old"),
}
AFTER: dict[bytes, Leaf] = {
    b"same": File(b"kept as it is", mtime_ns=OLD_TIME),
    b"changed": b"the new content",
    b"new": b"1",
    b"sub/deep/new": b"2",
    b"empty": Folder(),
    b"large": b"0123456789abcdef" * (5 << 16),
    b"was-folder": b"a file now",
    b"was-file/below": b"in a folder now",
    b"link": Link(b"new"),
}
EVERYTHING = ("--delete", "--max-delete", "100%")


def _content_of(leaf: Leaf | None) -> bytes | None:
    return leaf.content if isinstance(leaf, File) else leaf if isinstance(leaf, bytes) else None


def _check_contents(there: Transfers) -> None:
    """Check that each final name has the old or the new content, and that unchanged files always exist."""
    found = read_tree(there.root)
    for name, leaf in found.items():
        if b".hibali" in name:
            continue
        if isinstance(leaf, bytes):
            assert leaf in {_content_of(BEFORE.get(name)), _content_of(AFTER.get(name))}, name
        else:
            assert isinstance(leaf, Folder) or leaf in {BEFORE.get(name), AFTER.get(name)}, name
    assert {b"same", b"changed", b"link"} <= found.keys()


def _kill_once(there: Transfers, run: Any) -> bool:
    """Kill one push, repeat the command, and return whether the first was killed at all."""
    there.place.plant("data", BEFORE)
    there.make(AFTER)
    killed = run()
    assert b"Traceback" not in killed.err, str(killed)
    wait_for_agent_exit(there)
    _check_contents(there)
    there.push(*EVERYTHING)
    assert there.tree_there() == read_tree(there.source)
    there.check_no_own_files()
    there.hibali("push", there.source, "there:data", *EVERYTHING, "-n", "--detailed-exit-code", exit=0)
    return bool(killed.exit != 0)


def _killed_locally(there: Transfers, calls: str, number: int) -> bool:
    """Kill the process of the command, hibali or its agent, that first makes its `number`th such call."""

    def run() -> Any:
        with there.under(*strace.kill_at(calls, number)):
            return there.hibali("push", there.source, "there:data", *EVERYTHING)

    return _kill_once(there, run)


def _killed_at_site(there: Transfers, calls: str, number: int) -> bool:
    """Kill only the agent at the site, with a `python` that kills it."""
    wrapper = there.folder / "python3"
    words = " ".join(f"'{word}'" for word in strace.kill_at(calls, number))
    wrapper.write_text(f'#!/bin/sh\nexec {words} python3 "$@"\n')
    wrapper.chmod(0o755)
    config = there.hibali.home.config
    plain = config.read_text()

    def run() -> Any:
        config.write_text(plain.replace("[sites.there.ssh]\n", f'[sites.there.ssh]\npython = "{wrapper}"\n'))
        try:
            return there.hibali("push", there.source, "there:data", *EVERYTHING)
        finally:
            config.write_text(plain)

    return _kill_once(there, run)


CALLS = {
    "rename": strace.RENAME,
    "sync": strace.SYNC,
    "unlink": strace.UNLINK,
    "mkdir": strace.MAKE_FOLDER,
    "link": strace.LINK,
    "times": strace.TIMES,
}
SAMPLE = [
    ("rename", 1),
    ("rename", 4),
    ("sync", 3),
    ("sync", 6),
    ("unlink", 1),
    ("unlink", 5),
    ("mkdir", 2),
    ("link", 1),
]


@pytest.mark.heavy
@pytest.mark.parametrize(("call", "number"), SAMPLE)
def test_a_kill_on_this_machine_at_a_system_call_is_recovered(
    local_there: Transfers, call: str, number: int
) -> None:
    strace.require_strace()
    assert _killed_locally(local_there, CALLS[call], number)


@pytest.mark.parametrize(
    ("call", "number"),
    [
        ("rename", 3),
        pytest.param("sync", 5, marks=pytest.mark.heavy),
        pytest.param("unlink", 3, marks=pytest.mark.heavy),
    ],
)
def test_a_kill_at_the_site_at_a_system_call_is_recovered(transfers_to: Any, call: str, number: int) -> None:
    strace.require_strace()
    assert _killed_at_site(transfers_to("ssh"), CALLS[call], number)


@pytest.mark.heavy
@pytest.mark.timeout(900)
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("word", ["local", "ssh"])
def test_a_kill_at_every_system_call_is_recovered(transfers_to: Any, word: str, call: str) -> None:
    strace.require_strace()
    there = transfers_to(word)
    kill = _killed_locally if word == "local" else _killed_at_site
    for number in range(1, 200):
        _clear(there)
        if not kill(there, CALLS[call], number):
            assert number > 1
            return
    pytest.fail("no push completed")


@pytest.mark.heavy
@pytest.mark.timeout(900)
@pytest.mark.parametrize("word", ["local", "ssh"])
def test_a_kill_at_every_write_is_recovered(transfers_to: Any, word: str) -> None:
    """Kill at later and later writes, which include each message, until a push completes."""
    strace.require_strace()
    there = transfers_to(word)
    kill = _killed_locally if word == "local" else _killed_at_site
    number = 1
    while number < 5000:
        _clear(there)
        if not kill(there, strace.WRITE, number):
            break
        number += 1 + number // 4
    assert 10 < number < 5000


def _clear(there: Transfers) -> None:
    for folder, path in ((there.source, "source"), (there.root, "data")):
        if folder.exists():
            folder.rename(folder.with_name(f"{path}-{time.monotonic_ns()}"))


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("call", "error", "when"), [("rename", "EIO", "20+"), ("sync", "EIO", "6+"), ("rename", "ENOSPC", "20+")]
)
def test_a_failed_system_call_is_reported_and_the_same_command_resumes(
    local_there: Transfers, call: str, error: str, when: str
) -> None:
    """Check a disk that fails during a push: the exit code is not 0, no file is wrong, and the next push repairs everything."""
    strace.require_strace()
    there = local_there
    tree = many_files(300, 2000)
    there.make(tree)
    with there.under(*strace.fail_at(CALLS[call], error, when)):
        answer = there.hibali("push", there.source, "there:data", "--json")
    assert b"Traceback" not in answer.err, str(answer)
    assert answer.exit in {5, 6}, str(answer)
    assert answer.last["exit"] == answer.exit
    assert there.committed_files().items() <= tree.items()
    there.push()
    _check_complete(there, tree)
