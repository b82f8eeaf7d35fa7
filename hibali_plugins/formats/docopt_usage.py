"""Make a descriptor of the usage text of a docopt program, which is never run.

Every way through the usage becomes a case: the words that it requires and those that it allows. Inputs of a descriptor then require what all
cases with them require, and disable what no case has beside them.
"""

from __future__ import annotations

import ast
import itertools
import math
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hibali.errors import UsageError
from hibali_plugins.formats.conversion import Conversion, Draft, Identifiers

_MOST_CASES = 500
_MOST_EXPANDED = 20_000
_HELP = frozenset({"-h", "--help", "--version"})
_FILE = re.compile(r"(?:.*[_-])?(?:file|files|path|paths|dir|dirs|directory|folder)")


@dataclass(frozen=True, slots=True)
class Word:
    """A command, argument or option of the usage, as one case has it."""

    name: str
    leaf: Any
    optional: bool
    repeated: bool


Case = tuple[Word, ...]


def usage_text(source: str, subject: str) -> str:
    """Return the usage text: the docstring of a Python program, which is parsed and not run, or the whole text. Raise `UsageError`."""
    if not subject.endswith(".py"):
        return source
    try:
        found = ast.get_docstring(ast.parse(source))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise UsageError("no-usage", "it is not a Python program", subject=subject) from None
    if not found:
        raise UsageError("no-usage", "the program has no docstring", subject=subject)
    return found


def convert_docopt(text: str, subject: str, *, name: str, version: str, command: str) -> Conversion:
    """Make a descriptor.

    Args:
        text: The usage text.
        subject: The file, as errors name it.
        name: The name; "" for that in the usage.
        version: The version of the tool, which the usage does not have.
        command: What starts the tool, as text for a shell; "" for the name in the usage.

    Raises:
        UsageError: The text has no valid usage.
        ConversionError: The order of its words depends on the case.
    """
    import docopt  # start-up: only for these documents

    try:
        sections = docopt.parse_docstring_sections(text)
        docopt.lint_docstring(sections)
        program = sections.usage_body.split()[0]
        options = [*docopt.parse_options(sections.before_usage), *docopt.parse_options(sections.after_usage)]
        pattern = docopt.parse_pattern(docopt.formal_usage(sections.usage_body), options)
        used = set(pattern.flat(docopt.Option))
        for shortcut in pattern.flat(docopt.OptionsShortcut):
            shortcut.children = [each for each in options if each not in used]
        # before docopt expands them, what is repeated twice
        if _count(pattern, 1) > _MOST_CASES or _count(pattern, 2) > _MOST_EXPANDED:
            message = f"the usage has more than {_MOST_CASES} cases"
            raise UsageError("no-usage", message, subject=subject)
        cases = [*_cases(pattern.fix(), optional=False, repeated=False)]
    except (docopt.DocoptLanguageError, IndexError, RecursionError, TypeError) as problem:
        message = str(problem).partition("\n")[0] or "it has no usage"
        raise UsageError("no-usage", message[:300], subject=subject) from None
    descriptions = dict(_descriptions(text))
    draft = Draft(words=[command or shlex.quote(program)])
    _Usage(draft, Identifiers(text), cases, descriptions).convert()
    draft.note("output-files", "a usage does not say what the tool writes: add them")
    description = sections.before_usage.strip()
    return draft.finish(name or program, version, description, subject)


def suggests_file(name: str) -> bool:
    """Return whether a name is that of a file or folder that a tool reads."""
    lowered = name.lower()
    return _FILE.fullmatch(lowered) is not None and "out" not in lowered


def leave_default_to_tool(made: dict[str, Any]) -> None:
    """Remove the default of an input that is not allowed in all cases, where it would count as given."""
    if (default := made.pop("default-value", None)) is not None:
        made["description"] = f"{made.get('description', made['name'])} [default: {default}]"


