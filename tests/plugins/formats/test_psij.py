"""Test job specifications of PSI/J in both directions; psij-python itself judges them in the heavy tests."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hibali.errors import UsageError
from hibali_plugins.formats.conversion import ConversionError
from hibali_plugins.formats.psij import convert_psij, export_psij
from registry.command_line import render_script
from registry.descriptor import read_descriptor
from registry.invocation import check_invocation

JOB = {
    "executable": "/usr/bin/sort",
    "arguments": ["-r", "it's $HOME"],
    "directory": "/scratch/me",
    "name": "sorting",
    "environment": {"LC_ALL": "C"},
    "stdout_path": "/scratch/me/sorted.txt",
    "resources": {"node_count": 2, "cpu_cores_per_process": 4, "gpu_cores_per_process": 1, "__version": 1},
    "attributes": {"duration": "5400.0 s", "queue_name": "batch"},
}


def notes_of(document: dict[str, Any]) -> set[str]:
    made = convert_psij(json.dumps(document), "job.json", name="", version="1")
    return {each.path for each in made.notes}


def test_a_job_becomes_a_descriptor() -> None:
    made = convert_psij(json.dumps(JOB), "job.json", name="", version="1")
    pipeline = read_descriptor(json.dumps(made.document).encode(), "job.json")
    assert pipeline.title == "sorting"
    assert pipeline.document["suggested-resources"] == {
        "cpu-cores": 4,
        "number-of-nodes": 2,
        "walltime-estimate": 5400,
    }
    assert pipeline.document["environment-variables"] == [{"name": "LC_ALL", "value": "C"}]
    assert [each["path-template"] for each in pipeline.document["output-files"]] == ["sorted.txt"]
    assert {each.path for each in made.notes} == {
        "directory",
        "gpu_cores_per_process",
        "queue_name",
        "output-files",
    }
    assert render_script(pipeline, check_invocation(pipeline, {})).endswith("> sorted.txt")


@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8), max_size=4))
def test_arguments_reach_the_program_unchanged(words: list[str]) -> None:
    job = {"executable": "printf", "arguments": ["%s\\n", "begin", *(each or "-" for each in words)]}
    try:
        made = convert_psij(json.dumps(job), "job.json", name="x", version="1")
        pipeline = read_descriptor(json.dumps(made.document).encode(), "job.json")
        script = render_script(pipeline, check_invocation(pipeline, {}))
    except UsageError:  # characters that descriptors do not allow in values
        return
    done = subprocess.run(["sh", "-c", script], capture_output=True, check=True)
    assert done.stdout.decode() == "\n".join(["begin", *(each or "-" for each in words), ""])


@pytest.mark.parametrize(
    "more",
    [
        {"pre_launch": "/x/setup.sh"},
        {"post_launch": "/x/clean.sh"},
        {"launcher": "mpirun"},
        {"arguments": "one"},
        {"environment": ["A=1"]},
        {"resources": {"memory": 5}},
    ],
)
def test_what_changes_how_the_job_runs_is_refused(more: dict[str, Any]) -> None:
    with pytest.raises(ConversionError):
        convert_psij(json.dumps({**JOB, **more}), "job.json", name="", version="1")


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"executable": 5}', '{"executable": "a", "odd": 1}', '{"name": "x"}']
)
def test_other_documents_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        convert_psij(text, "job.json", name="", version="1")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("600.0 s", 600),
        ("10", 600),
        ("10m", 600),
        ("2h", 7200),
        ("01:30", 5400),
        ("00:01:05", 65),
        ("1d", 86400),
    ],
)
def test_durations(text: str, seconds: int) -> None:
    job = {"executable": "a", "attributes": {"duration": text}}
    made = convert_psij(json.dumps(job), "job.json", name="", version="1")
    assert made.document["suggested-resources"]["walltime-estimate"] == seconds


def test_an_invocation_becomes_a_job() -> None:
    descriptor = {
        "name": "repeat",
        "tool-version": "1",
        "description": "x",
        "schema-version": "0.5",
        "command-line": "repeat [TEXT] > out.txt",
        "inputs": [{"id": "text", "name": "text", "type": "String", "value-key": "[TEXT]"}],
        "environment-variables": [{"name": "MODE", "value": "[TEXT]"}],
        "suggested-resources": {"cpu-cores": 2, "ram": 4, "walltime-estimate": 90},
    }
    pipeline = read_descriptor(json.dumps(descriptor).encode(), "x")
    made = export_psij(pipeline, check_invocation(pipeline, {"text": "a b"}))
    assert made.document == {
        "executable": "/bin/sh",
        "arguments": ["-c", "repeat 'a b' > out.txt"],
        "name": "repeat",
        "environment": {"MODE": "a b"},
        "resources": {"node_count": 1, "cpu_cores_per_process": 2, "__version": 1},
        "attributes": {"duration": "90.0 s"},
    }
    assert {each.path for each in made.notes} == {"inputs", "suggested-resources.ram"}
    image = {**descriptor, "container-image": {"type": "docker", "image": "lab/repeat:1"}}
    contained = read_descriptor(json.dumps(image).encode(), "x")
    words = export_psij(contained, check_invocation(contained, {"text": "a"})).document
    assert words["executable"] == "apptainer"
    assert words["arguments"][:3] == ["exec", "--env=MODE=a", "docker://lab/repeat:1"]
    assert "environment" not in words
