"""Make a descriptor of the source of a Python program that uses argparse. The program is parsed and never run.

Only literal arguments of `add_argument` are understood; what is computed is noted. Source: the argparse page of the Python documentation.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from hibali.errors import UsageError
from hibali_plugins.formats.conversion import Conversion, Draft, Identifiers
from hibali_plugins.formats.docopt_usage import leave_default_to_tool, suggests_file

_FLAGS = frozenset({"store_true", "store_false", "store_const", "append_const", "count"})
_SHOWN_ONLY = frozenset({"help", "version"})
_MISSING = object()
_PATH_TYPE = re.compile(r"path|(?<!profil)file|dir(?!ecti)|folder", re.IGNORECASE)
_PATH_METAVARS = frozenset({"FILE", "PATH", "DIR", "FOLDER", "DIRECTORY"})
_PATH_HELP = re.compile(r"\b(?:path|file|folder|directory)\b", re.IGNORECASE)


@dataclass(slots=True)
class Argument:
    """One call of `add_argument`: its literal values, and in which parser and exclusive group it is."""

    names: tuple[str, ...]
    options: dict[str, Any]
    computed: frozenset[str]
    line: int
    parser: str = ""
    group: int | None = None

    @property
    def is_option(self) -> bool:
        """Whether it begins with a dash."""
        return self.names[0].startswith("-")

    @property
    def flag(self) -> str:
        """The long name of an option, else its first name."""
        return next((each for each in self.names if each.startswith("--")), self.names[0])

    @property
    def name(self) -> str:
        """The name of its value."""
        return str(self.options.get("dest") or self.flag.lstrip("-").replace("-", "_"))


@dataclass(slots=True)
class Program:
    """What the source says about one command line."""

    description: str = ""
    arguments: list[Argument] = field(default_factory=list)
    commands: list[str] = field(default_factory=list)  # of subparsers, in order
    required_groups: set[int] = field(default_factory=set)
    line: int = 0
    function: str = ""  # in which the parser is made


def read_program(source: str, subject: str, function: str = "") -> Program:
    """Find the calls of argparse in a program. Raise `UsageError`.

    Args:
        source: The program.
        subject: Its file, as errors name it.
        function: The function that starts it, "" if that is unknown; it chooses among several parsers.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise UsageError("no-usage", "it is not a Python program", subject=subject) from None
    found = _Reader()
    found.visit(tree)
    program = found.choose(subject, function)
    if not program.arguments:
        message = "the program has no add_argument with literal names"
        raise UsageError("no-usage", message, subject=subject)
    program.description = program.description or (ast.get_docstring(tree) or "").strip()
    return program


