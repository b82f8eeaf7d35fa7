"""Test faults during transfers: no file is lost, the exit code is right, and the same command resumes.

Unless a test sets another value, the sites of these tests do not reconnect after a lost connection (`reconnect = "0s"`).

| what breaks                          | tested by                                                                   | exit   |
|--------------------------------------|-----------------------------------------------------------------------------|--------|
| connection lost and restored         | test_lost_connections.py                                                    | 0      |
| server stopped and started again     | here: `a_server_that_stops`; test_server_outages.py                         | 5; 0   |
| connection reset in a segment        | here: `a_reset_connection`; cut: test_faulty_connections.py                 | 0 or 5 |
| every tenth request 503              | here: `every_tenth_request`; always: test_faulty_connections.py             | 0; 5   |
| sshd that allows two connections     | here: `two_connections`, `two_sessions`; rejected: test_many_connections.py | 0      |
| bytes flipped on the wire to S3      | test_faulty_connections.py (`flip_request`, `flip_answer`)                  | 0 or 6 |
| bytes flipped on the disk            | here: `flipped_on_the_disk`; in a partial file: test_resume.py              | 6      |
| no space, no inodes: before          | test_push_refused.py, test_quota.py                                         | 8      |
| no space, no inodes: midway          | here: `a_target_that_fills_up`; contracts/test_store_faults.py              | 6      |
| disk that fails                      | test_kill.py (`a_failed_system_call`)                                       | 5 or 6 |
| source changed, unreadable, vanished | test_push_refused.py, test_push_interrupted.py, contracts                   | 6      |
| listing cut short, with `--delete`   | test_faulty_connections.py (S3), test_malicious_agent.py                    | 5 or 6 |
| client killed at any system call     | test_kill.py; inside a large file: test_resume.py, test_repeated_kills.py   | -      |
| client stopped past its lease        | test_suspended_writer.py                                                    | 5      |
| two hosts, clocks apart              | test_two_hosts.py                                                           | 5      |
| another account on the same machine  | test_hostile_accounts.py                                                    | 8 or 6 |
"""

from __future__ import annotations

import os
import random
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.support.backends import add_site
from tests.support.faulty_proxy import CuttingProxy, Exchange, FaultyHttpProxy, LatencyProxy
from tests.support.restartable_server import RestartableServer, restartable_server
from tests.support.small_filesystem import small_filesystem
from tests.support.transfers import Transfers, counts, failed
from tests.support.trees import many_files, read_tree
from tests.support.waiting import wait_for

MIB = 1 << 20
LARGE = random.Random(8).randbytes(MIB + 1) * 24  # noqa: S311 - some pieces, the same ones each time
TREE = {**many_files(40, 20_000), b"large": LARGE}
HEAVY_S3 = ("ssh", pytest.param("s3", marks=pytest.mark.heavy))
OwnPlace = Callable[..., tuple[Transfers, RestartableServer]]


@pytest.fixture
def own_site(hibali: Any, tmp_path: Path) -> Iterator[OwnPlace]:
    """Return a function that makes a site `there` with a server of its own, of kind `ssh` or `s3`."""
    with ExitStack() as stack:

        def make(word: str, *, sshd: str = "") -> tuple[Transfers, RestartableServer]:
            server = stack.enter_context(restartable_server(word, tmp_path, sshd=sshd))
            add_site(hibali.home.config, "there", server.place)
            hibali.env.update(server.place.env)
            return Transfers(hibali, server.place, tmp_path), server

        yield make


def through(there: Transfers, port: int) -> None:
    """Change the site's port, so that it is reached through a proxy."""
    config = there.hibali.home.config
    place: Any = there.place
    if place.word == "s3":
        config.write_text(config.read_text().replace(place.endpoint, f"http://127.0.0.1:{port}"))
        return
    more = f', "-o", "Port={port}", "-o", "HostKeyAlias={place.server.host}"]\n'
    config.write_text(
        re.sub(r"(command = \[.*)\]\n", lambda found: found.group(1) + more, config.read_text())
    )


def port_of(there: Transfers) -> int:
    place: Any = there.place
    return int(place.endpoint.rpartition(":")[2]) if place.word == "s3" else place.server.port


