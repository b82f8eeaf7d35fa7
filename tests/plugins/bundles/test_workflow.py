"""Test that runs which use each other, and sweeps, are exported as a workflow that can be executed again."""

from __future__ import annotations

import json
import shlex
import subprocess
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hibali_plugins.bundles.workflow import Step, in_order, is_workflow, script_of, table_of
from tests.end_to_end.run_tools import Bench, doing
from tests.support.chains import Chain, output
from tests.support.crates import required_issues

PROFILES = ("process-run-crate", "workflow-run-crate", "provenance-run-crate")
A, B, C = (f"20260102-03040{number}-0a1b2c3d" for number in range(3))


def test_steps_follow_what_they_use() -> None:
    last = Step(A, "report@1", "here", sources=[("in", f"run:{C}.12/out/a/b")])
    middle = Step(C, "segment@1", "here", after=[B])
    first = Step(B, "convert@1", "here")
    assert [each.run for each in in_order([last, middle, first])] == [B, C, A]
    assert is_workflow([last, middle])
    assert not is_workflow([last, first])
    assert is_workflow([Step(B, "convert@1", "here", tasks=[1, 2])])
    # a ledger that was edited ends, too
    assert len(in_order([Step(A, "x", "here", after=[B]), Step(B, "x", "here", after=[A])])) == 2


@given(st.text(), st.text(), st.lists(st.text(), max_size=3))
def test_the_script_has_hostile_words_as_single_words(pipeline: str, site: str, options: list[str]) -> None:
    pipeline, site, *options = (
        each.replace("\0", "").encode(errors="replace").decode() for each in (pipeline, site, *options)
    )
    script = script_of(
        [Step(A, pipeline, site, options=options), Step(B, pipeline, site, [("in", f"run:{A}/out")])]
    )
    shown = 'hibali() { for each; do printf "%s\\0" "$each"; done >&2; echo X; }\nsed() { :; }\n'
    finished = subprocess.run(
        ["dash"],
        input=shown.encode() + script,
        capture_output=True,
        check=True,
        env={"PATH": "/usr/bin:/bin"},
    )
    words = finished.stderr.decode().split("\0")
    begin = words.index("run")
    assert words[begin + 2] == pipeline
    assert words[begin + 4 : begin + 6 + len(options)] == ["--site", site, *options]


def test_the_table_has_a_line_for_each_task() -> None:
    assert [json.loads(line) for line in table_of([{"a": 1}, {"a": "\n", "b": [True]}]).splitlines()] == [
        {"a": 1},
        {"a": "\n", "b": [True]},
    ]


def test_a_task_of_a_part_of_a_sweep_is_named_by_its_new_number() -> None:
    sources = [("in", f"run:{A}.{number}/out") for number in (2, 7)]
    script = script_of([Step(A, "x@1", "here", tasks=[2, 5, 7]), Step(B, "y@1", "here", sources, tasks=[1])])
    line = next(
        each
        for each in script.decode().splitlines()
        if each.startswith("sed") and "jsonl" in each and B in each
    )
    rewriting = line.partition(' "$crate"')[0]
    given = f"run:{A}.2/out run:{A}.7/out run:{A}/out"
    done = subprocess.run(
        ["sh", "-c", f"run_1=NEW; {rewriting}"], input=given, capture_output=True, text=True, check=True
    )
    assert done.stdout == "run:NEW.1/out run:NEW.3/out run:NEW/out"


