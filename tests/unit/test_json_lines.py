"""Values are found on the lines they begin on."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from hibali.json_lines import find_lines

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