class _Reader(ast.NodeVisitor):
    """Follow the names to which parsers and groups are assigned.

    `_programs` has one entry for each parser that is made; the first is that of unknown names, such as the parameters of functions.
    """

    def __init__(self) -> None:
        self._programs = [Program()]
        self._parsers: dict[
            str, tuple[int, str]
        ] = {}  # of variables: the number of the program, and the command
        self._groups: dict[str, int] = {}
        self._count = 0
        self._required: set[int] = set()
        self._parents: list[
            tuple[int, str, int]
        ] = []  # a program and its command, and the parser whose arguments it has, too
        self._function = ""

    def choose(self, subject: str, function: str) -> Program:
        """Return the only command line; raise `UsageError` for a source of several programs."""
        parents = {parent for _, _, parent in self._parents}
        numbers = [
            number
            for number, each in enumerate(self._programs)
            if number and number not in parents and (each.arguments or each.commands)
        ]
        numbers = [each for each in numbers if self._programs[each].function == function] or numbers
        if len(numbers) > 1:
            lines = ", ".join(str(self._programs[each].line) for each in numbers)
            raise UsageError(
                "no-usage",
                f"it makes several parsers, of different programs (lines {lines})",
                subject=subject,
                hint="Copy the program that you need, with its parser, into a file of its own.",
            )
        unknown = self._programs[0]
        if not numbers:
            return unknown
        chosen = self._programs[numbers[0]]
        chosen.arguments = sorted([*unknown.arguments, *chosen.arguments], key=lambda each: each.line)
        chosen.commands += unknown.commands
        chosen.arguments = [*self._inherited(numbers[0]), *chosen.arguments]
        chosen.required_groups = self._required
        return chosen

    def _inherited(self, number: int) -> list[Argument]:
        """Return the arguments of the parents of a program and of its commands; a parent is made before, so that this ends."""
        found: list[Argument] = []
        for child, command, parent in self._parents:
            if child == number and parent < len(self._programs):
                theirs = (
                    [*self._inherited(parent), *self._programs[parent].arguments] if parent != number else []
                )
                found += [replace(each, parser=command or each.parser) for each in theirs]
        return found

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """Forget the parsers that a parameter hides."""
        before = dict(self._parsers), dict(self._groups), self._function
        for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
            self._parsers.pop(each.arg, None)
            self._groups.pop(each.arg, None)
        self._function = node.name
        self.generic_visit(node)
        self._parsers, self._groups, self._function = before

    def visit_Assign(self, node: ast.Assign) -> None:
        """Remember what a variable holds."""
        if isinstance(node.value, ast.Call) and len(node.targets) == 1:
            self._assign(ast.unparse(node.targets[0]), node.value)
        self.generic_visit(node)

    def _assign(self, name: str, call: ast.Call) -> None:
        method, owner = _method(call)
        number, _ = owned = self._parsers.get(owner, (0, ""))
        self._parsers.pop(name, None)
        self._groups.pop(name, None)
        if method.endswith("ArgumentParser"):
            self._programs.append(Program(_description(call), line=call.lineno, function=self._function))
            self._parsers[name] = len(self._programs) - 1, ""
            self._add_parents(call, *self._parsers[name])
        elif method == "add_subparsers":
            self._parsers[name] = number, ""
        elif method == "add_parser" and (command := _literal(call.args[0]) if call.args else None):
            self._parsers[name] = number, str(command)
        elif method in {"add_argument_group", "add_mutually_exclusive_group"}:
            self._parsers[name] = owned
            if owner in self._groups:
                self._groups[name] = self._groups[owner]
            if method == "add_mutually_exclusive_group":
                self._count += 1
                self._groups[name] = self._count
                if any(each.arg == "required" and _literal(each.value) is True for each in call.keywords):
                    self._required.add(self._count)

    def _add_parents(self, call: ast.Call, number: int, command: str) -> None:
        for each in call.keywords:
            if each.arg == "parents" and isinstance(each.value, ast.List | ast.Tuple):
                names = [ast.unparse(one) for one in each.value.elts]
                known = [self._parsers[name][0] for name in names if name in self._parsers]
                self._parents += [(number, command, parent) for parent in known]

    def visit_Call(self, node: ast.Call) -> None:
        """Note arguments and commands."""
        method, owner = _method(node)
        number, _ = self._parsers.get(owner, (0, ""))
        if method == "add_parser" and node.args and isinstance(name := _literal(node.args[0]), str):
            self._programs[number].commands.append(name)
            self._add_parents(node, number, name)
        elif method == "add_argument":
            self._add(node, owner)
        self.generic_visit(node)

    def _add(self, node: ast.Call, owner: str) -> None:
        names = [_literal(each) for each in node.args]
        if not names or not all(isinstance(each, str) and each for each in names):
            return
        options, computed = {}, set()
        for each in node.keywords:
            value = _name_of_type(each.value) if each.arg in {"type", "action"} else _literal(each.value)
            if each.arg is None or value is _MISSING:
                computed.add(each.arg or "**")
            else:
                options[each.arg] = value
        number, command = self._parsers.get(owner, (0, ""))
        named, group = tuple(map(str, names)), self._groups.get(owner)
        self._programs[number].arguments.append(
            Argument(named, options, frozenset(computed), node.lineno, command, group)
        )


def _description(call: ast.Call) -> str:
    """Return the description that a call gives to its parser, "" without a literal one."""
    texts = [_literal(each.value) for each in call.keywords if each.arg == "description"]
    return texts[0].strip() if texts and isinstance(texts[0], str) else ""


