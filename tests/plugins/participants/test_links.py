"""Test that the part of a dataset has those of the datasets to which it links, and nothing from outside of the folder that was named."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hibali.config.model import Site, local_site
from hibali.config.settings import Settings
from hibali.errors import HibaliError, NotFoundError, UsageError
from hibali.events import ignore
from hibali.locations import Location
from hibali_plugins.participants.assignment import Participant
from hibali_plugins.participants.completeness import describe_parts, find_datasets, find_lacking, select_parts
from hibali_plugins.participants.links import folder_of, name_with_links
from hibali_plugins.participants.links import select_parts as select
from runs.identity import Identity, identify_local
from runs.inputs import locate_files
from runs.model import Input
from tests.plugins.participants.test_assignment import pipeline_of
from tests.support.bids import describe, make_dataset, make_derivatives

PREPARED = "derivatives/prepared"


def location(path: Path) -> Location:
    return Location(local_site(), str(path), str(path), typed_local=True)


def link(root: Path, links: Mapping[str, Any]) -> None:
    describe(root, DatasetType="derivative", DatasetLinks=links)


def identify(folder: Path, path: str) -> Identity:
    """Identify an input `FOLDER/./PATH` as a run does."""
    located = locate_files(
        [Input("bids_dir", 0, f"{folder}/./{path}")], Settings(folder / "config.toml", {}), Site("x", "ssh")
    )
    assert located[0].input.below == folder_of(path)
    assert located[0].identity is not None
    return located[0].identity


def files_of(folder: Path, path: str) -> set[str]:
    files = identify(folder, path).files
    assert files is not None
    return {name.decode() for name in files}


@pytest.mark.parametrize(
    ("path", "below"),
    [
        ("sub-01", ""),
        ("sub-01/ses-a", ""),
        ("derivatives/fmriprep/sub-01", "derivatives/fmriprep"),
        ("my study/sub-01/ses-a", "my study"),
        ("../bids/sub-01", None),
        ("bids/./sub-01", None),
        ("/bids/sub-01", None),
        ("a//b/sub-01", None),
        ("a\nb/sub-01", None),
        ("bids/sub-0_1", None),
        ("bids", None),
    ],
)
def test_only_a_path_below_a_folder_names_a_part(path: str, below: str | None) -> None:
    assert folder_of(path) == below


@pytest.mark.usefixtures("hibali_home")
def test_a_part_has_the_linked_participant_and_nobody_else(tmp_path: Path) -> None:
    root = make_dataset(tmp_path / "bids")
    link(root / PREPARED, {"raw": "../..", "templateflow": "doi:10.1/x", "self": ".", "web": "https://x.org"})
    (root / ".bidsignore").write_text("derivatives\n*_xfm.h5\n*_raw.txt\n")  # counts for the raw files only
    assert files_of(root, f"{PREPARED}/sub-01") == {
        *files_of(root, "sub-01"),
        *(f"{PREPARED}/{name}" for name in files_of(root / PREPARED, "sub-01")),
    }
    of_session = {name for name in files_of(root, f"{PREPARED}/sub-02") if "sub-" in name}
    assert {name.partition("sub-")[2][:2] for name in of_session} == {"02"}


@pytest.mark.heavy
@pytest.mark.usefixtures("hibali_home")
@pytest.mark.parametrize("target", ["{}", "file://{}", "file://localhost{}", "file:{}"])
def test_an_absolute_link_is_relative_in_the_job(tmp_path: Path, target: str) -> None:
    study = tmp_path / "my study"
    raw = make_dataset(study / "raw")
    prepared = make_derivatives(study / "prepared", ["01"])
    quoted = str(raw).replace(" ", "%20") if target.startswith("file") else str(raw)
    link(prepared, {"raw": target.format(quoted), "other": "doi:10.1/x"})
    part = select(location(study), ["prepared/sub-01"])["prepared/sub-01"]
    written = json.loads(part.written[b"prepared/dataset_description.json"])
    assert written["DatasetLinks"] == {"raw": "../raw", "other": "doi:10.1/x"}
    assert written["Name"] == "Study"
    assert "raw/participants.tsv" in files_of(study, "prepared/sub-01")


@pytest.mark.heavy
def test_a_link_out_of_the_folder_is_not_followed(tmp_path: Path) -> None:
    root = make_dataset(tmp_path / "study" / "raw")
    make_dataset(tmp_path / "secret")
    (tmp_path / "study" / "alias").symlink_to(tmp_path / "secret")
    (tmp_path / "study" / "empty").mkdir()
    prepared = make_derivatives(tmp_path / "study" / "prepared", ["01"])
    refused = {
        "out": "../../secret",
        "away": str(tmp_path / "secret"),
        "uri": (tmp_path / "secret").as_uri(),
        "alias": "../alias",
        "through": "../alias/derivatives/prepared",
        "absent": "../none",
        "empty": "../empty",
        "circle": "../prepared/.",
        "control": "../ra\nw",
        "file": "../raw/README.md",
    }
    link(prepared, {**refused, "number": 5})
    with pytest.raises(UsageError) as found:
        select(location(tmp_path / "study"), ["prepared/sub-01"])
    assert found.value.code == "no-linked-dataset"
    assert {each.partition(":")[0] for each in found.value.message.splitlines()[1:]} == set(refused)
    link(prepared, {**refused, "raw": "../raw"})
    [part] = select(location(tmp_path / "study"), ["prepared/sub-01"]).values()
    assert part.written.keys() == {b"raw/participants.tsv"}, "the description is as it was"
    assert part.rules.files_from is not None
    assert {name.partition(b"/")[0] for name in part.rules.files_from} == {b"raw", b"prepared"}
    link(prepared, {f"raw{number}": "../raw" for number in range(101)})
    with pytest.raises(UsageError, match="more than 100"):
        select(location(tmp_path / "study"), ["prepared/sub-01"])
    (tmp_path / "study" / "name").symlink_to("prepared")
    with pytest.raises(UsageError, match="is not a folder"):
        select(location(tmp_path / "study"), ["name/sub-01"])
    assert root.is_dir()


def test_who_is_missing_in_a_linked_dataset_is_named(tmp_path: Path) -> None:
    root = make_dataset(tmp_path / "bids")
    make_derivatives(root / PREPARED, ["09"])
    link(root / PREPARED, {"raw": "../.."})
    with pytest.raises(NotFoundError, match="has no folder sub-09"):
        select(location(root), [f"{PREPARED}/sub-09", f"{PREPARED}/sub-01"])


@pytest.mark.heavy
@pytest.mark.parametrize("main", ["bids", f"bids/{PREPARED}"])
def test_each_participant_gets_the_linked_dataset_if_the_value_asks(
    tmp_path: Path, main: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    root = make_dataset(tmp_path / "bids")
    link(root / PREPARED, {"raw": "../..", "gone": "/data/gone", "flow": "doi:10.1/x"})
    tool = pipeline_of({"id": "bids_dir", "type": "File"})
    config, people = Settings(tmp_path / "config.toml", {}), [Participant("01"), Participant("03")]

    def found(text: str, *, sessions: bool = False) -> tuple[Any, str, Any]:
        datasets = find_datasets(
            tool,
            {"bids_dir": text},
            location(tmp_path / main),
            config,
            ignore,
            sessions=sessions,
            whole=False,
        )
        selections = select_parts(people, datasets, [])
        shown = "\n".join(describe_parts(datasets, selections))
        return datasets.values["bids_dir"], shown, find_lacking(people, datasets, selections)

    value, shown, _ = found(f"bids/{PREPARED}")
    assert value == f"bids/{PREPARED}/./sub-{{participant}}"
    assert f"name the input {root}/./{PREPARED}" in shown
    assert name_with_links(location(root / PREPARED), str(root)) == f"{root}/./{PREPARED}"
    value, shown, lacking = found(f"bids/./{PREPARED}")
    assert value == f"bids/./{PREPARED}/sub-{{participant}}"
    assert "raw (" not in shown
    assert "gone (/data/gone) is not staged with it: it leads out of bids" in shown
    assert "doi:" not in shown
    assert list(lacking) == ([people[1]] if main == "bids" else [])
    sessions = "/ses-{session}" if main != "bids" else ""
    assert found(f"bids/./{PREPARED}", sessions=True)[0] == f"bids/./{PREPARED}/sub-{{participant}}{sessions}"


_WORDS = st.sampled_from(
    ["..", ".", "raw", "alias", "prepared", "derivatives", "secret", "sub-01", "", "x\0y", "%2e%2e"]
)


@pytest.mark.heavy
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@pytest.mark.usefixtures("hibali_home")
@given(
    start=st.sampled_from(["", "..", "../..", "../../..", "{}", "{}/raw"]),
    words=st.lists(_WORDS, max_size=3),
    scheme=st.sampled_from(["", "", "file://", "bids:", "x:/"]),
)
def test_no_link_leads_out_and_each_that_is_followed_means_the_same(
    tmp_path_factory: pytest.TempPathFactory, start: str, words: list[str], scheme: str
) -> None:
    top = tmp_path_factory.getbasetemp() / "links"
    study = top / "study"
    if not study.exists():
        for place in (study, study / "raw", top / "secret"):
            describe(place)
            (place / "sub-01").mkdir(parents=True)
            (place / "sub-01" / "sub-01_T1w.json").write_text(str(place))
        (study / "raw" / "derivatives").mkdir()
        (study / "raw" / "derivatives" / "alias").symlink_to(top / "secret")
        make_derivatives(study / "raw" / "derivatives" / "prepared", ["01"])
    target = scheme + "/".join([start.format(study), *words])
    prepared = study / "raw" / "derivatives" / "prepared"
    link(prepared, {"it": target})
    try:
        [part] = select(location(study), ["raw/derivatives/prepared/sub-01"]).values()
    except HibaliError:
        return
    names = {os.fsdecode(each) for each in identify_local(study, part).files or ()}
    real = study.resolve()
    assert all((study / each).resolve() == real / each for each in names), "no symlink, nothing outside"
    assert scheme not in {"bids:", "x:/"}
    text = part.written.get(b"raw/derivatives/prepared/dataset_description.json")
    followed = target if text is None else json.loads(text)["DatasetLinks"]["it"]
    linked = (prepared / followed).resolve()
    assert linked in {real, real / "raw"}
    assert str((linked / "sub-01/sub-01_T1w.json").relative_to(real)) in names
