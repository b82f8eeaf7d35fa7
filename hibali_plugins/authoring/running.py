"""Run the tests of a descriptor at a site, and report which passed."""

from __future__ import annotations

import hashlib
import io
import itertools
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any
from xml.etree import ElementTree as ET

import click

from hibali.errors import Exit, HibaliError, TryLaterError, UsageError
from hibali.events import Listener
from hibali.files import write_atomic
from hibali.locations import read_target
from hibali.text import as_text, counted, printable
from hibali_cli.cells import id_cell
from hibali_cli.handlers.descriptors import find_pipeline
from hibali_cli.handlers.launch import (
    follow_first,
    launch_at_site,
    require_consent,
    warn_of_shortfalls,
)
from hibali_cli.handlers.run_sites import run_site
from hibali_cli.handlers.run_watch import wait_for_runs
from hibali_cli.options import Common
from hibali_cli.progress import listening
from registry.catalogue import Catalogue
from registry.command_line import build_command_line
from registry.invocation import check_invocation
from registry.pipeline import Pipeline
from runs import new_request
from runs.collect import Collector, choose_outputs, ended_tasks
from runs.model import Output, Run, State, ignore_run
from runs.new_request import RunOptions
from runs.request import Request, with_job_proxy
from runs.store import RunStore
from transfers.model.entry import Entry, Kind


@dataclass(frozen=True, slots=True)
class TestResult:
    """A test of a pipeline, its run, and what differed from the expectations; without a run it could not be started."""

    __test__ = False  # pytest does not collect it

    pipeline: Pipeline
    name: str
    run: Run | None
    failures: tuple[str, ...]


def test_pipelines(
    common: Common,
    pipeline: str | None,
    *,
    every: bool,
    site: str,
    names: tuple[str, ...],
    image: str,
    junit: str | None,
) -> int | None:
    """Run the tests of a pipeline, or those with these names, all at the same time, or those of all pipelines."""
    if every and (pipeline or names or image):
        raise click.UsageError("--all takes no PIPELINE, --only and --image.")
    if not every and not pipeline:
        raise click.UsageError("Give a PIPELINE, or --all.")
    options = RunOptions(sites=(site,), new=True, image=image, wait=True)
    catalogue = Catalogue()
    if pipeline is None:
        results = _test_all(common, catalogue, options)
    else:
        results = _run_tests(common, catalogue, find_pipeline(common, catalogue, pipeline), names, options)
    _report(common, results, site)
    if junit is not None:
        write_atomic(Path(junit), _junit(results), mode=0o644)
    return int(Exit.RUN_FAILED) if any(each.failures for each in results) else None


def _test_all(common: Common, catalogue: Catalogue, options: RunOptions) -> list[TestResult]:
    """Run the tests of all pipelines of the catalogue that have some and are not deprecated.

    A pipeline whose tests cannot be started counts as failed, and the others are tested.

    Raises:
        UsageError: No pipeline has tests.
        TryLaterError: The site cannot be reached now.
    """
    tested = [
        each for each in catalogue.all() if each.document.get("tests") and catalogue.deprecation(each) is None
    ]
    if not tested:
        message = "no pipeline of the catalogue has tests"
        raise UsageError("no-tests", message, hint="To see the pipelines: hibali pipelines list")
    results: list[TestResult] = []
    for pipeline in tested:
        try:
            results += _run_tests(common, catalogue, pipeline, (), options)
        except TryLaterError:
            raise
        except HibaliError as problem:
            reasons = tuple(filter(None, (f"not started: {problem.message}", problem.hint)))
            results += [TestResult(pipeline, each.name, None, reasons) for each in read_tests(pipeline)]
    return results


def _run_tests(
    common: Common, catalogue: Catalogue, pipeline: Pipeline, names: Sequence[str], options: RunOptions
) -> list[TestResult]:
    requests = [
        (test, _make_request(common, pipeline, test, options)) for test in read_tests(pipeline, names)
    ]
    warn_of_shortfalls(common, requests[0][1])
    require_consent(common, catalogue, pipeline, requests[0][1].compute.container)
    run_store = RunStore()
    with listening(common, f"test {pipeline.reference} at {options.sites[0]}") as on_event:
        runs = [
            launch_at_site(common, with_job_proxy(request), run_store, on_event, on_begin=ignore_run)
            for _, request in requests
        ]
        ended = {run.id: run for run in wait_for_runs(common, run_store, runs, on_event)}
        return [
            _judge(common, run_store, pipeline, test, ended[run.id], on_event)
            for (test, _), run in zip(requests, runs, strict=True)
        ]


