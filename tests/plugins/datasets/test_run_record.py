"""Test the record of a sweep in a dataset: its command line, and patterns of outputs."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from hibali_plugins.datasets.repository import Repository
from hibali_plugins.datasets.run_record import Dataset, run_record
from runs.model import Output, Pilot, RunStatus, Sweep
from runs.typed import DatasetRequest, recorded_request, typed_request
from tests.support.runs import make_run


def record_of(
    root: Path, request: DatasetRequest, pilot: Pilot | None = None, names: tuple[str, ...] = ()
) -> dict[str, object]:
    sets = ((Output("out", "o[1].txt"), Output("all", "p-*", is_pattern=True)), (Output("out", "o[1].txt"),))
    sweep = Sweep(
        {1: RunStatus(), 2: RunStatus()}, rows=((), ()), sets=sets, set_of=(0, 1), pilot=pilot, names=names
    )
    run = make_run(id="r", site="s", scheduler="slurm", sweep=sweep)
    repository = Repository(str(root).encode(), b"", annex=False)
    return run_record(Dataset(repository, str(root / "derived"), request), run, "")


def test_the_record_of_a_sweep_has_its_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path.resolve()
    monkeypatch.chdir(root)
    parameters = ("x=1,2", 'say="a,{b}"')
    request = typed_request(Path("answers.json"), [], "", Path("-rows:1.csv"), parameters)
    assert recorded_request([{"asked": request.to_fields()}], "r") == request
    record = record_of(root, request)
    assert shlex.split(str(record["cmd"])) == [
        *("hibali", "run", "p@1", "answers.json", "--each", "./-rows:1.csv"),
        *("--param=x=1,2", '--param=say="a,{{b}}"'),
        *("--site", "s", "--wait", "--new", "--collect", "derived", "--no-save"),
    ]
    assert record["inputs"] == ["answers.json", "-rows:1.csv"]
    assert record["outputs"] == ["derived/*/o[[]1].txt", "derived/*/p-*"]


def test_the_record_of_participants_names_their_dataset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path.resolve()
    monkeypatch.chdir(root)
    request = typed_request(None, [], "", None, (), ("--each-session", str(root / "bids")))
    assert recorded_request([{"asked": request.to_fields()}], "r") == request
    record = record_of(root, request, names=("sub-1/ses-1", "sub-1/ses-2"))
    assert str(record["cmd"]).startswith("hibali run p@1 --each-session bids --site s ")
    assert record["outputs"] == ["derived/*/*/o[[]1].txt", "derived/*/*/p-*"]


def test_a_command_line_without_an_invocation_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path.resolve()
    monkeypatch.chdir(root)
    record = record_of(root, typed_request(None, [], "", None, ("x=1",)))
    assert str(record["cmd"]).startswith("hibali run p@1 --param=x=1 --site s ")
    assert record["inputs"] == []
    piloted = record_of(root, typed_request(None, [], "", None, ("x=1",)), Pilot("python3", allocations=3))
    assert " --pilot --allocations=3" in str(piloted["cmd"])
