"""Test real descriptors: validity and command lines as in the reference implementation."""

from __future__ import annotations

import functools
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from hibali.errors import HibaliError, UsageError
from registry.boutiques_schema import find_refusals, find_shape_problems
from registry.command_line import build_command_line, render_script
from registry.descriptor import find_problems, read_descriptor
from registry.invocation import check_invocation
from registry.pipeline import Pipeline
from registry.problems import DescriptorError, InvocationError
from tests.contracts import reference_line
from tests.contracts.corpus import CORPUS, Item, read_corpus

ITEMS = read_corpus()
VALID = [item for item in ITEMS if item.valid]
INVOCATIONS = [(item, path, valid) for item in ITEMS for path, valid in item.invocations]
pytestmark = pytest.mark.skipif(not ITEMS, reason=f"no corpus at {CORPUS}")

# Texts that differ from the reference's, with reasons, by the end of the invocation's path.
DIFFERENCES = {
    "simulate/list_separator_inv.json": (
        "the author's list-separator has a quote: the reference inserts it unquoted, which is invalid shell text; "
        "hibali quotes the separator, and the tool receives it unchanged"
    ),
}
# Command lines that can be made but are refused, with the error code.
REFUSALS = {
    "invocation/good_invocation.json": "output-outside-work-folder",  # outdir is /tmp
}


@functools.cache
def pipeline_of(item: Item) -> Pipeline:
    return read_descriptor(item.descriptor.read_bytes(), item.name)


def ask_reference(folder: Path, jobs: dict[str, tuple[Path, Path]]) -> dict[str, dict[str, str]]:
    """Return the reference's result for each descriptor and invocation, by name."""
    given = [{"descriptor": str(descriptor), "invocation": str(path)} for descriptor, path in jobs.values()]
    (folder / "jobs.json").write_text(json.dumps(given))
    subprocess.run(
        [sys.executable, reference_line.__file__, str(folder)],
        check=True,
        env={"PATH": os.environ["PATH"], "HOME": str(folder)},
    )
    return dict(zip(jobs, json.loads((folder / "answers.json").read_text()), strict=True))


def stopped(answers: dict[str, dict[str, str]]) -> list[str]:
    """Return the names at which the reference stops; it ignores an empty invocation."""
    return [name for name, answer in answers.items() if "NoneType" not in answer.get("stopped", "NoneType")]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """Return the reference's result for every invocation of the corpus."""
    jobs = {str(path): (item.descriptor, path) for item, path, _ in INVOCATIONS}
    return ask_reference(tmp_path_factory.mktemp("reference"), jobs)


@pytest.mark.parametrize("item", ITEMS, ids=lambda item: item.name)
def test_descriptors_are_valid_as_the_index_says(item: Item) -> None:
    if item.valid:
        pipeline = pipeline_of(item)
        assert pipeline.raw == item.descriptor.read_bytes()
        assert len(pipeline.digest) == 64
        return
    with pytest.raises(DescriptorError) as refused:
        pipeline_of(item)
    assert refused.value.exit == 2
    assert refused.value.problems


@pytest.mark.parametrize(
    ("item", "path", "valid"), INVOCATIONS, ids=lambda value: getattr(value, "name", str(value))
)
def test_invocations_are_valid_as_the_index_says(item: Item, path: Path, valid: bool) -> None:
    values = json.loads(path.read_bytes())
    if valid:
        assert set(check_invocation(pipeline_of(item), values).values) >= set(values)
    else:
        with pytest.raises(InvocationError):
            check_invocation(pipeline_of(item), values)


@pytest.mark.parametrize(
    ("item", "path"),
    [each[:2] for each in INVOCATIONS if each[2]],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_the_command_line_has_the_arguments_of_the_reference(
    item: Item, path: Path, reference: dict[str, dict[str, str]]
) -> None:
    pipeline = pipeline_of(item)
    invocation = check_invocation(pipeline, json.loads(path.read_bytes()))
    ours = render_script(pipeline, invocation)
    theirs = reference[str(path)]["line"]
    if any(str(path).endswith(end) for end in DIFFERENCES):
        assert words_of(ours) != words_of(theirs), "there is no difference any more: remove it from the list"
    else:
        assert words_of(ours) == words_of(theirs)
    refusal = next((code for end, code in REFUSALS.items() if str(path).endswith(end)), None)
    if refusal:
        with pytest.raises(UsageError) as refused:
            build_command_line(pipeline, invocation)
        assert refused.value.code == refusal
    else:
        assert build_command_line(pipeline, invocation).script == ours


@pytest.mark.parametrize("item", VALID, ids=lambda item: item.name)
def test_an_empty_invocation_is_refused_where_something_is_required(item: Item) -> None:
    pipeline = pipeline_of(item)
    required = [each.id for each in pipeline.inputs if not each.optional and each.default is None]
    if not required:
        return
    with pytest.raises(InvocationError) as refused:
        check_invocation(pipeline, {})
    assert {each["path"] for each in refused.value.problems} >= set(required)


def test_the_reference_stops_at_no_invocation(reference: dict[str, dict[str, str]]) -> None:
    """hibali accepts no invocation at which the reference stops."""
    assert not stopped(reference)


def words_of(line: str) -> list[str] | None:
    try:
        return shlex.split(line)
    except ValueError:
        return None


def test_damaged_descriptors_are_invalid_without_a_crash() -> None:
    """Each top-level value of a descriptor is replaced by an invalid one."""
    document = json.loads(VALID[1].descriptor.read_bytes())
    ends = set()
    for key in document:
        for silly in (None, 0, "x", [], {}, [None], [{}], {"a": []}):
            try:
                read_descriptor(json.dumps({**document, key: silly}).encode(), "damaged")
            except HibaliError as error:
                ends.add(error.exit)
    assert ends == {2}


@pytest.mark.parametrize("item", [item for item in ITEMS if not item.valid], ids=lambda item: item.name)
def test_problems_of_the_reference_are_reported(item: Item) -> None:
    """One pass reports all: schema errors hide no rule, and no rule hides another."""
    document = json.loads(item.descriptor.read_bytes())
    found = find_problems(document)
    for each in find_shape_problems(document) or find_refusals(document):
        assert [one for one in found if one.path.startswith(each.path) or one.message == each.message], each
