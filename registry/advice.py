"""Advise on valid descriptors: better forms, and reasons for which a run would be refused."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from hibali.errors import HibaliError
from registry.command_line import is_safe_variable, needs_consent
from registry.condition import DEFAULT, read_condition
from registry.descriptor_rules import Part, Rule, Sections
from registry.pipeline import Resources
from registry.problems import Problem
from registry.shell_text import read_shell

_SECTION = "hibali"  # `"custom": {"hibali": {"tasks": 4, "gpus": 1}}`
_LEAST = {"tasks": 1, "gpus": 0}


def read_suggested(document: Mapping[str, Any]) -> Resources:
    """Read the resources that a valid document suggests."""
    suggested = document.get("suggested-resources", {})
    own = _check_custom(document)
    return Resources(
        cpu_cores=suggested.get("cpu-cores"),
        ram_gigabytes=suggested.get("ram"),
        disk_gigabytes=suggested.get("disk-space"),
        nodes=suggested.get("nodes"),
        walltime_seconds=suggested.get("walltime-estimate"),
        **{key: own[key] for key in _LEAST if _is_count(own.get(key), _LEAST[key])},
    )


def advise_on_custom(sections: Sections) -> Iterator[Problem]:
    """Advise on keys below `custom` that are ignored; they never make a descriptor invalid."""
    for key, value in _check_custom(sections.whole.fields).items():
        place = f"custom.{_SECTION}.{key}"
        if key not in _LEAST:
            yield Problem(
                place,
                f"the key {key!r} is unknown here",
                f"the keys that hibali reads are {' and '.join(_LEAST)}",
            )
        elif not _is_count(value, _LEAST[key]):
            message = f"{key} is ignored: it is not a whole number of at least {_LEAST[key]}"
            yield Problem(place, message, f'write "{key}": 1')


def _check_custom(document: Mapping[str, Any]) -> Mapping[str, Any]:
    custom = document.get("custom")
    found = custom.get(_SECTION) if isinstance(custom, dict) else None
    return found if isinstance(found, dict) else {}


def _is_count(value: Any, least: int) -> bool:
    return type(value) is int and least <= value <= 1_000_000


_DIGEST = re.compile(r"(?:@sha256:|sha256:|^)[0-9a-f]{64}$")
_KINDS = {"String": (str,), "File": (str,), "Number": (int, float), "Flag": (bool,)}


def find_advice(document: Mapping[str, Any]) -> list[Problem]:
    """Return all advice, in the order of the checks."""
    sections = Sections(document)
    found = dict.fromkeys(problem for check in _CHECKS for problem in check(sections))
    return [replace(each, advice=True) for each in found]


def _defaults_are_valid(sections: Sections) -> Iterator[Problem]:
    for part in sections.inputs:
        kind = part.text("type")
        if "default-value" not in part.fields or kind not in _KINDS:
            continue
        default, place = part.fields["default-value"], part.at("default-value")
        if isinstance(default, list) != part.is_true("list"):
            instead = "write a list" if part.is_true("list") else 'write one value, or "list": true'
            yield Problem(place, f'the default of "{part.id}" is {_show(default)}', instead)
            continue
        for each in default if isinstance(default, list) else [default]:
            yield from _check_default(part, kind, each, place)


def _check_default(part: Part, kind: str, default: Any, place: str) -> Iterator[Problem]:
    wrong_kind = not isinstance(default, _KINDS[kind]) or (kind == "Number" and isinstance(default, bool))
    if wrong_kind:
        yield Problem(place, f'the default of "{part.id}" is {_show(default)}, which is not of type {kind}')
        return
    if kind != "Number":
        return
    least, most = part.number("minimum"), part.number("maximum")
    if (least is not None and default < least) or (most is not None and default > most):
        yield Problem(place, f'the default of "{part.id}" is outside its minimum and maximum')
    if part.is_true("integer") and default != int(default):
        yield Problem(place, f'the default of "{part.id}" is not an integer')


def _defaults_apply_together(sections: Sections) -> Iterator[Problem]:
    """Advise where defaults exclude each other: one of them does not apply (registry.invocation)."""
    active = {
        part.id: part
        for part in sections.inputs
        if part.fields.get("default-value") is not None and not _is_flag_off(part)
    }
    for part in active.values():
        default = part.fields["default-value"]
        tables = part.fields.get("value-disables")
        by_value = [
            tables.get(str(each), []) if isinstance(tables, dict) else []
            for each in (default if isinstance(default, list) else [default])
        ]
        named = [each for table in by_value if isinstance(table, list) for each in table]
        for each in dict.fromkeys([*part.texts("disables-inputs"), *named]):
            if isinstance(each, str) and each in active and each != part.id:
                yield _default_does_not_apply(active[each], f"{part.id} disables it")
    for group in sections.groups if active else ():
        members = [each for each in group.texts("members") if each in active]
        for each in members[1:] if group.is_true("mutually-exclusive") else ():
            yield _default_does_not_apply(
                active[each], f"the group {group.id} excludes it together with {members[0]}"
            )


def _is_flag_off(part: Part) -> bool:
    return part.text("type") == "Flag" and not part.is_true("default-value")


def _default_does_not_apply(part: Part, because: str) -> Problem:
    message = f'the default of "{part.id}" does not apply: with its own default, {because}'
    return Problem(part.at("default-value"), message, "remove one of the two defaults")


def _image_is_pinned(sections: Sections) -> Iterator[Problem]:
    container = sections.container
    if container is None:
        return
    image = container.text("image")
    if container.text("type") == "rootfs":
        yield Problem(
            container.at("type"),
            "no supported container runtime starts a rootfs image",
            'give a docker image: {"type": "docker", "image": "NAME:TAG"}',
        )
    elif image and not _DIGEST.search(image) and not _DIGEST.search(container.text("container-hash")):
        name = image.rpartition("/")[2]
        tag = name.partition(":")[2]
        risk = (
            f"the tag {tag} can be moved to another image"
            if tag and tag != "latest"
            else "without a tag, the newest image is used"
        )
        instead = "write NAME@sha256:..., or pin it with `hibali pipelines image add`"
        yield Problem(container.at("image"), f"the image {image} is not pinned: {risk}", instead)


def _conditions_can_be_judged(sections: Sections) -> Iterator[Problem]:
    for output in sections.outputs:
        paths = output.fields.get("conditional-path-template")
        for number, each in enumerate(paths if isinstance(paths, list) else ()):
            for condition in each if isinstance(each, dict) else ():
                if condition == DEFAULT:
                    continue
                try:
                    read_condition(condition, sections.ids)
                except HibaliError as problem:
                    place = f"{output.path}.conditional-path-template[{number}]"
                    yield Problem(place, problem.message, problem.hint)


def _variables_can_be_set(sections: Sections) -> Iterator[Problem]:
    for variable in sections.variables:
        name = variable.text("name")
        if name and not is_safe_variable(name):
            message = f"hibali refuses to run a pipeline that sets {name}: the variable changes how programs start, or its name is invalid"
            yield Problem(variable.at("name"), message, "give it another name")
        elif needs_consent([name]):
            message = f"the variable {name} changes which programs run or what they load: each user must consent to it"
            yield Problem(variable.at("name"), message, "set it in the image, or in the command-line")


def _shell_is_known(sections: Sections) -> Iterator[Problem]:
    shell = sections.whole.text("shell")
    if not shell:
        return
    try:
        read_shell(shell.strip())
    except HibaliError:
        yield Problem("shell", f"hibali refuses to run the shell {shell}", "write /bin/sh or /bin/bash")
    else:
        if shell != shell.strip():
            yield Problem("shell", "the path of the shell has white space around it", "remove it")


def _keys_are_distinctive(sections: Sections) -> Iterator[Problem]:
    for part in (*sections.inputs, *sections.outputs):
        key = part.text("value-key")
        if key and key.isalnum() and len(key) <= 2:
            message = f"the value-key {key} may occur in the command-line by accident"
            yield Problem(part.at("value-key"), message, f"write [{(part.id or key).upper()}]")


def _show(value: Any) -> str:
    if isinstance(value, list):
        return "a list"
    if isinstance(value, bool):
        return "true" if value else "false"
    return "null" if value is None else f"{value!r}"[:80] if isinstance(value, str) else str(value)[:80]


_CHECKS: tuple[Rule, ...] = (
    _defaults_are_valid,
    _defaults_apply_together,
    _image_is_pinned,
    _conditions_can_be_judged,
    _variables_can_be_set,
    _shell_is_known,
    _keys_are_distinctive,
    advise_on_custom,
)
