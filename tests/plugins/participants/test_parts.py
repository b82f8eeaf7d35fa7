"""Test the part of a BIDS dataset that a task gets: everything that applies to its participant, and nothing of others."""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hibali.config.model import Site, local_site
from hibali.config.settings import Settings
from hibali.errors import HibaliError, IncompleteError, NotFoundError, UsageError
from hibali.events import Listener, Moved, Noted, ignore
from hibali.locations import Location
from hibali_plugins.participants.assignment import Participant, find_participants
from hibali_plugins.participants.completeness import (
    Datasets,
    check_patterns,
    describe_parts,
    find_absent,
    find_lacking,
)
from hibali_plugins.participants.completeness import select_parts as select
from hibali_plugins.participants.links import select_parts
from hibali_plugins.participants.parts import NO_FILES, Dataset, applying, open_dataset
from runs.identity import identify_elsewhere, identify_local
from runs.inputs import locate_files
from runs.model import Input
from runs.stage import Cache, Synchroniser
from tests.plugins.participants.test_assignment import pipeline_of
from tests.support.bids import make_dataset, make_derivatives
from transfers.model.rules import Rules
from transfers.stores.open_store import open_host, open_store


def location(path: Path) -> Location:
    return Location(local_site(), str(path), str(path), typed_local=True)


def files_of(root: Path, part: str) -> set[str]:
    """Return the files of a part, as they are hashed and then staged."""
    identity = identify_local(root, select_parts(location(root), [part])[part])
    assert identity.files is not None
    return {name.decode() for name in identity.files}


@pytest.mark.parametrize(
    ("upper", "data", "applies"),
    [
        ("task-rest_bold.json", "sub-01_task-rest_run-1_bold.nii.gz", True),
        ("task-rest_bold.json", "sub-01_task-nback_bold.nii.gz", False),
        ("task-rest_bold.json", "sub-01_task-rest_events.tsv", False),
        ("bold.json", "sub-01_task-rest_bold.nii.gz", True),
        ("acq-x_task-rest_bold.json", "sub-01_task-rest_bold.nii.gz", False),
        ("dwi.bvec", "sub-01_dwi.nii.gz", True),
        ("dwi.bvec", "sub-01_T1w.nii.gz", False),
        ("task-rest_events.tsv", "sub-01_task-rest_bold.nii.gz", True),
        ("space-CapTrak_electrodes.tsv", "sub-01_task-rest_eeg.vhdr", True),
        ("space-CapTrak_coordsystem.json", "sub-01_task-rest_eeg.vhdr", True),
        ("README", "sub-01_T1w.nii.gz", True),
        ("dataset_description.json", "sub-01_T1w.nii.gz", True),
        ("atlas-X_description.json", "sub-01_T1w.nii.gz", True),
        ("bold.json", "sub-04_task-rest-open_bold.nii.gz", True),  # names that BIDS does not allow
        ("task-rest_bold.json", "sub-04__task-rest_bold.nii.gz", True),
        ("task-rest_bold.json", "sub-04_task-nback_acq-1.5_bold.nii.gz", False),
        ("acq-1_bold.json", "sub-04_task-my rest_bold.nii.gz", True),
        ("task-rest_events.tsv", "sub-04_task-r\u00e9st_bold.nii.gz", True),
        ("T1w.json", "sub-04_task-my rest_bold.nii.gz", False),
        ("bold.json", "sub-04_bold-.nii.gz", True),
        ("bold.json", "ses-a", False),
    ],
)
def test_files_of_levels_above_apply_by_entities_and_suffix(upper: str, data: str, applies: bool) -> None:
    assert applying([upper.encode()], [data.encode()]) == ({upper.encode()} if applies else set())


def test_metadata_of_inherited_events_applies_with_them() -> None:
    upper = [b"task-rest_events.tsv", b"task-rest_events.json"]
    assert applying(upper, [b"sub-01_task-rest_bold.nii.gz"]) == set(upper)


