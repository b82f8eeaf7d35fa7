"""Test CWL documents of pipelines: what they say, what they cannot, and the way back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hibali_plugins.formats.conversion import ConversionError
from hibali_plugins.formats.cwl_export import export_cwl
from registry.descriptor import read_descriptor
from tests.end_to_end.run_tools import DESCRIPTOR
from tests.plugins.formats.conversions import convert, show_program, words_of


def pipeline_of(command: str, inputs: list[dict[str, Any]], **more: Any) -> Any:
    document = {
        "name": "Tool",
        "tool-version": "1",
        "schema-version": "0.5",
        "description": "A tool.",
        "command-line": command,
        "inputs": [{"name": each["id"], "value-key": f"[{each['id'].upper()}]", **each} for each in inputs],
        **more,
    }
    return read_descriptor(json.dumps(document).encode(), "tool")


def test_words_come_back_from_cwl(tmp_path: Path) -> None:
    """Export, then import: the program gets the same words."""
    pipeline = pipeline_of(
        f"{show_program(tmp_path)} run [FLAG] [NUMBER] [LIST] [JOINED] --x=[TEXT].txt [FILE] [ABSENT] [CHOICE]",
        [
            {"id": "flag", "type": "Flag", "command-line-flag": "-f", "optional": True},
            {"id": "number", "type": "Number", "integer": True, "command-line-flag": "-n"},
            {"id": "list", "type": "String", "list": True, "command-line-flag": "--list"},
            {
                "id": "joined",
                "type": "Number",
                "list": True,
                "list-separator": ",",
                "command-line-flag": "--joined",
                "command-line-flag-separator": "=",
            },
            {"id": "text", "type": "String"},
            {"id": "file", "type": "File"},
            {"id": "absent", "type": "String", "optional": True, "command-line-flag": "--absent"},
            {"id": "choice", "type": "String", "value-choices": ["a", "b"], "default-value": "b"},
        ],
    )
    values = {
        "flag": True,
        "number": 3,
        "list": ["a b", "$c"],
        "joined": [1.5, 2],
        "text": "t'x",
        "file": "/data/f.nii",
    }
    exported = export_cwl(pipeline)
    assert exported.notes == ()
    again, imported = convert(tmp_path, "tool.cwl", json.dumps(exported.document))
    assert imported.notes == ()
    expected = words_of(pipeline, values, tmp_path / "one")
    assert words_of(again, values, tmp_path / "two") == expected
    assert expected[-1] == "b"


def test_a_command_for_the_shell_stays_as_it_is() -> None:
    document = export_cwl(read_descriptor(json.dumps(DESCRIPTOR).encode(), "tool")).document
    assert "ShellCommandRequirement" in document["requirements"]
    raw = [each["valueFrom"] for each in document["arguments"] if each.get("shellQuote") is False]
    assert raw == [">", ";", "counted;", ">&2;", ";"]


def test_paths_become_references_or_javascript() -> None:
    pipeline = pipeline_of(
        "tool [IN] [NAME]",
        [{"id": "in", "type": "File"}, {"id": "name", "type": "String", "optional": True}],
        **{
            "output-files": [
                {"id": "a", "name": "a", "path-template": "x/[IN].txt"},
                {"id": "b", "name": "b", "path-template": "[NAME].txt", "optional": True},
                {
                    "id": "c",
                    "name": "c",
                    "path-template": "[IN]_out",
                    "path-template-stripped-extensions": [".nii.gz"],
                },
            ]
        },
    )
    outputs = export_cwl(pipeline).document["outputs"]
    globs = [each["outputBinding"]["glob"] for each in outputs.values()]
    assert globs[0] == 'x/$(inputs["in"].basename).txt'
    assert 'inputs["name"] === null ? "[NAME]"' in globs[1]
    assert 'basename.split(".nii.gz").join("")' in globs[2]


def test_what_cwl_cannot_say_is_noted() -> None:
    pipeline = pipeline_of(
        "tool [A] [B]",
        [
            {"id": "a", "type": "Number", "minimum": 1, "optional": True, "disables-inputs": ["b"]},
            {"id": "b", "type": "String", "optional": True, "value-choices": ["odd/choice"]},
        ],
        groups=[{"id": "g", "name": "g", "members": ["a", "b"], "one-is-required": True}],
        author="Somebody",
        **{
            "error-codes": [{"code": 1, "description": "Bad."}],
            "suggested-resources": {"nodes": 2, "ram": 4},
            "container-image": {"type": "docker", "image": "x", "container-opts": ["--gpus"]},
        },
    )
    made = export_cwl(pipeline)
    assert [str(each) for each in made.notes] == [
        "input a: limits of a number are not in CWL",
        "input a: inputs that it disables are not in CWL",
        "input b: such choices are not in CWL",
        "container-image: options of the container are not in CWL",
        "suggested-resources: the number of nodes is not in CWL",
        "group g: groups of inputs are not in CWL",
        "error-codes: descriptions of exit codes are not in CWL",
        "author: this is not in CWL",
    ]
    assert made.document["hints"]["ResourceRequirement"] == {"ramMin": 3815}


@pytest.mark.parametrize(
    ("command", "more"),
    [
        ("tool '[A]'", {}),
        ("tool [L] [L]", {}),
        ("tool x[L]", {}),
        (
            "tool [A]",
            {
                "output-files": [
                    {
                        "id": "o",
                        "name": "o",
                        "optional": False,
                        "conditional-path-template": [{"default": "x"}],
                    }
                ]
            },
        ),
    ],
)
def test_a_command_that_cwl_cannot_express_is_refused(command: str, more: dict[str, Any]) -> None:
    inputs: list[dict[str, Any]] = [{"id": "a", "type": "String"}]
    if "[L]" in command:
        inputs = [{"id": "l", "type": "String", "list": True}]
    with pytest.raises(ConversionError):
        export_cwl(pipeline_of(command, inputs, **more))


@pytest.mark.parametrize(
    ("image", "pulled"),
    [
        ({"type": "docker", "image": "bids/mriqc"}, {"dockerPull": "bids/mriqc"}),
        ({"type": "docker", "image": "a/b", "index": "quay.io"}, {"dockerPull": "quay.io/a/b"}),
        ({"type": "singularity", "image": "a/b:1", "index": "docker://"}, {"dockerPull": "a/b:1"}),
        ({"type": "rootfs", "url": "https://x.example/r"}, {"dockerImport": "https://x.example/r"}),
    ],
)
def test_images(image: dict[str, Any], pulled: dict[str, Any]) -> None:
    pipeline = pipeline_of("tool [A]", [{"id": "a", "type": "String"}], **{"container-image": image})
    assert export_cwl(pipeline).document["hints"]["DockerRequirement"] == pulled