def _method(call: ast.Call) -> tuple[str, str]:
    """Return the name of what is called, and the text of what it belongs to."""
    if isinstance(call.func, ast.Attribute):
        return call.func.attr, ast.unparse(call.func.value)
    return (call.func.id, "") if isinstance(call.func, ast.Name) else ("", "")


def _literal(node: ast.expr) -> Any:
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return _MISSING


def _name_of_type(node: ast.expr) -> Any:
    """Return the text of a type or an action: `int`, `FileType('r')`, 'store_true'."""
    value = _literal(node)
    return value if isinstance(value, str) else ast.unparse(node)


def convert_argparse(
    program: Program, source: str, subject: str, *, name: str, version: str, command: str
) -> Conversion:
    """Make a descriptor.

    Args:
        program: What the source says.
        source: The source.
        subject: The file, as errors name it.
        name: The name of the pipeline.
        version: The version of the tool.
        command: What starts the tool, as text for a shell.
    """
    draft = Draft(words=[command])
    add_arguments(draft, Identifiers(source), program)
    draft.note("output-files", "the source does not say what the tool writes: add them")
    return draft.finish(name, version, program.description, subject)


def add_arguments(draft: Draft, identifiers: Identifiers, program: Program) -> dict[str, dict[str, Any]]:
    """Add an input for each argument, and the groups; return the inputs by their names."""
    return _Inputs(draft, identifiers, program).add_all()


class _Inputs:
    """The inputs of a program: the main parser's, then a command and the arguments of the commands."""

    def __init__(self, draft: Draft, identifiers: Identifiers, program: Program) -> None:
        self._draft = draft
        self._identifiers = identifiers
        self._program = program
        self._made: dict[str, dict[str, Any]] = {}
        self._groups: dict[int, list[str]] = {}

    def add_all(self) -> dict[str, dict[str, Any]]:
        """Add all, in an order that argparse understands."""
        own = [each for each in self._program.arguments if not each.parser]
        options = [each for each in own if each.is_option]
        positional = [each for each in own if not each.is_option]
        # a list of values ends only at the next option, so positional arguments come first; a command ends them, too
        for each in [*options, *positional] if self._program.commands else [*positional, *options]:
            self._add(each)
        if self._program.commands:
            self._add_commands()
        self._add_groups()
        return self._made

    def _add_groups(self) -> None:
        for number, members in self._groups.items():
            group: dict[str, Any] = {
                "id": self._identifiers.new_id(f"group_{number}"),
                "name": f"Group {number}",
                "members": members,
                "mutually-exclusive": True,
            }
            if number in self._program.required_groups:
                group["one-is-required"] = True
            if len(members) > 1:
                self._draft.groups.append(group)

    def _add_commands(self) -> None:
        """Add the command as an input whose values require and disable the arguments of the commands."""
        choices = list(dict.fromkeys(self._program.commands))
        command: dict[str, Any] = {"id": self._identifiers.new_id("command"), "name": "command"}
        command |= {"type": "String", "value-choices": choices}
        self._place(command)
        own: dict[str, list[str]] = {each: [] for each in choices}
        needed: dict[str, list[str]] = {each: [] for each in choices}
        for each in sorted(self._program.arguments, key=lambda each: each.is_option):
            if each.parser in own and (found := self._add(each)) is not None:
                own[each.parser].append(found["id"])
                if not found.get("optional"):
                    needed[each.parser].append(found["id"])
                    found["optional"] = True
                leave_default_to_tool(found)
        everything = [identifier for members in own.values() for identifier in members]
        if everything:
            command["value-requires"] = needed
            command["value-disables"] = {
                each: [one for one in everything if one not in own[each]] for each in choices
            }

    def _add(self, argument: Argument) -> dict[str, Any] | None:
        """Add the input of an argument; None for one that only shows something."""
        action = str(argument.options.get("action", "store"))
        if action in _SHOWN_ONLY:
            return None
        for each in sorted(argument.computed - {"help", "metavar"}):
            place = f"{argument.names[0]} (line {argument.line})"
            self._draft.note(place, f"its {each} is computed, and was left out")
        found: dict[str, Any] = {
            "id": self._identifiers.new_id(argument.name),
            "name": argument.name.replace("_", " "),
        }
        if isinstance(text := argument.options.get("help"), str) and text != "==SUPPRESS==":
            found["description"] = re.sub(r"%\(\w+\)[sdfr]", "...", text).strip() or argument.name
        if action in _FLAGS or "BooleanOptionalAction" in action:
            found |= {"type": "Flag", "command-line-flag": shlex.quote(argument.flag), "optional": True}
            if action in {"count", "append_const"}:
                message = "it may be repeated, but a flag of a descriptor is given once"
                self._draft.note(argument.flag, message)
        else:
            _set_value(self._draft, found, argument, action)
        if argument.group is not None:
            self._groups.setdefault(argument.group, []).append(found["id"])
            found["optional"] = True
        self._place(found)
        self._made[argument.name] = found
        return found

    def _place(self, made: dict[str, Any]) -> None:
        """Give an input its key, at the end of the command line."""
        made["value-key"] = self._identifiers.new_key(made["id"])
        self._draft.words.append(made["value-key"])
        self._draft.inputs.append(made)


