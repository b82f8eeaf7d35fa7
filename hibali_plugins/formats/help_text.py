"""Make a descriptor of what a tool prints for `--help`, as argparse, click and GNU programs write it.

The usage line says which arguments are positional, required and repeated; the lines of options say what each takes.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from hibali.errors import UsageError
from hibali_plugins.formats.argparse_source import Argument, Program, add_arguments
from hibali_plugins.formats.conversion import Conversion, Draft, Identifiers
from hibali_plugins.formats.docopt_usage import suggests_file

_USAGE = re.compile(r"^[ \t]*usage:[ \t]*(.*)$", re.IGNORECASE | re.MULTILINE)
_OTHER_USAGE = re.compile(r"\s+or\b")
_OPTION = re.compile(r"^[ \t]{1,12}(-{1,2}[^\s\[<=-].*?|-{2}[^\s<=].*?)(?:[ \t]{2,}(\S.*))?$")
_POSITIONAL = re.compile(r"^[ \t]{1,4}(\S+)(?:[ \t]{2,}(\S.*))?$")
_NAME = re.compile(r"-{1,2}[A-Za-z0-9?@][A-Za-z0-9_.:-]*")
_SEPARATOR = re.compile(r"(?:,\s*|\s*/\s*|\s+\|\s+)(?=-)")
_HELP = frozenset({"-h", "-?", "--help", "-V", "--version", "-help", "--usage"})
_WORDS = frozenset({"OPTIONS", "OPTION", "FLAGS", "ARGS", "ARGUMENTS"})
_INTEGERS = frozenset({"INT", "INTEGER", "COUNT", "INTEGER RANGE"})
_DECIMALS = frozenset({"FLOAT", "DOUBLE", "REAL", "N", "NUM", "NUMBER", "FLOAT RANGE"})
_FILES = frozenset({"FILE", "FILENAME", "PATH", "DIR", "DIRECTORY", "FOLDER"})


@dataclass(slots=True)
class _Positional:
    """A word of the usage that is not an option."""

    name: str
    optional: bool
    repeated: bool


@dataclass(slots=True)
class _Usage:
    """What the usage says: its positional words in order, and the options that stand without brackets."""

    positional: list[_Positional] = field(default_factory=list)
    required: set[str] = field(default_factory=set)


def convert_help(text: str, subject: str, *, name: str, version: str, command: str) -> Conversion:
    """Make a descriptor.

    Args:
        text: What the tool printed.
        subject: The tool, as errors name it.
        name: The name of the pipeline.
        version: The version of the tool.
        command: What starts the tool, as text for a shell.

    Raises:
        UsageError: There is neither a usage nor an option in it, or it is that of a tool with commands.
    """
    program, notes = read_help(text, subject)
    draft = Draft(words=[command])
    add_arguments(draft, Identifiers(text), program)
    for path, message in notes:
        draft.note(path, message)
    draft.note("inputs", "their types are guessed from the help: look at each")
    draft.note("output-files", "the help does not say what the tool writes: add them")
    return draft.finish(name, version, program.description, subject)


def read_help(text: str, subject: str) -> tuple[Program, list[tuple[str, str]]]:
    """Return the arguments in a help text, and notes on what is not understood. Raise `UsageError`."""
    text = text.expandtabs()[:1_000_000]
    before, rest = _split_usage(text)
    usage = _read_usage(_usage_words(before), subject)
    program = Program(description=_description(rest, after_usage=bool(before)))
    notes: list[tuple[str, str]] = []
    for line, (spec, described) in enumerate(_options(rest), 1):
        argument = _read_option(spec, described, line)
        if argument is None:
            notes.append((spec[:60], "it is not understood, and was left out"))
        elif any(argument.flag == each.flag for each in program.arguments):
            notes.append((argument.flag, "it is described twice; only the first one was taken"))
        elif not _HELP.intersection(argument.names):
            if usage.required.intersection(argument.names) or "[required]" in described.lower():
                argument.options["required"] = True
            program.arguments.append(argument)
    described_words = dict(_positional_descriptions(text))
    for number, word in enumerate(usage.positional, 1):
        program.arguments.append(_read_positional(word, described_words.get(word.name, ""), number))
    if not program.arguments:
        raise UsageError(
            "no-usage",
            "neither a usage line nor an option is in what it printed",
            subject=subject,
            hint="If another option shows the help, name it: --help-option=-h",
        )
    return program, notes


def _split_usage(text: str) -> tuple[str, str]:
    """Return the first usage, which may go on below, and what follows it."""
    found = _USAGE.search(text)
    if found is None:
        return "", text
    lines, rest = [found[1]], text[found.end() + 1 :].split("\n")
    while rest and (
        not "".join(lines).strip() or (rest[0].startswith("  ") and not _OTHER_USAGE.match(rest[0]))
    ):
        lines.append(rest.pop(0))
    return " ".join(lines), "\n".join(rest)


def _usage_words(usage: str) -> list[str]:
    """Return the words of a usage, without the name of the program; brackets are words of their own."""
    words = re.findall(r"\.\.\.|[\[\]()|]|\{[^}]*\}|<[^>]*>|[^\s\[\]()|{}]+", usage)
    while words and words[0] not in {"[", "("} and not words[0].startswith(("-", "<", "{")):
        if len(words) > 1 and words[0].isupper():
            break
        words.pop(0)  # the program, and the commands that lead to it
    return words


def _read_usage(words: list[str], subject: str) -> _Usage:
    usage, depth, option = _Usage(), 0, ""
    for position, word in enumerate(words):
        after = words[position + 1] if position + 1 < len(words) else ""
        if word in {"[", "("}:
            depth += 1
        elif word in {"]", ")"}:
            depth -= 1
            option = option if depth else ""
        elif word in {"|", "--"}:
            option = ""
        elif word == "...":
            if usage.positional and not option:
                usage.positional[-1].repeated = True
        elif word.startswith("-"):
            flag = word.partition("=")[0]
            option = "" if "=" in word else flag
            if depth == 0:
                usage.required.add(flag)
        elif option:
            option = option if depth else ""  # its value; in brackets there may be several
        else:
            repeated = after == "..." and word.startswith("{")
            _add_positional(usage, "COMMAND" if repeated else word, optional=depth > 0, subject=subject)
    return usage


def _add_positional(usage: _Usage, word: str, *, optional: bool, subject: str) -> None:
    name = word.strip("<>").rstrip(".")
    bare = name.upper().removesuffix("...")
    if bare in _WORDS or not re.search(r"[A-Za-z]", name):
        return
    if bare in {"COMMAND", "SUBCOMMAND", "SUBCMD", "CMD"}:
        raise UsageError(
            "has-commands",
            "the tool has commands with arguments of their own",
            subject=subject,
            hint="Describe one of them: put it after the tool, as in 'git clone'.",
        )
    if usage.positional and usage.positional[-1].name == name:
        usage.positional[-1].repeated = True  # argparse: `X [X ...]`
    else:
        usage.positional.append(_Positional(name, optional, word.endswith("...")))


def _options(text: str) -> Iterator[tuple[str, str]]:
    """Yield the names of each option with its values, and what is said about it, also on the lines below."""
    spec = ""
    described: list[str] = []
    for line in text.split("\n"):
        found = _OPTION.match(line)
        if found:
            if spec:
                yield spec, " ".join(described).strip()
            spec, described = found[1].strip(), [found[2] or ""]
        elif spec and re.match(r"[ \t]{6,}\S", line):
            described.append(line.strip())
        elif spec:
            yield spec, " ".join(described).strip()
            spec = ""
    if spec:
        yield spec, " ".join(described).strip()


def _read_option(spec: str, described: str, line: int) -> Argument | None:
    """Return the argument of an option: `-o FILE, --output FILE`, `--output=FILE`, `--a / --no-a`, `-n, --number INT`."""
    names, values, position = [], "", 0
    while found := _NAME.match(spec, position):
        after = _SEPARATOR.search(spec, found.end())
        names.append(found[0].rstrip("."))
        values = _placeholders(spec[found.end() : after.start() if after else len(spec)]) or values
        position = after.end() if after else len(spec)
    if not names:
        return None
    optional_value = values.startswith("[=") or (
        values.startswith("[") and values.endswith("]") and "|" not in values
    )
    values = values.strip("=").strip()
    options: dict[str, Any] = {"help": described} if described else {}
    if len(names) > 1 and names[-1].startswith("--no-"):
        names.pop()
    if not values or optional_value:
        return Argument(tuple(names), {**options, "action": "store_true"}, frozenset(), line)
    options |= _value_options(values, names[-1].lstrip("-"))
    return Argument(tuple(names), options, frozenset(), line)


def _placeholders(text: str) -> str:
    """Return what stands for values after the name of an option; a sentence that follows does not."""
    text = text.strip()
    words = re.findall(r"[\[{(=<][^\]}>)]*[\]}>)]+\S*|\S+", text)
    chosen = list(itertools.takewhile(lambda word: word[0] in "[{(=<." or word == word.upper(), words))
    if not chosen and len(words) == 1:
        chosen = words
    return " ".join(chosen)


def _value_options(values: str, name: str) -> dict[str, Any]:
    """Return what the placeholder of a value says: its type, its choices, and how many there are."""
    chosen = re.fullmatch(r"[\[{(]?([^\[\]{}()<>\s]+(?:[,|][^\[\]{}()<>\s]+)+)[\]})]?(\s*\.\.\.)?", values)
    if chosen and (values[0] in "[{(" or "|" in values):
        return {"choices": re.split(r"[,|]", chosen[1])} | ({"nargs": "+"} if chosen[2] else {})
    words = re.sub(r"[\[\]<>]|\.\.\.", " ", values).split()
    bare = [word.upper() for word in words]
    found: dict[str, Any] = {}
    if values.endswith("...]") and values.startswith("["):
        found["nargs"] = "*"
    elif "..." in values and len(set(bare)) < 2:
        found["nargs"] = "+"
    elif len(bare) > 1 and " ".join(bare) not in _INTEGERS | _DECIMALS:
        found["nargs"] = len(bare)
    first = " ".join(bare) if " ".join(bare) in _INTEGERS | _DECIMALS else bare[0] if bare else ""
    if first in _INTEGERS:
        found["type"] = "int"
    elif first in _DECIMALS:
        found["type"] = "float"
    elif "out" not in name.lower() and "OUT" not in first and (first in _FILES or suggests_file(first)):
        found["type"] = "FileType()"
    return found


def _read_positional(word: _Positional, described: str, line: int) -> Argument:
    options: dict[str, Any] = {"help": described} if described else {}
    name = word.name
    if name.startswith("{"):
        options["choices"] = name.strip("{}").split(",")
        name = "choice"
    else:
        options |= _value_options(name, name)
    if word.repeated:
        options["nargs"] = "*" if word.optional else "+"
    elif word.optional:
        options["nargs"] = "?"
    return Argument((name.replace("-", "_"),), options, frozenset(), line)


def _positional_descriptions(text: str) -> Iterator[tuple[str, str]]:
    section = re.search(r"^(?:positional )?arguments:[ ]*$", text, re.IGNORECASE | re.MULTILINE)
    for line in text[section.end() + 1 :].split("\n") if section else ():
        if line and not line.startswith(" "):
            return
        found = _POSITIONAL.match(line)
        if found:
            yield found[1], found[2] or ""


def _description(text: str, *, after_usage: bool) -> str:
    """Return the first paragraph that is neither another usage nor a heading nor options."""
    paragraphs = re.split(r"\n[ \t]*\n", text)
    for paragraph in paragraphs:
        lines = [line.strip() for line in paragraph.strip().split("\n")]
        is_usage = after_usage and _OTHER_USAGE.match(" " + lines[0])
        if (
            lines[0]
            and not is_usage
            and not lines[0].endswith(":")
            and not any(line.startswith("-") for line in lines)
        ):
            return " ".join(lines)
    return ""
