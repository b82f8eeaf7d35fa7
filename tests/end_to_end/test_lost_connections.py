"""Test connections to an ssh site that break during a transfer: the command continues on others or reconnects."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.backends import add_site
from tests.support.faulty_proxy import LosingProxy
from tests.support.transfers import Transfers, counts
from tests.support.trees import make_tree, many_files, random_bytes, read_tree
from tests.support.waiting import wait_for

MIB = 1 << 20


def large() -> bytes:
    """Return several pieces for each connection."""
    return random_bytes(12, 32 * MIB + 3)


def full_tree() -> dict[bytes, bytes]:
    """Return the files to transfer."""
    return {**many_files(400, 20_000, folders=5), b"large": large(), b"sub/other": large()[: 12 * MIB]}


# transfers.model.store.MOST_BYTES: the amount of data that several connections may have in transfer
IN_FLIGHT = 64 * MIB

Losing = Callable[..., tuple[Transfers, LosingProxy]]


@pytest.fixture
def losing(transfers_to: Any) -> Iterator[Losing]:
    """Return a function that makes an ssh site whose connections are cut as `losses` lists; settings are added to its tables."""
    proxies: list[LosingProxy] = []

    def make(losses: dict[int, int], ssh: str = "", limits: str = "") -> tuple[Transfers, LosingProxy]:
        there = transfers_to("ssh")
        proxy = LosingProxy(there.place.server.port, losses)
        proxies.append(proxy)
        config = there.hibali.home.config
        through = f', "-o", "Port={proxy.port}", "-o", "HostKeyAlias={there.place.server.host}"]\n{ssh}\n'
        text = re.sub(r"(command = \[.*)\]\n", lambda found: found.group(1) + through, config.read_text())
        # one after the other, so that the first connection is that of the first channel
        politely = f'login_interval = "0.2s"\n{limits}'
        config.write_text(re.sub("login_interval.*\nreconnect.*", politely, text))
        return there, proxy

    yield make
    for proxy in proxies:
        proxy.close()


def size_of(tree: dict[bytes, bytes]) -> int:
    return sum(map(len, tree.values()))


@pytest.mark.heavy
@pytest.mark.parametrize("lost", [{1: 2 * MIB}, {1: 2 * MIB, 2: 2 * MIB}], ids=["one", "all further ones"])
@pytest.mark.parametrize("way", ["push", "pull"])
def test_a_lost_connection_is_replaced_by_the_others(
    losing: Losing, tmp_path: Path, way: str, lost: dict[int, int]
) -> None:
    there, proxy = losing({}, "logins = 3\nchannels = 3")
    there.make(full_tree())
    if way == "pull":
        there.place.plant("data", full_tree())
    proxy.losses.update(lost)
    answer = there.push() if way == "push" else there.pull(tmp_path / "back")
    assert counts(answer)["files_moved"] == len(full_tree())
    assert answer.last["proof_moved"] == "digest"
    assert answer.last["reconnects"] >= 1, (proxy.connections, proxy.losses, str(answer))
    assert size_of(full_tree()) <= answer.last["bytes_sent"] <= size_of(full_tree()) + IN_FLIGHT
    assert (there.there() if way == "push" else read_tree(tmp_path / "back")) == full_tree()
    there.check_no_own_files()
    assert not proxy.losses


BOTH = ("push", pytest.param("pull", marks=pytest.mark.heavy))


@pytest.mark.heavy
@pytest.mark.parametrize("way", BOTH)
def test_after_all_connections_are_lost_the_command_reconnects(
    losing: Losing, tmp_path: Path, way: str
) -> None:
    there, proxy = losing({0: 6 * MIB}, "channels = 3")
    tree = {**full_tree(), b"large": large()[: 9 * MIB], b"sub/other": large()[: 5 * MIB]}
    there.make(tree)
    if way == "pull":
        there.place.plant("data", tree)
    answer = there.push() if way == "push" else there.pull(tmp_path / "back")
    assert counts(answer)["files_moved"] == counts(answer)["files"] == len(tree)
    assert answer.last["proof_moved"] == "digest"
    assert answer.last["reconnects"] >= 1
    assert answer.last["logins"] == proxy.connections == 2
    assert size_of(tree) <= answer.last["bytes_sent"] <= size_of(tree) + IN_FLIGHT
    assert "connection lost, retrying in 3 s" in answer.err.decode()
    assert (there.there() if way == "push" else read_tree(tmp_path / "back")) == tree
    there.check_no_own_files()


@pytest.mark.parametrize(
    "killed",
    ["agent", *(pytest.param(word, marks=pytest.mark.heavy) for word in ("ssh", "ssh of a stopped agent"))],
)
def test_a_killed_agent_or_ssh_is_restarted(losing: Losing, killed: str) -> None:
    """Kill the holder of the lock during the transfer; the partial files that it left are removed, too.

    A stopped agent does not notice that its connection is lost, and must not continue later.
    """
    there, proxy = losing({})
    tree = many_files(300, 20_000)
    there.make(tree)
    there.place.plant("data", {b"extra/file": b"to be deleted"})
    process = there.hibali.start("push", there.source, "there:data", "--json", "--delete", "--bwlimit", "2M")
    wait_for(lambda: len(there.committed_files()) > 20)
    holder = holder_of(there)
    if "stopped" in killed:
        os.kill(holder, signal.SIGSTOP)
    os.kill(holder if killed == "agent" else ssh_below(process.pid), signal.SIGKILL)
    last = receipt_of(there, process, 0)
    assert (last["files_moved"], last["files_deleted"], last["reconnects"]) == (len(tree), 1, 1)
    assert proxy.connections == 1, "a new login was made although the first one still existed"
    wait_for(lambda: not Path(f"/proc/{holder}").exists())
    assert there.there() == tree
    there.check_no_own_files()


@pytest.mark.heavy
def test_a_released_lock_seen_by_another_connection_does_not_end_the_command(losing: Losing) -> None:
    """Release the lock by the agent of the first connection, which others notice before hibali does."""
    there, proxy = losing({}, "logins = 2\nchannels = 3")
    proxy.late = 3.0
    tree = {**full_tree(), **many_files(2000, 5_000, folders=7)}
    there.make(tree)
    proxy.losses.update({0: 3 * MIB})
    answer = there.push()
    assert not proxy.losses
    assert answer.last["reconnects"] >= 1
    assert there.there() == tree
    there.check_no_own_files()


def holder_of(there: Transfers) -> int:
    return int(json.loads((there.root / ".hibali" / "lock").read_bytes())["pid"])


def ssh_below(pid: int) -> int:
    """Return the ssh process of the agent: the child of this process with `ControlMaster=no` among its arguments."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            if b"ControlMaster=no" in Path(f"/proc/{child}/cmdline").read_bytes():
                return int(child)
    raise AssertionError("the process does not exist")


