"""Test `hibali pipelines test`: the tests in a descriptor, run at a site and compared with what they expect."""

from __future__ import annotations

import hashlib
import json
import sys
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import boutiques
import pytest

from tests.end_to_end.run_tools import DESCRIPTOR, Bench

HELLO = hashlib.md5(b"hello\n", usedforsecurity=False).hexdigest()


def case(name: str, expected: dict[str, Any], **values: Any) -> dict[str, Any]:
    return {"name": name, "invocation": {"in": "input.txt", **values}, "assertions": expected}


PASSING = [
    case("code", {"exit-code": 0}),
    case("other code", {"exit-code": 3}, code=3),
    case("output", {"output-files": [{"id": "out_file"}]}),
    case("content", {"exit-code": 0, "output-files": [{"id": "out_file", "md5-reference": HELLO}]}),
]
FAILING = [
    case("wrong code", {"exit-code": 0}, code=3),
    case("wrong content", {"output-files": [{"id": "out_file", "md5-reference": "0" * 32}]}),
    case("missing output", {"output-files": [{"id": "elsewhere"}]}),
]


def make_bench(hibali: Any, tests: list[dict[str, Any]] | None) -> Bench:
    more = {"id": "elsewhere", "name": "elsewhere", "path-template": "no-[OUT]", "optional": True}
    outputs = [*DESCRIPTOR["output-files"], more]
    section = {} if tests is None else {"tests": tests}
    bench = Bench(hibali, {**DESCRIPTOR, "output-files": outputs, **section})
    bench.add_local_site()
    (bench.folder / "input.txt").write_text("hello\n")
    return bench


def test_each_test_passes_or_fails_for_its_own_reason(hibali: Any) -> None:
    bench = make_bench(hibali, [*PASSING, *FAILING])
    answer = hibali("pipelines", "test", bench.reference, "--site", "here", "--json", exit=7)
    found = {each["test"]: each for each in answer.lines if each["kind"] == "pipeline-test"}
    assert [name for name, each in found.items() if each["passed"]] == [each["name"] for each in PASSING]
    reasons = {name: each["failures"] for name, each in found.items() if not each["passed"]}
    assert reasons == {
        "wrong code": ["the exit code is 3, not 0"],
        "wrong content": [f"the MD5 of out_file is {HELLO}, not {'0' * 32}"],
        "missing output": ["the output elsewhere is missing"],
    }
    assert len({each["run"] for each in found.values()}) == len(found), "each test has a run of its own"


def test_results_are_a_table_and_junit(hibali: Any) -> None:
    bench = make_bench(hibali, [PASSING[0], FAILING[0]])
    words = ("pipelines", "test", bench.reference, "--site", "here", "--junit", "tests.xml")
    answer = hibali(*words, exit=7)
    rows = [line.split()[:3] for line in answer.out.decode().splitlines()]
    assert [bench.reference, "code", "PASSED"] in rows
    assert b"1 test of 2 failed" in answer.err
    [suite] = ET.parse(bench.folder / "tests.xml").getroot()  # noqa: S314  # hibali wrote it
    assert (suite.get("tests"), suite.get("failures")) == ("2", "1")
    assert [each.get("name") for each in suite if each.find("failure") is not None] == ["wrong code"]


def test_a_site_is_checked_with_the_tests_of_all_pipelines(hibali: Any) -> None:
    """Check that pipelines without tests and deprecated ones are left out, and one that cannot be started fails alone."""
    bench = make_bench(hibali, [PASSING[0]])
    more = {
        "bad": [case("odd", {"exit-code": 0}, sleep="long")],
        "good": [PASSING[3], FAILING[0]],
        "old": [PASSING[0]],
        "untested": None,
    }
    for name, tests in more.items():
        section = {} if tests is None else {"tests": tests}
        (bench.folder / f"{name}.json").write_text(json.dumps({**DESCRIPTOR, "name": name, **section}))
        hibali("pipelines", "add", bench.folder / f"{name}.json", exit=0)
    hibali("pipelines", "deprecate", "old", exit=0)
    hibali("pipelines", "trust", "good", exit=0)
    words = ("pipelines", "test", "--all", "--site", "here")
    answer = hibali(*words, "--junit", "tests.xml", "--json", exit=7)
    found = [each for each in answer.lines if each["kind"] == "pipeline-test"]
    assert [(each["pipeline"].partition("@")[0], each["test"], each["passed"]) for each in found] == [
        ("bad", "odd", False),
        (bench.reference.partition("@")[0], "code", True),
        ("good", "content", True),
        ("good", "wrong code", False),
    ]
    assert found[0]["failures"][0].startswith("not started: ")
    assert found[0]["run"] is None
    suites = ET.parse(bench.folder / "tests.xml").getroot()  # noqa: S314  # hibali wrote it
    assert [(each.get("tests"), each.get("failures")) for each in suites] == [
        ("1", "1"),
        ("1", "0"),
        ("2", "1"),
    ]
    hibali(*words, bench.reference, exit=2)


