"""Test which run folders may be removed, and which run manifests are trusted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields as dataclass_fields
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hibali.config.model import local_site
from hibali.documents import line_of_json
from hibali.errors import RefusedError
from runs.adopt import Adoption, FoundRun, adopt, find_unknown_runs, read_run_manifest, write_run_manifest
from runs.clean import CleanRequest, reason_to_keep
from runs.model import Run, State
from runs.queue_places import QueuePlaces
from runs.store import RunStore
from tests.support.runs import change_run, make_run
from transfers.remote.host import RemoteHost
from transfers.stores.open_store import open_host

RUN = "20260102-030405-0a1b2c3d"
NOW = datetime(2026, 3, 1, tzinfo=UTC)
FIELDS: dict[str, Any] = {
    "pipeline": "p@1",
    "pipeline_digest": "d",
    "site": "there",
    "name": "",
    "scheduler": "direct",
    "container": "bare",
    "invocation": {"value": "\ud800"},
    "outputs": [{"id": "o", "path": "out", "optional": False, "is_list": False, "is_pattern": False}],
}
BARE = make_run(id=RUN, key="k" * 64, created="2026-01-02T03:04:05Z")


@given(
    st.sampled_from(list(State)),
    st.sampled_from([(), ("back",)]),
    st.sampled_from([b"", b"/w/runs/x"]),
    st.sampled_from(["", "2026-02-28T00:00:00Z", "yesterday", "2026-02-28"]),
    st.booleans(),
    st.sampled_from([0.0, 3600.0, 86400.0 * 365]),
)
def test_only_ended_and_collected_runs_are_removed(
    state: State, collected: tuple[str, ...], folder: bytes, ended: str, everything: bool, older_than: float
) -> None:
    run = change_run(BARE, state=state, collected=collected, folder=folder, ended=ended)
    because = reason_to_keep(run, CleanRequest(all_ended=everything, older_than=older_than), NOW)
    if not because:
        assert state in {State.SUCCEEDED, State.FAILED, State.CANCELLED}
        assert folder
        assert collected or everything
        assert older_than < 86400 * 365
    assert reason_to_keep(change_run(run, cleaned="2026-02-28T00:00:00Z"), CleanRequest(all_ended=True), NOW)


def test_recent_runs_are_kept() -> None:
    ended = (NOW - timedelta(days=2)).strftime("%Y-%m-%dT%H:%M:%SZ")
    run = change_run(BARE, state=State.FAILED, collected=("x",), folder=b"/w", ended=ended)
    assert reason_to_keep(run, CleanRequest(older_than=3 * 86400.0), NOW)
    assert not reason_to_keep(run, CleanRequest(older_than=86400.0), NOW)


@pytest.fixture
def host(hibali_home: object) -> Iterator[RemoteHost]:
    del hibali_home
    opened = open_host(local_site())
    yield opened
    opened.close()


def test_a_run_is_adopted_once_from_its_manifest(host: RemoteHost, tmp_path: Path) -> None:
    run_store = RunStore()
    begun = run_store.begin(RUN, "a" * 64, FIELDS)
    write_run_manifest(host, bytes(tmp_path), run_store, begun)
    assert (tmp_path / "run.json").stat().st_mode & 0o777 == 0o600
    manifest = read_run_manifest(host, bytes(tmp_path), RUN)
    assert manifest is not None
    assert manifest["ledger"]
    (run_store._folder / f"{RUN}.jsonl").unlink()  # the ledger is lost
    found_run = FoundRun(RUN, "here", bytes(tmp_path), manifest, "17")
    taken = adopt(run_store, found_run)
    assert (taken.site, taken.job, taken.state) == ("here", "17", State.SUBMITTED)
    assert (taken.created, taken.spec.outputs, taken.folder) == (
        begun.created,
        begun.spec.outputs,
        bytes(tmp_path),
    )
    assert QueuePlaces("here").held() == {RUN: 1}
    run_store.note(RUN, "seen", {"state": "SUCCEEDED", "native": "", "reason": ""})
    assert QueuePlaces("here").held() == {}
    assert adopt(run_store, found_run).state is State.SUCCEEDED
    assert QueuePlaces("here").held() == {}
    found = run_store.find_unreported("a" * 64)
    assert found is not None
    assert found.id == RUN
    assert replace(found_run, result=Adoption.ADOPTED).to_record()["fate"] == "adopted"


@pytest.mark.parametrize(
    "change",
    [
        {"id": "20260102-030405-ffffffff"},
        {"key": "../x"},
        {"key": 7},
        {"at": "then"},
        {"pipeline": ["p"]},
        {"scheduler": None},
        {"outputs": [{"id": "o"}]},
        {"outputs": "none"},
        *({"outputs": [{**FIELDS["outputs"][0], "path": path}]} for path in ("/etc", "../x", "a/../b", 7)),
    ],
)
def test_an_invalid_manifest_is_rejected(host: RemoteHost, tmp_path: Path, change: dict[str, Any]) -> None:
    good = {"id": RUN, "key": "a" * 64, "at": "2026-01-02T03:04:05.000000Z", **FIELDS}
    (tmp_path / "run.json").write_text(json.dumps(good))
    assert read_run_manifest(host, bytes(tmp_path), RUN) is not None
    (tmp_path / "run.json").write_text(json.dumps(good | change))
    assert read_run_manifest(host, bytes(tmp_path), RUN) is None


@pytest.mark.parametrize("content", ["", "[]", "{", '{"id":1,"id":2}', "null", "[" * 1000])
def test_a_manifest_with_hostile_text_is_rejected(host: RemoteHost, tmp_path: Path, content: str) -> None:
    (tmp_path / "run.json").write_text(content)
    assert read_run_manifest(host, bytes(tmp_path), RUN) is None


def test_runs_in_a_folder_that_others_can_write_to_are_not_adopted(host: RemoteHost, tmp_path: Path) -> None:
    """Other users who can create folders there can forge the manifest of a run: its job and its outputs."""
    site = replace(local_site(), work=str(tmp_path / "work"))
    folder = tmp_path / "work" / "runs" / RUN
    folder.mkdir(parents=True)
    run_store = RunStore()
    good = {"id": RUN, "key": "a" * 64, "at": "2026-01-02T03:04:05.000000Z", **FIELDS}
    (folder / "run.json").write_text(json.dumps(good))
    assert [found_run.manifest["pipeline"] for found_run in find_unknown_runs(host, site, run_store)] == [
        "p@1"
    ]
    for shared in (tmp_path / "work", tmp_path / "work" / "runs"):
        shared.chmod(0o777)
        with pytest.raises(RefusedError) as refused:
            list(find_unknown_runs(host, site, run_store))
        assert (refused.value.code, refused.value.exit) == ("not-private", 8)
        shared.chmod(0o700)


def forged_runs(host: RemoteHost, tmp_path: Path) -> Iterator[Run]:
    """Adopt runs whose manifests have an impossible value in one field; yield those that are not rejected."""
    good = {"id": RUN, "key": "a" * 64, "at": "2026-01-02T03:04:05.000000Z", **FIELDS}
    (tmp_path / "run.json").write_text(json.dumps(good))
    fields = [field.name for field in dataclass_fields(Run)]
    more = (
        "asked",
        "dataset",
        "collect",
        "notify",
        "command",
        "path",
        "ledger",
        "sweep",
        "kind",
        "schema",
        "resources",
    )
    values = [
        None,
        7,
        -1,
        1e400,
        "x\x1b[2J\u202e",
        "../../x",
        [],
        [[]],
        [None],
        {},
        {"x": [{}]},
        True,
        "9" * 5000,
        "\ud800",
    ]
    for name in {*fields, *more, *good}:
        for number, value in enumerate(values):
            (tmp_path / "run.json").write_text(json.dumps({**good, name: value}))
            manifest = read_run_manifest(host, bytes(tmp_path), RUN)
            if manifest is None:
                continue
            run_store = RunStore()
            found_run = FoundRun(RUN, "here", bytes(tmp_path), manifest, "17")
            assert line_of_json(found_run.to_record())
            taken = adopt(run_store, found_run)
            assert (taken.id, taken.site, taken.folder, taken.job) == (RUN, "here", bytes(tmp_path), "17"), (
                name,
                number,
            )
            assert line_of_json(taken.to_record())
            assert line_of_json(taken.to_whole_record())
            assert not any(
                "/" in output.path and output.path.startswith(("/", "..")) for output in taken.spec.outputs
            )
            yield taken
            (run_store._folder / f"{RUN}.jsonl").unlink()


@pytest.mark.heavy
def test_a_forged_manifest_is_rejected_or_every_command_can_show_its_run(
    host: RemoteHost, tmp_path: Path
) -> None:
    assert len(list(forged_runs(host, tmp_path))) > 50
