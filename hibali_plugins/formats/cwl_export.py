"""Describe a pipeline as a CWL CommandLineTool (Common Workflow Language v1.2, commonwl.org).

The command line becomes arguments and bound inputs in its order. One that needs a shell (`;`, `>`, quotes, variables) keeps its text, by the
ShellCommandRequirement. Paths that strip extensions, or use inputs that may be absent, become JavaScript. What CWL cannot say is named.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from hibali_plugins.formats.conversion import Conversion, ConversionError
from registry.command_line import Key, split_template
from registry.images.record import wanted_name
from registry.pipeline import Container, Input, OutputFile, Pipeline
from registry.problems import Problem

_PLAIN = re.compile(r"[A-Za-z0-9_./:=@%+,-]*")  # that a shell leaves unchanged
_SYMBOL = re.compile(r"[A-Za-z0-9_.+-]+")
_MIB_PER_GB = 1e9 / 2**20
_OPERATORS = ";<>|&()"
_FILE = ["File", "Directory"]
_UNCARRIED_OF_INPUT = (
    ("minimum", "limits of a number"),
    ("maximum", "limits of a number"),
    ("minimum_entries", "numbers of entries"),
    ("maximum_entries", "numbers of entries"),
    ("requires", "inputs that it requires"),
    ("disables", "inputs that it disables"),
    ("value_requires", "inputs that a value requires"),
    ("value_disables", "inputs that a value disables"),
)
_METADATA = (
    "author",
    "url",
    "descriptor-url",
    "doi",
    "tool-doi",
    "tags",
    "tests",
    "online-platform-urls",
    "deprecated-by-doi",
    "invocation-schema",
    "custom",
)


def export_cwl(pipeline: Pipeline) -> Conversion:
    """Return the CWL document. Raise `ConversionError` for a command line that CWL cannot express."""
    return _CwlWriter(pipeline).write()


@dataclass(slots=True)
class _Rendered:
    """One line of text: with references, and as JavaScript; `conditions` are those under which it is not empty."""

    text: str = ""
    script: list[str] = field(default_factory=list)
    conditions: list[str] = field(default_factory=list)
    computed: bool = False

    def add(self, text: str, script: str, *, computed: bool = False) -> None:
        """Add a piece."""
        self.text += text
        self.script.append(script)
        self.computed = self.computed or computed

    def expression(self) -> str:
        """Return the line as JavaScript."""
        joined = " + ".join(self.script) or '""'
        return f'({" && ".join(self.conditions)} ? {joined} : "")' if self.conditions else joined


class _CwlWriter:
    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._notes: list[Problem] = []
        self._problems: list[Problem] = []
        self._bindings: dict[str, dict[str, Any]] = {}
        self._requirements: dict[str, Any] = {}

    def write(self) -> Conversion:
        pipeline = self._pipeline
        arguments = self._write_arguments()
        inputs = {each.id: self._write_input(each) for each in pipeline.inputs}
        outputs = {each.id: self._write_output(each) for each in pipeline.outputs if not each.file_template}
        self._write_files()
        self._write_environment()
        hints = self._write_hints()
        self._note_rest()
        if self._problems:
            raise ConversionError(self._problems, subject=pipeline.reference)
        document: dict[str, Any] = {
            "cwlVersion": "v1.2",
            "class": "CommandLineTool",
            "label": f"{pipeline.document['name']} {pipeline.document['tool-version']}",
            "doc": str(pipeline.document["description"]),
            "arguments": arguments,
            "inputs": inputs,
            "outputs": outputs,
        }
        if self._requirements:
            document["requirements"] = self._requirements
        if hints:
            document["hints"] = hints
        return Conversion(document, tuple(dict.fromkeys(self._notes)))

    # The command line

    def _write_arguments(self) -> list[dict[str, Any]]:
        """Return the arguments, with positions; inputs that are words of their own get theirs."""
        words = list(_words(self._pipeline))
        literals = [piece for word in words for piece in word if isinstance(piece, str)]
        if not all(_PLAIN.fullmatch(each) for each in literals):
            self._requirements["ShellCommandRequirement"] = {}
        arguments: list[dict[str, Any]] = []
        for position, word in enumerate(words, start=1):
            owners = self._owners(word[0]) if len(word) == 1 and isinstance(word[0], Key) else []
            inputs = [each for each in owners if isinstance(each, Input)]
            if inputs and not any(each.id in self._bindings for each in inputs):
                for each in inputs:
                    self._bind(each, position)
            elif owners and not inputs:
                arguments += [self._output_argument(each, position) for each in owners]
            else:
                arguments.append(self._mixed_argument(word, position))
        return arguments

    def _owners(self, key: Key) -> list[Any]:
        found: list[Input | OutputFile] = [
            each for each in self._pipeline.inputs if each.value_key == key.text
        ]
        return found or [each for each in self._pipeline.outputs if each.value_key == key.text]

    def _bind(self, owner: Input, position: int) -> None:
        """Bind an input to its place."""
        if not _PLAIN.fullmatch(owner.flag):
            self._problems.append(Problem(f"input {owner.id}", "its flag has characters for the shell"))
        binding: dict[str, Any] = {"position": position}
        if owner.flag:
            separated = owner.kind == "Flag" or owner.flag_separator == " "
            binding["prefix"] = owner.flag + ("" if separated else owner.flag_separator)
            if not separated:
                binding["separate"] = False
        if owner.is_list and owner.list_separator != " ":
            binding["itemSeparator"] = owner.list_separator
        elif owner.is_list and binding.get("separate") is False:
            self._problems.append(
                Problem(f"input {owner.id}", "its flag is joined to a list with separate entries")
            )
        self._bindings[owner.id] = binding

    def _output_argument(self, owner: OutputFile, position: int) -> dict[str, Any]:
        found: dict[str, Any] = {"position": position, "valueFrom": self._path(owner)}
        if owner.flag:
            separated = owner.flag_separator == " "
            found["prefix"] = owner.flag + ("" if separated else owner.flag_separator)
            found["separate"] = separated
        return found

    def _mixed_argument(self, word: list[str | Key], position: int) -> dict[str, Any]:
        """Return a word that has text of the author; with characters for the shell it is passed to it as it is."""
        is_plain = all(_PLAIN.fullmatch(piece) for piece in word if isinstance(piece, str))
        pieces = []
        for piece in word:
            if isinstance(piece, str):
                pieces.append(_escaped(piece))
                continue
            owner = self._owners(piece)[0]
            usable = isinstance(owner, Input) and not (owner.flag or owner.is_list)
            usable = usable and (not owner.optional or owner.default is not None)
            if not usable or not is_plain:
                kind = "input" if isinstance(owner, Input) else "output"
                message = "it is only a part of a word of the command line"
                self._problems.append(Problem(f"{kind} {owner.id}", message))
                continue
            attribute = ".path" if owner.kind == "File" else ""
            pieces.append(f"$(inputs[{json.dumps(owner.id)}]{attribute})")
        found: dict[str, Any] = {"position": position, "valueFrom": "".join(pieces)}
        return found if is_plain else {**found, "shellQuote": False}

    # Parameters

    def _write_input(self, owner: Input) -> dict[str, Any]:
        kind: Any
        if owner.kind == "Number":
            kind = "long" if owner.integer else "double"
        elif _is_enum(owner):
            kind = {"type": "enum", "symbols": [str(each) for each in owner.choices or ()]}
        else:
            kind = {"Flag": "boolean", "File": _FILE}.get(owner.kind, "string")
        if owner.is_list:
            kind = {"type": "array", "items": kind}
        types = kind if isinstance(kind, list) else [kind]
        found: dict[str, Any] = {"type": ["null", *types] if owner.optional else kind, "label": owner.name}
        if owner.description:
            found["doc"] = owner.description
        self._write_default(owner, found)
        if owner.id in self._bindings:
            found["inputBinding"] = self._bindings[owner.id]
        for name, what in _UNCARRIED_OF_INPUT:
            if getattr(owner, name):
                self._notes.append(Problem(f"input {owner.id}", f"{what} are not in CWL"))
        if owner.choices is not None and not _is_enum(owner):
            self._notes.append(Problem(f"input {owner.id}", "such choices are not in CWL"))
        return found

    def _write_default(self, owner: Input, found: dict[str, Any]) -> None:
        if owner.default is None:
            return
        if owner.kind == "File":
            message = "a default that is a file is not in CWL, where it would be relative to the document"
            self._notes.append(Problem(f"input {owner.id}", message))
            return
        found["default"] = owner.default

    def _write_output(self, owner: OutputFile) -> dict[str, Any]:
        kind: Any = {"type": "array", "items": _FILE} if owner.is_list else _FILE
        types = kind if isinstance(kind, list) else [kind]
        found: dict[str, Any] = {"type": ["null", *types] if owner.optional else kind, "label": owner.name}
        if owner.description:
            found["doc"] = owner.description
        found["outputBinding"] = {"glob": self._path(owner)}
        return found

    def _path(self, owner: OutputFile) -> str:
        """Return the path of an output, as text with references or as one expression."""
        if owner.conditions:
            self._problems.append(Problem(f"output {owner.id}", "a path with conditions is not in CWL"))
            return ""
        return self._expression([self._render(owner.path_template, owner, in_path=True)])

    def _render(self, template: str, output: OutputFile | None, *, in_path: bool) -> _Rendered:
        """Return a template with references, and as JavaScript."""
        stripped = output.stripped_extensions if output is not None else ()
        found = _Rendered()
        for piece in split_template(template, self._pipeline):
            if isinstance(piece, str):
                found.add(_escaped(piece), json.dumps(piece))
                continue
            owner = self._owners(piece)[0]
            if isinstance(owner, OutputFile):
                found.add(*self._part_of_path(owner))
                continue
            attribute = ("basename" if in_path else "path") if owner.kind == "File" else ""
            base = f"inputs[{json.dumps(owner.id)}]"
            script = _value(base, owner, attribute, stripped)
            if owner.optional and in_path:
                script = f"({base} === null ? {json.dumps(piece.text)} : {script})"
            elif owner.optional:
                found.conditions.append(f"{base} !== null")
            needed = bool(stripped) or owner.optional or owner.is_list
            found.add(f"$({base}{'.' + attribute if attribute else ''})", script, computed=needed)
        return found

    def _part_of_path(self, owner: OutputFile) -> tuple[str, str]:
        if owner.conditions or any(
            isinstance(each, Key) for each in split_template(owner.path_template, self._pipeline)
        ):
            message = "its path is a part of another text, which is not in CWL"
            self._problems.append(Problem(f"output {owner.id}", message))
        return _escaped(owner.path_template), json.dumps(owner.path_template)

    def _expression(self, lines: list[_Rendered]) -> str:
        """Return lines as text if they have references only, else as one expression."""
        if not any(each.computed for each in lines):
            return "\n".join(each.text for each in lines)
        self._requirements["InlineJavascriptRequirement"] = {}
        return "${ return [" + ", ".join(each.expression() for each in lines) + '].join("\\n"); }'

    # Requirements

    def _write_files(self) -> None:
        """Write configuration files; a line that names an absent input is empty, as in the reference."""
        listing = []
        for each in self._pipeline.outputs:
            if each.file_template:
                lines = [self._render(line, each, in_path=False) for line in each.file_template]
                listing.append({"entryname": self._path(each), "entry": self._expression(lines)})
        if listing:
            self._requirements["InitialWorkDirRequirement"] = {"listing": listing}

    def _write_environment(self) -> None:
        variables = {}
        for each in self._pipeline.environment:
            rendered = self._render(each.value, None, in_path=False)
            if rendered.conditions:
                message = "it is empty instead of unset when the input has no value"
                self._notes.append(Problem(f"environment variable {each.name}", message))
            variables[each.name] = self._expression([rendered])
        if variables:
            self._requirements["EnvVarRequirement"] = {"envDef": variables}

    def _write_hints(self) -> dict[str, Any]:
        hints: dict[str, Any] = {}
        if self._pipeline.container is not None:
            hints.update(self._image(self._pipeline.container))
        suggested = self._pipeline.resources
        resources: dict[str, Any] = {}
        if suggested.cpu_cores is not None:
            resources["coresMin"] = suggested.cpu_cores
        if suggested.ram_gigabytes is not None:
            resources["ramMin"] = math.ceil(suggested.ram_gigabytes * _MIB_PER_GB)
        if suggested.disk_gigabytes is not None:
            resources["outdirMin"] = math.ceil(suggested.disk_gigabytes * _MIB_PER_GB)
        if resources:
            hints["ResourceRequirement"] = resources
        if suggested.walltime_seconds is not None:
            hints["ToolTimeLimit"] = {"timelimit": math.ceil(suggested.walltime_seconds)}
        for name in ("nodes", "tasks", "gpus"):
            if getattr(suggested, name) is not None:
                self._notes.append(Problem("suggested-resources", f"the number of {name} is not in CWL"))
        return hints

    def _image(self, container: Container) -> dict[str, Any]:
        path = "container-image"
        for value, what in (
            (container.hash, "the hash of the image is"),
            (container.working_directory, "the working directory is"),
            (container.options, "options of the container are"),
        ):
            if value:
                self._notes.append(Problem(path, f"{what} not in CWL"))
        if container.kind == "rootfs":
            return {"DockerRequirement": {"dockerImport": container.url}}
        image = wanted_name(container)
        if not image:
            self._notes.append(Problem(path, "an image that Docker cannot pull is not in CWL"))
            return {}
        return {"DockerRequirement": {"dockerPull": image}}

    def _note_rest(self) -> None:
        """Name what CWL has no place for."""
        document: Mapping[str, Any] = self._pipeline.document
        for group in self._pipeline.groups:
            self._notes.append(Problem(f"group {group.id}", "groups of inputs are not in CWL"))
        if self._pipeline.error_codes:
            self._notes.append(Problem("error-codes", "descriptions of exit codes are not in CWL"))
        if str(document.get("shell", "/bin/sh")) != "/bin/sh":
            self._notes.append(Problem("shell", "CWL always uses /bin/sh"))
        for key in _METADATA:
            if key in document:
                self._notes.append(Problem(key, "this is not in CWL"))


def _is_enum(owner: Input) -> bool:
    """Return whether the choices can be symbols, which are parts of URIs."""
    choices = owner.choices
    return (
        owner.kind == "String"
        and bool(choices)
        and all(_SYMBOL.fullmatch(str(each)) for each in choices or ())
    )


def _words(pipeline: Pipeline) -> Iterator[list[str | Key]]:
    """Split the command line at blanks outside quotes, each word into text and keys; an operator ends a word at a key, as in `>[OUT];`."""
    word: list[str | Key] = []
    quote = ""
    for piece in split_template(pipeline.command_template, pipeline):
        if isinstance(piece, Key):
            if word and isinstance(word[-1], str) and word[-1][-1] in _OPERATORS and not quote:
                yield word
                word = []
            word.append(piece)
            continue
        if word and isinstance(word[-1], Key) and piece[0] in _OPERATORS and not quote:
            yield word
            word = []
        texts, quote = _split_text(piece, quote)
        for number, text in enumerate(texts):
            if number and word:
                yield word
                word = []
            if text:
                word.append(text)
    if word:
        yield word


def _split_text(piece: str, quote: str) -> tuple[list[str], str]:
    """Split text at blanks outside quotes; also return the quote that is open after it."""
    texts = [""]
    escaped = False
    for character in piece:
        if character.isspace() and not quote and not escaped:
            texts.append("")
            continue
        if character in "'\"" and quote in {"", character} and not escaped:
            quote = "" if quote else character
        texts[-1] += character
        escaped = character == "\\" and quote != "'" and not escaped
    return texts, quote


def _value(base: str, owner: Input, attribute: str, stripped: tuple[str, ...]) -> str:
    """Return a value in JavaScript, as text without the extensions."""
    if owner.is_list:
        entry = f"function(each) {{ return each.{attribute}; }}" if attribute else "String"
        value = f"{base}.map({entry}).join({json.dumps(owner.list_separator)})"
    else:
        value = f"{base}.{attribute}" if attribute else f"String({base})"
    if owner.kind in {"File", "String"}:
        value += "".join(f'.split({json.dumps(each)}).join("")' for each in stripped if each)
    return value


def _escaped(text: str) -> str:
    """Return text in which nothing is a reference."""
    return text.replace("$(", r"\$(").replace("${", r"\${")
