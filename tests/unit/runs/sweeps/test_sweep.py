"""Test sweeps: task names, short states, the table, and the script in a real shell."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hibali.config.model import Site, Tier, local_site
from hibali.errors import HibaliError, NotFoundError, RefusedError, UsageError
from hibali_cli.handlers.runs import grid, tasks_text
from registry.parameters import Row
from runs.collect import choose_tasks
from runs.fast_storage import Fast, FastOptions, choose_fast_storage, task_fast_options
from runs.model import Chunk, Input, Output, Run, RunStatus, State, Sweep, state_of
from runs.new_request import task_names
from runs.records import choose_task, one_task
from runs.schedulers.base import JobVariables, load_scheduler
from runs.script import array_script, start_script
from runs.sweeps.launch import split_tasks
from runs.sweeps.table import OutputFile, _as_csv, _read_rows, check_table, seconds_between, write_table
from tests.support.runs import make_run
from transfers.model.entry import Entry, Kind
from transfers.remote.host import CommandResult, RemoteHost, SmallFile
from transfers.stores.open_store import open_host

RUN = "20260102-030405-0a1b2c3d"


def sweep(states: list[State], **more: Any) -> Sweep:
    numbers = range(1, len(states) + 1)
    tasks = {
        number: RunStatus(state, exit_code=0, started="2026-01-02T03:04:05Z", ended="2026-01-02T03:05:05Z")
        for number, state in zip(numbers, states, strict=True)
    }
    rows = tuple((number, f"v{number}") for number in numbers)
    outputs = (Output("out", "out.txt"),)
    made = Sweep(
        tasks, ("x", "state"), rows, (outputs,), (0,) * len(states), (Chunk(1, tuple(numbers), ("7",)),)
    )
    return replace(made, **more)


def run_of(found: Sweep | None) -> Run:
    return make_run(id=RUN, scheduler="slurm", folder=b"/w/runs/" + RUN.encode(), sweep=found)


@pytest.mark.parametrize(
    ("states", "together"),
    [
        ("PREPARED STAGED", "STAGED"),
        ("STAGED SUBMITTED", "SUBMITTED"),
        ("SUBMITTED WAITING", "WAITING"),
        ("WAITING SUCCEEDED", "RUNNING"),
        ("RUNNING FAILED", "RUNNING"),
        ("SUCCEEDED SUCCEEDED", "SUCCEEDED"),
        ("SUCCEEDED CANCELLED", "CANCELLED"),
        ("CANCELLED FAILED", "FAILED"),
        ("FAILED LOST", "LOST"),
    ],
)
def test_a_sweep_has_the_worst_state_of_its_tasks_after_the_last_end(states: str, together: str) -> None:
    assert state_of(RunStatus(State(word)) for word in states.split()) is State(together)


def test_a_task_can_be_read_as_a_run() -> None:
    run = run_of(sweep([State.SUCCEEDED, State.FAILED]))
    task = one_task(run, 2)
    assert (task.state, task.job, task.sweep, task.task) == (State.FAILED, "7", None, 2)
    assert (task.reference, run.reference) == (f"{RUN}.2", RUN)
    assert task.folder == run.folder + b"/tasks/2"
    assert one_task(run, 2, log_of_job=True).folder == run.folder + b"/chunks/1"
    with pytest.raises(NotFoundError):
        one_task(run, 3)
    single = run_of(None)
    assert choose_task(single, None) is single
    for wrong in ((run, None), (single, 1)):
        with pytest.raises(UsageError):
            choose_task(*wrong)


def test_the_grid_has_one_letter_for_each_task_or_for_several_of_many() -> None:
    lines = list(grid(sweep([State.SUCCEEDED] * 49 + [State.FAILED] + [State.RUNNING] * 12).tasks))
    assert lines == [
        " 1  ++++++++++ ++++++++++ ++++++++++ ++++++++++ +++++++++F",
        "51  rrrrrrrrrr rr",
    ]
    many = [State.SUCCEEDED] * 99_999 + [State.LOST]
    lines = list(grid(sweep(many).tasks))
    assert len(lines) == 41
    assert lines[-2].endswith("?")
    assert "one letter for 50 tasks" in lines[-1]


def test_counts_for_a_list() -> None:
    assert tasks_text(run_of(sweep([State.SUCCEEDED, State.RUNNING, State.LOST]))) == "2/3, 1 unsuccessful"


def test_sweeps_larger_than_the_queue_are_split_into_halves() -> None:
    assert [len(each) for each in split_tasks(range(1, 1001), array_size=1000, queued_jobs=2000)] == [1000]
    assert [len(each) for each in split_tasks(range(1, 1001), array_size=1000, queued_jobs=100)] == [50] * 20
    assert [len(each) for each in split_tasks(range(1, 1002), array_size=1000, queued_jobs=2000)] == [
        501,
        500,
    ]
    assert [len(each) for each in split_tasks([1, 2], array_size=9, queued_jobs=1)] == [1, 1]


def test_the_largest_array_of_slurm_is_read() -> None:
    slurm = load_scheduler("slurm")
    assert slurm.array_limit_argv()
    assert slurm.read_array_limit(CommandResult(0, b"MaxArraySize            = 1001\n", b"")) == 1000
    for other in (CommandResult(0, b"refused", b""), CommandResult(1, b"MaxArraySize = 5", b"")):
        assert slurm.read_array_limit(other) is None


def prepare(tmp_path: Path, numbers: list[int], start: str, scheduler: str = "slurm") -> Path:
    run = tmp_path / RUN
    chunk = run / "chunks" / "2"
    chunk.mkdir(parents=True)
    (chunk / "job.sh").write_text(array_script(RUN, 2, (), load_scheduler(scheduler).variables))
    (chunk / "tasks").write_text("".join(f"{number}\n" for number in numbers))
    for number in numbers:
        task = run / "tasks" / str(number)
        (task / "work").mkdir(parents=True)
        (task / "start").write_text(start_script((), start))
    return run


def execute(folder: Path, *words: str, **environment: str) -> int:
    return subprocess.run(
        ["/bin/sh", folder / "job.sh", *words],
        cwd=folder,
        env={**os.environ, **environment},
        check=False,
        capture_output=True,
    ).returncode


def test_an_array_index_runs_the_task_of_its_line_once(tmp_path: Path) -> None:
    run = prepare(tmp_path, [3, 17], "pwd; exit 4")
    chunk = run / "chunks" / "2"
    there = {"SLURM_ARRAY_JOB_ID": "12", "SLURM_ARRAY_TASK_ID": "2", "SLURM_JOB_ID": "14"}
    assert execute(chunk, **there) == 4
    record = json.loads((run / "tasks" / "17" / "exit.json").read_text())
    assert (record["run"], record["code"], record["job"]) == (f"{RUN}/17", 4, "12")
    assert (run / "tasks" / "17" / "stdout").read_text().strip() == str(run / "tasks" / "17" / "work")
    assert (chunk / "started" / "job").read_text() == "12\n"
    assert not (run / "tasks" / "3" / "started").exists()
    assert execute(chunk, **there) == 75
    assert (run / "tasks" / "17" / "again").read_text() == "12\n"


@pytest.mark.parametrize(
    ("scheduler", "words", "environment", "job"),
    [
        ("direct", ("1:2:3:host", "1"), {"SLURM_ARRAY_TASK_ID": "2"}, "1:2:3:host"),
        ("slurm", ("1:2:3:host", "1"), {"SLURM_ARRAY_TASK_ID": "2"}, "1:2:3:host"),
        ("slurm", (), {"SLURM_ARRAY_JOB_ID": "12", "SLURM_ARRAY_TASK_ID": "1"}, "12"),
    ],
)
def test_the_index_of_every_scheduler_is_read(
    tmp_path: Path, scheduler: str, words: tuple[str, ...], environment: dict[str, str], job: str
) -> None:
    run = prepare(tmp_path, [5, 6], "true", scheduler)
    assert execute(run / "chunks" / "2", *words, **environment) == 0
    assert json.loads((run / "tasks" / "5" / "exit.json").read_text())["job"] == job


@pytest.mark.parametrize("index", ["", "0", "3", "1p;id", "../1", "-1", "999999999999"])
def test_an_invalid_index_runs_nothing(tmp_path: Path, index: str) -> None:
    run = prepare(tmp_path, [1, 2], "echo ran >ran")
    assert execute(run / "chunks" / "2", SLURM_ARRAY_TASK_ID=index) == 75
    assert not list(run.glob("tasks/*/started"))


def test_in_another_folder_an_array_does_nothing(tmp_path: Path) -> None:
    run = prepare(tmp_path, [1], "echo ran >ran")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "job.sh").write_text((run / "chunks" / "2" / "job.sh").read_text())
    assert execute(elsewhere, "1", "1") == 75
    with pytest.raises(UsageError):
        array_script("../x", 1, (), JobVariables())


@pytest.fixture
def host(hibali_home: object) -> Iterator[RemoteHost]:
    del hibali_home
    opened = open_host(local_site())
    yield opened
    opened.close()


def test_many_files_are_written_and_read_at_once(host: RemoteHost, tmp_path: Path) -> None:
    root = bytes(tmp_path) + b"/\xff"
    folders = [root, *(root + b"/%d" % number for number in range(900))]
    files = [SmallFile(folder + b"/file", b"\0\xff%d" % n) for n, folder in enumerate(folders)]
    host.put_all([*files, SmallFile(root + b"/run", b"#!", executable=True)], folders)
    host.put_all(files[:1], folders[:1])  # a second call gives the same result
    (tmp_path / "link").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "fifo")
    odd = [bytes(tmp_path) + name for name in (b"/none", b"/link", b"/fifo", b"")]
    found = host.get_all([*(each.path for each in files), *odd], maximum=4)
    assert found == [*(each.content[:4] for each in files), None, None, None, None]
    there = Path(os.fsdecode(root))
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (there, there / "file", there / "run")]
    assert modes == [0o700, 0o600, 0o700]
    assert [path.name for path in (there / "5").iterdir()] == ["file"]


def test_many_files_without_space_leave_nothing(host: RemoteHost, tmp_path: Path) -> None:
    files = [SmallFile(bytes(tmp_path) + b"/a", b"x"), SmallFile(bytes(tmp_path) + b"/none/b", b"x")]
    with pytest.raises(HibaliError):
        host.put_all(files)
    assert list(tmp_path.glob(".hibali-*")) == []
    host.put_all([])
    assert host.get_all([]) == []


def entry(path: str, kind: Kind = Kind.FILE) -> Entry:
    return Entry(path.encode(), kind, 1)


def test_outputs_of_all_tasks_are_chosen_from_one_listing() -> None:
    listed = [
        entry("1/exit.json"),
        entry("1/work", Kind.FOLDER),
        entry("1/work/out.txt"),
        entry("10/work", Kind.FOLDER),
        entry("10/work/out.txt", Kind.LINK),
        entry("2/stdout"),
        entry("3/work/out.txt"),
        entry("evil/work/out.txt"),
    ]
    outputs = dict.fromkeys((1, 2, 4, 10), (Output("out", "out.txt"),))
    chosen = choose_tasks(listed, outputs, (1, 4, 10), {number: b"sub-%d" % number for number in outputs})
    assert {name: found.path for name, found in chosen.files.items()} == {b"sub-1/out.txt": b"1/work/out.txt"}
    assert chosen.by_task() == {1: [("out", b"sub-1/out.txt")]}
    assert {(each.path, each.code) for each in chosen.problems} == {
        (b"sub-10/out.txt", "output-not-a-file"),
        (b"sub-10/out.txt", "output-missing"),
        (b"sub-4/out.txt", "output-missing"),
    }


OUTPUTS = {
    1: [OutputFile("out", b"r/1/out.txt", "a" * 64)],
    2: [OutputFile("out", b"r/2/\xff,\n.txt", ""), OutputFile("out", b"r/2/b", "b" * 64)],
}


def test_a_table_as_csv(tmp_path: Path) -> None:
    path = tmp_path / "all.csv"
    write_table(path, run_of(sweep([State.SUCCEEDED, State.FAILED, State.RUNNING])), OUTPUTS)
    with path.open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert rows[0] == {
        "run": RUN,
        "task": "1",
        "folder": "1",
        "x": "1",
        "input.state": "v1",
        "state": "SUCCEEDED",
        "exit_code": "0",
        "seconds": "60",
        "out": "r/1/out.txt",
        "out.sha256": "a" * 64,
    }
    assert json.loads(rows[1]["out"]) == ["r/2/\\xff,\\n.txt", "r/2/b"]
    assert (rows[2]["out"], rows[2]["out.sha256"]) == ("", "")


def test_a_table_as_json_lines(tmp_path: Path) -> None:
    path = tmp_path / "all.jsonl"
    write_table(path, run_of(sweep([State.SUCCEEDED, State.FAILED])), OUTPUTS)
    first, second = map(json.loads, path.read_text().splitlines())
    assert first["values"] == {"x": 1, "state": "v1"}
    assert first["outputs"] == [{"id": "out", "path": "r/1/out.txt", "sha256": "a" * 64}]
    assert second["outputs"][0]["path_base64"]


def test_an_unwritable_table_is_rejected_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for wrong in (tmp_path / "all.xlsx", tmp_path / "none" / "all.csv"):
        with pytest.raises(UsageError):
            check_table(wrong)
    check_table(tmp_path / "none" / "all.csv", str(tmp_path / "none"))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(UsageError) as refused:
        check_table(tmp_path / "all.parquet")
    assert "pyarrow" in refused.value.message


def test_a_table_as_parquet(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "all.parquet"
    check_table(path)
    write_table(path, run_of(sweep([State.SUCCEEDED, State.FAILED])), OUTPUTS)
    found = parquet.read_table(path).to_pylist()
    assert (found[0]["task"], found[0]["x"], found[0]["out"]) == (1, 1, "r/1/out.txt")


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_rows_of_other_tasks_are_kept(tmp_path: Path, suffix: str) -> None:
    if suffix == "parquet":
        pytest.importorskip("pyarrow.parquet")
    path = tmp_path / f"all.{suffix}"
    first = replace(sweep([State.SUCCEEDED, State.FAILED]), names=("sub-1", "sub-2"))
    second = replace(
        sweep([State.FAILED, State.SUCCEEDED, State.SUCCEEDED]), names=("sub-1", "sub-2", "sub-3")
    )
    write_table(path, run_of(first), OUTPUTS)
    write_table(path, replace(run_of(second), id="20260102-030405-ffffffff"), {})
    rows = _read_rows(path)
    assert [(row["folder"], row["run"][-1], row["state"]) for row in rows] == [
        ("sub-1", RUN[-1], "SUCCEEDED"),
        ("sub-2", "f", "SUCCEEDED"),
        ("sub-3", "f", "SUCCEEDED"),
    ]
    assert str(rows[0].get("out.sha256") or rows[0]["outputs"][0]["sha256"]) == "a" * 64


def test_a_table_that_hibali_did_not_write_is_not_replaced(tmp_path: Path) -> None:
    for name, content in (
        ("a.csv", "x,y\n1,2\n"),
        ("b.jsonl", "[1]\n"),
        ("c.csv", "\xff"),
        ("d.jsonl", "no"),
    ):
        path = tmp_path / name
        path.write_text(content, encoding="latin-1")
        with pytest.raises(RefusedError, match="table"):
            check_table(path)
        with pytest.raises(RefusedError, match="table"):
            write_table(path, run_of(sweep([State.SUCCEEDED])), {})
        assert path.read_text(encoding="latin-1") == content


def test_a_table_is_never_read_from_a_fifo(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "all.csv")
    with pytest.raises(RefusedError, match="table"):
        check_table(tmp_path / "all.csv")


def test_the_name_of_a_task_is_made_of_its_values_alone() -> None:
    values: list[dict[str, Any]] = [
        {"x": 0.5, "mode": "fast"},
        {"x": 1, "flag": True},
        {"in": "bids/sub-1/T1w.nii"},
        {"in": "bids/sub-2/T1w.nii"},
        {"say": "a,b=c"},
        {"say": "a" * 300},
        {"say": "../x"},
        {},
        {"x": 1, "flag": True},
        {"say": ""},
    ]
    names = task_names([Row(each) for each in values])
    assert names[:2] == ["x=0.5,mode=fast", "x=1,flag=true"]
    assert names[7:] == ["task", "x=1,flag=true@2", "say="]
    assert [task_names([Row(each)])[0] for each in values[:8]] == names[:8], "other tasks do not matter"
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[A-Za-z0-9._+=,@-]{4,100}", name) for name in names)
    assert names[2].startswith("in=T1w.nii@")
    assert task_names([Row({"x": 1}, name="sub-1/ses-a")]) == ["sub-1/ses-a"]


@pytest.mark.parametrize("ended", ["", "yesterday", "2026-01-02"])
def test_an_invalid_time_gives_no_duration(ended: str) -> None:
    assert seconds_between("2026-01-02T03:04:05Z", ended) is None


def test_tasks_of_an_array_have_folders_of_their_own_on_fast_storage(tmp_path: Path) -> None:
    node, source = tmp_path / "node", tmp_path / "a file"
    node.mkdir()
    source.write_text("read\n")
    fast = Fast({0: "local"}, "local", {"local": Tier("$FAST")})
    run = prepare(tmp_path, [3, 4], "pwd -P >where; cat ../0/* >out")
    for number in (3, 4):
        script = fast.script([Input("in", 0, "x", "a file", source=str(source))])
        (run / "tasks" / str(number) / "fast.sh").write_text(script)
        assert execute(run / "chunks" / "2", SLURM_ARRAY_TASK_ID=str(number - 2), FAST=str(node)) == 0
        work = run / "tasks" / str(number) / "work"
        assert (work / "where").read_text().startswith(f"{node}/hibali-{RUN}-")
        assert (work / "out").read_text() == "read\n"
    assert not list(node.iterdir())


def test_a_fast_option_concerns_the_tasks_with_that_input() -> None:
    site = Site("s", "local", tiers={"local": Tier("/fast"), "other": Tier("/other")})
    marks = FastOptions(("in=local", "more=other"), "local")
    one = [Input("in", 0, "a")]
    assert choose_fast_storage(site, one, [False], task_fast_options(marks, one)).inputs == {0: "local"}
    both = [*one, Input("more", 1, "b"), Input("more", 2, "c")]
    found = choose_fast_storage(site, both, [False] * 3, task_fast_options(marks, both))
    assert (found.inputs, found.work) == ({0: "local", 1: "other", 2: "other"}, "local")
    assert not choose_fast_storage(
        site, both, [False] * 3, task_fast_options(FastOptions(none=True), both)
    ).is_used


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        ("=1+2", "'=1+2"),
        ('=HYPERLINK("https://evil.example","x")', '\'=HYPERLINK("https://evil.example","x")'),
        ("+cmd|' /C calc'!A0", "'+cmd|' /C calc'!A0"),
        ("-2+3", "'-2+3"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("\t=1", "'\t=1"),
        ("\r=1", "'\r=1"),
        ("-1.5e3", "-1.5e3"),
        ("+7", "+7"),
        ("plain", "plain"),
        (-2, "-2"),
    ],
)
def test_no_cell_of_a_table_is_a_formula(value: Any, cell: str) -> None:
    """A spreadsheet would evaluate it, and could send data elsewhere."""
    written = _as_csv({"@column": [value]}).decode()
    assert list(csv.reader(io.StringIO(written, newline=""))) == [["'@column"], [cell]]