def _make_request(common: Common, pipeline: Pipeline, test: DescriptorTest, options: RunOptions) -> Request:
    """Return the request of the run of a test; relative paths of its inputs are those of the current folder."""
    try:
        invocation = check_invocation(pipeline, dict(test.invocation))
    except HibaliError as problem:
        problem.subject = f"{pipeline.reference}, test {printable(test.name)}"
        raise
    return new_request.read_request(
        common.settings(),
        new_request.single_workload(pipeline, invocation),
        None,
        options.sites[0],
        options,
        partial(follow_first, common, wait=True),
    )


def _judge(
    common: Common,
    run_store: RunStore,
    pipeline: Pipeline,
    test: DescriptorTest,
    run: Run,
    on_event: Listener,
) -> TestResult:
    """Compare a run with its test; its outputs are collected into a temporary folder if they are needed."""
    written = written_files(pipeline, test, run)
    if all(each.id in written for each in test.outputs):
        return TestResult(pipeline, test.name, run, tuple(find_failures(test, run, None, written)))
    with tempfile.TemporaryDirectory(prefix="hibali-test-") as scratch:
        folder = Path(scratch) / "outputs"
        with suppress(HibaliError):
            target, site = read_target(str(folder), common.settings()), run_site(common, run.site)
            Collector(run_store, site, target, on_event).collect(run, ended_tasks(run))
        found = folder if folder.is_dir() else None
        return TestResult(pipeline, test.name, run, tuple(find_failures(test, run, found, written)))


def _report(common: Common, results: Sequence[TestResult], site: str) -> None:
    if common.json:
        for each in results:
            common.output.record("pipeline-test", _record(each, site))
        return
    rows = [
        (
            each.pipeline.reference,
            printable(each.name),
            "FAILED" if each.failures else "PASSED",
            None if each.run is None else id_cell(each.run.id),
            "; ".join(each.failures),
        )
        for each in results
    ]
    common.output.table(("PIPELINE", "TEST", "RESULT", "RUN", "REASON"), rows)
    failed = sum(1 for each in results if each.failures)
    if failed:
        common.output.warn(f"{counted(failed, 'test')} of {len(results)} failed")


def _record(result: TestResult, site: str) -> dict[str, object]:
    run = result.run
    return {
        "pipeline": result.pipeline.reference,
        "site": site,
        "test": result.name,
        "passed": not result.failures,
        "failures": list(result.failures),
        "run": None if run is None else run.id,
        "state": None if run is None else run.state.value,
        "exit_code": None if run is None else run.status.exit_code,
    }


def _junit(results: Sequence[TestResult]) -> bytes:
    """Return the results in the XML of JUnit, as continuous integration reads it: a suite for each pipeline."""
    root = ET.Element("testsuites")
    for reference, group in itertools.groupby(results, lambda each: each.pipeline.reference):
        cases = list(group)
        failed = sum(1 for each in cases if each.failures)
        suite = ET.SubElement(root, "testsuite", name=reference, tests=str(len(cases)), failures=str(failed))
        for each in cases:
            case = ET.SubElement(suite, "testcase", classname=reference, name=printable(each.name))
            if each.failures:
                text = "; ".join(each.failures)
                failure = ET.SubElement(case, "failure", message=text)
                failure.text = text if each.run is None else f"run {each.run.id} at {each.run.site}: {text}"
    document: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
    return document


@dataclass(frozen=True, slots=True)
class ExpectedOutput:
    """An output that a test must create, and its MD5 in hexadecimal if the descriptor has it."""

    id: str
    md5: str | None = None


@dataclass(frozen=True, slots=True)
class DescriptorTest:
    """A test of a descriptor; `exit_code` is None if any code will do."""

    name: str
    invocation: Mapping[str, Any]
    exit_code: int | None
    outputs: tuple[ExpectedOutput, ...]