def receipt_of(there: Transfers, process: Any, code: int) -> dict[str, Any]:
    """Return the last line of the first background command, once it has ended with this exit code."""
    ended = process.wait(120)
    output = (there.hibali.home.folder / "0.out").read_bytes()
    assert ended == code, output.decode()
    assert b"Traceback" not in (there.hibali.home.folder / "0.err").read_bytes()
    last: dict[str, Any] = json.loads(output.splitlines()[-1])
    assert last["exit"] == code
    return last


def begin(there: Transfers, *words: str) -> Any:
    """Start a slow push, and return when it has committed a file."""
    process = there.hibali.start("push", there.source, "there:data", "--json", "--bwlimit", "1M", *words)
    wait_for(lambda: bool(there.committed_files()) or process.poll() is not None)
    return process


def stderr_of(there: Transfers) -> str:
    return (there.hibali.home.folder / "0.err").read_text()


@pytest.mark.heavy
def test_a_server_that_does_not_return_is_5_after_the_reconnect_time(losing: Losing) -> None:
    there, proxy = losing({}, limits='reconnect = "10s"')
    tree = many_files(60, 100_000)
    there.make(tree)
    process = begin(there)
    proxy.lose_all()
    last = receipt_of(there, process, 5)
    assert (last["code"], last["transient"]) == ("unreachable", True)
    assert 1 <= proxy.tried <= 2  # after 3 s, and when the time is over
    proxy.down = False
    committed = there.committed_files()
    assert 0 < len(committed) < len(tree)
    assert counts(there.push())["files_moved"] <= len(tree) - len(committed)
    assert there.there() == tree
    there.check_no_own_files()


