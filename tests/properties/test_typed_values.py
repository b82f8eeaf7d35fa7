"""Test that what a dialogue writes for a value is read back as that value."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from registry.invocation import read_typed, write_typed
from registry.pipeline import Input


@given(st.one_of(st.text(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False)))
def test_written_values_are_read_back(value: Any) -> None:
    kind = "Flag" if isinstance(value, bool) else "String" if isinstance(value, str) else "Number"
    text = write_typed(value)
    assert text.isprintable()
    assert "<" not in text[:1]
    read = read_typed(Input("a", "a", kind), text)
    assert (read, type(read)) == (value, type(value))