def _count(node: Any, repeats: int) -> int:
    """Return the number of ways through a part of the usage, with what may be repeated so many times."""
    import docopt  # start-up: only for these documents

    if isinstance(node, docopt.LeafPattern):
        return 1
    counts = [_count(each, repeats) for each in node.children]
    if isinstance(node, docopt.Either):
        return sum(counts)
    found = math.prod(counts)
    return repeats * found**repeats if isinstance(node, docopt.OneOrMore) else found


def _cases(node: Any, *, optional: bool, repeated: bool) -> Iterator[Case]:
    """Yield the ways through a part of the usage."""
    import docopt  # start-up: only for these documents

    if isinstance(node, docopt.LeafPattern):
        several = repeated or isinstance(node.value, list)
        yield (Word(str(node.name), node, optional, several),)
        return
    optional = optional or isinstance(node, docopt.NotRequired)
    repeated = repeated or isinstance(node, docopt.OneOrMore)
    parts = [list(_cases(each, optional=optional, repeated=repeated)) for each in node.children]
    if isinstance(node, docopt.Either):
        yield from itertools.chain.from_iterable(parts)
        return
    for chosen in itertools.product(*parts):
        yield tuple(itertools.chain.from_iterable(chosen))


class _Usage:
    """The cases of a usage."""

    def __init__(
        self, draft: Draft, identifiers: Identifiers, cases: Sequence[Case], descriptions: dict[str, str]
    ) -> None:
        self._draft = draft
        self._identifiers = identifiers
        self._descriptions = descriptions
        self._cases = [case for case in map(self._without_help, cases) if case is not None]
        self._words = self._in_order()
        names = list(self._words)
        self._required = [{each.name for each in case if not each.optional} for case in self._cases]
        self._allowed = [{each.name for each in case} for case in self._cases]
        self._always = {each for each in names if all(each in found for found in self._required)}

    def _without_help(self, case: Case) -> Case | None:
        """Return a case without options for help; None for one that only shows it."""
        left = tuple(each for each in case if each.name not in _HELP)
        if len(left) < len(case):
            self._note_help()
        is_help = any(each.name in _HELP and not each.optional for each in case)
        return None if is_help and not any(not each.optional for each in left) else left

    def _note_help(self) -> None:
        path, message = "--help", "options that show help or the version are no inputs"
        if not any(each.path == path for each in self._draft.notes):
            self._draft.note(path, message)

    def _in_order(self) -> dict[str, Word]:
        """Merge the words of all cases, so that each case keeps its order; options go where they are first."""
        order: list[str] = []
        words: dict[str, Word] = {}
        for case in self._cases:
            position = 0
            for each in case:
                known = words.get(each.name)
                words[each.name] = Word(
                    each.name,
                    each.leaf,
                    each.optional,
                    each.repeated or (known is not None and known.repeated),
                )
                if each.name not in order:
                    order.insert(position, each.name)
                found = order.index(each.name)
                if found + 1 < position and not each.name.startswith("-"):
                    self._draft.refuse(each.name, "its place among the other words depends on the case")
                position = max(position, found + 1)
        return {name: words[name] for name in order}

    def convert(self) -> None:
        """Add the inputs, the words of the command line, and the groups."""
        made: dict[str, dict[str, Any]] = {}
        for name, word in self._words.items():
            if type(word.leaf).__name__ == "Command" and name in self._always:
                self._draft.words.append(shlex.quote(name))
            else:
                made[name] = self._make_input(word)
        self._relate(made)
        self._require_one(made)

    def _make_input(self, word: Word) -> dict[str, Any]:
        kind, name = type(word.leaf).__name__, word.name
        plain = name.strip("<>-").replace("-", "_")
        made: dict[str, Any] = {"id": self._identifiers.new_id(plain), "name": plain.replace("_", " ")}
        if description := self._descriptions.get(name):
            made["description"] = description
        if kind == "Command":
            made |= {"type": "Flag", "command-line-flag": shlex.quote(name)}
        elif kind == "Option":
            self._set_option(made, word)
        else:
            made["type"] = self._guess(plain)
        if made["type"] == "Flag" or name not in self._always:
            made["optional"] = True
        if word.repeated and made["type"] == "Flag":
            self._draft.note(name, "it may be repeated, but a flag of a descriptor is given once")
        elif word.repeated:
            made["list"] = True
            if kind == "Option":
                made["list-separator"] = f" {made['command-line-flag']}{made['command-line-flag-separator']}"
        made["value-key"] = self._identifiers.new_key(made["id"])
        self._draft.words.append(made["value-key"])
        self._draft.inputs.append(made)
        return made

    def _set_option(self, made: dict[str, Any], word: Word) -> None:
        flag = word.leaf.longer or word.leaf.short
        made["command-line-flag"] = flag
        if not word.leaf.argcount:
            made["type"] = "Flag"
            return
        made["type"] = self._guess(made["id"])
        made["command-line-flag-separator"] = "=" if flag.startswith("--") else " "
        default = word.leaf.value
        if isinstance(default, str):
            made["default-value"] = default

    def _guess(self, name: str) -> str:
        """Return the type that the name suggests; a usage has no types."""
        if suggests_file(name):
            self._draft.note(name, "its name suggests a file that the tool reads; otherwise make it a String")
            return "File"
        return "String"

    def _relate(self, made: dict[str, dict[str, Any]]) -> None:
        """Let inputs require and disable others as all cases do."""
        optional = {name for name, each in made.items() if each.get("optional")}
        for name in optional:
            with_it = [number for number, allowed in enumerate(self._allowed) if name in allowed]
            required = set.intersection(*(self._required[number] for number in with_it))
            beside = set.union(*(self._allowed[number] for number in with_it))
            needed = [each for each in made if each in required & optional and each != name]
            apart = [each for each in made if each in optional and each not in beside]
            if needed:
                made[name]["requires-inputs"] = [made[each]["id"] for each in needed]
            if apart:
                made[name]["disables-inputs"] = [made[each]["id"] for each in apart]
            if needed or apart:
                leave_default_to_tool(made[name])

    def _require_one(self, made: dict[str, dict[str, Any]]) -> None:
        """Require one word by which the case is known, the rarest that each requires."""
        chosen: list[str] = []
        kinds = {frozenset(each) for each in self._required}
        for required in sorted(kinds, key=lambda each: self._required.index(set(each))):
            words = [each for each in made if each in required - self._always]
            if not words:
                return  # this case needs nothing
            counts = {each: len(self._kinds_with(each)) for each in words}
            rarest = min(words, key=lambda each: counts[each])
            if counts[rarest] > 1:
                message = "no word tells this case from the others, so that not all combinations are checked"
                self._draft.note(" ".join(words), message)
            chosen.append(rarest)
        members = [made[each]["id"] for each in dict.fromkeys(chosen)]
        if len(members) == 1:
            self._draft.note(members[0], "it is always required")
        if members:
            group = {"id": self._identifiers.new_id("usage"), "name": "Usage", "members": members}
            self._draft.groups.append({**group, "one-is-required": True})

    def _kinds_with(self, name: str) -> set[frozenset[str]]:
        """Return the sets of required words of the cases in which a word is allowed."""
        pairs = zip(self._required, self._allowed, strict=True)
        return {frozenset(required) for required, allowed in pairs if name in allowed}


def _descriptions(text: str) -> Iterator[tuple[str, str]]:
    """Yield the names and descriptions of the lines `-x --option  TEXT` and `<argument>  TEXT`."""
    for line in text.splitlines():
        head, separator, tail = line.strip().partition("  ")
        if separator and re.match(r"-|<|[A-Z][A-Z_]*$", head):
            described = re.sub(r"\s*\[default: .*\]", "", tail.strip(), flags=re.IGNORECASE)
            for each in re.split(r"[\s,=]+", head):
                if each.startswith(("-", "<")) or each == head:
                    yield each, described
