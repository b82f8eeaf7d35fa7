"""Test reading a run from its records in the ledger."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest

from hibali import locks
from hibali.errors import NotFoundError, TryLaterError
from hibali.locks import FolderLock, acquire_lock
from runs.model import State
from runs.records import fold_records
from runs.store import RunStore

RUN = "20260102-030405-0a1b2c3d"
FIELDS: dict[str, Any] = {
    "pipeline": "p@1",
    "pipeline_digest": "d",
    "site": "here",
    "name": "",
    "scheduler": "direct",
    "container": "bare",
    "outputs": [],
}


def begin(run_store: RunStore, run_id: str = RUN, key: str = "k" * 64) -> None:
    run_store.begin(run_id, key, FIELDS)


def seen(run_store: RunStore, state: State) -> None:
    run_store.note(RUN, "seen", {"state": state, "native": "X", "reason": "r"})


@pytest.mark.usefixtures("hibali_home")
def test_a_known_end_is_final_and_a_lost_run_may_reappear() -> None:
    run_store = RunStore()
    begin(run_store)
    run_store.note(RUN, "submitted", {"job": "7"})
    seen(run_store, State.LOST)
    assert run_store.load(RUN).state is State.LOST
    seen(run_store, State.SUCCEEDED)
    seen(run_store, State.FAILED)
    assert run_store.load(RUN).state is State.SUCCEEDED


@pytest.mark.usefixtures("hibali_home")
def test_a_command_continues_its_latest_run_until_its_end_was_reported() -> None:
    run_store = RunStore()
    key = "k" * 64
    assert run_store.find_unreported(key) is None
    begin(run_store)
    found = run_store.find_unreported(key)
    assert found is not None
    assert found.state is State.PREPARED
    run_store.note(RUN, "reported")
    assert run_store.find_unreported(key) is not None  # no run had ended
    seen(run_store, State.LOST)
    run_store.note(RUN, "reported")
    assert run_store.find_unreported(key) is not None  # a LOST run is queried again
    seen(run_store, State.FAILED)
    run_store.note(RUN, "reported")
    assert run_store.find_unreported(key) is None


@pytest.mark.usefixtures("hibali_home")
def test_runs_of_one_second_are_listed_in_the_order_they_began() -> None:
    run_store = RunStore()
    begun = [f"20260102-030405-{name}" for name in ("ffffffff", "0a1b2c3d", "8a1b2c3d")]
    for run_id in begun:
        begin(run_store, run_id)
    assert [run.id for run in run_store.all()] == begun


@pytest.mark.usefixtures("hibali_home")
def test_a_torn_ledger_line_is_skipped() -> None:
    run_store = RunStore()
    begin(run_store)
    path = next((Path(os.environ["HIBALI_STATE"]) / "runs").glob("*.jsonl"))
    with path.open("ab") as stream:
        stream.write(b'{"kind":"submitted","job":"1')
    run_store.note(RUN, "submitted", {"job": "7"})
    assert run_store.load(RUN).job == "7"


@pytest.mark.usefixtures("hibali_home")
@pytest.mark.parametrize("name", ["", "../../etc/passwd", RUN + "/x", "20260102", RUN + "\n"])
def test_an_unknown_run_is_not_found(name: str) -> None:
    with pytest.raises(NotFoundError):
        RunStore().load(name)
    with pytest.raises(NotFoundError):
        fold_records(name, [])


def test_one_lock_at_a_time(tmp_path: Path) -> None:
    with acquire_lock(tmp_path), pytest.raises(TryLaterError) as refused:
        acquire_lock(tmp_path)
    assert str(os.getpid()) in refused.value.message
    acquire_lock(tmp_path).release()


def test_a_number_that_another_process_removed_meanwhile_is_not_taken_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    acquire_lock(tmp_path).release()
    create, held = locks._create, list[FolderLock]()

    def create_late(*words: Any) -> bool:
        monkeypatch.setattr(locks, "_create", create)
        acquire_lock(tmp_path).release()
        held.append(acquire_lock(tmp_path))
        return create(*words)

    monkeypatch.setattr(locks, "_create", create_late)
    with pytest.raises(TryLaterError) as refused:
        acquire_lock(tmp_path)
    assert refused.value.code == "locked"
    held[0].release()
    acquire_lock(tmp_path).release()
    assert len(list(tmp_path.iterdir())) == 1


def test_the_lock_of_a_dead_process_passes_to_exactly_one(tmp_path: Path) -> None:
    code = f"""
        import os, pathlib
        from hibali.locks import acquire_lock
        acquire_lock(pathlib.Path({str(tmp_path)!r}))
        os._exit(9)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=False)
    assert len(list(tmp_path.glob("*.json"))) == 1
    taken, refused = [], []

    def reserve() -> None:
        try:
            taken.append(acquire_lock(tmp_path))
        except TryLaterError as problem:
            refused.append(problem)

    threads = [threading.Thread(target=reserve) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(taken), len(refused)) == (1, 7)


def test_a_lock_of_another_machine_is_respected(tmp_path: Path) -> None:
    (tmp_path / "1.json").write_text('{"host":"elsewhere","boot":"x","pid":1,"start":"1","token":"t"}')
    with pytest.raises(TryLaterError):
        acquire_lock(tmp_path)