def test_a_part_has_all_levels_and_nobody_else(tmp_path: Path) -> None:
    root = make_dataset(tmp_path / "bids")
    found = files_of(root, "sub-03")
    everything = {str(each.relative_to(root)) for each in (root / "sub-03").rglob("*") if each.is_file()}
    assert {each for each in found if each.startswith("sub-")} == {
        each for each in everything if not each.endswith("_raw.txt")
    }
    assert {each for each in found if not each.startswith("sub-")} == {
        *("README.md", "CHANGES", ".bidsignore", "dataset_description.json", "stimuli/face.png"),
        *("participants.tsv", "participants.json", "T1w.json", "task-rest_bold.json"),
    }
    part = select_parts(location(root), ["sub-02"])["sub-02"]
    assert part.written == {b"participants.tsv": b"participant_id\tage\tsex\nsub-02\t12\tM\n"}
    (root / "participants.tsv").write_text("age\tparticipant_id\r\n5\t02\r\n6\t03\r\n")
    part = select_parts(location(root), ["sub-02"])["sub-02"]
    assert part.written == {b"participants.tsv": b"age\tparticipant_id\r\n5\t02\r\n"}
    assert {"dwi.bval", "dwi.bvec", "task-nback_bold.json"} <= files_of(root, "sub-02")


def test_the_part_of_a_session_has_what_is_beside_the_sessions(tmp_path: Path) -> None:
    root = make_dataset(tmp_path / "bids")
    (root / "sub-01" / "anat").mkdir()
    (root / "sub-01" / "anat" / "sub-01_desc-mean_T1w.nii.gz").touch()
    (root / "sub-01" / "sub-01_ses-a_scans.tsv").write_text("filename\n")
    found = files_of(root, "sub-01/ses-b")
    assert {each for each in found if each.startswith("sub-01/") and "ses-b/" not in each} == {
        "sub-01/anat/sub-01_desc-mean_T1w.nii.gz",
        "sub-01/sub-01_sessions.tsv",
        "sub-01/sub-01_task-rest_bold.json",
    }
    assert sum("ses-b/" in each for each in found) == 7


def test_bidsignore_of_derivatives_has_no_effect(tmp_path: Path) -> None:
    root = make_derivatives(tmp_path / "prepared", ["01", "02"])
    assert files_of(root, "sub-01") == {
        *("dataset_description.json", ".bidsignore", "desc-brain_T1w.json", "sub-01.html"),
        "sub-01/anat/sub-01_desc-brain_T1w.nii.gz",
        "sub-01/anat/sub-01_from-T1w_to-MNI_mode-image_xfm.h5",
    }


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("described", "ignored"),
    [
        ({"PipelineDescription": {"Name": "fMRIPrep"}}, False),
        ({"GeneratedBy": []}, False),
        ({"GeneratedBy": [], "DatasetType": "raw"}, True),
        ({}, True),
    ],
)
def test_derivatives_need_not_say_so(tmp_path: Path, described: dict[str, Any], ignored: bool) -> None:
    root = make_derivatives(tmp_path / "prepared", ["01"])
    (root / "dataset_description.json").write_text(json.dumps({"BIDSVersion": "1.1.1", **described}))
    assert ("sub-01/anat/sub-01_from-T1w_to-MNI_mode-image_xfm.h5" in files_of(root, "sub-01")) != ignored


@pytest.mark.heavy
def test_tables_of_others_are_left_out(tmp_path: Path) -> None:
    root = make_dataset(tmp_path / "bids")
    for name in ("group_bold.tsv", "participants.csv", "Ages.XLSX", "events.tsv", "notes.txt"):
        (root / name).touch()
    found = files_of(root, "sub-02")
    assert {"events.tsv", "notes.txt"} <= found
    assert found.isdisjoint({"group_bold.tsv", "participants.csv", "Ages.XLSX"})
    (root / "participants.tsv").write_text("subject\tage\nsub-02\t5\nsub-03\t6\n")
    dataset = open_dataset(location(root))
    selected = dataset.select(["sub-02"])
    assert selected["sub-02"].part.written == {b"participants.tsv": b"subject\tage\n"}
    datasets = Datasets(dataset, (dataset,), {}, is_part=True)
    text = "\n".join(describe_parts(datasets, [{Participant("02"): selected["sub-02"]}] * 2))
    assert text.count("no task gets Ages.XLSX, group_bold.tsv, participants.csv, because") == 2
    assert "participants.tsv has no column participant_id" in text
    assert text.count(".bidsignore leaves out 1 file") == 2, "also of other datasets"
    assert "in place" not in text


@pytest.mark.heavy
def test_recordings_of_an_empty_room_go_with_those_of_people(tmp_path: Path) -> None:
    root = make_dataset(tmp_path / "bids")
    for path in ("sub-emptyroom/ses-20260101/meg", "sub-02/ses-a/meg"):
        (root / path).mkdir(parents=True)
        (root / path / "x_meg.fif").touch()
    assert "sub-emptyroom/ses-20260101/meg/x_meg.fif" in files_of(root, "sub-02/ses-a")
    assert not any("emptyroom" in each for each in files_of(root, "sub-01"))
    found = find_participants(location(root), ignore, sessions=False)
    assert [each.label for each in found] == ["01", "02", "03"]


