"""Test the Python API: transfers, files and sites, their errors, and cancelling from another thread."""

from __future__ import annotations

import ast
import doctest
import os
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import hibali as api
from hibali.errors import Exit
from hibali.events import Carried, Event, Moved, Planned
from tests.end_to_end.run_tools import Bench
from tests.services.session import REPOSITORY
from tests.support.folders import describes_all
from tests.support.transfers import Transfers
from tests.support.waiting import wait_for
from transfers.history.index import read_operations
from transfers.history.operations import Result

TREE = {b"a": b"1", b"folder/b": b"22", b"folder/c": b"333"}


@pytest.fixture
def place(there: Transfers, monkeypatch: pytest.MonkeyPatch) -> Transfers:
    """Return the site `there`, which the API of this process knows too."""
    for name, value in there.place.env.items():
        monkeypatch.setenv(name, value)
    there.make(TREE)
    return there


def test_a_folder_is_planned_pushed_verified_pulled_and_removed(place: Transfers, tmp_path: Path) -> None:
    plan = api.plan(place.source, "there:data", save_to=tmp_path / "plan")
    assert sorted(action.entry.name for action in plan.actions if action.entry.size) == [
        "a",
        "folder/b",
        "folder/c",
    ]
    assert api.stat("there:data") is None
    receipt = api.apply(tmp_path / "plan")
    assert (receipt.files_moved, receipt.bytes_moved, receipt.proof_moved) == (3, 6, "digest")
    assert not api.plan(place.source, "there:data").changes
    assert [entry.name for entry in api.ls("there:data")] == ["a", "folder"]
    assert [entry.name for entry in api.ls("there:data", recursive=True) if entry.size] == [
        "a",
        "folder/b",
        "folder/c",
    ]
    assert [(usage.files, usage.bytes) for usage in api.du("there:data")] == [(3, 6)]
    assert api.verify(place.source, "there:data").files_kept == 3
    moved: list[Event] = []
    back = api.pull("there:data/folder", tmp_path / "back", include=["*c"], on_event=moved.append)
    assert [event.path for event in moved if isinstance(event, Moved) and event.kind == "file"] == [b"c"]
    assert (back.files_moved, (tmp_path / "back/c").read_bytes()) == (1, b"333")
    assert api.cp("there:data", "there:copy").files_moved == 3
    assert api.mv("there:copy", "there:moved").files == 3
    with pytest.raises(api.RefusedError, match="already exists"):
        api.mv("there:moved", "there:data")
    with pytest.raises(api.UsageError, match="within one site"):
        api.cp("there:data", tmp_path / "here")
    assert api.rm("there:moved", recursive=True).files_deleted == 3
    assert api.rm("there:data", recursive=True).files_deleted == 3
    assert api.stat("there:data") is None


def test_files_that_failed_are_an_error_with_the_receipt(place: Transfers) -> None:
    os.mkfifo(place.source / "pipe")
    with pytest.raises(api.IncompleteTransferError) as found:
        api.push(place.source, "there:data")
    assert (found.value.receipt.files_moved, found.value.receipt.files_failed) == (3, 1)
    assert found.value.receipt.failures[0].path == b"pipe"


def test_wrong_use_is_an_error_before_anything_happens(place: Transfers) -> None:
    with pytest.raises(api.UsageError, match="push copies from a local path"):
        api.push("there:data", place.source)
    with pytest.raises(TypeError, match="delte"):
        api.push(place.source, "there:data", delte=True)  # type: ignore[call-arg]
    with pytest.raises(api.UsageError, match="not one of keep, skip"):
        api.push(place.source, "there:data", links="keeep")  # type: ignore[typeddict-item]
    with pytest.raises(api.NotFoundError):
        api.ls("there:nothing")
    assert api.stat("there:data") is None


def test_an_exception_of_the_listener_ends_the_call(place: Transfers) -> None:
    def fail(event: Event) -> None:
        if isinstance(event, Planned):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        api.push(place.source, "there:data", on_event=fail)
    assert api.push(place.source, "there:data").files_moved == 3


def test_a_cancelled_push_is_resumed_by_the_same_call(place: Transfers) -> None:
    place.make({b"large": bytes(range(256)) * 65536})
    cancellation, began = api.Cancellation(), threading.Event()

    def cancel_later() -> None:
        began.wait()
        cancellation.cancel()

    thread = threading.Thread(target=cancel_later)
    thread.start()
    with pytest.raises(api.CancelledError):
        api.push(
            place.source,
            "there:data",
            bwlimit="2M",
            cancellation=cancellation,
            on_event=lambda event: began.set() if isinstance(event, Carried) else None,
        )
    thread.join()
    [operation] = read_operations()
    assert operation.result() is Result.INTERRUPTED, operation
    api.push(place.source, "there:data")
    assert place.there() == {**TREE, b"large": (place.source / "large").read_bytes()}