def test_one_test_can_be_chosen(hibali: Any) -> None:
    bench = make_bench(hibali, [*PASSING, *FAILING])
    words = ("pipelines", "test", bench.reference, "--site", "here", "--json")
    [only] = hibali(*words, "--only", "content", exit=0).lines
    assert (only["test"], only["passed"], only["exit_code"]) == ("content", True, 0)
    unknown = hibali(*words, "--only", "nothing", exit=2).last
    assert unknown["code"] == "no-such-test"
    assert len(bench.run_ids()) == 1


def test_a_pipeline_without_tests_is_an_error(hibali: Any) -> None:
    bench = make_bench(hibali, None)
    assert (
        hibali("pipelines", "test", bench.reference, "--site", "here", "--json", exit=2).last["code"]
        == "no-tests"
    )


def test_nothing_runs_if_a_test_has_no_valid_invocation(hibali: Any) -> None:
    bench = make_bench(hibali, [PASSING[0], case("odd", {"exit-code": 0}, sleep="long")])
    answer = hibali("pipelines", "test", bench.reference, "--site", "here", exit=2)
    assert b"test odd" in answer.err
    assert bench.run_ids() == []


def test_a_cancelled_run_is_a_failed_test(hibali: Any) -> None:
    bench = make_bench(hibali, [case("long", {"exit-code": 0}, sleep=600)])
    process = hibali.start("pipelines", "test", bench.reference, "--site", "here")
    until = time.monotonic() + 60
    while not (ids := bench.run_ids()) or hibali("runs", "show", ids[0], "--json").last["state"] != "RUNNING":
        assert time.monotonic() < until
        time.sleep(0.2)
    hibali("runs", "cancel", ids[0], exit=0)
    assert process.wait(timeout=60) == 7


@pytest.mark.parametrize(
    ("name", "failures"),
    [
        ("tests_good", {}),
        ("tests_failure_exitcode", {"test1": "the exit code is 0, not 99"}),
        ("tests_failure_reference", {"test1": "the MD5 of logfile"}),
        ("tests_failure_output_id", {"test1": "the output output_files is missing"}),
    ],
)
def test_descriptors_with_tests_of_the_reference(hibali: Any, name: str, failures: dict[str, str]) -> None:
    """The descriptors by which bosh tests `bosh test`, without their image: the tool is on this machine.

    bosh 0.5.33 quotes values in configuration files as for a shell, and its tool wants them so; hibali inserts them unchanged.
    """
    package = Path(boutiques.__file__).parent
    document = json.loads((package / "tests/test" / f"{name}.json").read_text())
    del document["container-image"]
    tool = (package / "schema/examples/example1/exampleTool1.py").read_text()
    bench_tool = hibali.home.folder / "tool.py"
    bench_tool.write_text(tool.replace("strInput='coin;plop'", "strInput=coin;plop"))
    rest = document["command-line"].removeprefix("exampleTool1.py")
    document["command-line"] = f"HOME=$PWD {sys.executable} {bench_tool}{rest}"
    bench = Bench(hibali, document)
    bench.add_local_site()
    (bench.folder / "pyproject.toml").write_text("[project]\n")
    code = 7 if failures else 0
    answer = hibali("pipelines", "test", bench.reference, "--site", "here", "--json", exit=code)
    found = {each["test"]: each["failures"] for each in answer.lines if each["kind"] == "pipeline-test"}
    assert found.keys() == {each["name"] for each in document["tests"]}
    for test, reasons in found.items():
        assert len(reasons) == (test in failures)
        assert all(failures[test] in reason for reason in reasons)