def test_what_is_used_in_place_is_described_so(tmp_path: Path) -> None:
    root = replace(location(tmp_path), typed_local=False)
    datasets = Datasets(Dataset(root, frozenset(), frozenset()), (), {}, is_part=True)
    first = next(iter(describe_parts(datasets, [{}])))
    assert "uses it in place and sees all of it" in first


@pytest.mark.heavy
def test_an_empty_folder_is_no_participant_to_run(tmp_path: Path) -> None:
    root, more = make_dataset(tmp_path / "bids"), make_derivatives(tmp_path / "prepared", ["01", "02"])
    (root / "sub-04").mkdir()
    (more / "sub-03").mkdir()
    datasets = Datasets(open_dataset(location(root)), (open_dataset(location(more)),), {}, is_part=True)
    people = [Participant(label) for label in ("01", "03", "04")]
    assert find_lacking(people, datasets, select(people, datasets, [])) == {
        people[1]: (f"{NO_FILES} in {more}/sub-03",),
        people[2]: (NO_FILES, f"{more}/sub-04"),
    }
    with pytest.raises(NotFoundError, match="sub-04 has no files"):
        select_parts(location(root), ["sub-04"])


@pytest.mark.heavy
@pytest.mark.parametrize("typed_local", [True, False])
def test_a_symlink_without_a_file_is_no_required_file(tmp_path: Path, typed_local: bool) -> None:
    root = make_dataset(tmp_path / "bids")
    anat = root / "sub-01/ses-a/anat"
    (anat / "gone.nii").symlink_to("nowhere.nii")
    (anat / "there.nii").symlink_to("../anat/sub-01_ses-a_T1w.nii.gz")
    (anat / "annexed.nii").symlink_to("../../.git/annex/objects/x/y")
    place = replace(location(root), typed_local=typed_local)
    found = open_dataset(place).select(["sub-01"], ["gone.nii", "there.nii", "annexed.nii"])
    assert found["sub-01"].lacks == ("gone.nii",)
    tool = pipeline_of({"id": "image", "type": "File", "list": True})
    values = {"image": [f"{anat}/{name}.nii" for name in ("gone", "there", "annexed", "none")]}
    absent = find_absent(tool, {Participant("01"): values})
    assert absent == {Participant("01"): (f"{anat}/gone.nii", f"{anat}/none.nii")}


@pytest.mark.parametrize("pattern", ["[", "func/[", "", "/anat", "!x", "sub-01"])
def test_a_pattern_that_no_file_can_match_is_refused(pattern: str) -> None:
    with pytest.raises(UsageError):
        check_patterns([pattern])


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("name", "text"), [("dataset_description.json", '{"Name": "x",}'), (".bidsignore", "extra\\\n")]
)
def test_files_that_no_part_needs_may_be_broken(tmp_path: Path, name: str, text: str) -> None:
    root = make_dataset(tmp_path / "bids")
    (root / name).write_text(text)
    (root / "samples.tsv").symlink_to("nowhere")
    noted: list[object] = []
    assert open_dataset(location(root), noted.append, parts=False).subjects
    assert [type(each) for each in noted] == [Noted]
    with pytest.raises(HibaliError):
        open_dataset(location(root))


def test_the_part_of_a_dataset_in_place_exists(tmp_path: Path) -> None:
    make_dataset(tmp_path / "bids")
    site = Site("here", "local")
    settings = Settings(tmp_path / "config.toml", {"here": site})
    file = Input("bids_dir", 0, f"here:{tmp_path}/bids/./sub-01")
    assert locate_files([file], settings, site)[0].identity is None
    with pytest.raises(NotFoundError, match="does not exist at the site"):
        locate_files([replace(file, text=f"here:{tmp_path}/bids/./sub-77")], settings, site)


def test_required_files_are_looked_for_below_participant_and_session(tmp_path: Path) -> None:
    dataset = open_dataset(location(make_dataset(tmp_path / "bids")))
    patterns = ["anat/*_T1w.nii*", "*_T1w.nii.gz", "func/*task-nback*", "dwi/", "*_raw.txt"]
    found = dataset.select(["sub-01", "sub-03/ses-a"], patterns)
    assert found["sub-01"].lacks == ("*_raw.txt",)  # ignored
    assert found["sub-03/ses-a"].lacks == ("func/*task-nback*", "dwi/", "*_raw.txt")


