"""Test finding the runs of a pipeline in the ledger, by site."""

from __future__ import annotations

import json
import resource
import subprocess
from pathlib import Path
from typing import Any

import pytest

from hibali.files import state_folder
from hibali.unreadable import collect_unreadable
from registry.catalogue import Catalogue
from registry.descriptor import read_descriptor
from runs.model import State
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


@pytest.mark.heavy
@pytest.mark.timeout(900)
def test_it_is_fast_among_thousands_of_pipelines_and_runs(
    hibali: Any,
) -> None:
    """Measure the minimum processor time of several calls, so that other processes have little effect."""
    catalogue = Catalogue()
    plant_pipelines(2000)
    digest = catalogue.find("tool-7").digest
    begin(0, digest, "site", State.SUCCEEDED)
    first = (state_folder() / "runs" / f"{run_id(0)}.jsonl").read_text()
    for number in range(1, 1000):
        record = first if number % 2 else first.replace(digest, OTHER)
        (state_folder() / "runs" / f"{run_id(number)}.jsonl").write_text(
            record.replace(run_id(0), run_id(number))
        )
    assert len(runs_of(digest)) == 501
    list(catalogue.entries())
    versions = [processor_seconds(hibali, "--version") for _ in range(3)]
    shows = [processor_seconds(hibali, "pipelines", "show", "tool-7") for _ in range(3)]
    assert min(shows) <= 10 * min(versions), (shows, versions)


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


def processor_seconds(hibali: Any, *words: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        hibali.command(*words), env=hibali.env, cwd=Path("/"), check=True, stdout=subprocess.DEVNULL
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