def read_tests(pipeline: Pipeline, names: Sequence[str] = ()) -> list[DescriptorTest]:
    """Return the tests of a pipeline in their order, or those with these names.

    Raises:
        UsageError: The descriptor has no tests, or none with one of the names.
    """
    tests = [_read_test(each) for each in pipeline.document.get("tests", ())]
    if not tests:
        raise UsageError(
            "no-tests",
            "the descriptor has no tests",
            subject=pipeline.reference,
            hint=f"To run it with values of your own: hibali pipelines example {pipeline.reference}",
        )
    known = [each.name for each in tests]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise UsageError(
            "no-such-test",
            f"the descriptor has no test {unknown[0]}; there are: {', '.join(known)}",
            subject=pipeline.reference,
        )
    return [each for each in tests if not names or each.name in names]


def _read_test(record: Mapping[str, Any]) -> DescriptorTest:
    assertions = record["assertions"]
    outputs = tuple(
        ExpectedOutput(each["id"], each.get("md5-reference")) for each in assertions.get("output-files", ())
    )
    return DescriptorTest(record["name"], record["invocation"], assertions.get("exit-code"), outputs)


def written_files(pipeline: Pipeline, test: DescriptorTest, run: Run) -> dict[str, str]:
    """Return the contents of the configuration files of a test's run, by their ids; bosh counts them as outputs."""
    invocation = check_invocation(pipeline, dict(test.invocation))
    command = build_command_line(pipeline, invocation, work_folder=f"{as_text(run.folder)}/work")
    return {each.id: each.content for each in command.configuration_files}


def find_failures(
    test: DescriptorTest, run: Run, folder: Path | None, written: Mapping[str, str]
) -> list[str]:
    """Return what differs from the expectations of a test, in words; nothing if it passed.

    Args:
        test: The test.
        run: Its run, which has ended.
        folder: The folder with the collected outputs; None if they were not needed or could not be collected.
        written: The contents of the configuration files, by their ids.
    """
    if run.state in {State.LOST, State.CANCELLED}:
        return [f"the run is {run.state.value}"]
    failures = []
    code = run.status.exit_code
    if test.exit_code is not None and code != test.exit_code:
        shown = "none" if code is None else str(code)
        failures.append(f"the exit code is {shown}, not {test.exit_code}")
    if test.exit_code is None and code is None:
        failures.append(f"the tool did not run: {run.state.value}")
    if folder is None and any(each.id not in written for each in test.outputs):
        return [*failures, "its outputs could not be collected"]
    found = _files_of(run.spec.outputs, folder) if folder is not None else {}
    for expected in test.outputs:
        if expected.id in written:
            failures += _compare_md5(expected, io.BytesIO(written[expected.id].encode()))
        else:
            failures += _compare(expected, found.get(expected.id, []))
    return failures


def _files_of(outputs: Sequence[Output], folder: Path) -> dict[str, list[Path]]:
    """Return the collected files and folders of each output, by its id."""
    entries = [
        Entry(str(path.relative_to(folder)).encode("utf-8", "surrogateescape"), _kind_of(path))
        for path in sorted(folder.rglob("*"))
    ]
    found: dict[str, list[Path]] = {}
    for output in outputs:
        chosen = choose_outputs([output], entries)
        found[output.id] = [folder / as_text(each) for each in (*chosen.folders, *chosen.files)]
    return found


def _kind_of(path: Path) -> Kind:
    return Kind.FOLDER if path.is_dir() else Kind.FILE


def _compare(expected: ExpectedOutput, paths: Sequence[Path]) -> list[str]:
    if not paths:
        return [f"the output {expected.id} is missing"]
    if expected.md5 is None:
        return []
    if len(paths) > 1 or not paths[0].is_file():
        return [f"the output {expected.id} is not one file, so it has no MD5"]
    with paths[0].open("rb") as file:
        return _compare_md5(expected, file)


def _compare_md5(expected: ExpectedOutput, file: IO[bytes]) -> list[str]:
    if expected.md5 is None:
        return []
    found = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()  # type: ignore[arg-type]
    if found == expected.md5.lower():
        return []
    return [f"the MD5 of {expected.id} is {found}, not {expected.md5}"]
