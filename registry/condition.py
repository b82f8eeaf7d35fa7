"""Evaluate conditions of `conditional-path-template` with a grammar that can only compare.

The grammar has input and output ids, numbers, quoted strings, True, False, None, lists of literals, `== != < <= > >=`,
`in`, `not in`, `and`, `or`, `not` and brackets. The reference (boutiques 0.5.33, localExec.py) inserts the values into
a line of Python and evaluates it; conditions that both accept have the same meaning.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from hibali.errors import UsageError
from hibali.text import printable

DEFAULT = "default"
_LONGEST = 2000  # characters; the corpus has 23
_DEEPEST = 50
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]*)?|-?\.[0-9]+")
_PARTS = re.compile(
    r"""\s*(?P<text>"[^"\\\n]*"|'[^'\\\n]*')|\s*(?P<sign>==|!=|<=|>=|<|>|\(|\)|\[|\]|,)|\s*(?P<word>[^\s"'=!<>()\[\],]+)|\s*(?P<end>$)|(?P<wrong>\s*.)""",
    re.DOTALL,
)
_KEYWORDS = {
    **{term: term for term in ("and", "or", "not", "in", "is", "True", "False", "None")},
    "AND": "and",
    "OR": "or",
    "NOT": "not",
    "true": "True",
    "false": "False",
}
_COMPARISONS: dict[type, Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda one, many: one in many,
    ast.NotIn: lambda one, many: one not in many,
}


@dataclass(frozen=True, slots=True)
class Condition:
    """A parsed condition: `ids` are the inputs and outputs in it."""

    text: str
    ids: tuple[str, ...]
    tree: ast.expr

    def holds(self, values: Mapping[str, Any]) -> bool:
        """Return whether it is true for these values; false where an id in it has no value, as in the reference.

        Raises `UsageError` where values are compared that have no order.
        """
        if any(each not in values for each in self.ids):
            return False
        try:
            return bool(_evaluate(self.tree, [_comparable(values[each]) for each in self.ids]))
        except TypeError as problem:
            raise _wrong(self.text, f"the values cannot be compared: {problem}") from None


def read_condition(text: str, known: frozenset[str]) -> Condition:
    """Parse a condition; `known` are the ids of inputs and outputs. Raises `UsageError`."""
    if len(text) > _LONGEST:
        raise _wrong(text, f"it is longer than {_LONGEST} characters")
    ids: list[str] = []
    terms = [_translate(text, found, known, ids) for found in _PARTS.finditer(text)]
    try:
        tree = ast.parse(" ".join(terms).strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise _wrong(text, "it is not a condition") from None
    _check(tree, text, 0)
    return Condition(text, tuple(ids), tree)


def _translate(text: str, found: re.Match[str], known: frozenset[str], ids: list[str]) -> str:
    """Translate one token for Python's parser: an id is replaced by a name with its index in `ids`."""
    term = found["word"]
    if term is None:
        if found["wrong"]:
            raise _wrong(text, f"'{found['wrong'].strip()}' is not allowed here")
        return found["text"] or found["sign"] or ""
    if term in known:
        if term not in ids:
            ids.append(term)
        return f"value_{ids.index(term)}"
    if term in _KEYWORDS or _NUMBER.fullmatch(term):
        return _plain_number(term) if term not in _KEYWORDS else _KEYWORDS[term]
    raise _wrong(text, f"'{term}' is neither the id of an input or output nor a number; put text in quotes")


def _plain_number(term: str) -> str:
    return term.lstrip("0") if re.fullmatch(r"0+[1-9][0-9]*", term) else term


def _check(tree: ast.expr, text: str, depth: int) -> None:
    """Raise where the tree has a node that this module does not evaluate."""
    if depth > _DEEPEST:
        raise _wrong(text, "it is nested too deeply")
    match tree:
        case ast.Constant() | ast.Name():
            parts: list[ast.expr] = []
        case ast.BoolOp():
            parts = tree.values
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            parts = [tree.operand]
        case ast.List() | ast.Tuple():
            parts = tree.elts
        case ast.Compare() if all(type(each) in _COMPARISONS for each in tree.ops):
            parts = [tree.left, *tree.comparators]
        case _:
            raise _wrong(text, "only comparisons, `in`, `and`, `or`, `not` and literals are allowed")
    for part in parts:
        _check(part, text, depth + 1)


def _evaluate(tree: ast.expr, values: list[Any]) -> Any:
    match tree:
        case ast.Constant():
            return tree.value
        case ast.Name():
            return values[int(tree.id.removeprefix("value_"))]
        case ast.BoolOp(op=ast.And()):
            return all(_evaluate(each, values) for each in tree.values)
        case ast.BoolOp():
            return any(_evaluate(each, values) for each in tree.values)
        case ast.UnaryOp(op=ast.Not()):
            return not _evaluate(tree.operand, values)
        case ast.UnaryOp():
            return -_evaluate(tree.operand, values)
        case ast.List() | ast.Tuple():
            return [_evaluate(each, values) for each in tree.elts]
        case ast.Compare():
            return _compare(tree, values)
    raise AssertionError(type(tree).__name__)


def _compare(tree: ast.Compare, values: list[Any]) -> bool:
    """Evaluate a chain of comparisons as Python does: `a < b < c`."""
    left = _evaluate(tree.left, values)
    for kind, each in zip(tree.ops, tree.comparators, strict=True):
        right = _evaluate(each, values)
        if not _COMPARISONS[type(kind)](left, right):
            return False
        left = right
    return True


def _comparable(value: Any) -> Any:
    """Convert numeric text: authors also write `num > 10` for inputs of type String."""
    if isinstance(value, list):
        return [_comparable(each) for each in value]
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        return float(value) if "." in value else int(value)
    return value


def _wrong(text: str, reason: str) -> UsageError:
    return UsageError(
        "bad-condition",
        f"the condition `{printable(text[:200])}` cannot be evaluated: {printable(reason)}",
        subject="conditional-path-template",
        hint="Use ids of inputs, numbers, quoted text, == != < <= > >=, in, and, or, not and brackets.",
    )
