"""Make a descriptor of a CWL CommandLineTool.

Source: Common Workflow Language, Command Line Tool Description, v1.0 to v1.2 (commonwl.org). JavaScript is never evaluated: simple
expressions become shell text (`cwl_expressions`), optional inputs that depend on others are left out, and anything else is refused.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from hibali_plugins.formats.conversion import Conversion, ConversionError, Draft, Identifiers
from hibali_plugins.formats.cwl_document import NUMBERS, ParameterType, read_entries, read_type, text_of
from hibali_plugins.formats.cwl_expressions import ShellValues, UnknownExpressionError, split_expressions
from registry.problems import Problem

VERSIONS = ("v1.0", "v1.1", "v1.2")
_MIB_PER_GB = 1e9 / 2**20
_USED = re.compile(r"""\binputs(?:\.([\w-]+)|\[["']([^"'\]]+)["']\])""")
_TERM = re.compile(r"""\s*("[^"\\]*"|'[^'\\]*'|[^"'+?]+)\s*(\+|$)""")
_REFERENCE = re.compile(
    r"""inputs(?:\.([A-Za-z_][A-Za-z0-9_-]*)|\[["']([^"'\]]+)["']\])(?:\.(path|basename|nameroot|nameext|location))?"""
)
_IGNORED = {"class", "cwlVersion", "inputs", "outputs", "baseCommand", "arguments", "stdin", "stdout"}
_IGNORED |= {"stderr", "requirements", "hints", "doc", "label", "id", "$namespaces", "$schemas"}
_NO_EFFECT = {"InlineJavascriptRequirement", "ShellCommandRequirement", "LoadListingRequirement"}
_NO_EFFECT |= {"SchemaDefRequirement", "InplaceUpdateRequirement"}  # what uses them is refused itself
_LOST = {
    "SoftwareRequirement": "the packages that the tool needs",
    "NetworkAccess": "whether the tool needs the network",
    "WorkReuse": "whether results may be used again",
}
_Mode = Literal["shell", "raw", "path", "data"]
_KEYS_OF_INPUT = {"type", "inputBinding", "default", "doc", "label", "id", "name"}
_KEYS_OF_OUTPUT = {"type", "outputBinding", "doc", "label", "id", "name"}


_MOST_TERMS, _LONGEST_NAME = 50, 1000  # of an expression for the name of an output


def convert_cwl(document: Any, source: str, subject: str, *, name: str, version: str) -> Conversion:
    """Make a descriptor.

    Args:
        document: The parsed document.
        source: Its text.
        subject: The file, as errors name it.
        name: The name, if the tool has no label.
        version: The version of the tool, which CWL does not have.

    Raises:
        ConversionError: With every part that cannot be converted and changes how the tool runs.
    """
    if not isinstance(document, dict) or document.get("class") != "CommandLineTool":
        found = document.get("class", "nothing") if isinstance(document, dict) else "nothing"
        message = (
            f"only a CommandLineTool can be converted, not {'$graph' if _has_graph(document) else found}"
        )
        raise ConversionError([Problem("class", message)], subject=subject)
    if document.get("cwlVersion") not in VERSIONS:
        message = f"must be one of {', '.join(VERSIONS)}"
        raise ConversionError([Problem("cwlVersion", message)], subject=subject)
    try:
        return _CwlTool(document, source).convert(subject, name, version)
    except RecursionError:
        raise ConversionError([Problem("", "its parts are nested too deeply")], subject=subject) from None


def _has_graph(document: Any) -> bool:
    return isinstance(document, dict) and "$graph" in document