def test_who_has_no_folder_is_named(tmp_path: Path) -> None:
    root = make_dataset(tmp_path / "bids")
    with pytest.raises(NotFoundError, match=r"(?s)sub-01/ses-x.*sub-09"):
        select_parts(location(root), ["sub-01", "sub-09", "sub-01/ses-x"])


def test_a_symlink_out_of_the_part_is_refused_and_not_staged_without_its_content(tmp_path: Path) -> None:
    root = make_dataset(tmp_path / "bids")
    image = root / "sub-01/ses-a/anat/sub-01_ses-a_T1w.nii.gz"
    (root / "sub-01/ses-b/anat/sub-01_ses-b_T1w.nii.gz").unlink()
    (root / "sub-01/ses-b/anat/sub-01_ses-b_T1w.nii.gz").symlink_to(
        "../../ses-a/anat/sub-01_ses-a_T1w.nii.gz"
    )
    files_of(root, "sub-01")
    with pytest.raises(UsageError) as found:
        files_of(root, "sub-01/ses-b")
    assert found.value.code == "link-out-of-part"
    archived = tmp_path / "archive.nii.gz"
    image.rename(archived)
    image.symlink_to(archived)
    with pytest.raises(UsageError) as found:
        files_of(root, "sub-01")
    assert found.value.code == "link-out-of-part"


@pytest.mark.heavy
def test_a_large_file_of_all_parts_is_sent_once(hibali_home: object, tmp_path: Path) -> None:
    del hibali_home
    root = make_dataset(tmp_path / "bids")
    movie = bytes(range(256)) * 8192
    (root / "stimuli/movie.mp4").write_bytes(movie)
    sent: list[bytes] = []

    def note(event: object) -> None:
        if isinstance(event, Moved):
            sent.append(event.path)

    def target(path: bytes) -> Location:
        return location(Path(os.fsdecode(path)))

    with closing(open_host(local_site())) as host:
        cache = Cache(host, "here", os.fsencode(tmp_path / "work"), target, Synchroniser())
        parts = select_parts(location(root), ["sub-01", "sub-02", "sub-03"])
        for name, part in parts.items():
            path = Path(os.fsdecode(cache.stage(identify_local(root, part), location(root), note)))
            assert (path / "stimuli/movie.mp4").read_bytes() == movie
            assert {each.name for each in path.glob("sub-*")} == {name}
            assert (path / "participants.tsv").read_text().count("sub-") == 1
    assert sent.count(b"stimuli/movie.mp4") == 1
    assert sent.count(b"stimuli/face.png") == 3


class Vanishing(Synchroniser):
    """Copies a dataset from which a file vanishes just before."""

    def copy(self, source: Location, target: Location, on_event: Listener, rules: Rules) -> None:
        for path in Path(source.path).glob("sub-01/ses-a/anat/*_T1w.nii.gz"):
            path.unlink()
        super().copy(source, target, on_event, rules)


@pytest.mark.parametrize("typed_local", [True, False])
def test_a_file_that_vanishes_before_it_is_copied_is_not_left_out(
    hibali_home: object,
    tmp_path: Path,
    typed_local: bool,
) -> None:
    del hibali_home
    root = replace(location(make_dataset(tmp_path / "bids")), typed_local=typed_local)
    part = select_parts(root, ["sub-01"])["sub-01"]
    with closing(open_store(root)) as store:
        found = (
            identify_local(Path(root.path), part) if typed_local else identify_elsewhere(root, store, part)
        )

    def target(path: bytes) -> Location:
        return location(Path(os.fsdecode(path)))

    with closing(open_host(local_site())) as host:
        cache = Cache(host, "here", os.fsencode(tmp_path / "work"), target, Vanishing())
        with pytest.raises(IncompleteError) as problem:
            cache.stage(found, root)
    assert problem.value.code == "input-changed"


def test_others_do_not_change_a_part(tmp_path: Path) -> None:
    """A cached part stays valid when participants are added."""
    root = make_dataset(tmp_path / "bids")
    before = identify_local(root, select_parts(location(root), ["sub-02"])["sub-02"])
    (root / "sub-99").mkdir()
    with (root / "participants.tsv").open("a") as stream:
        stream.write("sub-99\t1\tF\n")
    after = identify_local(root, select_parts(location(root), ["sub-02"])["sub-02"])
    assert after.text == before.text
    assert before.files is not None
    assert (
        before.files[b"participants.tsv"]
        == hashlib.sha256(after.part.written[b"participants.tsv"]).hexdigest()
    )