def ended_with(there: Transfers, process: Any) -> tuple[int, bytes]:
    """Return the exit code and standard error of the first command that was started in the background."""
    code = process.wait(120)
    errors = (there.hibali.home.folder / "0.err").read_bytes()
    assert b"Traceback" not in errors
    return code, errors


@pytest.mark.heavy
@pytest.mark.parametrize("word", HEAVY_S3)
def test_a_server_that_stops_is_5_and_the_transfer_resumes_after_its_restart(
    own_site: OwnPlace, word: str
) -> None:
    there, server = own_site(word)
    tree = many_files(60, 200_000)
    there.make(tree)
    process = there.hibali.start("push", there.source, "there:data", "--json", "--bwlimit", "1M")
    wait_for(lambda: bool(there.committed_files()) or process.poll() is not None)
    server.stop()
    assert ended_with(there, process)[0] == 5
    assert there.push(exit=5).last["transient"]
    server.start()
    committed = there.committed_files()
    assert 0 < len(committed) < len(tree)
    assert committed.items() <= tree.items()
    again = counts(there.push())
    assert again["files_moved"] <= len(tree) - len(committed) + (word == "s3") * 20
    assert there.there() == tree
    there.check_no_own_files()


@pytest.mark.parametrize(
    ("word", "once"), [("ssh", False), ("s3", True), pytest.param("s3", False, marks=pytest.mark.heavy)]
)
def test_a_reset_connection_inside_a_large_file_is_resumed(
    transfers_to: Any, word: str, *, once: bool
) -> None:
    """Check that hibali retries with an object store, and that for an ssh site the command ends and can be repeated."""
    there = transfers_to(word)
    there.make(TREE)
    proxy = CuttingProxy(port_of(there), 10 * MIB, reset=True, once=once)
    through(there, proxy.port)
    try:
        if once:
            assert counts(there.push())["files_moved"] == len(TREE)
        else:
            assert there.push(exit=5).last["transient"]
            assert there.committed_files().items() <= TREE.items()
            assert b"large" not in there.committed_files()
            proxy.cut_after = None
            again = there.hibali("push", there.source, "there:data", "--json")
            while again.exit == 5 and again.last["code"] == "locked":
                again = there.hibali("push", there.source, "there:data", "--json")
            assert again.exit == 0, str(again)
        assert there.there() == TREE
        there.check_no_own_files()
    finally:
        proxy.close()


@pytest.mark.heavy
def test_every_tenth_request_refused_is_retried(transfers_to: Any, tmp_path: Path) -> None:
    there = transfers_to("s3")
    refused: list[Exchange] = []

    def fault(exchange: Exchange) -> None:
        if exchange.number % 10 == 9:
            exchange.refuse = True
            refused.append(exchange)

    proxy = FaultyHttpProxy(port_of(there), fault)
    through(there, proxy.port)
    try:
        there.make(TREE)
        assert counts(there.push())["files_moved"] == len(TREE)
        assert there.there() == TREE
        there.pull(tmp_path / "back")
        assert read_tree(tmp_path / "back") == TREE
        assert len(refused) > 5
        assert counts(there.push())["files_moved"] == 0
    finally:
        proxy.close()


@pytest.mark.heavy
@pytest.mark.parametrize("what", ["sessions", pytest.param("connections", marks=pytest.mark.heavy)])
def test_a_server_that_allows_two_connections_gets_no_more(own_site: OwnPlace, what: str) -> None:
    """Check that eight logins and channels are configured, fewer connections are used, and all files arrive."""
    there, server = own_site("ssh", sshd="MaxSessions 2\nMaxStartups 2" if what == "sessions" else "")
    proxy = LatencyProxy(server.port, 0.02, most=2 if what == "connections" else None)
    through(there, proxy.port)
    config = there.hibali.home.config
    config.write_text(config.read_text().replace("transport =", "logins = 8\nchannels = 8\ntransport ="))
    try:
        there.make(TREE)
        answer = there.push()
        assert counts(answer)["files_moved"] == len(TREE)
        assert answer.last["proof_moved"] == "digest"
        assert there.there() == TREE
        there.check_no_own_files()
        assert counts(there.push())["files_moved"] == 0
        if what == "connections":
            assert answer.last["logins"] <= 2
    finally:
        proxy.close()


