"""Test a writer that was suspended past its lease: it stops when another process holds the lock (S6)."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.agent_signals import signal_working_agent
from tests.support.transfers import Transfers, counts
from tests.support.trees import make_tree, many_files, sha256
from tests.support.waiting import wait_for
from tests.support.watcher import Watcher

PACK = 256  # a group commit that was active at the suspension may end
ENDS_SECONDS = 240  # much longer than needed, to tell a hang from a busy machine


@pytest.mark.heavy
def test_a_writer_that_was_suspended_past_its_lease_stops(folder_there: Transfers, tmp_path: Path) -> None:
    there = folder_there
    ours, theirs = (many_files(6000, 4000, seed=seed) for seed in (1, 2))
    there.make(ours)
    another = make_tree(tmp_path / "another", theirs)
    right: dict[bytes, set[str]] = {
        name: {sha256(content), sha256(theirs[name])} for name, content in ours.items()
    }
    lock = there.root / ".hibali" / "lock"

    with Watcher(there.place, "data", right):
        process = there.hibali.start("push", there.source, "there:data", "--json")
        holder = signal_working_agent(there.root, signal.SIGSTOP)
        try:
            past = time.time() - 1000
            os.utime(lock, (past, past))
            answer: Any = there.hibali("push", another, "there:data", "--json")
            assert answer.exit == 0, str(answer)
            assert there.there() == theirs
        finally:
            os.kill(holder, signal.SIGCONT)
        assert process.wait(ENDS_SECONDS) == 5
    lines = (there.hibali.home.folder / "0.out").read_bytes().splitlines()
    assert json.loads(lines[-1])["exit"] == 5
    now = there.there()
    changed = [name for name in now if now[name] != theirs[name]]
    assert len(changed) <= PACK, "the suspended command continued to write"
    again = there.hibali("push", another, "there:data", "--json", exit=0)
    assert again.last["files_moved"] == len(changed)
    assert there.there() == theirs
    there.check_no_own_files()


@pytest.mark.heavy
@pytest.mark.timeout(400)
@pytest.mark.parametrize("word", ["ssh", "sftp", "s3"])
def test_a_client_that_was_stopped_past_its_lease_stops(transfers_to: Any, tmp_path: Path, word: str) -> None:
    """Check a laptop that was suspended while another command wrote: it makes no further writes.

    An agent releases its lock if it received nothing from its client for some time (`SILENCE_SECONDS`).
    """
    there = transfers_to(word)
    config = there.hibali.home.config
    config.write_text(
        config.read_text().replace("[sites.there.limits]\n", '[sites.there.limits]\nlease = "10s"\n')
    )
    ours, theirs = (many_files(40, 300_000, seed=seed) for seed in (1, 2))
    there.make(ours)
    another = make_tree(tmp_path / "another", theirs)
    process = there.hibali.start("push", there.source, "there:data", "--json", "--bwlimit", "500K")
    wait_for(lambda: bool(there.committed_files()) or process.poll() is not None)
    os.killpg(process.pid, signal.SIGSTOP)
    try:
        before = there.committed_files()
        deadline = time.monotonic() + 200
        while (answer := there.hibali("push", another, "there:data", "--json")).exit == 5:
            assert answer.last["code"] == "locked", str(answer)
            assert time.monotonic() < deadline
        assert answer.exit == 0, str(answer)
        assert 0 < len(before) < len(ours)
        assert there.there() == theirs
    finally:
        os.killpg(process.pid, signal.SIGCONT)
    assert process.wait(ENDS_SECONDS) == 5
    assert b"Traceback" not in (there.hibali.home.folder / "0.err").read_bytes()
    now = there.there()
    assert all(now[name] in {ours[name], theirs[name]} for name in theirs)
    assert [name for name in now if now[name] != theirs[name]] == [], (
        "the suspended command continued to write"
    )
    there.check_no_own_files()
    assert counts(there.push())["files_failed"] == 0
    assert there.there() == ours
