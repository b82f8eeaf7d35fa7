"""Test comparisons and exports of runs that have ended."""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.end_to_end.run_tools import Bench, doing, run_at, varying_bench
from tests.support.crates import required_issues


@pytest.fixture
def bench(hibali: Any) -> Bench:
    return varying_bench(hibali)


def test_two_runs_are_compared_by_digest_without_a_transfer(bench: Bench) -> None:
    hibali = bench.hibali
    a, b = run_at(bench), run_at(bench, say="else", code=1)
    hibali("runs", "collect", a, "back", exit=0)
    operations = set((hibali.home.state / "operations").iterdir())
    answer = hibali("runs", "compare", a, b, "--json", exit=6)
    *outputs, last = answer.lines
    outcomes = {line["path"]: line["fate"] for line in outputs}
    assert outcomes == {"out.txt/more": "extra", "out.txt/note": "different", "out.txt/same": "equal"}
    assert (last["kind"], last["a"], last["b"], last["exit"]) == ("run-comparison", a, b, 6)
    assert {fact["what"]: (fact["a"], fact["b"]) for fact in last["facts"]} == {
        "value code": (None, 1),
        "value say": (None, "else"),
    }
    assert last["measured"][0]["what"] == "seconds"
    assert all(last["measured"][0][run] >= 0 for run in "ab")
    assert set((hibali.home.state / "operations").iterdir()) == operations
    answer = hibali("runs", "compare", b, a, exit=6)
    assert answer.out.decode().splitlines()[-3:] == [
        "only in A  out.txt/more",
        "differs    out.txt/note",
        "equal      out.txt/same",
    ]
    assert b"Equal outputs: 1 of 3; 1 differs; 1 only in A" in answer.err
    again = hibali("runs", "compare", a[:-1], run_at(bench, "--new"), exit=0)  # the beginning of an id
    assert b"Equal outputs: 2 of 2" in again.err


@pytest.mark.heavy
def test_a_command_decides_whether_outputs_are_similar(bench: Bench) -> None:
    hibali = bench.hibali
    a, b = run_at(bench), run_at(bench, say="else")
    hibali("runs", "collect", a, "back", exit=0)
    answer = hibali("runs", "compare", a, b, "--by", "cmp -n 0", "--dir", "kept", "--json", exit=0)
    [differs] = [line for line in answer.lines if line.get("fate") == "different"]
    assert (differs["path"], differs["within"]) == ("out.txt/note", True)
    assert (answer.last["within"], answer.last["different"], answer.last["exit"]) == (1, 0, 0)
    brought = [
        path.relative_to(bench.folder / "kept")
        for path in (bench.folder / "kept").rglob("*")
        if path.is_file()
    ]
    assert brought == [Path(b, "out.txt", "note")]  # the other one was already collected


@pytest.mark.heavy
def test_a_collected_copy_that_was_edited_is_collected_again(bench: Bench) -> None:
    hibali = bench.hibali
    a, b = run_at(bench), run_at(bench, say="else")
    hibali("runs", "collect", a, "back", exit=0)
    # no longer the output of the run
    (bench.folder / "back" / "out.txt" / "note").write_text("edited since\n")
    answer = hibali("runs", "compare", a, b, "--by", "cmp -s", "--dir", "kept", "--json", exit=6)
    assert (answer.last["different"], answer.last["within"]) == (1, 0)
    assert (bench.folder / "kept" / a / "out.txt" / "note").read_text() == "done\n"
    hibali("runs", "compare", a, b, "--by", "/no/such/program", exit=3)
    hibali("runs", "compare", a, b, "--by", "'", exit=2)
    hibali("runs", "compare", a, b, "--dir", "x", exit=2)


@pytest.mark.heavy
def test_incomparable_outputs_are_reported(bench: Bench) -> None:
    hibali = bench.hibali
    a = run_at(bench)
    gone = run_at(bench, "--new")
    shutil.rmtree(bench.folder / "work-here" / "runs" / gone)
    assert hibali("runs", "compare", a, gone, "--json", exit=3).last["code"] == "outputs-gone"
    slow = Bench(hibali, {**doing("sleep 600"), "name": "Sleeper"})
    slow.add_local_site("slow")
    under_way = slow.run(slow.answers(), exit=0).last["id"]
    assert hibali("runs", "compare", a, under_way, "--json", exit=5).last["code"] == "not-ended"
    hibali("runs", "cancel", under_way, exit=0)
    hibali("runs", "compare", under_way, under_way, exit=6)  # both lack an output that they should have


@pytest.mark.heavy
def test_runs_are_described_as_a_crate(bench: Bench) -> None:
    hibali = bench.hibali
    a, b = run_at(bench), run_at(bench, say="else")
    (bench.folder / "input.txt").unlink()  # it is not needed
    made = hibali("runs", "export", a, b, "--ro-crate", "crate", "--json", exit=0).last
    assert (made["kind"], made["format"], made["runs"]) == ("exported", "ro-crate", [a, b])
    crate = bench.folder / "crate"
    document = json.loads((crate / "ro-crate-metadata.json").read_text())
    entities = {each["@id"]: each for each in document["@graph"]}
    actions = [each for each in entities.values() if each["@type"] == "CreateAction"]
    assert {each["@id"] for each in actions} == {f"#run-{a}", f"#run-{b}"}
    assert len([each for each in entities.values() if each["@type"] == "SoftwareApplication"]) == 1
    listed = {each["@id"] for each in entities.values() if each["@type"] == "File"}
    found = {str(path.relative_to(crate)) for path in crate.rglob("*") if path.is_file()}
    assert found == listed | {"ro-crate-metadata.json"}
    assert json.loads((crate / a / "run.json").read_text())["id"] == a
    assert "out.txt/note" in (crate / b / "outputs.sha256").read_text()
    assert hibali("runs", "export", a, "--ro-crate", "crate", "--json", exit=8).last["code"] == "exists"
    hibali("runs", "export", a, "--ro-crate", "one.zip", exit=0)
    with zipfile.ZipFile(bench.folder / "one.zip") as archive:
        assert f"{a}/descriptor.json" in archive.namelist()
    assert not [path for path in bench.folder.iterdir() if path.name.startswith((".crate", ".one"))]


@pytest.mark.heavy
def test_roc_validator_accepts_crates_of_runs(hibali: Any) -> None:
    bench = Bench(hibali, doing("mkdir [OUT]; cp [IN] [OUT]/a; touch '[OUT]/b c'; exit [CODE]"))
    bench.add_local_site()
    (bench.folder / "tree").mkdir()
    (bench.folder / "tree" / "a b%.txt").write_text("strange\n")
    good = run_at(bench, more=["tree", "./tree/a b%.txt"])
    lines = bench.run(bench.answers(code=3), "--wait", exit=7).lines
    failed = next(line["id"] for line in lines if line["kind"] == "run")
    for name, runs in {"one.zip": (good,), "two.zip": (good, failed), "failed.zip": (failed,)}.items():
        hibali("runs", "export", *runs, "--ro-crate", name, exit=0)
        assert required_issues(bench.folder / name) == [], name
