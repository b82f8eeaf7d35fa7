"""Test that the catalogue stores descriptors byte for byte, and returns nothing else."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hibali.errors import HibaliError, NotFoundError, RefusedError, UsageError
from registry.catalogue import Catalogue
from registry.catalogue_folder import Deprecation
from registry.search import Damaged, Summary, search_pipelines
from tests.properties.descriptors import make_document, make_input


def raw(version: str = "1.0", **more: object) -> bytes:
    return json.dumps(
        {**make_document("tool [A]", make_input("a")), "tool-version": version, **more}
    ).encode()


@pytest.fixture
def catalogue(tmp_path: Path) -> Catalogue:
    return Catalogue(tmp_path / "state")


def refusal(catalogue: Catalogue, reference: str) -> str:
    with pytest.raises(RefusedError) as refused:
        catalogue.find(reference)
    return refused.value.code


def test_an_added_descriptor_is_stored_byte_for_byte(catalogue: Catalogue, tmp_path: Path) -> None:
    content = b" \n" + raw()
    (tmp_path / "tool.json").write_bytes(content)
    added = catalogue.add(tmp_path / "tool.json")
    assert added.reference == "tool@1.0"
    for reference in ("tool", "tool@1.0", "TOOL"):
        assert catalogue.find(reference) == added
        assert catalogue.find(reference).raw == content
    stored = tmp_path / "state" / "catalogue" / "tool" / "1.0" / "descriptor.json"
    assert stored.read_bytes() == content
    assert stat.S_IMODE(stored.stat().st_mode) == 0o600
    assert stat.S_IMODE(stored.parent.stat().st_mode) == 0o700


def test_a_version_is_immutable(catalogue: Catalogue) -> None:
    first = catalogue.add(raw())
    assert catalogue.add(json.dumps(json.loads(raw()), indent=2).encode()) == first
    assert catalogue.find("tool").raw == raw()
    with pytest.raises(RefusedError) as refused:
        catalogue.add(raw(description="Another."))
    assert (refused.value.code, refused.value.exit) == ("immutable-version", 8)
    assert first.digest in refused.value.message
    assert catalogue.add(raw(description="Another."), "other").reference == "other@1.0"
    assert catalogue.find("tool") == first


def test_without_a_version_the_latest_added(catalogue: Catalogue) -> None:
    for version in ("2.0", "10.0", "1.0"):
        catalogue.add(raw(version))
    assert catalogue.find("tool").version == "1.0"
    catalogue.remove("tool@1.0")
    assert catalogue.find("tool").version == "10.0"
    catalogue.add(raw("2.0"))
    assert catalogue.find("tool").version == "10.0"


def test_removing(catalogue: Catalogue) -> None:
    catalogue.add(raw())
    with pytest.raises(UsageError):
        catalogue.remove("tool")
    catalogue.remove("tool@1.0")
    for forget in (catalogue.find, catalogue.remove):
        with pytest.raises(NotFoundError):
            forget("tool@1.0")
    assert list(catalogue.entries()) == []
    assert catalogue.add(raw(description="Another.")).description == "Another."


def test_a_modified_descriptor_is_refused(catalogue: Catalogue, tmp_path: Path) -> None:
    catalogue.add(raw())
    stored = tmp_path / "state" / "catalogue" / "tool" / "1.0" / "descriptor.json"
    for content in (raw(description="Another."), b"no json"):
        stored.write_bytes(content)
        assert refusal(catalogue, "tool") == "changed-pipeline"
        [entry] = catalogue.entries()
        assert isinstance(entry, Damaged)
        with pytest.raises(RefusedError):
            catalogue.add(raw())
    catalogue.remove("tool@1.0")
    assert catalogue.add(raw()).reference == "tool@1.0"


def test_a_descriptor_that_was_not_added_is_refused(catalogue: Catalogue, tmp_path: Path) -> None:
    folder = tmp_path / "state" / "catalogue" / "tool" / "1.0"
    folder.mkdir(parents=True)
    (folder / "descriptor.json").write_bytes(raw())
    assert refusal(catalogue, "tool") == "unpinned-pipeline"
    assert catalogue.add(raw()) == catalogue.find("tool@1.0")


def test_a_pin_without_its_folder_still_applies(catalogue: Catalogue, tmp_path: Path) -> None:
    catalogue.add(raw())
    folder = tmp_path / "state" / "catalogue" / "tool" / "1.0"
    (folder / "descriptor.json").unlink()
    folder.rmdir()
    with pytest.raises(NotFoundError):
        catalogue.find("tool")
    with pytest.raises(RefusedError):
        catalogue.add(raw(description="Another."))
    assert catalogue.add(raw()) == catalogue.find("tool")


def test_pins_writable_by_others_are_refused(catalogue: Catalogue, tmp_path: Path) -> None:
    catalogue.add(raw())
    (tmp_path / "state" / "pins.jsonl").chmod(0o666)
    assert refusal(catalogue, "tool") == "not-private"


def test_an_invalid_descriptor_leaves_nothing(catalogue: Catalogue, tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        catalogue.add(b"{}")
    assert list((tmp_path / "state" / "catalogue").iterdir()) == []


@pytest.mark.parametrize("name", ["..", ".", "", "a/../..", "/etc"])
def test_names_cannot_leave_the_catalogue(catalogue: Catalogue, tmp_path: Path, name: str) -> None:
    try:
        catalogue.add(raw(), name)
    except UsageError as refused:
        outcome = refused.code
    else:
        outcome = "kept"
    assert outcome in {"kept", "unusable-pipeline-name"}
    found = {path.parent.parent.parent for path in tmp_path.rglob("descriptor.json")}
    assert found <= {tmp_path / "state" / "catalogue"}


def test_trust_is_for_the_content(catalogue: Catalogue) -> None:
    added = catalogue.add(raw())
    assert not catalogue.is_trusted(added)
    catalogue.trust("tool@1.0")
    assert catalogue.is_trusted(added)
    catalogue.remove("tool@1.0")
    assert not catalogue.is_trusted(catalogue.add(raw(description="Another.")))


def test_concurrent_adds_of_one_version_have_one_winner(tmp_path: Path) -> None:
    contents = [raw(description=f"Number {number}.") for number in range(4)]

    def add(number: int) -> str:
        try:
            return Catalogue(tmp_path / "state").add(contents[number % 4]).description
        except HibaliError as error:
            return error.code

    Catalogue(tmp_path / "state").add(raw("0"))
    with ThreadPoolExecutor(8) as pool:
        outcomes = list(pool.map(add, range(16)))
    winner = Catalogue(tmp_path / "state").find("tool@1.0")
    assert {each for each in outcomes if each.startswith("Number")} == {winner.description}
    assert set(outcomes) == {winner.description, "immutable-version"}


ADDING = """
import os, sys
from pathlib import Path
from registry import catalogue
names = ("replace", "rename", "fsync", "write")
left = int(sys.argv[2])
def guard(function):
    def guarded(*arguments, **named):
        global left
        left -= 1
        if left == 0:
            os._exit(9)
        return function(*arguments, **named)
    return guarded