@pytest.mark.heavy
@pytest.mark.parametrize("meanwhile", ["done", "at work"])
def test_nothing_of_another_operation_is_overwritten(losing: Losing, tmp_path: Path, meanwhile: str) -> None:
    """Check that exit code 5 follows if another operation took the lock meanwhile, whether it is still active or not."""
    there, proxy = losing({}, limits='reconnect = "1m"')
    add_site(there.hibali.home.config, "direct", there.place)
    ours, theirs = (many_files(60, 100_000, seed=seed) for seed in (1, 2))
    there.make(ours)
    another = make_tree(tmp_path / "another", theirs)
    process = begin(there)
    proxy.lose_all()
    wait_for(lambda: "retrying in" in stderr_of(there))
    slowly = ["--bwlimit", "20K"] if meanwhile == "at work" else []
    second = there.hibali.start("push", another, "direct:data", "--json", *slowly)
    wait_for(lambda: any(theirs.get(name) == content for name, content in there.committed_files().items()))
    if meanwhile == "done":
        assert second.wait(60) == 0
    before = [name for name, content in there.committed_files().items() if theirs.get(name) == content]
    proxy.down = False
    last = receipt_of(there, process, 5)
    assert last["code"] == ("written-by-another" if meanwhile == "done" else "locked")
    assert f"process {second.pid};" in last["message"] or meanwhile == "done"
    if meanwhile == "at work":
        second.send_signal(signal.SIGINT)
        assert second.wait(60) == 130
    now = there.committed_files()
    assert all(now[name] == theirs[name] for name in before), "a file of the other operation was overwritten"


@pytest.mark.heavy
def test_reconnecting_asks_no_questions_and_does_not_retry_a_rejected_login(losing: Losing) -> None:
    there, proxy = losing({})
    there.make(many_files(60, 100_000))
    tries = there.folder / "tries"
    ssh = there.folder / "ssh"
    ssh.write_text(
        f'#!/bin/sh\ncase $* in *ControlMaster=yes*) echo "$*" >>{tries}; if [ $(wc -l <{tries}) -gt 1 ]; then'
        ' echo "Permission denied (publickey,password)." >&2; exit 255; fi;; esac\nexec ssh "$@"\n'
    )
    ssh.chmod(0o755)
    config = there.hibali.home.config
    config.write_text(config.read_text().replace('command = ["ssh"', f'command = ["{ssh}"'))
    process = begin(there)
    proxy.cut()
    assert receipt_of(there, process, 4)["code"] == "login-refused"
    assert len(tries.read_text().splitlines()) == 2
    assert "BatchMode=yes" in tries.read_text().splitlines()[1]


@pytest.mark.heavy
@pytest.mark.parametrize("how", ["SIGINT", "--max-time"])
def test_the_pause_before_reconnecting_can_be_interrupted(losing: Losing, how: str) -> None:
    there, proxy = losing({})
    there.make(many_files(60, 100_000))
    process = begin(there, *(["--max-time", "20s"] if how == "--max-time" else []))
    proxy.lose_all()
    pauses = "retrying in (2[0-9]|[3-9][0-9]) s" if how == "SIGINT" else "retrying in"
    wait_for(lambda: bool(re.search(pauses, stderr_of(there))))
    began = time.monotonic()
    if how == "SIGINT":
        process.send_signal(signal.SIGINT)
    receipt_of(there, process, 130 if how == "SIGINT" else 5)
    assert how == "--max-time" or time.monotonic() - began < 15, (
        "the command waited until the end of the pause"
    )


@pytest.mark.heavy
def test_a_saved_plan_continues_after_lost_answers(losing: Losing) -> None:
    """Check that files committed without an answer, which the plan does not know, are recognized."""
    there, _ = losing({}, "channels = 2")
    tree = many_files(300, 20_000)
    there.make(tree)
    there.place.plant("data", dict.fromkeys(tree, b"older"))
    there.hibali("plan", there.source, "there:data", "-o", there.folder / "plan", exit=0)
    process = there.hibali.start("apply", there.folder / "plan", "--json", "--bwlimit", "2M")
    wait_for(lambda: sum(content != b"older" for content in there.committed_files().values()) > 20)
    os.kill(holder_of(there), signal.SIGKILL)
    last = receipt_of(there, process, 0)
    assert (last["files_moved"], last["files_failed"], last["reconnects"]) == (len(tree), 0, 1)
    assert there.there() == tree
    there.check_no_own_files()
