"""Test that conditions mean the same as in Python."""

from __future__ import annotations

import contextlib
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from hibali.errors import UsageError
from registry.condition import read_condition

ANSWERS: dict[str, Any] = {"n": 3, "m": -1.5, "s": "abc", "e": "", "t": True}
KNOWN = frozenset(ANSWERS)

_numbers = st.sampled_from(["n", "m", "2", "3.0", "-1.5"])
_texts = st.sampled_from(["s", "e", "'abc'", '"b"', "''"])
_signs = st.sampled_from(["==", "!=", "<", "<=", ">", ">="])


def _compared(sides: st.SearchStrategy[str], signs: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.builds(lambda left, sign, right: f"{left} {sign} {right}", sides, signs, sides)


_leaves = st.one_of(
    _compared(_numbers, _signs),
    _compared(_texts, _signs),
    _compared(_texts, st.sampled_from(["in", "not in"])),
    st.builds(lambda one, many: f"{one} in [{', '.join(many)}]", _texts, st.lists(_texts, min_size=1)),
    st.sampled_from(["n", "s", "e", "t", "True", "False"]),
)
CONDITIONS = st.recursive(
    _leaves,
    lambda inner: st.one_of(
        st.builds(
            lambda left, word, right: f"({left}) {word} {right}",
            inner,
            st.sampled_from(["and", "or"]),
            inner,
        ),
        st.builds(lambda one: f"not ({one})", inner),
    ),
    max_leaves=6,
)


@given(CONDITIONS)
def test_a_condition_has_the_same_result_as_in_python(text: str) -> None:
    expected = bool(eval(text, {"__builtins__": {}}, dict(ANSWERS)))  # noqa: S307  # the expression was generated here
    assert read_condition(text, KNOWN).holds(ANSWERS) is expected


@given(st.text(alphabet="nst()[]'\"<>=!., +-*/_:and or not in 012", max_size=40))
def test_any_text_is_evaluated_or_refused(text: str) -> None:
    with contextlib.suppress(UsageError):
        read_condition(text, KNOWN).holds(ANSWERS)
