"""Make a descriptor of a CWL CommandLineTool.

Source: Common Workflow Language, Command Line Tool Description, v1.0 to v1.2 (commonwl.org). JavaScript is never evaluated: what depends
on it is refused.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hibali.errors import UsageError
from registry.formats.conversion import Conversion, ConversionError, Draft, Identifiers
from registry.problems import Problem

VERSIONS = ("v1.0", "v1.1", "v1.2")
_MIB_PER_GB = 1e9 / 2**20
_EXPRESSION = re.compile(r"(\\?)\$(?:\(([^()]*)\)|\{|\()")
_REFERENCE = re.compile(
    r"""inputs(?:\.([A-Za-z_][A-Za-z0-9_-]*)|\[["']([^"'\]]+)["']\])(?:\.(path|basename|nameroot|nameext|location))?"""
)
_NUMBERS = {"int": True, "long": True, "float": False, "double": False}
_IGNORED = {"class", "cwlVersion", "inputs", "outputs", "baseCommand", "arguments", "stdin", "stdout"}
_IGNORED |= {"stderr", "requirements", "hints", "doc", "label", "id", "$namespaces", "$schemas"}
_NO_EFFECT = {"InlineJavascriptRequirement", "ShellCommandRequirement", "LoadListingRequirement"}
_NO_EFFECT |= {"SchemaDefRequirement", "InplaceUpdateRequirement"}  # what uses them is refused itself
_LOST = {
    "SoftwareRequirement": "the packages that the tool needs",
    "NetworkAccess": "whether the tool needs the network",
    "WorkReuse": "whether results may be used again",
}
_KEYS_OF_INPUT = {"type", "inputBinding", "default", "doc", "label", "id", "name"}
_KEYS_OF_OUTPUT = {"type", "outputBinding", "doc", "label", "id", "name"}


@dataclass(frozen=True, slots=True)
class _Type:
    """The type of a parameter: `name` is that of one value; None for one that Boutiques does not have."""

    name: str | None
    optional: bool = False
    array: bool = False
    symbols: tuple[str, ...] = ()
    items_binding: Mapping[str, Any] | None = None


_MOST_OPEN = 1000  # brackets


def read_yaml(text: str, subject: str) -> Any:
    """Read a YAML 1.2 or JSON document without aliases, which could expand to any size. Raise `UsageError`."""
    from ruamel.yaml import YAML  # start-up: only for these documents
    from ruamel.yaml.error import MarkedYAMLError, YAMLError
    from ruamel.yaml.events import AliasEvent

    if _opens_too_many(text):
        message = "more than 1000 brackets are open at once"
        raise UsageError("invalid-yaml", message, subject=subject)
    try:
        for event in YAML(typ="safe", pure=True).parse(text):
            if isinstance(event, AliasEvent):
                message = f"line {event.start_mark.line + 1}: aliases are not supported"
                raise UsageError("invalid-yaml", message, subject=subject)
        return YAML(typ="safe", pure=True).load(text)
    except (YAMLError, ValueError, RecursionError) as problem:
        mark = problem.problem_mark if isinstance(problem, MarkedYAMLError) else None
        place = f"line {mark.line + 1}: " if mark is not None else ""
        reason = problem.problem if isinstance(problem, MarkedYAMLError) else None
        raise UsageError("invalid-yaml", place + (reason or "it is not YAML"), subject=subject) from None


def _opens_too_many(text: str) -> bool:
    """Return whether more brackets are open at once than any document needs: the parser's time grows with their square."""
    depth = 0
    for bracket in re.findall(r"[\[\]{}]", text):
        depth = max(0, depth + (1 if bracket in "[{" else -1))
        if depth > _MOST_OPEN:
            return True
    return False


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
    return _CwlTool(document, source).convert(subject, name, version)


def _has_graph(document: Any) -> bool:
    return isinstance(document, dict) and "$graph" in document


