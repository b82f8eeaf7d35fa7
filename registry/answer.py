"""One answer to one question: is it of the right kind, a permitted choice and within the limits."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

from registry.pipeline import Input
from registry.problem import Problem

_WANTED = {
    "String": "a string",
    "File": "a path, written as a string",
    "Number": "a number",
    "Flag": "true or false",
}


def find_answer_problems(question: Input, answer: Any) -> Iterator[Problem]:
    """What is wrong with the answer by itself; relations between inputs are judged elsewhere."""
    if not question.is_list:
        yield from _find_value_problems(question, answer, question.id)
        return
    if not isinstance(answer, list):
        yield Problem(question.id, f"must be a list, not {show_value(answer)}")
        return
    if question.minimum_entries and len(answer) < question.minimum_entries:
        yield Problem(question.id, f"needs at least {question.minimum_entries} entries, not {len(answer)}")
    if question.maximum_entries and len(answer) > question.maximum_entries:
        yield Problem(question.id, f"takes at most {question.maximum_entries} entries, not {len(answer)}")
    for number, value in enumerate(answer):
        yield from _find_value_problems(question, value, f"{question.id}[{number}]")


def find_shape_problems(question: Input, answer: Any) -> Iterator[Problem]:
    """What no command line could hold, whatever the author's own schema permits."""
    if question.kind == "Flag" and not isinstance(answer, bool):
        yield Problem(question.id, f"must be true or false, not {show_value(answer)}")
        return
    values = answer if isinstance(answer, list) else [answer]
    for number, value in enumerate(values):
        path = f"{question.id}[{number}]" if isinstance(answer, list) else question.id
        if isinstance(value, str):
            yield from _find_text_problems(value, path)
        elif value is None or isinstance(value, list | dict):
            yield Problem(path, f"must be a single value, not {show_value(value)}")
        elif isinstance(value, float) and not math.isfinite(value):
            yield Problem(path, "is too large for a number")


def show_value(value: Any) -> str:
    """A value as JSON, short enough to stand in a sentence."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 80 else text[:76] + " ..."


def _find_value_problems(question: Input, value: Any, path: str) -> Iterator[Problem]:
    wrong = _find_kind_problem(question, value)
    if wrong:
        yield Problem(path, wrong)
        return
    if isinstance(value, str):
        yield from _find_text_problems(value, path)
    elif not isinstance(value, bool):
        yield from _find_limit_problems(question, value, path)


def _find_kind_problem(question: Input, value: Any) -> str:
    """The kind is that of the type, or, where there are choices, being one of them."""
    if value is None:
        return "null is no answer; leave the input out"
    if question.integer and (not isinstance(value, int) or isinstance(value, bool)):
        return f"must be a whole number, not {show_value(value)}"
    if question.choices:
        permitted = any(
            choice == value and isinstance(choice, str) == isinstance(value, str)
            for choice in question.choices
            if not isinstance(value, bool)
        )
        shown = ", ".join(show_value(choice) for choice in question.choices)
        return "" if permitted else f"must be one of {shown}, not {show_value(value)}"
    fitting = {
        "String": isinstance(value, str),
        "File": isinstance(value, str),
        "Number": isinstance(value, int | float) and not isinstance(value, bool),
        "Flag": isinstance(value, bool),
    }
    return "" if fitting[question.kind] else f"must be {_WANTED[question.kind]}, not {show_value(value)}"


def _find_text_problems(value: str, path: str) -> Iterator[Problem]:
    """No program can be handed these: an argument ends at NUL and is made of bytes."""
    if "\0" in value:
        yield Problem(path, "holds a NUL character, which no program can be given")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        yield Problem(path, "holds half a surrogate pair, which is not a character")


def _find_limit_problems(question: Input, value: Any, path: str) -> Iterator[Problem]:
    if isinstance(value, float) and not math.isfinite(value):
        yield Problem(path, "is too large for a number")
        return
    low, high = question.minimum, question.maximum
    if low is not None and (value < low or (question.exclusive_minimum and value == low)):
        relation = "greater than" if question.exclusive_minimum else "at least"
        yield Problem(path, f"must be {relation} {low}, not {show_value(value)}")
    if high is not None and (value > high or (question.exclusive_maximum and value == high)):
        relation = "less than" if question.exclusive_maximum else "at most"
        yield Problem(path, f"must be {relation} {high}, not {show_value(value)}")
