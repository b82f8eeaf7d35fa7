"""What makes a document no valid descriptor beyond its schema: the rules of the reference validator, all at once.

The reference (boutiques 0.5.33, validator.py) looks at them only where the schema holds, and stops with a traceback at some
documents. Here each rule passes over what is malformed, which the schema names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from registry.group_rules import GROUP_RULES
from registry.input_rules import INPUT_RULES
from registry.problem import Problem
from registry.sections import Part, Rule, Sections


def find_rule_problems(document: Mapping[str, Any]) -> list[Problem]:
    """Everything that is wrong by a rule, in the order of the rules."""
    sections = Sections(document)
    return list(dict.fromkeys(problem for rule in _RULES for problem in rule(sections)))


def _keys_are_used(sections: Sections) -> Iterator[Problem]:
    places = [sections.whole.text("command-line")]
    places += [line for output in sections.outputs for line in output.texts("file-template")]
    places += [output.text("path-template") for output in sections.outputs]
    places += [variable.text("value") for variable in sections.variables]
    for part in _keyed(sections):
        key = part.text("value-key")
        if not any(key in place for place in places):
            message = f'"{key}" not in command-line or file template or environment variables'
            yield Problem(
                part.at("value-key"), message, f"put {key} into the command-line, or take the key away"
            )


def _keys_are_apart(sections: Sections) -> Iterator[Problem]:
    keyed = _keyed(sections)
    for part in keyed:
        key = part.text("value-key")
        for other in dict.fromkeys(each.text("value-key") for each in keyed):
            if other in key and other != key:
                instead = "give them keys in brackets, such as [INPUT]"
                yield Problem(part.at("value-key"), f'"{key}" contains "{other}"', instead)


def _shared_keys_exclude_each_other(sections: Sections) -> Iterator[Problem]:
    """Of inputs with one key only one may be answered. The reference asks this only where there is a group of exactly these."""
    counts = Counter(each.text("value-key") for each in _keyed(sections))
    for key, count in counts.items():
        sharing = {each.id for each in sections.inputs if each.text("value-key") == key}
        same = [group for group in sections.groups if set(group.texts("members")) == sharing]
        if count < 2 or (sections.groups and all(group.is_true("mutually-exclusive") for group in same)):
            continue
        part = [each for each in _keyed(sections) if each.text("value-key") == key][1]
        instead = "give each its own key, or put them into one mutually-exclusive group"
        yield Problem(part.at("value-key"), f'"{key}" belongs to 2+ non exclusive IDs', instead)


def _ids_are_unique(sections: Sections) -> Iterator[Problem]:
    seen: set[str] = set()
    for part in (*sections.inputs, *sections.outputs, *sections.groups):
        if part.id and part.id in seen:
            yield Problem(part.at("id"), f'"{part.id}" is non-unique', "give it another id")
        seen.add(part.id)


def _outputs_have_their_own_path(sections: Sections) -> Iterator[Problem]:
    first: dict[str, str] = {}
    for output in sections.outputs:
        path = output.text("path-template")
        if path and path in first:
            message = f'"{first[path]}" and "{output.id}" have the same path-template'
            yield Problem(output.at("path-template"), message, "give each output a path of its own")
        first.setdefault(path, output.id)


def _conditions_have_an_end(sections: Sections) -> Iterator[Problem]:
    for output in sections.outputs:
        paths = output.given.get("conditional-path-template")
        if not isinstance(paths, list):
            continue
        place = output.at("conditional-path-template")
        if not isinstance(output.given.get("optional"), bool):
            message = f'"{output.id}" has a conditional-path-template and does not say whether it is optional'
            yield Problem(place, message, 'write "optional": true or false')
        elif not output.is_true("optional"):
            defaults = sum(isinstance(each, dict) and "default" in each for each in paths)
            if not defaults:
                message = f'"{output.id}" is not optional and has no "default" path-template'
                yield Problem(place, message, 'end the list with {"default": "PATH"}')
            elif defaults > 1:
                message = f'"{output.id}" has {defaults} "default" path-templates'
                yield Problem(place, message, "only the first of them counts: take the others away")


def _keyed(sections: Sections) -> list[Part]:
    return [each for each in (*sections.inputs, *sections.outputs) if each.text("value-key")]


_RULES: tuple[Rule, ...] = (
    _keys_are_used,
    _keys_are_apart,
    _shared_keys_exclude_each_other,
    _ids_are_unique,
    _outputs_have_their_own_path,
    _conditions_have_an_end,
    *INPUT_RULES,
    *GROUP_RULES,
)
