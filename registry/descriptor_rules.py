"""Check the rules of descriptors that the schema cannot express: inputs, groups, references."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import permutations
from typing import Any

from registry.problems import Problem


@dataclass(frozen=True, slots=True)
class Part:
    """One object of a section: `path` is its place in the document."""

    path: str
    fields: Mapping[str, Any]

    def text(self, key: str) -> str:
        """Return the text under a key, "" for anything else."""
        found = self.fields.get(key)
        return found if isinstance(found, str) else ""

    def texts(self, key: str) -> list[str]:
        """Return the texts of a list under a key."""
        found = self.fields.get(key)
        return [each for each in found if isinstance(each, str)] if isinstance(found, list) else []

    def number(self, key: str) -> float | None:
        """Return the number under a key, None for anything else."""
        found = self.fields.get(key)
        return found if isinstance(found, int | float) and not isinstance(found, bool) else None

    def is_true(self, key: str) -> bool:
        """Return whether the key is `true`."""
        return self.fields.get(key) is True

    @property
    def id(self) -> str:
        """The id of the object, "" without one."""
        return self.text("id")

    def at(self, key: str) -> str:
        """Return the path of one of its keys where it exists, else its own path."""
        return f"{self.path}.{key}" if key in self.fields else self.path


class Sections:
    """Inputs, outputs, groups and the like of a document; malformed parts are left out, because the schema check names them."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self.whole = Part("", document)
        self.inputs = list(_parts(document, "inputs"))
        self._inputs_by_id = {each.id: each for each in reversed(self.inputs)}
        self.outputs = list(_parts(document, "output-files"))
        self.groups = list(_parts(document, "groups"))
        self.variables = list(_parts(document, "environment-variables"))
        container = document.get("container-image")
        self.container = Part("container-image", container) if isinstance(container, dict) else None

    def find_input(self, identifier: str) -> Part | None:
        """Return the first input of that id."""
        return self._inputs_by_id.get(identifier)

    @property
    def input_ids(self) -> frozenset[str]:
        """All of them."""
        return frozenset(each.id for each in self.inputs if each.id)

    @property
    def group_ids(self) -> frozenset[str]:
        """All of them."""
        return frozenset(each.id for each in self.groups if each.id)

    @property
    def ids(self) -> frozenset[str]:
        """The ids of inputs and outputs, which conditions can use."""
        return self.input_ids | {each.id for each in self.outputs if each.id}


Rule = Callable[[Sections], Iterator[Problem]]


def _parts(document: Mapping[str, Any], section: str) -> Iterator[Part]:
    found = document.get(section)
    for number, each in enumerate(found if isinstance(found, list) else ()):
        if isinstance(each, dict):
            yield Part(f"{section}[{number}]", each)


def _flags_are_flags(sections: Sections) -> Iterator[Problem]:
    for part in sections.inputs:
        if part.text("type") != "Flag":
            continue
        if "command-line-flag" not in part.fields:
            message = f'"{part.id}" must have a command-line flag'
            yield Problem(part.path, message, 'write "command-line-flag": "--name"')
        if not part.is_true("optional"):
            message = f'"{part.id}" is of type Flag, it has to be optional'
            yield Problem(part.at("optional"), message, 'write "optional": true')
        if part.is_true("list"):
            yield Problem(part.at("list"), "an input of type Flag cannot be a list", "remove `list`")


def _limits_leave_something(sections: Sections) -> Iterator[Problem]:
    for part in sections.inputs:
        least, most = part.number("minimum"), part.number("maximum")
        if part.text("type") == "Number" and least is not None and most is not None and least > most:
            message = f'"{part.id}" cannot have greater min ({least}) than max ({most})'
            yield Problem(part.at("minimum"), message, "exchange them")
        if "list" not in part.fields:
            continue  # the reference ignores the other cases
        fewest = part.number("min-list-entries") or 0
        largest = part.number("max-list-entries") or None  # 0 is no limit in the reference
        if fewest < 0:
            message = f'"{part.id}" cannot have negative min entries ({fewest})'
            yield Problem(part.at("min-list-entries"), message, "write 0 or more")
        if largest is not None and largest < 0:
            message = f'"{part.id}" cannot have non-positive max entries ({largest})'
            yield Problem(part.at("max-list-entries"), message, "write 1 or more, or 0 for no limit")
        elif largest is not None and fewest > largest:
            message = f'"{part.id}" cannot have greater min entries ({fewest}) than max entries ({largest})'
            yield Problem(part.at("min-list-entries"), message, "exchange them")