class _CwlTool:
    """One tool: its parameters become inputs first, then bindings and arguments the command line."""

    def __init__(self, document: dict[str, Any], source: str) -> None:
        self._document = dict(document)
        self._draft = Draft()
        self._identifiers = Identifiers(source)
        self._inputs: dict[str, dict[str, Any]] = {}  # by CWL's ids
        self._types: dict[str, _Type] = {}
        self._more: dict[str, Any] = {}
        self._requirements = dict(self._read_requirements())
        self._shell = "ShellCommandRequirement" in self._requirements

    def convert(self, subject: str, name: str, version: str) -> Conversion:
        parameters = dict(_entries(self._document.get("inputs"), "type"))
        for identifier, record in parameters.items():
            self._add_input(identifier, record)
        self._write_command(parameters)
        for identifier, record in _entries(self._document.get("outputs"), "type"):
            self._add_output(identifier, record)
        self._redirect()
        for kind, (record, is_hint) in self._requirements.items():
            self._convert_requirement(kind, record, is_hint=is_hint)
        for key in self._document:
            if key not in _IGNORED:
                self._draft.note(str(key), "a descriptor has no such key")
        title = _text(self._document.get("label")) or _text(self._document.get("id")).strip("#") or name
        description = _text(self._document.get("doc"))
        return self._draft.finish(title, version, description, subject, self._more)

    # Inputs

    def _add_input(self, identifier: str, record: Mapping[str, Any]) -> None:
        path = f"inputs.{identifier}"
        found = _read_type(record.get("type"))
        self._types[identifier] = found
        made: dict[str, Any] = {"id": self._identifiers.new_id(identifier)}
        if made["id"] != identifier:
            self._draft.note(path, f"its id becomes {made['id']}")
        made["name"] = _text(record.get("label")) or identifier
        if description := _text(record.get("doc")):
            made["description"] = description
        self._inputs[identifier] = made
        if found.name is None:
            self._draft.refuse(path, "a descriptor has no such type")
            return
        self._set_type(made, found)
        if found.optional or found.name == "boolean":
            made["optional"] = True
        self._set_default(made, record, path)
        for key in record:
            if key not in _KEYS_OF_INPUT:
                message = (
                    "files beside the input are not staged"
                    if key == "secondaryFiles"
                    else "a descriptor has no such key"
                )
                self._draft.note(f"{path}.{key}", message)
        self._draft.inputs.append(made)

    def _set_type(self, made: dict[str, Any], found: _Type) -> None:
        if found.name in {"File", "Directory", "stdin"}:
            made["type"] = "File"
        elif found.name in _NUMBERS:
            made["type"] = "Number"
            if _NUMBERS[found.name]:
                made["integer"] = True
        else:
            made["type"] = "Flag" if found.name == "boolean" else "String"
        if found.symbols:
            made["value-choices"] = list(found.symbols)
        if found.array:
            made["list"] = True

    def _set_default(self, made: dict[str, Any], record: Mapping[str, Any], path: str) -> None:
        default = record.get("default")
        if default is None:
            return
        if isinstance(default, dict) or (isinstance(default, list) and made["type"] == "File"):
            self._draft.note(f"{path}.default", "the default is a file, which is not in the descriptor")
            made["optional"] = True
        else:
            made["default-value"] = default

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
            if isinstance(binding, dict) and self._types[identifier].name is not None:
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
        text = self._expand(_text(record.get("valueFrom")), f"{path}.valueFrom", quote=quote)
        prefix = _text(record.get("prefix"))
        written = shlex.quote(prefix) if prefix and quote else prefix
        if not prefix:
            return [text]
        return [written + text] if record.get("separate") is False else [written, text]

    def _bound(self, identifier: str, binding: Mapping[str, Any], path: str) -> list[str]:
        """Bind an input to its place in the command line."""
        made, found = self._inputs[identifier], self._types[identifier]
        if "valueFrom" in binding:
            self._draft.refuse(f"{path}.valueFrom", "a value that is computed cannot be converted")
        if binding.get("loadContents"):
            self._draft.refuse(f"{path}.loadContents", "the content of a file cannot be a value")
        prefix = _text(binding.get("prefix"))
        if found.name == "boolean":
            if not prefix:
                return []  # CWL: nothing is added
            made["command-line-flag"] = shlex.quote(prefix)
            return [self._key(identifier)]
        if prefix:
            made["command-line-flag"] = shlex.quote(prefix)
            if binding.get("separate") is False:
                made["command-line-flag-separator"] = ""
        if found.array:
            self._set_separator(made, found, binding, path)
        return [self._key(identifier)]

    def _set_separator(
        self, made: dict[str, Any], found: _Type, binding: Mapping[str, Any], path: str
    ) -> None:
        separator = binding.get("itemSeparator")
        items = found.items_binding or {}
        if separator is not None:
            made["list-separator"] = _text(separator)
        if items and (made.get("command-line-flag") or separator is not None or not items.get("prefix")):
            self._draft.refuse(path, "bindings of both the list and its items cannot be converted")
        elif items:
            prefix = shlex.quote(_text(items["prefix"]))
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

    def _expand(self, text: str, path: str, *, quote: bool, in_path: bool = False) -> str:
        """Replace references to inputs by keys; quote the rest for the shell if wanted."""
        pieces: list[str] = []
        end = 0
        for match in _EXPRESSION.finditer(text):
            if match[1]:
                continue
            literal = text[end : match.start()].replace(r"\$", "$")
            pieces.append(shlex.quote(literal) if quote and literal else literal)
            pieces.append(self._refer(match[2], path, in_path=in_path, first=not any(pieces)))
            end = match.end()
        literal = text[end:].replace(r"\$", "$")
        if literal or not pieces:
            pieces.append(shlex.quote(literal) if quote else literal)
        return "".join(pieces)

    def _refer(self, expression: str | None, path: str, *, in_path: bool, first: bool) -> str:
        inner = (expression or "").strip()
        if inner == "runtime.outdir":
            return "."
        match = _REFERENCE.fullmatch(inner)
        identifier = (match[1] or match[2]) if match else ""
        if match is None or identifier not in self._inputs or self._types[identifier].name is None:
            self._draft.refuse(path, "an expression cannot be converted")
            return ""
        made, attribute = self._inputs[identifier], match[3]
        is_file = made.get("type") == "File"
        if made.get("type") == "Flag" or (made.get("command-line-flag") and not in_path):
            self._draft.refuse(path, f"{identifier} has a prefix, so that it cannot be used here as well")
        elif attribute in {"nameroot", "nameext", "location"} or (attribute == "basename" and not in_path):
            self._draft.refuse(path, f"{identifier}.{attribute} cannot be converted")
        elif (attribute is None or attribute == "path") and is_file and in_path:
            self._draft.refuse(path, "the path of an input cannot be that of an output")
        key = self._key(identifier)
        whole = is_file and in_path and first  # at the beginning, a key is the whole path
        return f"./{key}" if whole else key

    # Outputs

    def _add_output(self, identifier: str, record: Mapping[str, Any]) -> None:
        path = f"outputs.{identifier}"
        found = _read_type(record.get("type"))
        binding = record.get("outputBinding")
        binding = binding if isinstance(binding, dict) else {}
        if found.name in {"stdout", "stderr"}:
            name = _text(self._document.get(found.name)) or f"{identifier}.{found.name}"
            self._document[found.name] = name
            self._make_output(
                identifier, record, self._expand(name, found.name, quote=False, in_path=True), found
            )
        elif found.name in {"File", "Directory"}:
            globs = binding.get("glob")
            patterns = globs if isinstance(globs, list) else [globs]
            for each in patterns:
                if not isinstance(each, str) or not each:
                    self._draft.note(path, "an output without a glob is not in the descriptor")
                    continue
                template = self._expand(each, f"{path}.outputBinding.glob", quote=False, in_path=True)
                several = _Type(found.name, optional=found.optional or len(patterns) > 1, array=found.array)
                self._make_output(identifier, record, template, several)
        else:
            self._draft.note(path, "a value that is no file is not an output of a descriptor")
        for key in record:
            if key not in _KEYS_OF_OUTPUT:
                self._draft.note(f"{path}.{key}", "a descriptor has no such key")
        for key in binding:
            if key != "glob":
                self._draft.note(f"{path}.outputBinding.{key}", "outputs are files as the tool wrote them")

    def _make_output(self, identifier: str, record: Mapping[str, Any], template: str, found: _Type) -> None:
        made: dict[str, Any] = {
            "id": self._identifiers.new_id(identifier),
            "name": _text(record.get("label")) or identifier,
            "path-template": template,
        }
        if description := _text(record.get("doc")):
            made["description"] = description
        if found.array:
            made["list"] = True
        if found.optional:
            made["optional"] = True
        self._draft.outputs.append(made)

    def _redirect(self) -> None:
        for operator, key in (("<", "stdin"), (">", "stdout"), ("2>", "stderr")):
            if text := _text(self._document.get(key)):
                self._draft.words += [operator, self._expand(text, key, quote=True)]
        for identifier, found in self._types.items():
            if found.name == "stdin":
                self._draft.words += ["<", self._key(identifier)]

    # Requirements

    def _read_requirements(self) -> Iterator[tuple[str, tuple[Mapping[str, Any], bool]]]:
        for section in ("hints", "requirements"):
            for kind, record in _entries(self._document.get(section), "class", key="class"):
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
        image = _text(record.get("dockerPull"))
        if image:
            self._more["container-image"] = {"type": "docker", "image": image.removeprefix("docker://")}
        elif "dockerImageId" in record and "dockerFile" not in record:
            self._more["container-image"] = {"type": "docker", "image": _text(record["dockerImageId"])}
        for key in record:
            if key not in {"dockerPull", "class", "dockerImageId"}:
                self._draft.note(f"{path}.{key}", "only an image that can be pulled is converted")

    def _convert_environment(self, record: Mapping[str, Any], path: str) -> None:
        variables = []
        for name, definition in _entries(record.get("envDef"), "envValue", key="envName"):
            text = self._expand(_text(definition.get("envValue")), f"{path}.{name}", quote=False)
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

    def _convert_files(self, record: Mapping[str, Any], path: str) -> None:
        listing = record.get("listing")
        for number, entry in enumerate(listing if isinstance(listing, list) else [listing]):
            place = f"{path}.listing[{number}]"
            name = _text(entry.get("entryname")) if isinstance(entry, dict) else ""
            content = entry.get("entry") if isinstance(entry, dict) else None
            if not name or not isinstance(content, str) or _is_one_reference(content):
                self._draft.refuse(place, "only a text file with a name can be converted")
                continue
            text = self._expand(content, f"{place}.entry", quote=False)
            self._draft.outputs.append(
                {
                    "id": self._identifiers.new_id(name),
                    "name": name,
                    "path-template": self._expand(name, f"{place}.entryname", quote=False, in_path=True),
                    "file-template": text.split("\n"),
                }
            )