@pytest.mark.heavy
@pytest.mark.timeout(600)
def test_a_chain_with_a_sweep_is_a_workflow_that_runs_again(hibali: Any) -> None:
    bench = Bench(hibali)
    bench.add_local_site()
    (bench.folder / "input.txt").write_text("hello\n")
    (bench.folder / "other.txt").write_text("other\n")
    chain = Chain(bench)
    here = ("--site", "here", "--wait")
    other = chain.add({**doing("cat [IN] >[OUT]; echo [SAY] >>[OUT]"), "name": "Say"})
    first = chain.step("first", "input.txt", *here).last
    same = chain.step("first", "input.txt", *here, "--new").last
    inputs = f"in=other.txt,{output(first)}"
    sweep = chain.step("second", "input.txt", "--param", inputs, *here, of=other, say="b").last
    last = chain.step("third", f"run:{sweep['id']}.2/out_file", "--after", same["id"], *here).last
    ids = [last["id"], sweep["id"], same["id"], first["id"]]
    hibali("runs", "export", *ids, "-o", "crate", exit=0)
    crate = bench.folder / "crate"
    for profile in PROFILES:
        assert required_issues(crate, profile) == [], profile
    entities = {
        each["@id"]: each for each in json.loads((crate / "ro-crate-metadata.json").read_text())["@graph"]
    }
    assert entities["./"]["mainEntity"] == {"@id": "workflow.sh"}
    assert [entities[each["@id"]]["position"] for each in entities["workflow.sh"]["step"]] == list("1234")
    assert len(entities["#organization"]["object"]) == 5  # the sweep has two tasks
    joined = [each for each in entities.values() if each["@type"] == "ParameterConnection"]
    ends = {
        tuple(entities[each[f"{end}Parameter"]["@id"]]["name"] for end in ("source", "target"))
        for each in joined
    }
    assert (len(joined), ends) == (2, {("out_file", "in")})
    collected = [_outputs(bench, name) for name in ids]
    (bench.folder / "input.txt").write_text("changed\n")
    subprocess.run(["sh", "crate/workflow.sh"], cwd=bench.folder, env=_with_hibali_on_path(bench), check=True)
    again = [each for each in bench.run_ids() if each not in ids]
    assert len(again) == 4
    changed = [[text.replace("hello", "changed") for text in each] for each in collected]
    assert sorted(_outputs(bench, name) for name in again) == sorted(changed)


@pytest.mark.heavy
def test_a_pipeline_of_another_name_runs_again_and_no_other_one_does(hibali: Any) -> None:
    bench = Bench(hibali)
    bench.add_local_site()
    (bench.folder / "input.txt").write_text("hello\n")
    (bench.folder / "values.json").write_text('{"in": "input.txt"}')
    hibali("pipelines", "add", "tool.json", "--name", "fsl.bet", exit=0)
    hibali("pipelines", "trust", "fsl.bet", exit=0)
    line = ("run", "fsl.bet", "values.json", "--param", "say=x,y", "--site", "here", "--wait")
    hibali(*line, exit=0)
    [run] = bench.run_ids()
    hibali("runs", "export", run, "-o", "crate", exit=0)
    env = _with_hibali_on_path(bench)
    (bench.folder / "other.json").write_text(json.dumps({**doing("echo other >[OUT]"), "name": "other"}))
    for source, code, count in (
        ("tool.json", 0, 1),
        ("other.json", 8, 0),
    ):  # what a new catalogue has by this name
        state = bench.folder / f"state-of-{source}"
        env["HIBALI_STATE"] = str(state)
        for words in (("add", source, "--name", "fsl.bet"), ("trust", "fsl.bet")):
            subprocess.run(["hibali", "pipelines", *words], cwd=bench.folder, env=env, check=True)
        done = subprocess.run(["sh", "crate/workflow.sh"], cwd=bench.folder, env=env, check=False)
        assert done.returncode == code
        assert len([*state.glob("runs/*.jsonl")]) == count


def _outputs(bench: Bench, run_id: str) -> list[str]:
    bench.hibali("runs", "collect", run_id, run_id, exit=0)
    return sorted(path.read_text() for path in (bench.folder / run_id).rglob("*") if path.is_file())


def _with_hibali_on_path(bench: Bench) -> dict[str, str]:
    commands = bench.folder / "bin"
    commands.mkdir()
    (commands / "hibali").write_text(f'#!/bin/sh\nexec {shlex.join(bench.hibali.command())} "$@"\n')
    (commands / "hibali").chmod(0o755)
    return {**bench.hibali.env, "PATH": f"{commands}:{bench.hibali.env['PATH']}"}
