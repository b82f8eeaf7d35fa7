"""Test listing, checking and hashing the outputs of a run at its site, here a local folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hibali.config.model import local_site
from hibali.locations import Location
from runs import outputs as outputs_module
from runs.identity import identify_local
from runs.model import Output, Run
from runs.outputs import RunOutputs, content_at, content_of_place, inspect_outputs, matched_paths
from tests.support.runs import make_run
from tests.support.waiting import wait_for
from transfers.model.entry import Entry, Kind

RUN = "20260102-030405-0a1b2c3d"
SITE = local_site()


def ended_run(folder: Path, *outputs: Output) -> Run:
    (folder / "exit.json").write_text("{}")
    return make_run(id=RUN, site=SITE.name, outputs=outputs, folder=os.fsencode(folder))


@pytest.fixture
def work(tmp_path: Path) -> Path:
    made = tmp_path / RUN / "work"
    (made / "tree" / "deep" / "empty").mkdir(parents=True)
    (made / "tree" / "deep" / "new\nline").write_text("1")
    (made / "tree" / "a").write_text("2")
    (made / "tree" / "a.b").write_text("3")
    (made / "one").write_text("4")
    return made


@pytest.mark.usefixtures("hibali_home")
def test_content_has_the_same_digest_at_a_site_and_locally(work: Path) -> None:
    outputs = [Output("tree", "tree"), Output("one", "one")]
    existing = inspect_outputs(ended_run(work.parent, *outputs), SITE, outputs, hashed=True)
    assert (existing.problems, existing.changed) == ([], [])
    assert content_at(b"tree", existing).text == identify_local(work / "tree").text
    assert content_at(b"one", existing).text == identify_local(work / "one").text
    for name in ("tree", "one"):
        content = content_of_place(Location(SITE, str(work / name), name))
        assert content is not None
        assert content.text == identify_local(work / name).text


@pytest.mark.usefixtures("hibali_home")
def test_a_folder_with_a_symlink_has_no_content_digest(work: Path) -> None:
    (work / "tree" / "link").symlink_to("a")
    assert content_of_place(Location(SITE, str(work / "tree"), "tree")) is None
    run = ended_run(work.parent, Output("tree", "tree"))
    assert [each.code for each in inspect_outputs(run, SITE, run.spec.outputs, hashed=False).problems] == [
        "output-not-a-file"
    ]


@pytest.mark.usefixtures("hibali_home")
@pytest.mark.parametrize("change", ["write", "remove", "add"])
def test_changes_after_the_end_are_detected(work: Path, change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outputs_module, "_SLACK_NS", 0)
    run = ended_run(work.parent, Output("tree", "tree"))
    ended = (work.parent / "exit.json").stat().st_ctime_ns
    assert inspect_outputs(run, SITE, run.spec.outputs, hashed=False).changed == []

    def later() -> bool:
        """Return whether the clock of the filesystem has advanced."""
        (work / "clock").write_text("")
        return (work / "clock").stat().st_ctime_ns > ended

    wait_for(later)
    path = work / "tree" / "deep" / "new\nline"
    if change == "write":
        times = (path.stat().st_atime_ns, path.stat().st_mtime_ns)
        path.write_text("x")
        os.utime(path, ns=times)
    elif change == "remove":
        path.unlink()
    else:
        (path.parent / "more").write_text("x")
    assert inspect_outputs(run, SITE, run.spec.outputs, hashed=False).changed


def test_a_pattern_gives_all_matching_files_in_order() -> None:
    names = [b"a.txt", b".h.txt", b"b.txt", b"c.nii", b"d.txt/x"]
    existing = RunOutputs(
        {name: Entry(name, Kind.FILE) for name in names}, {b"d.txt": Entry(b"d.txt", Kind.FOLDER)}
    )
    assert matched_paths(Output("o", "*.txt", is_pattern=True), existing) == [b"a.txt", b"b.txt", b"d.txt"]
    assert matched_paths(Output("o", "a.txt"), existing) == [b"a.txt"]
    assert matched_paths(Output("o", "."), existing) == [b""]
