"""Run the tests of a descriptor at a site, and report which passed."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from xml.etree import ElementTree as ET

import click

from hibali.errors import Exit, HibaliError, TryLaterError, UsageError
from hibali.events import Listener
from hibali.files import write_atomic
from hibali.locations import read_target
from hibali.text import counted, printable
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
from registry.descriptor_tests import DescriptorTest, read_tests
from registry.invocation import check_invocation
from registry.pipeline import Pipeline
from runs import new_request
from runs.collect import Collector, ended_tasks
from runs.descriptor_tests import find_failures, written_files
from runs.model import Run, ignore_run
from runs.options import RunOptions
from runs.request import Request, with_job_proxy
from runs.store import RunStore


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
            "-" if each.run is None else each.run.id,
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
