"""Test tables and parameters of a sweep, read into checked invocations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hibali.errors import NotFoundError, UsageError
from registry.descriptor import read_descriptor
from registry.parameters import Row, SweepError, check_tasks, make_rows, read_text
from registry.problems import InvocationError
from tests.end_to_end.run_tools import DESCRIPTOR

FLAGGED = {
    **DESCRIPTOR,
    "command-line": f"{DESCRIPTOR['command-line']} [LOUD]",
    "inputs": [
        *DESCRIPTOR["inputs"],
        {
            "id": "loud",
            "name": "loud",
            "type": "Flag",
            "value-key": "[LOUD]",
            "command-line-flag": "-l",
            "optional": True,
        },
    ],
}
PIPELINE = read_descriptor(json.dumps(FLAGGED).encode(), "tool.json")


def table(tmp_path: Path, text: str, name: str = "table.csv") -> Path:
    path = tmp_path / name
    path.write_bytes(text.encode())
    return path


def values(rows: list[Row]) -> list[dict[str, Any]]:
    return [dict(row.values) for row in rows]


def test_cells_are_typed_by_their_inputs_and_empty_cells_are_ignored(tmp_path: Path) -> None:
    path = table(
        tmp_path,
        'in,sleep,code,say,more,loud\r\na.txt,0.5,3,07,b.txt;c d.txt,yes\r\n"with, comma",,0,"""0 """,,no\r\n',
    )
    assert values(make_rows(PIPELINE, path, [])) == [
        {"in": "a.txt", "sleep": 0.5, "code": 3, "say": "07", "more": ["b.txt", "c d.txt"], "loud": True},
        {"in": "with, comma", "code": 0, "say": "0 ", "loud": False},
    ]


def test_rows_are_combined_with_parameters_in_order(tmp_path: Path) -> None:
    path = table(tmp_path, '{"in": "a"}\n\n{"in": "b", "more": ["c"]}\n', "table.jsonl")
    rows = make_rows(PIPELINE, path, ["code=1,2"])
    assert values(rows) == [
        {"in": "a", "code": 1},
        {"in": "a", "code": 2},
        {"in": "b", "more": ["c"], "code": 1},
        {"in": "b", "more": ["c"], "code": 2},
    ]
    assert [row.line for row in rows] == [1, 1, 3, 3]


def test_a_byte_order_mark_tabs_and_quoted_line_breaks_are_read(tmp_path: Path) -> None:
    path = table(tmp_path, '\ufeffin\tsay\na\t"two\nlines"\n', "table.tsv")
    assert values(make_rows(PIPELINE, path, [])) == [{"in": "a", "say": "two\nlines"}]


def test_all_problems_of_all_rows_are_reported_and_common_ones_once(tmp_path: Path) -> None:
    path = table(tmp_path, "code,sleep\n1,1\nx,2\n3,y\n4.5,4\n")
    rows = make_rows(PIPELINE, path, [])
    with pytest.raises(SweepError) as refused:
        check_tasks(PIPELINE, {}, rows)
    assert [(each["line"], each["path"], each["message"]) for each in refused.value.problems] == [
        (2, "tasks 1-4, in", "is required"),
        (3, "task 2, code", 'must be a whole number, not "x"'),
        (4, "task 3, sleep", 'must be a number, not "y"'),
        (5, "task 4, code", "must be a whole number, not 4.5"),
    ]


def test_problems_beyond_a_hundred_are_only_counted() -> None:
    rows = make_rows(PIPELINE, None, [f"code={','.join(f'x{number}' for number in range(1000))}"])
    with pytest.raises(SweepError) as refused:
        check_tasks(PIPELINE, {"in": "a"}, rows)
    assert len(refused.value.problems) == 101
    assert refused.value.problems[-1]["message"] == "and 900 more problems"


@pytest.mark.parametrize(
    ("text", "name", "expected"),
    [
        ("cod,in\n1,a\n", "t.csv", "no such input; is it code?"),
        ("in,in\na,b\n", "t.csv", "is the name of two columns"),
        ("in,code\na\n", "t.csv", "has 1 cells, but the header has 2"),
        ('in\n"a\n', "t.csv", "unexpected end of data"),
        ("", "t.csv", "it is empty"),
        ("in\n", "t.csv", "0 tasks are given"),
        ("[1]\n", "t.jsonl", "must be a JSON object"),
        ('{"in": "a", "in": "b"}\n', "t.jsonl", "repeated with another value"),
        ('{"in": NaN}\n', "t.jsonl", "is not JSON"),
    ],
)
def test_invalid_tables_are_reported_with_file_and_line(
    tmp_path: Path, text: str, name: str, expected: str
) -> None:
    with pytest.raises(SweepError) as refused:
        make_rows(PIPELINE, table(tmp_path, text, name), [])
    assert expected in refused.value.message


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        (["code"], "must be written ID=VALUE"),
        (["nothing=1"], "no such input"),
        (["code=1", "code=2"], "is given twice"),
        (["code=" + ",".join("1" * 400), "sleep=" + ",".join("1" * 400)], "160000 tasks are given"),
    ],
)
def test_invalid_parameters_are_named(parameters: list[str], expected: str) -> None:
    with pytest.raises(SweepError) as refused:
        make_rows(PIPELINE, None, parameters)
    assert expected in refused.value.message


def test_an_input_is_in_the_table_or_a_parameter(tmp_path: Path) -> None:
    with pytest.raises(SweepError):
        make_rows(PIPELINE, table(tmp_path, "code\n1\n"), ["code=2"])


def test_missing_tables_and_unknown_formats_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        make_rows(PIPELINE, tmp_path / "none.csv", [])
    with pytest.raises(UsageError):
        make_rows(PIPELINE, table(tmp_path, "in\n", "t.xlsx"), [])
    (tmp_path / "latin.csv").write_bytes(b"in\n\xff\n")
    with pytest.raises(SweepError):
        make_rows(PIPELINE, tmp_path / "latin.csv", [])


def test_an_invocation_that_is_no_object_is_refused() -> None:
    with pytest.raises(InvocationError):
        check_tasks(PIPELINE, [], [Row()])


def test_a_row_overrides_the_common_values() -> None:
    [first, second] = check_tasks(PIPELINE, {"in": "a", "code": 9}, [Row({"code": 1}), Row()])
    assert (first.values["code"], second.values["code"]) == (1, 9)


def test_a_list_is_json_or_entries_between_semicolons() -> None:
    make_input = next(each for each in PIPELINE.inputs if each.id == "more")
    assert read_text(make_input, '["a;b", "c"]') == ["a;b", "c"]
    assert read_text(make_input, "a b;c") == ["a b", "c"]
    assert read_text(make_input, "[broken") == "[broken"