class _CwlTool:
    """One tool: its parameters become inputs first, then bindings and arguments the command line."""

    def __init__(self, document: dict[str, Any], source: str) -> None:
        self._document = dict(document)
        self._draft = Draft()
        self._identifiers = Identifiers(source)
        self._inputs: dict[str, dict[str, Any]] = {}  # by CWL's ids
        self._types: dict[str, ParameterType] = {}
        self._more: dict[str, Any] = {}
        self._requirements = dict(self._read_requirements())
        self._shell = "ShellCommandRequirement" in self._requirements
        self._left_out: set[str] = set()  # optional inputs
        self._staged: set[str] = set()  # inputs that are put into the work folder
        self._values = ShellValues(self._variable, self._runtime(), self._library())
        self._used = set(self._find_used())

    def _library(self) -> str:
        record, _ = self._requirements.get("InlineJavascriptRequirement", ({}, False))
        return text_of(record.get("expressionLib"))

    def _runtime(self) -> dict[str, str]:
        record, _ = self._requirements.get("ResourceRequirement", ({}, False))
        cores = record.get("coresMin", 1)
        return {
            "cores": str(cores) if isinstance(cores, int) else "1",
            "tmpdir": '"${TMPDIR:-/tmp}"',
            "outdir": ".",
        }

    def _find_used(self) -> Iterator[str]:
        """Yield the inputs that other parts of the command line use."""
        bindings = dict(read_entries(self._document.get("inputs"), "type"))
        for identifier, record in bindings.items():
            binding = record.get("inputBinding")
            if isinstance(binding, dict) and "valueFrom" in binding:
                yield identifier
                yield from _names_in(str(binding["valueFrom"]))
        parts = [self._document.get(key) for key in ("arguments", "stdin", "stdout", "stderr")]
        staged, _ = self._requirements.get("InitialWorkDirRequirement", ({}, False))
        yield from _names_in(f"{parts} {dict(staged)} {self._library()}")

    def convert(self, subject: str, name: str, version: str) -> Conversion:
        parameters = dict(read_entries(self._document.get("inputs"), "type"))
        for identifier, record in parameters.items():
            self._add_input(identifier, record)
        for _, is_link, entry, place in self._listed():
            if is_link:
                self._stage(entry, place)
        self._write_command(parameters)
        for identifier, record in read_entries(self._document.get("outputs"), "type"):
            self._add_output(identifier, record)
        self._redirect()
        for kind, (record, is_hint) in self._requirements.items():
            self._convert_requirement(kind, record, is_hint=is_hint)
        for key in self._document:
            if key not in _IGNORED:
                self._draft.note(str(key), "a descriptor has no such key")
        self._draft.words[:0] = self._values.lines
        title = text_of(self._document.get("label")) or text_of(self._document.get("id")).strip("#") or name
        description = text_of(self._document.get("doc"))
        return self._draft.finish(title, version, description, subject, self._more)

    # Inputs

    def _add_input(self, identifier: str, record: Mapping[str, Any]) -> None:
        path = f"inputs.{identifier}"
        found = read_type(record.get("type"))
        self._types[identifier] = found
        made: dict[str, Any] = {"id": self._identifiers.new_id(identifier)}
        if made["id"] != identifier:
            self._draft.note(path, f"its id becomes {made['id']}")
        made["name"] = text_of(record.get("label")) or identifier
        if description := text_of(record.get("doc")):
            made["description"] = description
        self._inputs[identifier] = made
        if found.name is None and (found.optional or "default" in record):
            self._leave_out(identifier, path, "a descriptor has no such type")
            return
        if found.name is None:
            self._draft.refuse(path, "a descriptor has no such type")
            return
        self._set_type(made, found)
        if found.optional or found.name == "boolean":
            made["optional"] = True
        self._set_default(identifier, made, record, path)
        for key in record:
            if key not in _KEYS_OF_INPUT:
                message = (
                    "files beside the input are not staged"
                    if key == "secondaryFiles"
                    else "a descriptor has no such key"
                )
                self._draft.note(f"{path}.{key}", message)
        self._draft.inputs.append(made)

    def _set_type(self, made: dict[str, Any], found: ParameterType) -> None:
        if found.name in {"File", "Directory", "stdin"}:
            made["type"] = "File"
        elif found.name in NUMBERS:
            made["type"] = "Number"
            if NUMBERS[found.name]:
                made["integer"] = True
        else:
            made["type"] = "Flag" if found.name == "boolean" else "String"
        if found.symbols:
            made["value-choices"] = list(found.symbols)
        if found.array:
            made["list"] = True

    def _set_default(
        self, identifier: str, made: dict[str, Any], record: Mapping[str, Any], path: str
    ) -> None:
        default = record.get("default")
        if default is None:
            return
        if isinstance(default, dict) or (isinstance(default, list) and made["type"] == "File"):
            self._draft.note(f"{path}.default", "the default is a file, which is not in the descriptor")
            made["optional"] = True
        elif default == "" and identifier in self._used:
            made["optional"] = True
        else:
            made["default-value"] = default

    def _leave_out(self, identifier: str, path: str, because: str) -> None:
        """Leave out an optional input: the tool runs as if it were not given. Refuse one that other parts use already."""
        made = self._inputs[identifier]
        if "value-key" in made:
            self._draft.refuse(path, because)
            return
        self._left_out.add(identifier)
        self._draft.note(path, f"the optional input is left out: {because}")
        if made in self._draft.inputs:
            self._draft.inputs.remove(made)

    def _variable(self, identifier: str) -> str:
        """Return the shell variable of an input's value; raise `UnknownExpressionError`."""
        made = self._inputs.get(identifier)
        if made is None or made.get("list"):
            raise UnknownExpressionError(identifier)
        name = f"in_{made['id']}"
        if identifier in self._left_out:
            line = f"{name}=;"
        else:
            if made.get("type") == "Flag":
                made.setdefault("command-line-flag", "true")
            elif "command-line-flag" in made or "type" not in made:
                raise UnknownExpressionError(identifier)
            line = f"{name}={self._key(identifier)};"
        if line not in self._values.lines:
            self._values.lines.append(line)
        return name

    # The command line

    def _write_command(self, parameters: Mapping[str, Mapping[str, Any]]) -> None:
        """Write the words in CWL's order: by position, of the same position arguments in theirs and inputs by their ids."""
        base = self._document.get("baseCommand", [])
        for each in base if isinstance(base, list) else [base]:
            self._draft.words.append(shlex.quote(str(each)))
        placed: list[tuple[Any, int, Any, list[str]]] = []
        arguments = self._document.get("arguments") or []
        for number, argument in enumerate(arguments if isinstance(arguments, list) else [arguments]):
            record = argument if isinstance(argument, dict) else {"valueFrom": argument}
            path = f"arguments[{number}]"
            placed.append((self._position(record, path), 0, number, self._argument(record, path)))
        for identifier, parameter in parameters.items():
            binding = parameter.get("inputBinding")
            if (
                isinstance(binding, dict)
                and self._types[identifier].name
                and identifier not in self._left_out
            ):
                path = f"inputs.{identifier}.inputBinding"
                words = self._bound(identifier, binding, path)
                placed.append((self._position(binding, path), 1, identifier, words))
        for _, _, _, words in sorted(placed, key=lambda each: each[:3]):
            self._draft.words += words
        if not self._draft.words:
            self._draft.refuse("baseCommand", "the tool has no command")
        self._drop_unbound()

    def _position(self, record: Mapping[str, Any], path: str) -> int:
        found = record.get("position", 0)
        if isinstance(found, int):
            return found
        self._draft.refuse(f"{path}.position", "an expression cannot be converted")
        return 0

    def _argument(self, record: Mapping[str, Any], path: str) -> list[str]:
        quote = not (self._shell and record.get("shellQuote") is False)
        written = text_of(record.get("valueFrom"))
        parts = list(split_expressions(written.strip()))
        text = self._expand(written, f"{path}.valueFrom", mode="shell" if quote else "raw")
        if [each for _, each in parts] == [True] and not _is_reference(parts[0][0]):
            return [_if_given(self._values.new(f"\0={text};"), record)]  # it may be null
        prefix = text_of(record.get("prefix"))
        written = shlex.quote(prefix) if prefix and quote else prefix
        if not prefix:
            return [text]
        return [written + text] if record.get("separate") is False else [written, text]

    def _bound(self, identifier: str, binding: Mapping[str, Any], path: str) -> list[str]:
        """Bind an input to its place in the command line."""
        made, found = self._inputs[identifier], self._types[identifier]
        if "valueFrom" in binding:
            return self._computed(identifier, binding, path)
        if binding.get("loadContents"):
            self._draft.refuse(f"{path}.loadContents", "the content of a file cannot be a value")
        prefix = text_of(binding.get("prefix"))
        if found.name == "boolean":
            if not prefix:
                return []  # CWL: nothing is added
            made["command-line-flag"] = shlex.quote(prefix)
            return [self._key(identifier)]
        if not found.array and (identifier in self._staged or (prefix and identifier in self._used)):
            return [_if_given(self._variable(identifier), binding)]
        if prefix:
            made["command-line-flag"] = shlex.quote(prefix)
            if binding.get("separate") is False:
                made["command-line-flag-separator"] = ""
        if found.array:
            self._set_separator(made, found, binding, path)
        return [self._key(identifier)]

    def _computed(self, identifier: str, binding: Mapping[str, Any], path: str) -> list[str]:
        """Bind a value that is computed from an input: nothing if the input is not given, unless its default is empty text."""
        made = self._inputs[identifier]
        text = text_of(binding["valueFrom"]).strip()
        has_default = (
            dict(read_entries(self._document.get("inputs"), "type"))[identifier].get("default") == ""
        )
        lines = list(self._values.lines)
        try:
            own = self._variable(identifier)
            word = "".join(
                self._values.translate(part, identifier) if is_expression else shlex.quote(part)
                for part, is_expression in split_expressions(text)
            )
        except UnknownExpressionError:
            self._values.lines[:] = lines
            if made.get("optional") and not has_default:
                if f"in_{made['id']}=" not in "".join(lines):
                    made.pop("value-key", None)
                self._leave_out(identifier, path, "its value is computed")
            else:
                self._draft.refuse(f"{path}.valueFrom", "a value that is computed cannot be converted")
            return []
        given = f'if [ -n "${own}" ]; then \0={word}; else \0=; fi;'
        return [_if_given(self._values.new(f"\0={word};" if has_default else given), binding)]

    def _set_separator(
        self, made: dict[str, Any], found: ParameterType, binding: Mapping[str, Any], path: str
    ) -> None:
        separator = binding.get("itemSeparator")
        items = found.items_binding or {}
        if separator is not None:
            made["list-separator"] = text_of(separator)
        if items and (made.get("command-line-flag") or separator is not None or not items.get("prefix")):
            self._draft.refuse(path, "bindings of both the list and its items cannot be converted")
        elif items:
            prefix = shlex.quote(text_of(items["prefix"]))
            joined = "" if items.get("separate") is False else " "
            made["command-line-flag"], made["command-line-flag-separator"] = prefix, joined
            made["list-separator"] = f" {prefix}{joined}"
        elif made.get("command-line-flag-separator") == "" and separator is None:
            self._draft.refuse(
                f"{path}.separate", "a prefix joined to each value of a list cannot be converted"
            )

    def _key(self, identifier: str) -> str:
        made = self._inputs[identifier]
        if "value-key" not in made:
            made["value-key"] = self._identifiers.new_key(made["id"])
        return str(made["value-key"])

    def _drop_unbound(self) -> None:
        """Leave out booleans that are not passed to the tool: a descriptor's flag needs its text."""
        for identifier, made in self._inputs.items():
            if made.get("type") == "Flag" and "command-line-flag" not in made:
                self._draft.note(
                    f"inputs.{identifier}", "a boolean without a prefix is not passed to the tool"
                )
                self._draft.inputs.remove(made)

    # References

    def _expand(self, text: str, path: str, *, mode: _Mode) -> str:
        """Replace references to inputs and expressions.

        Args:
            text: The text.
            path: Its place, as problems name it.
            mode: `shell` for words of the command line, `raw` for text that the shell interprets, `path` for the path of an output, `data`
                for anything else, where only references to inputs are possible.
        """
        pieces: list[str] = []
        for part, is_expression in split_expressions(text if mode == "data" else text.strip()):
            if is_expression:
                pieces.append(self._refer(part, path, mode=mode, first=not any(pieces)))
            else:
                pieces.append(shlex.quote(part) if mode == "shell" else part)
        joined = "".join(pieces)
        return joined or ("''" if mode == "shell" else "")

    def _refer(self, part: str, path: str, *, mode: _Mode, first: bool) -> str:
        inner = part[2:-1].strip()
        if inner == "runtime.outdir":
            return "."
        match = _REFERENCE.fullmatch(inner) if part[1] == "(" else None
        identifier = (match[1] or match[2]) if match else ""
        made = self._inputs.get(identifier, {})
        attribute = match[3] if match else None
        is_file, in_path = made.get("type") == "File", mode == "path"
        is_value = made.get("type") not in {None, "Flag"} and identifier not in self._left_out
        if is_value and (in_path or "command-line-flag" not in made):
            if is_file and in_path and attribute in {None, "path"}:
                self._draft.refuse(path, "the path of an input cannot be that of an output")
            is_path = attribute in {None, "path"} and not (identifier in self._staged and not in_path)
            if is_path or (attribute == "basename" and in_path):
                # at the beginning, a key is the whole path
                return (
                    f"./{self._key(identifier)}" if is_file and in_path and first else self._key(identifier)
                )
        if in_path:
            return self._pattern(inner if part[1] == "(" else "", path)
        unsafe = mode == "raw" and re.search(r"[|<>;&`]", inner)
        if mode != "data" and not unsafe:
            try:
                return self._values.translate(part)
            except UnknownExpressionError:
                pass
        self._draft.refuse(path, "an expression cannot be converted")
        return ""

    def _pattern(self, expression: str, path: str) -> str:
        """Return a pattern for the name of an output that is computed: its texts and values, and `*` for anything else."""
        pieces: list[str] = []
        terms = [(found[1].strip(), found.end()) for found in _TERM.finditer(expression[:_LONGEST_NAME])]
        if not terms or terms[-1][1] != len(expression) or len(terms) > _MOST_TERMS:
            terms = [("", 0)]
        for term, _ in terms:
            match = _REFERENCE.fullmatch(term)
            made = self._inputs.get((match[1] or match[2]) if match else "", {})
            if term[:1] in {"'", '"'}:
                pieces.append(term[1:-1])
            elif (
                match
                and match[3] is None
                and made.get("type") in {"String", "Number"}
                and made.get("list") is None
            ):
                pieces.append(self._key(match[1] or match[2]))
            elif pieces[-1:] != ["*"]:
                pieces.append("*")
        self._draft.note(path, "the computed part of its name is *, so that it may match more files")
        return "".join(pieces)

    # Outputs

    def _add_output(self, identifier: str, record: Mapping[str, Any]) -> None:
        path = f"outputs.{identifier}"
        found = read_type(record.get("type"))
        binding = record.get("outputBinding")
        binding = binding if isinstance(binding, dict) else {}
        if found.name in {"stdout", "stderr"}:
            name = text_of(self._document.get(found.name)) or f"{identifier}.{found.name}"
            self._document[found.name] = name
            self._make_output(identifier, record, self._expand(name, found.name, mode="path"), found)
        elif found.name in {"File", "Directory"}:
            globs = binding.get("glob")
            patterns = globs if isinstance(globs, list) else [globs]
            for each in patterns:
                if not isinstance(each, str) or not each:
                    self._draft.note(path, "an output without a glob is not in the descriptor")
                    continue
                template = self._expand(each, f"{path}.outputBinding.glob", mode="path")
                several = ParameterType(
                    found.name, optional=found.optional or len(patterns) > 1, array=found.array
                )
                self._make_output(identifier, record, template, several)
        else:
            self._draft.note(path, "a value that is no file is not an output of a descriptor")
        for key in record:
            if key not in _KEYS_OF_OUTPUT:
                self._draft.note(f"{path}.{key}", "a descriptor has no such key")
        for key in binding:
            if key != "glob":
                self._draft.note(f"{path}.outputBinding.{key}", "outputs are files as the tool wrote them")

    def _make_output(
        self, identifier: str, record: Mapping[str, Any], template: str, found: ParameterType
    ) -> None:
        made: dict[str, Any] = {
            "id": self._identifiers.new_id(identifier),
            "name": text_of(record.get("label")) or identifier,
            "path-template": template,
        }
        if description := text_of(record.get("doc")):
            made["description"] = description
        if found.array:
            made["list"] = True
        if found.optional:
            made["optional"] = True
        self._draft.outputs.append(made)

    def _redirect(self) -> None:
        for operator, key in (("<", "stdin"), (">", "stdout"), ("2>", "stderr")):
            if text := text_of(self._document.get(key)):
                self._draft.words += [operator, self._expand(text, key, mode="shell")]
        for identifier, found in self._types.items():
            if found.name == "stdin":
                self._draft.words += ["<", self._key(identifier)]

    # Requirements

    def _read_requirements(self) -> Iterator[tuple[str, tuple[Mapping[str, Any], bool]]]:
        for section in ("hints", "requirements"):
            for kind, record in read_entries(self._document.get(section), "class", key="class"):
                yield kind, (record, section == "hints")

    def _convert_requirement(self, kind: str, record: Mapping[str, Any], *, is_hint: bool) -> None:
        converters = {
            "DockerRequirement": self._convert_image,
            "EnvVarRequirement": self._convert_environment,
            "ResourceRequirement": self._convert_resources,
            "ToolTimeLimit": self._convert_time,
            "InitialWorkDirRequirement": self._convert_files,
        }
        section = "hints" if is_hint else "requirements"
        if kind in converters:
            converters[kind](record, f"{section}.{kind}")
        elif kind in _LOST or (is_hint and kind not in _NO_EFFECT):
            self._draft.note(f"{section}.{kind}", _LOST.get(kind, "a descriptor has no such hint"))
        elif kind not in _NO_EFFECT:
            self._draft.refuse(f"{section}.{kind}", "this requirement cannot be converted")

    def _convert_image(self, record: Mapping[str, Any], path: str) -> None:
        image = text_of(record.get("dockerPull"))
        if image:
            self._more["container-image"] = {"type": "docker", "image": image.removeprefix("docker://")}
        elif "dockerImageId" in record and "dockerFile" not in record:
            self._more["container-image"] = {"type": "docker", "image": text_of(record["dockerImageId"])}
        for key in record:
            if key not in {"dockerPull", "class", "dockerImageId"}:
                self._draft.note(f"{path}.{key}", "only an image that can be pulled is converted")

    def _convert_environment(self, record: Mapping[str, Any], path: str) -> None:
        variables = []
        for name, definition in read_entries(record.get("envDef"), "envValue", key="envName"):
            text = self._expand(text_of(definition.get("envValue")), f"{path}.{name}", mode="data")
            variables.append({"name": name, "value": text})
        if variables:
            self._more["environment-variables"] = variables

    def _convert_resources(self, record: Mapping[str, Any], path: str) -> None:
        found: dict[str, Any] = {}
        for key, value in record.items():
            if key == "class":
                continue
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if key == "coresMin" and is_number:
                found["cpu-cores"] = max(1, -int(-value // 1))
            elif key == "ramMin" and is_number:
                found["ram"] = round(value / _MIB_PER_GB, 3)
            elif key == "outdirMin" and is_number:
                found["disk-space"] = round(value / _MIB_PER_GB, 3)
            else:
                self._draft.note(f"{path}.{key}", "a descriptor has no such resource")
        if found:
            self._more.setdefault("suggested-resources", {}).update(found)

    def _convert_time(self, record: Mapping[str, Any], path: str) -> None:
        value = record.get("timelimit")
        if isinstance(value, int) and value > 0:
            self._more.setdefault("suggested-resources", {})["walltime-estimate"] = value
        elif value != 0:
            self._draft.note(path, "an expression cannot be converted")

    def _listed(self) -> Iterator[tuple[int, bool, Any, str]]:
        """Yield the entries of the work folder: number, whether it is an input, the entry, and its place in the document."""
        record, is_hint = self._requirements.get("InitialWorkDirRequirement", ({}, False))
        listing = record.get("listing", [])
        for number, entry in enumerate(listing if isinstance(listing, list) else [listing]):
            content = entry.get("entry") if isinstance(entry, dict) else entry
            is_link = isinstance(content, str) and _is_one_reference(content)
            yield (
                number,
                is_link,
                entry,
                f"{'hints' if is_hint else 'requirements'}.InitialWorkDirRequirement.listing[{number}]",
            )

    def _stage(self, entry: Any, place: str) -> None:
        """Put an input into the work folder before the tool starts: as a copy if the tool writes it or it is an output."""
        record = entry if isinstance(entry, dict) else {"entry": entry}
        match = _REFERENCE.fullmatch(record["entry"].strip()[2:-1].strip())
        identifier = (match[1] or match[2]) if match and match[3] is None else ""
        if self._inputs.get(identifier, {}).get("type") != "File" or identifier in self._staged:
            self._draft.refuse(place, "only an input file and a text file with a name can be converted")
            return
        try:
            variable = self._variable(identifier)
        except UnknownExpressionError:
            self._draft.refuse(place, "a list of files cannot be put into the work folder")
            return
        self._staged.add(identifier)
        name = text_of(record.get("entryname"))
        written = self._expand(name, f"{place}.entryname", mode="shell") if name else f'"${{{variable}##*/}}"'
        is_output = identifier in set(_names_in(str(self._document.get("outputs"))))
        how = "cp -R -L" if record.get("writable") or is_output else "ln -s"
        line = f'[ -z "${variable}" ] || {{ {how} "${variable}" {written} && {variable}={written}; }};'
        self._values.lines.append(line)

    def _convert_files(self, record: Mapping[str, Any], path: str) -> None:
        del record, path
        for _, is_link, entry, place in self._listed():
            if is_link:
                continue
            name = text_of(entry.get("entryname")) if isinstance(entry, dict) else ""
            content = entry.get("entry") if isinstance(entry, dict) else None
            if not name or not isinstance(content, str):
                self._draft.refuse(place, "only an input file and a text file with a name can be converted")
                continue
            text = self._expand(content, f"{place}.entry", mode="data")
            self._draft.outputs.append(
                {
                    "id": self._identifiers.new_id(name),
                    "name": name,
                    "path-template": self._expand(name, f"{place}.entryname", mode="path"),
                    "file-template": text.split("\n"),
                }
            )


def _names_in(text: str) -> Iterator[str]:
    """Yield the inputs that an expression in a text uses."""
    yield from (first or second for first, second in _USED.findall(text))


def _if_given(variable: str, binding: Mapping[str, Any]) -> str:
    """Return shell text for the value of a variable with the prefix of its binding, nothing if it is empty."""
    prefix = text_of(binding.get("prefix"))
    joined = "" if binding.get("separate") is False else " "
    return f'${{{variable}:+{shlex.quote(prefix) + joined if prefix else ""}"${variable}"}}'


def _is_reference(part: str) -> bool:
    return part[1] == "(" and _REFERENCE.fullmatch(part[2:-1].strip()) is not None


def _is_one_reference(text: str) -> bool:
    """Return whether the text is one expression, which may be a file instead of text."""
    return [each for _, each in split_expressions(text.strip())] == [True]
