"""Translate simple expressions of CWL into shell text; nothing is evaluated.

Understood are references to inputs and their names, concatenation, conditions on whether a value is given, and functions of `expressionLib`
that only return such expressions. Anything else is refused.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

_PART = re.compile(
    r"""\s+|//[^\n]*|/\*.*?\*/
    |(?P<text>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
    |(?P<pattern>(?<=\()/(?:[^/\\\n\[]|\\.|\[[^\]\n]*\])+/[a-z]*)
    |(?P<word>[A-Za-z_$][\w$]*|\d+)
    |(?P<sign>===|!==|==|!=|&&|\|\||[-+?:(){}\[\].,;!=])""",
    re.VERBOSE | re.DOTALL,
)
_FUNCTION = re.compile(r"(?:function\s+(\w+)\s*|(?:var|let|const)\s+(\w+)\s*=\s*function\s*)\(\s*\)\s*\{")
_EXTENSION = re.compile(r"/\\\.\[\^(?:/\.|\./|\\/\.|\.\\/|\.)\][+*]\$/")
_ATTRIBUTES = frozenset({"path", "location", "basename", "nameroot", "nameext", "dirname"})
_MOST_DEPTH, _MOST_ATTEMPTS, _LONGEST = 20, 8, 10_000


class UnknownExpressionError(ValueError):
    """An expression cannot be translated."""


def split_expressions(text: str) -> Iterator[tuple[str, bool]]:
    r"""Yield the parts of a text, each with True for an expression `$(...)` or `${...}`; `\$` is a dollar sign."""
    literal, position = "", 0
    while position < len(text):
        if text.startswith(("\\$(", "\\${"), position):
            literal, position = literal + "$", position + 2
        elif text.startswith(("$(", "${"), position):
            end = _end_of(text, position + 1)
            if literal:
                yield literal, False
            yield text[position:end], True
            literal, position = "", end
        else:
            literal, position = literal + text[position], position + 1
    if literal:
        yield literal, False


def _end_of(text: str, start: int) -> int:
    """Return the end of the brackets that open at `start`, or of the text."""
    depth = 0
    for found in re.compile(r"""[(){}]|"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'""").finditer(text, start):
        depth += 1 if found[0] in {"(", "{"} else -1 if found[0] in {")", "}"} else 0
        if not depth:
            return found.end()
    return len(text)


@dataclass(slots=True)
class ShellValues:
    """Shell variables for the values of expressions; `lines` assign them before the command.

    `variable_of` returns the variable of an input, or raises `UnknownExpressionError`. `library` is the text of `expressionLib`.
    """

    variable_of: Callable[[str], str]
    runtime: Mapping[str, str]
    library: str = ""
    lines: list[str] = field(default_factory=list)
    depth: int = 0

    def new(self, assignment: str) -> str:
        """Return a new variable; `assignment` has NUL in its place."""
        name = f"value_{len(self.lines) + 1}"
        self.lines.append(assignment.replace("\0", name))
        return name

    def translate(self, expression: str, own: str = "") -> str:
        """Return the shell word for an expression with its brackets; `own` is the input that `self` means.

        Raises `UnknownExpressionError`.
        """
        if len(expression) > _LONGEST:
            raise UnknownExpressionError(expression[:20])
        reader = _Reader(self, expression[2:-1], own)
        try:
            word = reader.block() if expression[1] == "{" else reader.expression()
        except RecursionError:
            raise UnknownExpressionError(expression[:20]) from None
        reader.end()
        return word

    def call(self, name: str, own: str) -> str:
        """Return the word for a function of the library without parameters."""
        found = next((each for each in _FUNCTION.finditer(self.library) if name in each.groups()), None)
        if found is None or self.depth > _MOST_DEPTH:
            raise UnknownExpressionError(name)
        self.depth += 1
        word = self.translate(
            f"${self.library[found.end() - 1 : _end_of(self.library, found.end() - 1)]}", own
        )
        self.depth -= 1
        return word


class _Reader:
    """Read the parts of one expression."""

    def __init__(self, values: ShellValues, text: str, own: str) -> None:
        self._values = values
        self._own = own
        self._attempts = 0
        self._names: dict[str, str] = {}  # of `var`, with their words
        self._parts = [(each.lastgroup, each[0]) for each in self._read(text) if each.lastgroup]
        self._at = 0

    @staticmethod
    def _read(text: str) -> Iterator[re.Match[str]]:
        end = 0
        for found in _PART.finditer(text):
            if found.start() != end:
                break
            end = found.end()
            yield found
        if end != len(text):
            raise UnknownExpressionError(text[end : end + 20])

    def _next(self) -> tuple[str | None, str]:
        return self._parts[self._at] if self._at < len(self._parts) else (None, "")

    def _take(self) -> tuple[str | None, str]:
        found = self._next()
        self._at += 1
        return found

    def _skip(self, *signs: str) -> bool:
        """Skip these parts, if they are the next ones."""
        texts = [text for _, text in self._parts[self._at : self._at + len(signs)]]
        self._at += len(signs) if texts == list(signs) else 0
        return texts == list(signs)

    def _need(self, *signs: str) -> None:
        if not self._skip(*signs):
            raise UnknownExpressionError(self._next()[1])

    def end(self) -> None:
        """Raise `UnknownExpressionError` if anything is left."""
        if self._at < len(self._parts):
            raise UnknownExpressionError(self._next()[1])

    def block(self) -> str:
        """Read statements up to the one that returns the value; without one it is null."""
        if self._at >= len(self._parts) or self._next()[1] == "}":
            return "''"
        if self._skip("return"):
            word = self.expression()
            self._skip(";")
            return word
        if self._skip("if", "("):
            test = self._condition()
            self._need(")")
            yes = self._branch()
            no = self._branch() if self._skip("else") else self.block()
            return self._choose(test, yes, no)
        if self._skip("var") or self._skip("let") or self._skip("const"):
            _, name = self._take()
            self._need("=")
            self._names[name] = self.expression()
            self._skip(";")
            return self.block()
        if self._next()[1] in self._names:
            _, name = self._take()
            self._need("+", "=")
            self._names[name] += self.expression()
            self._skip(";")
            return self.block()
        raise UnknownExpressionError(self._next()[1])

    def _branch(self) -> str:
        braces = self._skip("{")
        word = self.block()
        if braces:
            self._need("}")
        return word

    def _choose(self, test: str, yes: str, no: str) -> str:
        variable = self._values.new(f"if {test}; then \0={yes}; else \0={no}; fi;")
        return f'"${variable}"'

    def expression(self) -> str:
        """Read a conditional expression or a concatenation; return its word."""
        if word := self._try(self._whole_sum):
            return word
        test = self._condition()
        self._need("?")
        yes = self.expression()
        self._need(":")
        return self._choose(test, yes, self.expression())

    def _try(self, read: Callable[[], str]) -> str:
        """Return what `read` does, "" and nothing changed if that fails. Each attempt doubles the time, so that few may be nested."""
        start, lines = self._at, len(self._values.lines)
        self._attempts += 1
        try:
            if self._attempts > _MOST_ATTEMPTS:
                raise UnknownExpressionError("(")
            return read()
        except UnknownExpressionError:
            self._at = start
            del self._values.lines[lines:]
            return ""
        finally:
            self._attempts -= 1

    def _whole_sum(self) -> str:
        word = self._sum()
        if self._next()[1] in {"?", "==", "===", "!=", "!==", "&&", "||"}:
            raise UnknownExpressionError("?")
        return word

    def _enclosed_test(self) -> str:
        self._need("(")
        test = self._condition()
        self._need(")")
        if self._next()[1] in {"+", ".", "[", "==", "===", "!=", "!=="}:
            raise UnknownExpressionError(")")
        return test

    def _sum(self) -> str:
        word = self._value()
        while self._skip("+"):
            word += self._value()
        return word

    def _condition(self) -> str:
        test = self._test()
        while (sign := self._next()[1]) in {"&&", "||"}:
            self._at += 1
            test = f"{test} {sign} {self._test()}"
        return test

    def _test(self) -> str:
        """Read one comparison; return a shell command. What is null, false or empty is empty text."""
        if self._skip("!"):
            return f"[ -z {self._value()} ]"
        if self._next()[1] == "(" and (test := self._try(self._enclosed_test)):
            return f"{{ {test}; }}"
        word = self._value()
        sign = self._next()[1]
        if sign not in {"==", "===", "!=", "!=="}:
            return f"[ -n {word} ]"
        self._at += 1
        same = "=" if sign[0] == "=" else "!="
        return f"[ {word} {same} {self._value()} ]"

    def _value(self) -> str:
        kind, part = self._take()
        if kind == "text":
            if "\\" in part:
                raise UnknownExpressionError(part)
            return shlex.quote(part[1:-1])
        if part == "(":
            word = self.expression()
            self._need(")")
            return word
        if kind == "word" and (part.isdigit() or part in {"null", "undefined", "false"}):
            return part if part.isdigit() else "''"
        if part in self._names:
            return self._methods(self._variable(self._names[part]))
        if part == "runtime" and self._skip("."):
            return self._runtime(self._take()[1])
        if kind == "word" and self._skip("(", ")"):
            return self._methods(self._variable(self._values.call(part, self._own)))
        return self._methods(self._input(part))

    def _runtime(self, name: str) -> str:
        if name not in self._values.runtime:
            raise UnknownExpressionError(name)
        return self._values.runtime[name]

    def _input(self, part: str) -> str:
        """Return the variable of the input that a part and those after it mean."""
        name = self._own if part == "self" else ""
        if part == "inputs" and self._skip("."):
            name = self._take()[1]
        elif part == "inputs" and self._skip("["):
            name = self._take()[1][1:-1]
            self._need("]")
        if not name:
            raise UnknownExpressionError(part)
        return self._values.variable_of(name)

    def _variable(self, word: str) -> str:
        found = re.fullmatch(r'"\$(\w+)"', word)
        return found[1] if found else self._values.new(f"\0={word};")

    def _methods(self, variable: str) -> str:
        """Apply attributes and methods to a variable; return the word."""
        new = self._values.new
        while self._next()[1] in {".", "["}:
            name = self._parts[self._at + 1][1] if self._at + 1 < len(self._parts) else ""
            if name in _ATTRIBUTES:
                self._at += 2
                variable = self._attribute(variable, name)
            elif self._skip(".", "replace", "("):
                variable = self._replaced(variable)
            elif self._skip(".", "split", "("):
                sign = self._take()[1][1:-1]
                if sign not in {".", "/", "_", "-"}:
                    raise UnknownExpressionError(sign)
                self._need(")")
                variable = self._split(variable, sign)
            elif self._skip(".", "toString", "(", ")"):
                variable = new(f'\0="${variable}";')
            else:
                raise UnknownExpressionError(name)
        return f'"${variable}"'

    def _attribute(self, variable: str, name: str) -> str:
        new = self._values.new
        if name == "path" or (name == "location" and self._next()[1] == "."):  # of which a part is taken
            return variable
        if name == "location":
            raise UnknownExpressionError(name)
        if name == "dirname":
            return new(f"\0=${{{variable}%/*}};")
        base = new(f"\0=${{{variable}##*/}};")
        if name == "basename":
            return base
        root = new(f"\0=${{{base}%.*}};")
        return root if name == "nameroot" else new(f'\0=${{{base}#"${root}"}};')

    def _replaced(self, variable: str) -> str:
        kind, pattern = self._take()
        self._need(",")
        by_kind, by = self._take()
        self._need(")")
        if by_kind != "text" or "\\" in by:
            raise UnknownExpressionError(by)
        if kind == "pattern" and _EXTENSION.fullmatch(pattern):
            return self._values.new(f"\0=${{{variable}%.*}}{shlex.quote(by[1:-1])};")
        if kind != "text" or "\\" in pattern:
            raise UnknownExpressionError(pattern)
        old, new = shlex.quote(pattern[1:-1]), shlex.quote(by[1:-1])
        changed = f"${{{variable}%%{old}*}}{new}${{{variable}#*{old}}}"
        return self._values.new(f"case ${variable} in *{old}*) \0={changed} ;; *) \0=${variable} ;; esac;")

    def _split(self, variable: str, sign: str) -> str:
        """Return the variable of the part that is taken of a text which was split."""
        quoted, new = shlex.quote(sign), self._values.new
        last = (
            (".", "slice", "(", "-", "1", ")", "[", "0", "]"),
            (".", "pop", "(", ")"),
            (".", "reverse", "(", ")", "[", "0", "]"),
        )
        if any(self._skip(*each) for each in last):
            return new(f"\0=${{{variable}##*{quoted}}};")
        if self._skip("[", "0", "]") or self._skip(".", "shift", "(", ")"):
            return new(f"\0=${{{variable}%%{quoted}*}};")
        if self._skip(".", "slice", "(", "0", ",", "-", "1", ")", ".", "join", "("):
            if self._take()[1][1:-1] != sign:
                raise UnknownExpressionError(sign)
            self._need(")")
            shorter = f"${{{variable}%{quoted}*}}"
            return new(f"case ${variable} in *{quoted}*) \0={shorter} ;; *) \0= ;; esac;")
        raise UnknownExpressionError(self._next()[1])
