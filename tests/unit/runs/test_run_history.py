"""Test finding the runs of a pipeline in the ledger, by site."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hibali.errors import NotFoundError, UsageError
from hibali.files import state_folder
from hibali.unreadable import UnreadableStateError, collect_unreadable
from registry.catalogue import Catalogue
from registry.descriptor import read_descriptor
from runs.model import State
from runs.run_index import RunFilter
from runs.store import RunStore, runs_by_site, runs_of
from tests.support.catalogues import raw

OTHER = "0" * 64
FIELDS: dict[str, Any] = {"name": "", "scheduler": "direct", "container": "bare", "outputs": []}


def run_id(number: int) -> str:
    return f"20260102-{number:06d}-0a1b2c3d"


def begin(number: int, digest: str, site: str, *states: State) -> None:
    run_store = RunStore()
    fields = {**FIELDS, "pipeline": "tool@1.0", "pipeline_digest": digest, "site": site}
    run_store.begin(run_id(number), "k" * 64, fields)
    for state in states:
        run_store.note(run_id(number), "seen", {"state": state, "native": "X", "reason": ""})


@pytest.mark.usefixtures("hibali_home")
def test_runs_are_counted_by_site_with_the_last_one() -> None:
    digest = "a" * 64
    assert runs_of(digest) == []
    begin(1, digest, "juwels", State.SUCCEEDED)
    begin(2, OTHER, "juwels", State.FAILED)
    begin(3, digest, "here", State.FAILED)
    begin(4, digest, "juwels", State.FAILED)
    begin(5, digest, "juwels", State.RUNNING)
    begin(6, digest, "juwels", State.SUCCEEDED)
    sites = runs_by_site(runs_of(digest))
    assert [(each.site, each.last.id) for each in sites] == [("juwels", run_id(6)), ("here", run_id(3))]
    assert sites[0].states == {State.RUNNING: 1, State.SUCCEEDED: 2, State.FAILED: 1}


@pytest.mark.usefixtures("hibali_home")
def test_only_runs_of_the_digest_count_and_damaged_records_are_named() -> None:
    digest = "b" * 64
    begin(1, OTHER, digest)
    runs = state_folder() / "runs"
    (runs / f"{run_id(2)}.jsonl").write_text(f'{{"kind": "prepared", "pipeline_digest": "{digest}"\n')
    (runs / f"{run_id(3)}.jsonl").write_text(
        json.dumps({"kind": "prepared", "id": run_id(3), "pipeline_digest": digest}) + "\n"
    )
    (runs / f"{digest}.jsonl").write_text(digest)
    with collect_unreadable() as unreadable:
        assert runs_of(digest) == []
    assert sorted(unreadable) == [str(runs / f"{run_id(number)}.jsonl") for number in (2, 3)]


def test_show_lists_the_sites_of_its_runs(hibali: Any) -> None:
    pipeline = Catalogue().add(raw())
    plain = hibali("pipelines", "show", "tool", exit=0)
    assert b"LAST RUN" not in plain.out
    assert hibali("pipelines", "show", "tool", "--json", exit=0).last["runs"] == []
    begin(1, pipeline.digest, "juwels", State.SUCCEEDED)
    begin(2, pipeline.digest, "juwels", State.FAILED)
    shown = hibali("pipelines", "show", "tool", exit=0).out.decode()
    assert f"juwels  {run_id(2)}  FAILED" in shown
    assert "1 succeeded, 1 failed" in shown
    [history] = hibali("pipelines", "show", "tool", "--json", exit=0).last["runs"]
    assert (history["count"], history["states"]) == (2, {"SUCCEEDED": 1, "FAILED": 1})
    assert (history["last"]["id"], history["last"]["ended"]) == (run_id(2), None)


def test_people_see_the_latest_40_runs_unless_they_say_how_many(hibali: Any) -> None:
    begin(0, OTHER, "juwels", State.SUCCEEDED)
    first = state_folder() / "runs" / f"{run_id(0)}.jsonl"
    for number in range(1, 42):
        path = first.with_name(f"{run_id(number)}.jsonl")
        path.write_text(first.read_text().replace(run_id(0), run_id(number)))
    shown = hibali("runs", "list", exit=0)
    assert b"Shown are the latest 40 of 42 runs. To show all: --last 42" in shown.err
    assert [run_id(number).encode() in shown.out for number in (1, 2, 41)] == [False, True, True]
    assert hibali("runs", "list", "--last", "42", exit=0).err == b""
    assert hibali("runs", "list", "--json", exit=0).last["count"] == 42
    assert hibali("runs", "list", "--json", "--last", "2", exit=0).lines[0]["id"] == run_id(40)
    assert b"Shown" not in hibali("runs", "list", "--state", "FAILED", exit=0).err


def test_only_the_files_of_a_pipeline_and_its_runs_are_opened_among_many(hibali: Any) -> None:
    """Count opened files: a measured time would depend on the load of the machine."""
    catalogue, state = Catalogue(), state_folder()
    plant_pipelines(100)
    digest = catalogue.find("tool-7").digest
    begin(0, digest, "site", State.SUCCEEDED)
    first = (state / "runs" / f"{run_id(0)}.jsonl").read_text()
    for number in range(1, 60):
        record = first if number % 2 else first.replace(digest, OTHER)
        (state / "runs" / f"{run_id(number)}.jsonl").write_text(record.replace(run_id(0), run_id(number)))
    assert len(runs_of(digest)) == 31
    list(catalogue.entries())
    runs = [f"runs/{run_id(number)}.jsonl" for number in (0, *range(1, 60, 2))]
    opened = opened_below(state, hibali, "pipelines", "show", "tool-7")
    assert sorted(name for name in opened if name.startswith("runs/2")) == runs
    assert {name.split("/")[1] for name in opened if name.startswith("catalogue/")} == {"tool-7"}
    assert opened.count("pins.jsonl") == 1


def plant_pipelines(count: int) -> None:
    """Write pipelines in the form of `add`, all at once."""
    state, pins = state_folder(), []
    for number in range(count):
        name = f"tool-{number}"
        folder = state / "catalogue" / name / "1.0"
        folder.mkdir(parents=True, mode=0o700)
        (folder / "descriptor.json").write_bytes(raw(name))
        digest = read_descriptor(raw(name), name, name).digest
        pins.append({"schema": 1, "kind": "pin", "name": name, "version": "1.0", "digest": digest})
    (state / "pins.jsonl").write_text("".join(json.dumps(each) + "\n" for each in pins))
    (state / "pins.jsonl").chmod(0o600)


_NOTE_OPENED = """
import os, runpy, sys
opened = open(os.environ["OPENED"], "a", encoding="utf-8", errors="backslashreplace")
sys.addaudithook(lambda event, found: event == "open" and print(os.fsdecode(found[0]) if isinstance(found[0], (str, bytes)) else "", file=opened, flush=True))
runpy.run_module("hibali_cli", run_name="__main__")
"""


def opened_below(folder: Path, hibali: Any, *words: str) -> list[str]:
    """Return the names of the files below a folder that a command opens, in the order in which it does."""
    listed = hibali.home.folder / "opened"
    command = [sys.executable, "-P", "-c", _NOTE_OPENED, *words]
    environment = {**hibali.env, "OPENED": str(listed)}
    subprocess.run(command, env=environment, cwd=Path("/"), check=True, stdout=subprocess.DEVNULL)
    start = f"{folder}/"
    return [name[len(start) :] for name in listed.read_text().splitlines() if name.startswith(start)]


@pytest.mark.usefixtures("hibali_home")
def test_runs_are_found_by_name_and_as_the_latest_of_a_pipeline() -> None:
    run_store = RunStore()
    for number, pipeline, name in (
        (1, "bet@1.0", "a"),
        (2, "bet@2.0", "../x"),
        (3, "better@1.0", "a"),
        (4, "bet@1.0", "latest"),
    ):
        fields = {**FIELDS, "pipeline": pipeline, "pipeline_digest": OTHER, "site": "here", "name": name}
        run_store.begin(f"20260102-000000-{number:08x}", "k" * 64, fields)
    found = {
        typed: run_store.find_id(typed)[-1]
        for typed in ("latest", "latest:bet", "latest:bet@2.0", "latest:better", "../x", "00000003")
    }
    assert found == {
        "latest": "4", "latest:bet": "4", "latest:bet@2.0": "2", "latest:better": "3", "../x": "2", "00000003": "3",
    }  # fmt: skip
    for unknown in ("latest:", "latest:be", "latest:%", "../../x", "", "a%"):
        with pytest.raises(NotFoundError):
            run_store.find_id(unknown)
    with pytest.raises(UsageError, match="several"):
        run_store.find_id("a")
    assert run_store.find_ids(["latest", "answers.json", "../x"], only=False) == (
        "20260102-000000-00000004", "answers.json", "20260102-000000-00000002",
    )  # fmt: skip


@pytest.mark.usefixtures("hibali_home")
@pytest.mark.parametrize("name", ["20260104", "20260109-111111-77777777", "0a1b2c3e", "20260109-"])
def test_a_recorded_name_that_is_like_an_id_finds_no_run(name: str) -> None:
    fields = {**FIELDS, "pipeline": "bet@1.0", "pipeline_digest": OTHER, "site": "here", "name": name}
    RunStore().begin(run_id(1), "k" * 64, fields)
    with pytest.raises(NotFoundError):
        RunStore().load(RunStore().find_id(name))


@pytest.mark.usefixtures("hibali_home")
def test_latest_is_refused_if_an_unreadable_run_may_be_later() -> None:
    for number in (1, 2, 3):
        begin(number, OTHER, "here")
    path = state_folder() / "runs" / f"{run_id(1)}.jsonl"
    path.write_text("{}\n")
    assert RunStore().find_id("latest") == run_id(3)
    path = path.with_name(f"{run_id(3)}.jsonl")
    path.write_text(f"{path.read_text()}[]\n")
    assert RunStore().find_id("latest") == run_id(3)
    path.write_text("{}\n")
    for typed in ("latest", "latest:tool"):
        with pytest.raises(UnreadableStateError) as raised:
            RunStore().find_id(typed)
        assert raised.value.subject == str(path)
    with pytest.raises(UnreadableStateError):
        RunStore().find_id("latest:other")
    assert RunStore().find_id(run_id(2)) == run_id(2)


@pytest.mark.usefixtures("hibali_home")
@pytest.mark.parametrize("typed", ["\udcff", "latest:\udcff", "latest\ud800"])
def test_text_that_is_not_utf8_finds_no_run(typed: str) -> None:
    begin(1, OTHER, "here")
    with pytest.raises(NotFoundError):
        RunStore().find_id(typed)
    assert RunStore().find(RunFilter(pipeline=typed)) == []


@pytest.mark.usefixtures("hibali_home")
def test_a_file_is_not_taken_for_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(1, OTHER, "here")
    monkeypatch.chdir(tmp_path)
    assert RunStore().find_ids(["latest", "0a1b2c3d"], only=False) == (run_id(1),)
    (tmp_path / "latest").touch()
    assert RunStore().find_ids(["latest"], only=False) == ("latest",)