for name in names:
    setattr(os, name, guard(getattr(os, name)))
catalogue.Catalogue(Path(sys.argv[1])).add(Path(sys.argv[3]))
"""


@pytest.mark.heavy
def test_after_a_kill_at_any_change_the_same_command_repairs_the_catalogue(tmp_path: Path) -> None:
    (tmp_path / "tool.json").write_bytes(raw())
    for step in range(1, 40):
        state = tmp_path / f"state-{step}"
        line = [sys.executable, "-c", ADDING, str(state), str(step), str(tmp_path / "tool.json")]
        ended = subprocess.run(line, check=False, cwd=Path(__file__).parents[3]).returncode
        for entry in Catalogue(state).entries():
            assert isinstance(entry, Summary) or entry.error.code == "unpinned-pipeline"
        assert Catalogue(state).add(raw()) == Catalogue(state).find("tool")
        if ended == 0:
            assert step > 4
            return
        assert ended == 9
    pytest.fail("it never came to an end")


def test_searching(catalogue: Catalogue) -> None:
    catalogue.add(raw(name="brain", description="Masks a head."))
    catalogue.add(raw(name="mask", description="For a brain.", tags={"domain": ["neuroinformatics"]}))
    catalogue.add(raw(name="other", description="Nothing."))
    entries = [each for each in catalogue.entries() if isinstance(each, Summary)]
    assert [each.name for each, _ in search_pipelines(entries, ["BRAIN"])] == ["brain", "mask"]
    assert [each.name for each, _ in search_pipelines(entries, ["neuro", "mask"])] == ["mask"]
    assert search_pipelines(entries, ["absent", "brain"]) == []


def test_a_mistyped_search_word_still_matches(catalogue: Catalogue) -> None:
    catalogue.add(raw(name="brain", description="Segments a hippocampus."))
    catalogue.add(raw(name="other", description="Nothing."))
    entries = [each for each in catalogue.entries() if isinstance(each, Summary)]
    assert [each.name for each, _ in search_pipelines(entries, ["hipocampus"])] == ["brain"]
    assert [each.name for each, _ in search_pipelines(entries, ["brian"])] == ["brain"]
    assert search_pipelines(entries, ["hipp", "zzzzzz"]) == []


def test_listing_reads_each_descriptor_once(
    catalogue: Catalogue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(5):
        catalogue.add(raw(version=f"{number}"))
    first = list(catalogue.entries())
    again = Catalogue(tmp_path / "state")
    monkeypatch.setattr(again, "_read", None)
    assert list(again.entries()) == first
    other = tmp_path / "state" / "catalogue" / "tool" / "3" / "descriptor.json"
    other.write_bytes(other.read_bytes().replace(b"A tool.", b"B tool."))
    assert [type(each) for each in Catalogue(tmp_path / "state").entries()].count(Damaged) == 1


def test_a_damaged_overview_is_rebuilt(catalogue: Catalogue, tmp_path: Path) -> None:
    catalogue.add(raw())
    first = list(catalogue.entries())
    index = tmp_path / "state" / "catalogue.index"
    index.write_bytes(b'{"identity": 3}\nno json\n' + index.read_bytes()[:40])
    assert list(Catalogue(tmp_path / "state").entries()) == first
    index.write_text("")
    index.chmod(0o622)
    with pytest.raises(RefusedError):
        list(Catalogue(tmp_path / "state").entries())


def test_the_overview_is_compacted(catalogue: Catalogue, tmp_path: Path) -> None:
    catalogue.add(raw())
    stored = tmp_path / "state" / "catalogue" / "tool" / "1.0" / "descriptor.json"
    for _ in range(150):
        stored.write_bytes(stored.read_bytes())
        assert len(list(Catalogue(tmp_path / "state").entries())) == 1
    assert len((tmp_path / "state" / "catalogue.index").read_text().splitlines()) < 120


def test_a_deprecation_can_be_withdrawn(catalogue: Catalogue) -> None:
    old, new = catalogue.add(raw("1")), catalogue.add(raw("2"))
    catalogue.deprecate("tool@1", Deprecation("tool@2", "wrong units"))
    deprecation = catalogue.deprecation(catalogue.find("tool@1"))
    assert (
        (deprecation.successor, str(deprecation)) == ("tool@2", "deprecated; use tool@2; wrong units")
        if deprecation
        else None
    )
    assert catalogue.deprecation(new) is None
    assert catalogue.find("tool@1") == old
    assert len(catalogue.deprecate("tool", None)) == 2
    assert catalogue.deprecation(old) is None
    with pytest.raises(NotFoundError):
        catalogue.deprecate("other", None)


def test_an_author_can_deprecate_too(catalogue: Catalogue) -> None:
    added = catalogue.add(raw(**{"deprecated-by-doi": "10.5281/zenodo.1"}))
    assert (
        str(catalogue.deprecation(added)) == "deprecated; use doi:10.5281/zenodo.1; deprecated by its author"
    )
