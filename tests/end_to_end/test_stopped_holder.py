"""A writer that slept past its lease wakes up and finds another's lock: it stops (S6)."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from tests.support.half_way import signal_half_way
from tests.support.transfers import Transfers
from tests.support.trees import make_tree, many_files, sha256
from tests.support.watcher import Watcher

PACK = 256  # a group commit under way when it fell asleep may end


def test_a_writer_that_slept_past_its_lease_stops(folder_there: Transfers, tmp_path: Path) -> None:
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
        holder = signal_half_way(there.root, signal.SIGSTOP)
        try:
            past = time.time() - 1000
            os.utime(lock, (past, past))
            answer: Any = there.hibali("push", another, "there:data", "--json")
            assert answer.exit == 0, str(answer)
            assert there.there() == theirs
        finally:
            os.kill(holder, signal.SIGCONT)
        assert process.wait(60) == 5
    told = (there.hibali.home.folder / "0.out").read_bytes().splitlines()
    assert json.loads(told[-1])["exit"] == 5
    now = there.there()
    changed = [name for name in now if now[name] != theirs[name]]
    assert len(changed) <= PACK, "it went on writing"
    again = there.hibali("push", another, "there:data", "--json", exit=0)
    assert again.last["files_moved"] == len(changed)
    assert there.there() == theirs
    there.nothing_of_ours_there()