@pytest.mark.parametrize("word", ["local", pytest.param("ssh", marks=pytest.mark.heavy)])
def test_a_byte_flipped_on_the_disk_is_detected_and_repaired(transfers_to: Any, word: str) -> None:
    there = transfers_to(word)
    there.make(TREE)
    there.push()
    there.place.corrupt("data", b"large")
    answer = there.verify(exit=6)
    assert set(failed(answer)) == {b"large"}
    assert there.verify(there.source, "there:data", exit=6).last["proof_tree"] == "none"
    assert counts(there.push("--checksum"))["files_moved"] == 1
    assert there.there() == TREE
    assert there.verify().last["proof_tree"] == "digest"


@pytest.mark.heavy
@pytest.mark.timeout(600)
def test_a_byte_flipped_on_an_object_stores_disk_is_never_accepted(
    own_site: OwnPlace, tmp_path: Path
) -> None:
    """Check that the server reports an error for that object, and that all others arrive."""
    there, _ = own_site("s3")
    content = random.Random(9).randbytes(300_000)  # noqa: S311 - the same content each time
    there.make({b"good": b"1", b"bad": content})
    there.push()
    flipped = 0
    for volume in (tmp_path / "own" / "object-store" / "data").rglob("*.dat"):
        position = volume.read_bytes().find(content[1000:1100])
        if position >= 0:
            with volume.open("r+b") as stream:
                stream.seek(position + 50)
                stream.write(bytes([content[1050] ^ 1]))
            flipped += 1
    assert flipped
    answer = there.hibali("pull", "there:data", tmp_path / "back", "--json", timeout=500)
    assert answer.exit == 6, str(answer)
    assert set(failed(answer)) == {b"bad"}
    back = read_tree(tmp_path / "back")
    assert {name: leaf for name, leaf in back.items() if b".hibali" not in name} == {b"good": b"1"}
    there.place.remove("data", b"bad")
    assert counts(there.push())["files_moved"] == 1
    assert there.verify().last["proof_tree"] == "digest"


@pytest.mark.parametrize("options", ["size=16m", "nr_inodes=200"])
@pytest.mark.parametrize("word", ["local", pytest.param("ssh", marks=pytest.mark.heavy)])
def test_a_target_that_fills_up_half_way_is_6_and_committed_files_stay(
    transfers_to: Any, word: str, options: str
) -> None:
    """Check a filesystem that others fill during the transfer, after the check of free space."""
    there = transfers_to(word)
    tree = many_files(60, 200_000)
    there.make(tree)
    there.root.mkdir(parents=True)
    with small_filesystem(there.root, options):
        process = there.hibali.start("push", there.source, "there:data", "--json", "--bwlimit", "2M")
        wait_for(lambda: bool(there.committed_files()) or process.poll() is not None)
        os.killpg(process.pid, signal.SIGSTOP)
        theirs = fill_up(there.root)
        os.killpg(process.pid, signal.SIGCONT)
        assert ended_with(there, process)[0] == 6
        committed = there.committed_files()
        assert 0 < len(committed.keys() & tree.keys()) < len(tree)
        assert {name: committed[name] for name in committed.keys() & tree.keys()}.items() <= tree.items()
        answer = there.hibali("push", there.source, "there:data", "--json", exit=8)
        assert answer.last["code"] in {"no-space", "no-inodes"}
        for path in theirs:
            path.unlink()
        assert counts(there.push())["files_moved"] == len(tree) - len(committed.keys() & tree.keys())
        assert there.there() == tree
        there.check_no_own_files()


def fill_up(root: Path) -> list[Path]:
    """Use all free bytes and inodes."""
    made: list[Path] = []
    try:
        for number in range(10_000):
            path = root / f"theirs-{number}"
            made.append(path)
            path.write_bytes(b"x" * (64 << 10))
    except OSError:
        if not made[-1].exists():
            made.pop()
    return made