def test_threads_share_one_login(place: Transfers) -> None:
    with ThreadPoolExecutor(8) as pool:
        receipts = list(pool.map(lambda number: api.push(place.source, f"there:data{number}"), range(8)))
    assert sum(receipt.files_moved for receipt in receipts) == 24
    assert sum(receipt.logins for receipt in receipts) <= 1


def test_nothing_is_printed_and_the_environment_stays(place: Transfers) -> None:
    program = (
        "import hibali, os, sys; before = dict(os.environ)\n"
        "hibali.push(sys.argv[1], 'there:data')\n"
        "assert dict(os.environ) == before\n"
    )
    finished: Any = subprocess.run(
        [sys.executable, "-P", "-c", program, place.source],
        env={**place.hibali.env, "PYTHONPATH": str(Path.cwd())},
        capture_output=True,
        check=False,
    )
    assert (finished.returncode, finished.stdout, finished.stderr) == (0, b"", b"")


@pytest.mark.usefixtures("place")
def test_sites_are_listed_added_and_checked(tmp_path: Path) -> None:
    table = {"kind": "local", "roots": {"data": str(tmp_path)}, "default_root": "data"}
    assert api.sites.add("here", table) == "added"
    assert api.sites.add("here", table) == "same"
    assert api.sites.names() == ["here", "there"]
    assert api.sites.get("here").kind == "local"
    assert not api.sites.check("there").problems
    with pytest.raises(api.UsageError):
        api.sites.get("nowhere")


@pytest.fixture
def bench(hibali: Any) -> Bench:
    made = Bench(hibali)
    made.add_local_site()
    return made


def test_a_run_is_started_waited_for_read_and_collected(bench: Bench) -> None:
    source = bench.folder / "input.txt"
    source.write_text("hello\n")
    changes: list[str] = []
    run = api.run(bench.reference, {"in": str(source), "sleep": 1}, site="here", time="10m", name="first")
    again = api.run(bench.reference, {"in": str(source), "sleep": 1}, site="here", time="10m", name="first")
    assert again.id == run.id, "the same call continues the run"
    assert run.wait(on_change=lambda each: changes.append(each.state)) == "SUCCEEDED"
    assert changes[-1] == "SUCCEEDED"
    assert (run.logs(), run.logs("stderr")) == ("counted\n", "done\n")
    receipt = run.collect(bench.folder / "results")
    assert (receipt.files, receipt.proof_moved) == (1, "digest")
    assert (bench.folder / "results/out.txt").read_text() == "hello\n"
    assert [each.id for each in api.runs.every()] == [run.id]
    assert api.runs.get(run.id[:15]).state == "SUCCEEDED"
    assert api.run(bench.reference, {"in": str(source), "sleep": 1}, site="here", name="first").id != run.id


def test_resources_are_checked_and_withdrawn_as_on_the_command_line(bench: Bench) -> None:
    source = bench.folder / "input.txt"
    source.write_text("hello\n")
    for given in ({"memory": 500}, {"memory": "500"}, {"memory": -1}, {"memory": 10**18}, {"cores": -1}):
        with pytest.raises(api.UsageError):
            api.run(bench.reference, {"in": str(source)}, site="here", **given)  # type: ignore[arg-type]
    assert api.run(bench.reference, {"in": str(source)}, site="here", memory="none", cores="none").wait()


@pytest.mark.heavy
def test_no_result_of_another_run_or_task_is_replaced(bench: Bench) -> None:
    source, results = bench.folder / "input.txt", bench.folder / "results"
    source.write_text("hello\n")
    for rows in ([{"say": "a"}, {"say": "b"}], [{"say": "c"}]):
        sweep = api.run(bench.reference, {"in": str(source)}, site="here", each=rows)
        sweep.wait()
        sweep.collect(results)
    assert sorted(each.name for each in results.iterdir() if "=" in each.name) == ["say=a", "say=b", "say=c"]
    source.write_text("changed\n")
    for each in ({"each": [{"say": "b"}]}, {"params": {"say": ["a"]}}):
        run = api.run(bench.reference, {"in": str(source)}, site="here", **each)
        run.wait()
        with pytest.raises(api.RefusedError, match="of another run or task"):
            run.collect(results)
    assert {each.read_text() for each in results.rglob("out.txt")} == {"hello\n"}


