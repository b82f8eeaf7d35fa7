"""Compare a run with what a test of its descriptor expects."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from hibali.text import as_text
from registry.command_line import build_command_line
from registry.descriptor_tests import DescriptorTest, ExpectedOutput
from registry.invocation import check_invocation
from registry.pipeline import Pipeline
from runs.collect import choose_outputs
from runs.model import Output, Run, State
from transfers.model.entry import Entry, Kind


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