def _is_one_reference(text: str) -> bool:
    """Return whether the text is one expression, which may be a file instead of text."""
    found = _EXPRESSION.match(text.strip())
    return found is not None and (found[2] is None or found.end() == len(text.strip()))


def _entries(section: Any, only: str, *, key: str = "id") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the entries of a map or a list of records; in a map a value that is no record is that of the key `only`."""
    if isinstance(section, dict):
        for name, value in section.items():
            yield str(name), value if isinstance(value, dict) else {only: value}
    for each in section if isinstance(section, list) else ():
        if isinstance(each, dict) and key in each:
            yield str(each[key]).rpartition("#")[2].rpartition("/")[2], each


def _read_type(value: Any) -> _Type:
    """Read a type in any of its forms: `T`, `T?`, `T[]`, a union with null, an array or an enum."""
    if isinstance(value, list):
        others = [each for each in value if each != "null"]
        if sorted(map(str, others)) == ["Directory", "File"]:
            return _Type("File", optional="null" in value)
        if len(others) != 1:
            return _Type(None)
        return _optional(_read_type(others[0]), optional="null" in value)
    if isinstance(value, dict):
        return _read_record(value)
    text = str(value)
    if text.endswith("?"):
        return _optional(_read_type(text[:-1]), optional=True)
    if text.endswith("[]"):
        return _array_of(_read_type(text[:-2]), None)
    known = {"string", "boolean", "File", "Directory", "stdin", "stdout", "stderr", *_NUMBERS}
    return _Type(text if text in known else None)


def _read_record(value: Mapping[str, Any]) -> _Type:
    if value.get("type") == "array":
        binding = value.get("inputBinding")
        return _array_of(_read_type(value.get("items")), binding if isinstance(binding, dict) else None)
    if value.get("type") == "enum" and isinstance(value.get("symbols"), list):
        symbols = (str(each).rpartition("#")[2].rpartition("/")[2] for each in value["symbols"])
        return _Type("string", symbols=tuple(symbols))
    return _Type(None)


def _array_of(items: _Type, binding: Mapping[str, Any] | None) -> _Type:
    if items.array or items.optional or items.name == "boolean":
        return _Type(None)
    return _Type(items.name, array=True, symbols=items.symbols, items_binding=binding)


def _optional(found: _Type, *, optional: bool) -> _Type:
    return _Type(found.name, optional or found.optional, found.array, found.symbols, found.items_binding)


def _text(value: Any) -> str:
    """Return the text of a value; lines of documentation are joined."""
    if isinstance(value, list):
        return "\n".join(str(each) for each in value)
    return str(value) if isinstance(value, str | int | float) and not isinstance(value, bool) else ""
