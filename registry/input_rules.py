"""What a descriptor may not say of its inputs, beyond the schema."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from registry.problem import Problem
from registry.sections import Part, Rule, Sections


def _flags_are_flags(sections: Sections) -> Iterator[Problem]:
    for part in sections.inputs:
        if part.text("type") != "Flag":
            continue
        if "command-line-flag" not in part.given:
            message = f'"{part.id}" must have a command-line flag'
            yield Problem(part.path, message, 'write "command-line-flag": "--name"')
        if not part.is_true("optional"):
            message = f'"{part.id}" is of type Flag, it has to be optional'
            yield Problem(part.at("optional"), message, 'write "optional": true')
        if part.is_true("list"):
            yield Problem(part.at("list"), "an input of type Flag cannot be a list", "take `list` away")


def _limits_leave_something(sections: Sections) -> Iterator[Problem]:
    for part in sections.inputs:
        least, most = part.number("minimum"), part.number("maximum")
        if part.text("type") == "Number" and least is not None and most is not None and least > most:
            message = f'"{part.id}" cannot have greater min ({least}) than max ({most})'
            yield Problem(part.at("minimum"), message, "exchange them")
        if "list" not in part.given:
            continue  # the reference does not look at the others
        fewest = part.number("min-list-entries") or 0
        largest = part.number("max-list-entries")
        if fewest < 0:
            message = f'"{part.id}" cannot have negative min entries ({fewest})'
            yield Problem(part.at("min-list-entries"), message, "write 0 or more")
        if largest is not None and largest <= 0:
            message = f'"{part.id}" cannot have non-positive max entries ({largest})'
            yield Problem(part.at("max-list-entries"), message, "write 1 or more")
        elif largest is not None and fewest > largest:
            message = f'"{part.id}" cannot have greater min entries ({fewest}) than max entries ({largest})'
            yield Problem(part.at("min-list-entries"), message, "exchange them")


def _choices_hold_the_default(sections: Sections) -> Iterator[Problem]:
    for part in sections.inputs:
        choices = part.given.get("value-choices")
        if not isinstance(choices, list) or part.text("type") in {"Flag", "Number"}:
            continue
        if not choices:
            message = f'"{part.id}" must have at least one value choice'
            yield Problem(part.at("value-choices"), message, "name the choices, or take the list away")
        if "default-value" in part.given:
            default = part.given["default-value"]
            wrong = [
                each for each in (default if isinstance(default, list) else [default]) if each not in choices
            ]
            if wrong:
                message = f'"{part.id}" cannot have default value outside its choices'
                yield Problem(part.at("default-value"), message, _one_of(choices))


def _what_inputs_name_exists(sections: Sections) -> Iterator[Problem]:
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
            "requires-inputs" in part.given or "disables-inputs" in part.given
        ):
            message = f'"{part.id}" cannot require or disable other inputs'
            yield Problem(
                part.path,
                message,
                "a required input is always there: say it of the others, or make it optional",
            )


def _choices_name_what_exists(sections: Sections) -> Iterator[Problem]:
    for part in sections.inputs:
        tables = {
            word: part.given[word] for word in ("value-requires", "value-disables") if word in part.given
        }
        choices = part.given.get("value-choices")
        if tables and not isinstance(choices, list):
            message = f'"{part.id}" cannot have {" and ".join(tables)} without value-choices defined'
            yield Problem(part.path, message, 'write "value-choices": [...]')
            continue
        for word, table in tables.items():
            if isinstance(table, dict):
                yield from _table_names_what_exists(sections, part, word, table)
        yield from _no_choice_does_both(part, tables)


def _table_names_what_exists(
    sections: Sections, part: Part, word: str, table: Mapping[str, Any]
) -> Iterator[Problem]:
    place = part.at(word)
    if set(table) != {str(each) for each in part.given["value-choices"]}:
        message = f'"{part.id}" {word} list is not the same as the value-choices'
        yield Problem(place, message, "give every choice a list, [] for none")
    for named in table.values():
        for each in named if isinstance(named, list) else ():
            other = sections.find_input(each) if isinstance(each, str) else None
            if other is None:
                yield Problem(place, f'"{part.id}" {word} id "{each}" not found')
            elif not other.is_true("optional"):
                yield Problem(place, f'"{part.id}" {word} cannot be used with required input "{each}"')


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
    _what_inputs_name_exists,
    _choices_name_what_exists,
)