def test_a_failed_run_is_an_error_unless_it_is_not_checked(bench: Bench) -> None:
    source = bench.folder / "input.txt"
    source.write_text("hello\n")
    run = api.run(bench.reference, {"in": str(source), "code": 3}, site="here")
    with pytest.raises(api.RunFailedError, match="exit code 3"):
        run.wait()
    assert run.wait(check=False) == "FAILED"
    receipt = run.collect(bench.folder / "failed")
    assert (receipt.files, receipt.exit) == (1, Exit.RUN_FAILED)
    with pytest.raises(api.UsageError, match="no such input"):
        api.run(bench.reference, {"inn": str(source)}, site="here")


def test_a_sweep_has_tasks_and_a_run_is_cancelled(bench: Bench) -> None:
    source = bench.folder / "input.txt"
    source.write_text("hello\n")
    rows = [{"say": "a"}, {"say": "b"}]
    sweep = api.run(bench.reference, {"in": str(source)}, site="here", each=rows, params={"code": [0, 4]})
    assert sweep.wait(check=False) == "FAILED"
    assert [task.exit_code for task in sweep.tasks.values()] == [0, 4, 0, 4]
    assert sweep.logs("stderr", task=3) == "b\n"
    run = api.run(bench.reference, {"in": str(source), "sleep": 600}, site="here")
    assert run.cancel() == "CANCELLED"
    again = api.run(bench.reference, {"in": str(source), "sleep": 600}, site="here", cores=1)
    assert again.id != run.id
    again.cancel()


def test_runs_are_refreshed_together_and_one_that_waits_is_submitted(bench: Bench) -> None:
    config = bench.hibali.home.config
    config.write_text(config.read_text().replace('poll = "1s"', 'poll = "1s"\nqueued_jobs = 1'))
    source = bench.folder / "input.txt"
    source.write_text("hello\n")
    first = api.run(bench.reference, {"in": str(source), "sleep": 600}, site="here")
    second = api.run(bench.reference, {"in": str(source)}, site="here")
    api.runs.refresh([first, second])
    assert (first.state.ended, second.record.waits) == (False, True)
    first.cancel()

    def has_succeeded() -> bool:
        api.runs.refresh([first, second])
        return second.state == "SUCCEEDED"

    wait_for(has_succeeded)


def test_an_untrusted_pipeline_does_not_run(bench: Bench) -> None:
    path = bench.folder / "other.json"
    path.write_text((bench.folder / "tool.json").read_text().replace('"1.0"', '"2.0"'))
    added = api.pipelines.add(path)
    assert added.reference in api.pipelines.names()
    with pytest.raises(api.RefusedError, match="not trusted"):
        api.run(added.reference, {"in": str(path)}, site="here")


@pytest.fixture
def documented(hibali_home: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set up the site `scratch` and the folder of the docstrings' examples."""
    (tmp_path / "root/scans").mkdir(parents=True)
    table = {"kind": "local", "roots": {"data": str(tmp_path / "root")}, "default_root": "data"}
    api.sites.add("scratch", table, config=hibali_home.config)
    (tmp_path / "scans").mkdir()
    for name in ("a.nii", "b.nii"):
        (tmp_path / "scans" / name).write_text(f"scan {name}")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "name",
    [
        "hibali_api.transfers.plan",
        "hibali_api.transfers.sync",
        "hibali_api.files.ls",
        "hibali_api.sites.names",
    ],
)
def test_the_examples_of_docstrings_work(documented: Path, name: str) -> None:
    if name != "hibali_api.transfers.plan":
        api.sync(documented / "scans", "scratch:scans")
    if name == "hibali_api.transfers.sync":
        api.rm("scratch:scans", recursive=True)
    run_example(name)


def run_example(name: str) -> None:
    """Run the example in the docstring of a function or class."""
    module, _, function = name.rpartition(".")
    found = vars(import_module(module))[function]
    [example] = [test for test in doctest.DocTestFinder(recurse=False).find(found, function) if test.examples]
    assert doctest.DocTestRunner().run(example).failed == 0


@describes_all
def test_the_page_is_valid_python_and_names_what_exists() -> None:
    page = (REPOSITORY / "docs/python.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert len(blocks) > 6
    for block in blocks:
        ast.parse(block)
    for module, name in re.findall(r"\bhibali\.(?:(sites|pipelines|runs|shares)\.)?(\w+)", "\n".join(blocks)):
        assert hasattr(getattr(api, module) if module else api, name), name


def test_cancelling_the_waiting_does_not_cancel_the_run(bench: Bench) -> None:
    source = bench.folder / "input.txt"
    source.write_text("hello\n")
    run = api.run(bench.reference, {"in": str(source), "sleep": 600}, site="here")
    cancellation = api.Cancellation()
    threading.Timer(0.2, cancellation.cancel).start()
    with pytest.raises(api.CancelledError):
        run.wait(cancellation=cancellation)
    assert run.refresh() == "RUNNING"
    assert run.cancel() == "CANCELLED"
