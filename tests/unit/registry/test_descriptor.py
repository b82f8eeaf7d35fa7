"""Test strict parsing of descriptors, with the location of each error."""

from __future__ import annotations

import json
import os
import socket
from typing import Any

import pytest

from hibali.documents import JsonProblemError
from hibali.errors import UsageError
from registry.boutiques_schema import find_refusals, upgrade_document
from registry.descriptor import find_advice, find_problems, read_descriptor
from registry.pipeline import catalogue_name, catalogue_version, split_reference
from registry.problems import DescriptorError
from tests.properties.descriptors import make_document, make_input


def read(document: Any, name: str | None = None) -> Any:
    return read_descriptor(json.dumps(document).encode(), "file.json", name)


def test_problems_have_their_line() -> None:
    document = make_document("x", make_input("a"), make_input("a", minimum=3))
    document["inputs"][1]["type"] = "Text"
    document["extra"] = 1
    places = [each.path for each in find_problems(document)]
    assert {"extra", "inputs[1].type", "inputs[1].id"} <= set(places)


def test_rule_problems_have_their_line() -> None:
    document = make_document(
        "x [A] [B]", make_input("a", requires_inputs=["c"], optional=True), make_input("b")
    )
    document["inputs"].append({**make_input("b", value_key="[C]"), "type": "Flag"})
    found = {(each.path, each.message) for each in find_problems(document)}
    assert ("inputs[0].requires-inputs", '"a" required id "c" not found') in found
    assert ("inputs[2].id", '"b" is non-unique') in found
    assert any(path == "inputs[2].value-key" for path, _ in found)