def _set_value(draft: Draft, found: dict[str, Any], argument: Argument, action: str) -> None:
    options = argument.options
    found.update(_type_of(draft, argument))
    if argument.is_option:
        found["command-line-flag"] = shlex.quote(argument.flag)
    count = options.get("nargs")
    if action in {"append", "extend"} or count in {"*", "+"} or (isinstance(count, int) and count > 1):
        found["list"] = True
        if action == "append":
            found["list-separator"] = f" {found['command-line-flag']} "
        elif isinstance(count, int):
            found["min-list-entries"] = found["max-list-entries"] = count
        elif count == "+":
            found["min-list-entries"] = 1
    elif count not in {None, 1, "?"}:
        draft.note(argument.names[0], f"nargs={count} is not in a descriptor")
    is_required = options.get("required") is True if argument.is_option else count not in {"?", "*"}
    if not is_required:
        found["optional"] = True
    choices = options.get("choices")
    if isinstance(choices, list | tuple) and choices and found["type"] in {"String", "Number"}:
        found["value-choices"] = list(choices)
    _set_default(draft, found, argument)


def _set_default(draft: Draft, found: dict[str, Any], argument: Argument) -> None:
    default = argument.options.get("default")
    if default is None or default == "==SUPPRESS==":
        return
    values = default if isinstance(default, list | tuple) else [default]
    wanted = (int, float) if found["type"] == "Number" else str
    fits = all(isinstance(each, wanted) and not isinstance(each, bool) for each in values)
    choices = found.get("value-choices")
    is_choice = not choices or all(each in choices for each in values)
    if fits and is_choice and bool(found.get("list")) == isinstance(default, list | tuple) and values:
        found["default-value"] = list(values) if found.get("list") else default
    else:
        draft.note(argument.names[0], "its default does not fit its type, and was left out; the tool uses it")


def _type_of(draft: Draft, argument: Argument) -> Mapping[str, Any]:
    """Return the type in the descriptor, and whether it is an integer."""
    kind = str(argument.options.get("type", ""))
    if kind == "int":
        return {"type": "Number", "integer": True}
    if kind == "float":
        return {"type": "Number"}
    if kind.endswith(("FileType('r')", "FileType('rb')", "FileType()")):
        return {"type": "File"}
    if kind.partition("(")[0].endswith("FileType"):
        draft.note(argument.names[0], "the tool writes this file: add it to output-files")
        return {"type": "String"}
    signs = {
        "name": suggests_file(argument.name),
        "type": _PATH_TYPE.search(kind),
        "metavar": str(argument.options.get("metavar")) in _PATH_METAVARS,
    }
    sign = next((each for each, found in signs.items() if found), "")
    if sign and "out" not in argument.name.lower():
        message = f"its {sign} suggests a file that the tool reads; otherwise make it a String"
        draft.note(argument.names[0], message)
        return {"type": "File"}
    if kind not in {"", "str"} and not _PATH_TYPE.search(kind):
        draft.note(argument.names[0], f"its type {kind[:60]} is unknown: it is a String")
    elif _PATH_HELP.search(str(argument.options.get("help"))):
        draft.note(argument.names[0], "its help names a file or folder: make it a File if the tool reads it")
    return {"type": "String"}
