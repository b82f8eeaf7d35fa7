"""Test that values are found on the lines on which they begin."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hibali.documents import JsonProblemError, RepeatedKey, find_lines, find_repeated_keys, read_json

TEXT = r"""{
  "name": "a \"quoted\" [name]",
  "inputs": [
    {"id": "one",
     "more": [1,
              {"x": null}]},
    "two"
  ],
  "empty": [], "last": {}
}"""


def test_lines_by_path() -> None:
    lines = find_lines(TEXT)
    assert lines[()] == 1
    assert lines["name",] == 2
    assert lines["inputs",] == 3
    assert lines["inputs", 0] == 4
    assert lines["inputs", 0, "id"] == 4
    assert lines["inputs", 0, "more", 1] == 6
    assert lines["inputs", 0, "more", 1, "x"] == 6
    assert lines["inputs", 1] == 7
    assert lines["empty",] == lines["last",] == 9


_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def _paths(value: object, path: tuple[str | int, ...] = ()) -> set[tuple[str | int, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return {path}.union(*(_paths(each, (*path, key)) for key, each in items))


@given(_values)
def test_every_value_has_its_line(value: object) -> None:
    text = json.dumps(value, indent=1, ensure_ascii=False)
    lines = find_lines(text)
    assert set(lines) == _paths(value)
    assert all(1 <= line <= text.count("\n") + 1 for line in lines.values())
    assert set(find_lines(json.dumps(value)).values()) == {1}


REPEATED = """{
  "a": [{"x": 1, "y": {"a": 2},
         "x": 1.0}],
  "b": {"c": [1, 2]}, "b":
    {"c": [1,2]},
  "a\\u0062": 1, "ab": [ ]
}"""


def test_repeated_keys_are_found_with_their_lines_and_values() -> None:
    found = find_repeated_keys(REPEATED)
    assert found == [
        RepeatedKey(("a", 0, "x"), 3, "1.0", 2, "1"),
        RepeatedKey(("b",), 4, '{"c": [1,2]}', 4, '{"c": [1, 2]}'),
        RepeatedKey(("ab",), 6, "[ ]", 6, "1"),
    ]
    assert [each.is_same for each in found] == [False, True, False]


@given(_values)
def test_text_without_repeated_keys_has_none(value: object) -> None:
    assert find_repeated_keys(json.dumps(value, ensure_ascii=False)) == []


@pytest.mark.parametrize("end", ["]", '}, "b": ]}', "}, {3: 4, \\}"])
def test_a_repeated_key_is_named_although_the_text_after_it_is_not_json(end: str) -> None:
    with pytest.raises(JsonProblemError) as caught:
        read_json(b'{"a": {"x": 1, "x": 2}' + end.encode(), "tool.json")
    assert caught.value.message == "a.x is repeated with another value: 2 here, 1 on line 1"