def test_the_reference_validator_has_no_side_effects(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The reference changes no argument, prints nothing, uses no network, and its crashes become messages."""

    def refuse(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(socket.socket, "connect", refuse)
    folder, variables = os.getcwd(), dict(os.environ)  # noqa: PTH109  # the process's own
    crashing = make_document(
        "x [O]",
        output_files=[
            {"id": "o", "name": "O", "value-key": "[O]", "conditional-path-template": [{"default": "x"}]}
        ],
    )
    before = json.dumps(crashing)
    [problem] = find_refusals({**crashing, "inputs": [make_input("a", value_key="[O]")]})
    assert "reference validator failed" in problem.message
    assert json.dumps(crashing) == before
    assert capfd.readouterr() == ("", "")
    assert (os.getcwd(), dict(os.environ)) == (folder, variables)  # noqa: PTH109  # as above


def test_a_rootfs_image_is_valid() -> None:
    image = {"type": "rootfs", "url": "https://example.org/image.tgz"}
    pipeline = read(make_document("x [A]", make_input("a"), container_image=image))
    assert (pipeline.container.kind, pipeline.container.url) == ("rootfs", image["url"])
    with pytest.raises(DescriptorError) as refused:
        read(make_document("x", make_input("a"), container_image=image))
    assert refused.value.problems[0]["path"] == "inputs[0].value-key"


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b"{}",
        b"null",
        b'{"a":1,"a":2}',
        b'{"a":NaN}',
        b"[" * 100,
        b"\xff",
        b" " * (4 * 1024 * 1024 + 1),
    ],
)
def test_invalid_json_and_other_documents_are_refused(raw: bytes) -> None:
    with pytest.raises(UsageError) as refused:
        read_descriptor(raw, "file.json")
    assert refused.value.exit == 2


def test_the_digest_ignores_formatting() -> None:
    document = make_document("x [A]", make_input("a"))
    other = json.dumps(dict(reversed(document.items())), indent=3).encode()
    assert read(document).digest == read_descriptor(other, "x").digest
    assert read_descriptor(other, "x").raw == other
    assert read({**document, "description": "Another."}).digest != read(document).digest


def test_large_numbers_are_digested_as_doubles() -> None:
    document = make_document("x [A]", make_input("a", "Number", maximum=2**63))
    assert (
        read(document).digest
        == read(make_document("x [A]", make_input("a", "Number", maximum=2.0**63))).digest
    )


@pytest.mark.parametrize(
    ("title", "name"),
    [
        ("FSL BET", "fsl-bet"),
        ("beforeSlash/afterSlash", "beforeslash-afterslash"),
        ("@@APP_NAME@@ (BIDS app)", "-app_name-bids-app-"),
        ("Ünïcode", "-n-code"),
        ("a..b", "a..b"),
    ],
)
def test_catalogue_name_from_the_title(title: str, name: str) -> None:
    assert catalogue_name(title) == name
    assert read(make_document("x [A]", make_input("a"), name=title)).title == title


@pytest.mark.parametrize("title", ["脑", "мозг", "脑-心", "٣", "ß", "-", "***", "--_.--", "🧠"])
def test_a_title_without_ascii_letters_needs_a_name(title: str) -> None:
    with pytest.raises(UsageError) as refused:
        read(make_document("x [A]", make_input("a"), name=title))
    assert (refused.value.exit, refused.value.code) == (2, "unusable-pipeline-name")
    assert (refused.value.subject, "--name" in refused.value.hint) == ("file.json: name", True)
    assert read(make_document("x [A]", make_input("a"), name=title), "brain").name == "brain"


def test_older_catalogue_names_of_dashes_are_still_found() -> None:
    assert split_reference("-@1.0") == ("-", "1.0")


@pytest.mark.parametrize(
    ("raw", "line", "fragments"),
    [
        (b'{"a": 1,\n "b": 2,\n "a": 2}', 3, ["a is repeated with another value: 2 here, 1 on line 1"]),
        (b'{"x": [0, {"a": "p",\n\n "a": "q"}]}', 3, ["x[1].a", '"q" here, "p" on line 1']),
        (b'{"a": 1, "a": 1.0}', 1, ["1.0 here, 1 on"]),
        (b'{"a": 1, "a": true}', 1, ["true here"]),
        (b'{"a": 1, "a": 1, "a": 2}', 1, ["2 here, 1 on"]),
        (b'{"a": {"b": 1, "b": 2}, "a": 3}', 1, ["a.b is repeated"]),
    ],
)
def test_a_key_with_two_values_is_refused_with_its_line_and_both(
    raw: bytes, line: int, fragments: list[str]
) -> None:
    with pytest.raises(JsonProblemError) as refused:
        read_descriptor(raw, "tool.json")
    assert refused.value.subject == f"tool.json:{line}"
    assert [each for each in fragments if each not in refused.value.message] == []


def test_a_repeated_key_with_equal_values_is_advice() -> None:
    raw = json.dumps(make_document("x [A]", make_input("a")), indent=1)
    raw = raw.replace('"tool-version"', '"shell": "/bin/sh",\n "shell": "/bin/sh",\n "tool-version"')
    assert read_descriptor(raw.encode(), "tool.json").shell == "/bin/sh"
    [advice] = find_advice(raw.encode(), "tool.json")
    assert (advice.path, advice.line, "line 4" in advice.message) == ("shell", 5, True)


@pytest.mark.parametrize("value", ['"\\ud800"', "1e999", "-1e999", "1" + "0" * 400, '{"\\udfff": 1}'])
def test_values_that_json_cannot_express_are_reported_with_file_and_line(value: str) -> None:
    raw = json.dumps(make_document("x [A]", make_input("a"), custom={"x": "VALUE"}), indent=1)
    with pytest.raises(DescriptorError) as refused:
        read_descriptor(raw.replace('"VALUE"', value).encode(), "tool.json")
    [problem] = refused.value.problems
    assert (refused.value.subject, str(problem["path"])[:8]) == ("tool.json", "custom.x")
    assert raw.splitlines()[int(problem["line"]) - 1].strip() == '"x": "VALUE"'


@pytest.mark.parametrize(
    ("version", "instead"),
    [
        ("0.4", "hibali pipelines upgrade FILE"),
        (0.4, "hibali pipelines upgrade FILE"),
        ("0.5+styx", "hibali pipelines upgrade FILE"),
        ("0.5+other", "an extension of 0.5"),
        (0.5, '"0.5", in quotes'),
        ("0.1", "cannot upgrade schema 0.1"),
        ("0.2", "cannot upgrade schema 0.2"),
        (0.3, "cannot upgrade schema 0.3"),
        (None, '"0.5", in quotes'),
    ],
)
def test_the_hint_for_another_schema_version_names_supported_ones(version: Any, instead: str) -> None:
    document = {**make_document("x [A]", make_input("a")), "schema-version": version}
    hints = [each.instead for each in find_problems(document) if each.path == "schema-version"]
    assert hints
    assert [each for each in hints if instead not in each] == []
    if "upgrade FILE" in instead:
        assert upgrade_document(document, "tool.json")[0]["schema-version"] == "0.5"
    else:
        with pytest.raises(UsageError):
            upgrade_document(document, "tool.json")


FLAG = {
    "id": "f",
    "name": "F",
    "type": "Flag",
    "value-key": "[A]",
    "command-line-flag": "-f",
    "optional": True,
}


@pytest.mark.parametrize(
    ("change", "path", "message"),
    [
        ({"inputs": [{**FLAG, "list": True}]}, "inputs[0]", "an input of type Flag cannot be a list"),
        (
            {"inputs": [make_input("a", value_choices=["x", True])]},
            "inputs[0].value-choices[1]",
            "a text or a number",
        ),
        (
            {"inputs": [make_input("a", value_choices=[None])]},
            "inputs[0].value-choices[0]",
            "a text or a number",
        ),
        (
            {
                "output-files": [
                    {"id": "o", "name": "o", "path-template": "x", "file-template": ["[A]"], "list": True}
                ]
            },
            "output-files[0]",
            "cannot be a list of files",
        ),
        (
            {"tests": [{"name": "t", "invocation": {}, "assertions": {}}]},
            "tests[0].assertions",
            "an exit-code or output-files",
        ),
    ],
)
def test_each_alternative_of_the_schema_has_its_own_message(
    change: dict[str, Any], path: str, message: str
) -> None:
    document = {**make_document("x [A]", make_input("a")), **change}
    found = [each.message for each in find_problems(document) if each.path == path]
    assert [each for each in found if message in each]
    assert not [each for each in found if "valid under" in each]


@pytest.mark.parametrize("more", [{"list": "yes"}, {"type": "flag"}])
def test_a_problem_of_a_flag_is_reported_only_once(more: dict[str, Any]) -> None:
    found = find_problems(make_document("x [A]", {**FLAG, **more}))
    assert not [each for each in found if "cannot be a list" in each.message]


@pytest.mark.parametrize("title", ["", ".", "..", "...", "a" * 129])
def test_unusable_names_are_refused(title: str) -> None:
    with pytest.raises(UsageError):
        catalogue_name(title)
    with pytest.raises(UsageError):
        catalogue_version(title)


def test_references() -> None:
    assert split_reference("FSL BET@1.0/x") == ("fsl-bet", "1.0-x")
    assert split_reference("tool") == ("tool", None)
    with pytest.raises(UsageError):
        split_reference("tool@")


def many_inputs(count: int) -> dict[str, Any]:
    inputs = [
        {**make_input(f"i{number}", value_key=f"[I{number}]"), "optional": True} for number in range(count)
    ]
    return make_document(" ".join(["x", *(each["value-key"] for each in inputs)]), *inputs)


@pytest.mark.timeout(60)
def test_a_thousand_inputs_are_checked_at_once() -> None:
    assert find_problems(many_inputs(1_000)) == []


@pytest.mark.timeout(60)
@pytest.mark.parametrize("count", [1_001, 4_000, 20_000])
def test_more_inputs_are_refused_before_they_are_compared(count: int) -> None:
    problems = [(each.path, each.message) for each in find_problems(many_inputs(count))]
    assert problems == [("inputs", f"has {count:,} entries; at most 1,000 are possible")]


def test_all_lists_together_have_a_limit() -> None:
    document = make_document(
        "x [A]", {**make_input("a"), "value-choices": [str(each) for each in range(9_999)]}
    )
    assert find_problems(document) == []
    document["inputs"][0]["value-choices"].append("more")
    [problem] = find_problems(document)
    assert (problem.path, "10,001" in problem.message) == ("inputs", True)


def test_equal_objects_in_a_list_are_found() -> None:
    document = make_document("x [A]", make_input("a"))
    document["error-codes"] = [{"code": 1, "description": "a"}, {"description": "a", "code": 1}]
    assert "non-unique" in " ".join(each.message for each in find_problems(document))


def test_validation_advises_on_what_cannot_be_used() -> None:
    document = make_document('t "$(echo [A])" [O]', make_input("a", default_value="f(x)", optional=True))
    document["output-files"] = [{"id": "o", "name": "o", "path-template": "x_*", "value-key": "[O]"}]
    found = {each.path: each.message for each in find_advice(json.dumps(document).encode(), "x")}
    assert "inside $( )" in found["inputs[0].default-value"]
    assert "as it is" in found["output-files[0].path-template"]