def _choices_hold_the_default(sections: Sections) -> Iterator[Problem]:
    for part in sections.inputs:
        choices = part.fields.get("value-choices")
        if not isinstance(choices, list) or part.text("type") in {"Flag", "Number"}:
            continue
        if not choices:
            message = f'"{part.id}" must have at least one value choice'
            yield Problem(part.at("value-choices"), message, "name the choices, or remove the list")
        if "default-value" in part.fields:
            default = part.fields["default-value"]
            wrong = [
                each for each in (default if isinstance(default, list) else [default]) if each not in choices
            ]
            if wrong:
                message = f'"{part.id}" cannot have default value outside its choices'
                yield Problem(part.at("default-value"), message, _one_of(choices))


def _related_inputs_exist(sections: Sections) -> Iterator[Problem]:
    inputs, groups = sections.input_ids, sections.group_ids
    for part in sections.inputs:
        required, disabled = part.texts("requires-inputs"), part.texts("disables-inputs")
        for each in required:
            if each not in inputs | groups:
                yield Problem(part.at("requires-inputs"), f'"{part.id}" required id "{each}" not found')
            if each in disabled:
                yield Problem(part.at("requires-inputs"), f'"{part.id}" requires and disables "{each}"')
        for each in disabled:
            other = sections.find_input(each)
            if other is None:
                yield Problem(part.at("disables-inputs"), f'"{part.id}" disables id "{each}" not found')
            elif not other.is_true("optional"):
                yield Problem(part.at("disables-inputs"), f'"{part.id}" disables required id "{each}"')
        if not part.is_true("optional") and (
            "requires-inputs" in part.fields or "disables-inputs" in part.fields
        ):
            message = f'"{part.id}" cannot require or disable other inputs'
            yield Problem(
                part.path,
                message,
                "a required input always has a value: move the condition to the other inputs, or make this one optional",
            )


def _choice_relations_exist(sections: Sections) -> Iterator[Problem]:
    for part in sections.inputs:
        tables = {key: part.fields[key] for key in ("value-requires", "value-disables") if key in part.fields}
        choices = part.fields.get("value-choices")
        if tables and not isinstance(choices, list):
            message = f'"{part.id}" cannot have {" and ".join(tables)} without value-choices defined'
            yield Problem(part.path, message, 'write "value-choices": [...]')
            continue
        for key, table in tables.items():
            if isinstance(table, dict):
                yield from _check_choice_relations(sections, part, key, table)
        yield from _no_choice_does_both(part, tables)


def _check_choice_relations(
    sections: Sections, part: Part, key: str, table: Mapping[str, Any]
) -> Iterator[Problem]:
    place = part.at(key)
    if set(table) != {str(each) for each in part.fields["value-choices"]}:
        message = f'"{part.id}" {key} list is not the same as the value-choices'
        yield Problem(place, message, "give every choice a list, [] for none")
    for named in table.values():
        for each in named if isinstance(named, list) else ():
            other = sections.find_input(each) if isinstance(each, str) else None
            if other is None:
                yield Problem(place, f'"{part.id}" {key} id "{each}" not found')
            elif not other.is_true("optional"):
                yield Problem(place, f'"{part.id}" {key} cannot be used with required input "{each}"')


def _no_choice_does_both(part: Part, tables: Mapping[str, Any]) -> Iterator[Problem]:
    required, disabled = tables.get("value-requires"), tables.get("value-disables")
    if not isinstance(required, dict) or not isinstance(disabled, dict):
        return
    for choice, named in required.items():
        others = disabled.get(choice)
        if not isinstance(named, list) or not isinstance(others, list):
            continue
        for each in named:
            if each in others:
                message = f'"{part.id}" choice "{choice}" requires and disables "{each}"'
                yield Problem(part.at("value-requires"), message)


def _one_of(choices: list[Any]) -> str:
    named = ", ".join(str(each) for each in choices[:10])
    return f"one of {named}{' ...' if len(choices) > 10 else ''}"


INPUT_RULES: tuple[Rule, ...] = (
    _flags_are_flags,
    _limits_leave_something,
    _choices_hold_the_default,
    _related_inputs_exist,
    _choice_relations_exist,
)


def _members_of_groups(sections: Sections) -> Iterator[Problem]:
    inputs = sections.input_ids
    for group in sections.groups:
        for each, count in Counter(group.texts("members")).items():
            if each not in inputs:
                yield Problem(group.at("members"), f'"{group.id}" member "{each}" does not exist')
            if count > 1:
                yield Problem(group.at("members"), f'"{group.id}" member "{each}" appears twice')


