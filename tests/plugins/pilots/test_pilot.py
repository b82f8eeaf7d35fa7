"""Test pilots: task states from journals, cleaning task folders, and refusals."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hibali.errors import RefusedError, UsageError
from hibali_plugins.pilots import program, setup
from hibali_plugins.pilots.setup import allocation_script, check_pilot_resources, find_python, task_script
from runs.dependencies import find_task_jobs
from runs.identity import Identity
from runs.model import Pilot, Run, State, read_pilot
from runs.poll import PilotProgress, read_journal, resolve_in_allocation, task_status
from runs.records import fold_records, sweep_of
from runs.resources import DecidedResources
from runs.schedulers.base import JobVariables, Phase, Resources, Status, load_scheduler
from runs.status import ExitRecord, Observation
from transfers.remote.host import CommandResult

RUN = "20260102-030405-0a1b2c3d"
RUNNING = Status(Phase.RUNNING, "RUNNING")
TIMEOUT = Status(Phase.KILLED, "TIMEOUT")


def record(code: int = 0, signal: str = "") -> ExitRecord:
    return ExitRecord(code, signal, "n1", "7", "2026-01-02T03:04:05Z", "2026-01-02T03:04:06Z")


def test_a_journal_with_a_torn_end_is_read() -> None:
    lines = [
        {"kind": "pilot", "job": "7"},
        {"kind": "tasks", "begun": [1, 2, 3], "ended": [1]},
        {"kind": "pilot", "job": "7"},
        {"kind": "tasks", "begun": [2], "broken": [3], "ended": ["x", True, None]},
    ]
    text = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    progress = read_journal(text + b'{"kind":"tasks","ended":[2')
    assert progress == PilotProgress(frozenset([2]), frozenset([1]), frozenset([3]))
    assert read_journal(b"[]\n\xff\n{}\n") == PilotProgress()


def test_tasks_of_an_allocation_have_their_own_states() -> None:
    progress = PilotProgress(frozenset([1, 2]), frozenset([1]), frozenset([4]))
    assert [task_status(number, RUNNING, progress).phase for number in (1, 2, 3, 4)] == [
        Phase.ENDED,
        Phase.RUNNING,
        Phase.WAITING,
        Phase.ENDED,
    ]
    assert task_status(3, TIMEOUT, progress) is TIMEOUT


def resolved(
    seen: Observation,
    status: Status,
    found: ExitRecord | None = None,
    *,
    cancelled: bool = False,
    more: bool = True,
) -> Observation:
    return resolve_in_allocation(seen, status, found, cancelled=cancelled, allocation=2, more=more)


def test_interrupted_tasks_continue_in_the_next_allocation() -> None:
    killed = Observation(State.FAILED, "TIMEOUT", "ended by the scheduler: TIMEOUT")
    assert resolved(killed, TIMEOUT).state is State.STAGED
    assert (
        resolved(killed, TIMEOUT, record(143, "TERM")).reason == "allocation 2 ended before the task: TIMEOUT"
    )
    assert resolved(killed, TIMEOUT, more=False).state is State.FAILED
    lost = Observation(State.LOST, "", "it left no record")
    assert resolved(lost, Status(Phase.UNKNOWN, ""), more=False).state is State.FAILED
    assert resolved(lost, Status(Phase.UNKNOWN, ""), cancelled=True).state is State.CANCELLED
    cancelled = Observation(State.CANCELLED, "CANCELLED", "")
    assert (
        resolved(cancelled, Status(Phase.CANCELLED, "CANCELLED")).state is State.STAGED
    )  # cancelled by another user
    assert resolved(cancelled, Status(Phase.CANCELLED, "CANCELLED"), more=False).state is State.CANCELLED
    well = Observation(State.SUCCEEDED, "", "", record())
    assert resolved(well, TIMEOUT, record()) is well
    ended = task_status(1, RUNNING, PilotProgress(ended=frozenset([1])))
    assert resolved(lost, ended).state is State.RUNNING  # its record may still arrive
    broken = task_status(1, RUNNING, PilotProgress(broken=frozenset([1])))
    assert resolved(lost, broken).state is State.FAILED
    assert resolved(
        Observation(State.LOST, "", ""), Status(Phase.WAITING, "PENDING"), record(143, "TERM")
    ).state is (State.WAITING)


def sweep_with(*more: dict[str, Any]) -> Run:
    pilot = Pilot("/usr/bin/python3", 2, 4, 2, "/cache/hq.so", ("#SBATCH --time=1",))
    assert read_pilot(json.loads(json.dumps(pilot.to_fields()))) == pilot
    tasks = {"tasks": "1-3", "columns": ["x"], "rows": [[1], [2], [3]], "sets": [[]], "set_of": [0, 0, 0]}
    begun = {
        "kind": "prepared",
        "id": RUN,
        "key": "k",
        "pipeline": "p@1",
        "pipeline_digest": "d",
        "site": "here",
        "name": "",
        "scheduler": "slurm",
        "container": "bare",
        "at": "2026-01-02T03:04:05Z",
        "outputs": [],
        "sweep": tasks,
    }
    staged = {"kind": "staged", "folder": "/w", "chunks": ["1-3"], "pilot": pilot.to_fields()}
    records = [begun, {"kind": "pilot", "pilot": replace(pilot, library="").to_fields()}, staged, *more]
    return fold_records(RUN, records)


def seen(state: str, tasks: str) -> dict[str, Any]:
    change = {"state": state, "native": "", "reason": "", "tasks": tasks}
    return {"kind": "tasks", "changes": [change], "ends": []}


def test_unfinished_tasks_get_another_chunk_up_to_the_limit() -> None:
    first = {"kind": "chunk", "chunk": 1, "job": "7"}
    assert sweep_of(sweep_with()).unfinished() == ()
    assert sweep_of(sweep_with(first, seen("STAGED", "2"), seen("RUNNING", "1"))).unfinished() == ()
    over = (first, seen("SUCCEEDED", "1"), seen("STAGED", "2-3"))
    run = sweep_with(*over)
    assert run.state is State.RUNNING
    assert sweep_of(run).unfinished() == (2, 3)
    run = sweep_with(*over, {"kind": "allocation", "tasks": "2-3"})
    assert sweep_of(run).unfinished() == ()
    assert [chunk.tasks for chunk in sweep_of(run).unsubmitted()] == [(2, 3)]
    assert {number: chunk.number for number, (chunk, _) in run.positions().items()} == {
        1: 1,
        2: 2,
        3: 2,
    }
    second = {"kind": "chunk", "chunk": 2, "job": "8"}
    run = sweep_with(*over, {"kind": "allocation", "tasks": "2-3"}, second, seen("STAGED", "3"))
    assert sweep_of(run).unfinished() == ()  # the limit is two allocations
    assert run.to_record()["pilot"] == {"allocations": 2, "most": 2}


def test_jobs_do_not_depend_on_the_job_of_a_pilot() -> None:
    run = sweep_with(
        {"kind": "chunk", "chunk": 1, "job": "7"}, seen("RUNNING", "2-3"), seen("SUCCEEDED", "1")
    )
    slurm = load_scheduler("slurm")
    assert find_task_jobs(run, [1], slurm) == ()
    assert find_task_jobs(run, [1, 2], slurm) is None


def test_resources_that_tasks_cannot_share_are_rejected() -> None:
    assert check_pilot_resources(DecidedResources(Resources(cores=8), suggested=Resources(cores=4))) == 4
    assert check_pilot_resources(DecidedResources(Resources(cores=2), suggested=Resources(cores=4))) == 2
    assert check_pilot_resources(DecidedResources()) == 1
    for wished in (Resources(nodes=2), Resources(tasks=2), Resources(gpus=1)):
        with pytest.raises(UsageError) as raised:
            check_pilot_resources(DecidedResources(wished))
        assert raised.value.code == "not-in-a-pilot"


class HostWithPythons:
    """A host that replies to the query for Python interpreters with these lines."""

    def __init__(self, *lines: str) -> None:
        self._lines = lines

    def run(self, *_: Any, **__: Any) -> CommandResult:
        return CommandResult(0, "\n".join(self._lines).encode(), b"")


def line_of(version: list[int], machine: str = "x86_64", libc: str = "2.28", path: str = "/p") -> str:
    return json.dumps([path, version, "linux", machine, ["glibc", libc], False])


def test_the_first_suitable_python_is_used(local: Any) -> None:
    host: Any = HostWithPythons("Welcome!", line_of([3, 6]), line_of([3, 9], path="/q"), line_of([3, 12]))
    assert find_python(host, local) == "/q"
    for lines, because in (
        ((line_of([3, 8]),), "is 3.8"),
        ((line_of([3, 12], machine="aarch64"),), "aarch64"),
        ((line_of([3, 12], libc="2.17"),), "2.17"),
        (
            ("[1]", "{}", line_of([3, 12], path="relative"), line_of([3, 12], path="/a\nb")),
            "no Python was found",
        ),
    ):
        host = HostWithPythons(*lines)
        with pytest.raises(RefusedError) as raised:
            find_python(host, local)
        assert because in raised.value.message


@pytest.fixture
def local() -> Any:
    from hibali.config.model import local_site

    return local_site()


def test_only_the_known_library_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(setup, "find_spec", lambda _: None)
    with pytest.raises(UsageError) as missing:
        setup.find_library()
    assert "hibali[pilot]" in str(missing.value.hint)

    class Spec:
        submodule_search_locations = (str(tmp_path),)

    (tmp_path / "hyperqueue.abi3.so").write_bytes(b"another one")
    monkeypatch.setattr(setup, "find_spec", lambda _: Spec)
    monkeypatch.setattr(setup, "identify_local", lambda _: Identity("sha256:00", "00", {b"": "00"}, 1))
    with pytest.raises(RefusedError):
        setup.find_library()


def test_the_scripts_are_valid_shell() -> None:
    for text in (allocation_script(RUN, 1, ("#SBATCH --time=1",), JobVariables()), task_script(RUN, 1)):
        for shell in ("/bin/sh", "bash"):
            subprocess.run([shell, "-n"], input=text.encode(), check=True)
        with pytest.raises(UsageError):
            allocation_script("x; y", 1, (), JobVariables())


@pytest.fixture
def tasks(tmp_path: Path) -> Iterator[program.Tasks]:
    root = tmp_path / RUN
    for number in (1, 2):
        (root / "tasks" / str(number) / "work").mkdir(parents=True)
    yield program.Tasks(str(root), [1, 2])
    shutil.rmtree(root)


def end(tasks: program.Tasks, number: int, **fields: Any) -> None:
    found = {"run": f"{RUN}/{number}", "code": 0, "signal": "", **fields}
    Path(tasks.folder(number), "exit.json").write_text(json.dumps(found))


def test_an_exit_record_without_a_signal_is_an_end(tasks: program.Tasks) -> None:
    assert not tasks.has_ended(1)
    for fields, ended in (
        ({}, True),
        ({"code": 3}, True),
        ({"signal": "cancel"}, True),
        ({"signal": "TERM"}, False),
        ({"run": f"{RUN}/2"}, False),
        ({"code": "0"}, False),
    ):
        end(tasks, 1, **fields)
        assert tasks.has_ended(1) is ended
    Path(tasks.folder(1), "exit.json").write_text("[")
    assert not tasks.has_ended(1)


def test_reset_restores_the_folder_and_keeps_logs(tasks: program.Tasks, tmp_path: Path) -> None:
    folder = Path(tasks.folder(1))
    (tmp_path / "source").write_text("input")

    def text(name: bytes) -> str:
        return base64.b64encode(name).decode()

    pristine = {
        "files": [[text(b"work/sub/conf\xff"), text(b"[x]\n")], [text(b"inputs/command"), text(b"run\n")]],
        "copies": [[text(os.fsencode(tmp_path / "source")), text(b"inputs/0/in -put")]],
    }
    (folder / "pristine.json").write_text(json.dumps(pristine))
    (folder / "inputs" / "0").mkdir(parents=True)
    tasks.reset(1)
    assert not (folder / "earlier-1").exists()  # it never started
    for allocation in (1, 2):
        (folder / "started").mkdir()
        (folder / "work" / "left").write_text("x")
        (folder / "stdout").write_text(f"allocation {allocation}")
        end(tasks, 1, signal="TERM")
        tasks.reset(1)
        assert sorted(path.name for path in folder.iterdir()) == [
            *(f"earlier-{number}" for number in range(1, allocation + 1)),
            "inputs",
            "pristine.json",
            "work",
        ]
        assert (folder / f"earlier-{allocation}" / "stdout").read_text() == f"allocation {allocation}"
        assert [path.name for path in (folder / "work").iterdir()] == ["sub"]
        assert Path(os.fsdecode(os.fsencode(folder / "work" / "sub") + b"/conf\xff")).read_text() == "[x]\n"
        assert (folder / "inputs" / "0" / "in -put").read_text() == "input"
        assert (folder / "inputs" / "command").read_text() == "run\n"


def test_reset_resumes_after_a_kill(tasks: program.Tasks) -> None:
    folder = Path(tasks.folder(1))
    (folder / "started").mkdir()
    (folder / "earlier-1").mkdir()
    (folder / "work").rename(folder / "earlier-1" / "work")
    tasks.reset(1)
    assert sorted(path.name for path in folder.iterdir()) == ["earlier-1", "earlier-2", "work"]
    assert (folder / "earlier-2" / "started").is_dir()


def test_processes_of_an_earlier_allocation_are_killed(tasks: program.Tasks) -> None:
    words = [sys.executable, "-c", "import time; time.sleep(600)"]
    left = subprocess.Popen(words, cwd=Path(tasks.folder(1), "work"), start_new_session=True)
    other = subprocess.Popen(words, cwd=tasks.folder(2), start_new_session=True)
    try:
        program.end_orphans(tasks.root, [1])
        assert left.wait(timeout=30) == -9
        assert other.poll() is None
    finally:
        for process in (left, other):
            process.kill()
            process.wait()


def test_cores_are_those_of_the_allocation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program.os, "sched_getaffinity", lambda _: set(range(4)))
    assert [program.count_cores("", requested) for requested in (None, 2, 9)] == [4, 2, 4]
    assert [program.count_cores(granted, 2) for granted in ("3", "9", "0", "many")] == [3, 4, 2, 2]


def test_the_scheduler_names_the_variable_of_the_cores() -> None:
    variables = {
        "slurm": "SLURM_CPUS_ON_NODE",
        "pbs": "NCPUS",
        "sge": "NSLOTS",
        "lsf": "LSB_DJOB_NUMPROC",
        "oar": "",
    }
    for name, variable in variables.items():
        script = allocation_script(RUN, 1, (), load_scheduler(name).variables)
        assert f"\nnative_cores={f'${{{variable}:-}}' if variable else ''}\n" in script


def test_another_file_is_never_loaded(tmp_path: Path) -> None:
    wrong = tmp_path / "hyperqueue.abi3.so"
    wrong.write_bytes(b"something else")
    with pytest.raises(ValueError, match="changed"):
        program.load(str(wrong), setup.SHA256)