def _groups_are_satisfiable(sections: Sections) -> Iterator[Problem]:
    for group in sections.groups:
        found = [sections.find_input(each) for each in dict.fromkeys(group.texts("members"))]
        required = [each.id for each in found if each is not None and not each.is_true("optional")]
        for key, message in (
            ("mutually-exclusive", "is mutually-exclusive and cannot have required members, such as"),
            ("one-is-required", "is a one-is-required group and contains a required member,"),
            ("all-or-none", "is an all-or-none group and contains a required member,"),
        ):
            if group.is_true(key):
                for each in required:
                    instead = f'write "optional": true for {each}, or remove it from the group'
                    yield Problem(group.at("members"), f'"{group.id}" {message} "{each}"', instead)


def _groups_do_not_contradict(sections: Sections) -> Iterator[Problem]:
    for group in sections.groups:
        members = group.texts("members")
        exclusive, one = group.is_true("mutually-exclusive"), group.is_true("one-is-required")
        if group.is_true("all-or-none") and (exclusive or one):
            message = f'"{group.id}" is an all-or-none group and cannot be paired with one-is-required or mutually-exclusive groups'
            yield Problem(group.at("all-or-none"), message, "make two groups of it")
        for each in dict.fromkeys(members) if exclusive else ():
            part = sections.find_input(each)
            for other in part.texts("requires-inputs") if part is not None else ():
                if other in members:
                    message = f'"{group.id}" is mutually-exclusive and cannot have members require one another, such as "{each}" and "{other}"'
                    yield Problem(group.at("members"), message)
        for another in sections.groups:
            if another is group or not another.is_true("all-or-none"):
                continue
            others = set(another.texts("members"))
            both = [each for each in dict.fromkeys(members) if each in others]
            for left, right in permutations(both, 2) if exclusive else ():
                message = f'mutually-exclusive group "{group.id}" and all-or-none group "{another.id}" cannot both contain input pairs "{left}" and "{right}"'
                yield Problem(group.at("members"), message)
            if one and members and len(both) == len(set(members)):
                message = f'"{group.id}" is one-is-required and cannot be a subset of the all-or-none group "{another.id}"'
                yield Problem(group.at("members"), message)


GROUP_RULES: tuple[Rule, ...] = (
    _members_of_groups,
    _groups_are_satisfiable,
    _groups_do_not_contradict,
)


def find_rule_problems(document: Mapping[str, Any]) -> list[Problem]:
    """Return every problem found by the rules, in their order."""
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
                part.at("value-key"), message, f"put {key} into the command-line, or remove the key"
            )


def _keys_are_apart(sections: Sections) -> Iterator[Problem]:
    keyed = _keyed(sections)
    keys = dict.fromkeys(each.text("value-key") for each in keyed)
    for part in keyed:
        key = part.text("value-key")
        for other in keys:
            if other in key and other != key:
                instead = "give them keys in brackets, such as [INPUT]"
                yield Problem(part.at("value-key"), f'"{key}" contains "{other}"', instead)


def _shared_keys_exclude_each_other(sections: Sections) -> Iterator[Problem]:
    """Check that inputs sharing a key exclude each other. The reference checks this only for a group of exactly these."""
    owners: dict[str, list[Part]] = {}
    for part in _keyed(sections):
        owners.setdefault(part.text("value-key"), []).append(part)
    for key, parts in owners.items():
        if len(parts) < 2:
            continue
        sharing = {each.id for each in parts if each.path.startswith("inputs[")}
        same = [group for group in sections.groups if set(group.texts("members")) == sharing]
        if not sections.groups or not all(group.is_true("mutually-exclusive") for group in same):
            instead = "give each its own key, or put them into one mutually-exclusive group"
            yield Problem(parts[1].at("value-key"), f'"{key}" belongs to 2+ non exclusive IDs', instead)


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
        paths = output.fields.get("conditional-path-template")
        if not isinstance(paths, list):
            continue
        place = output.at("conditional-path-template")
        if not isinstance(output.fields.get("optional"), bool):
            message = f'"{output.id}" has a conditional-path-template but not the key "optional"'
            yield Problem(place, message, 'write "optional": true or false')
        elif not output.is_true("optional"):
            defaults = sum(isinstance(each, dict) and "default" in each for each in paths)
            if not defaults:
                message = f'"{output.id}" is not optional and has no "default" path-template'
                yield Problem(place, message, 'end the list with {"default": "PATH"}')
            elif defaults > 1:
                message = f'"{output.id}" has {defaults} "default" path-templates'
                yield Problem(place, message, "only the first one counts: remove the others")


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
