"""Convert descriptors of Styx (schema 0.5+styx) to Boutiques 0.5, and find those of niwrap in its repository."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from hibali.documents import read_json
from registry.problems import Problem

STYX = "0.5+styx"

# Keys of Styx's extension (github.com/styx-api, the schema of 2025), and what is lost without them; inputs that are commands stay, and
# are problems of the result.
_KEYS = {
    "stdout-output": "removed: what the tool prints is in the log of each run (`hibali runs logs ID`)",
    "stderr-output": "removed: what the tool prints is in the log of each run (`hibali runs logs ID`)",
}
_INPUT_KEYS = {
    "media-types": "removed: the kind of a file is not checked",
    "mutable": "removed: if the tool changes this file in place, the change is lost",
    "resolve-parent": "removed: if the tool reads files beside this one, make the folder the input",
}


def without_styx(document: Mapping[str, Any]) -> tuple[dict[str, Any], list[Problem]]:
    """Remove what Styx adds to schema 0.5; return what this changes, too."""
    upgraded = {**document, "schema-version": "0.5"}
    changes = [Problem(key, text) for key, text in _KEYS.items() if upgraded.pop(key, None) is not None]
    if "tool-version" not in upgraded:
        upgraded["tool-version"] = "unknown"
        changes.append(Problem("tool-version", 'it has none: "unknown" was written'))
    inputs = document.get("inputs")
    if isinstance(inputs, list):
        upgraded["inputs"] = [_plain_input(each) for each in inputs]
        changes += [
            Problem(f"inputs[{number}].{key}", text)
            for number, each in enumerate(inputs)
            for key, text in _INPUT_KEYS.items()
            if isinstance(each, dict) and each.get(key)
        ]
    outputs = document.get("output-files")
    if outputs == []:
        del upgraded["output-files"]
    elif isinstance(outputs, list):
        upgraded["output-files"], renamed = _with_own_ids(outputs, upgraded.get("inputs"))
        changes += renamed
    return upgraded, changes


def _plain_input(given: Any) -> Any:
    """Remove the keys of Styx from an input. Its flags are optional without saying so."""
    if not isinstance(given, dict):
        return given
    kept = {key: value for key, value in given.items() if key not in _INPUT_KEYS}
    return {**kept, "optional": True} if kept.get("type") == "Flag" else kept


def _with_own_ids(outputs: list[Any], inputs: Any) -> tuple[list[Any], list[Problem]]:
    """Give outputs ids that no input has, and names; in Styx both have ids of their own."""
    taken = (
        {each["id"] for each in inputs if isinstance(each, dict) and isinstance(each.get("id"), str)}
        if isinstance(inputs, list)
        else set[str]()
    )
    found, changes = list[Any](), list[Problem]()
    for number, each in enumerate(outputs):
        if not isinstance(each, dict) or not isinstance(each.get("id"), str):
            found.append(each)
            continue
        wanted = identifier = each["id"]
        while identifier in taken:
            identifier += "_output"
        taken.add(identifier)
        if identifier != wanted:
            changes.append(Problem(f"output-files[{number}].id", f'"{wanted}" is now "{identifier}"'))
        found.append({"name": identifier, **each, "id": identifier})
    return found, changes


NIWRAP_PLACE = re.compile(
    r"niwrap(?:@(?P<ref>[A-Za-z0-9][\w./-]*))?:(?P<path>[A-Za-z0-9][\w.+-]*(?:/[A-Za-z0-9_][\w.+-]*){0,2})",
    re.ASCII,
)
_FOLDER = "src/niwrap"


def select_tools(names: Iterable[str], wanted: str) -> dict[str, str]:
    """Return the descriptors of niwrap at SUITE, SUITE/TOOL, SUITE/VERSION or SUITE/VERSION/TOOL, each with the file of its version."""
    suite, *rest = wanted.split("/")
    known = set(names)
    found = {}
    for name in sorted(known):
        parts = name.removeprefix(f"{_FOLDER}/").split("/")
        if not name.startswith(f"{_FOLDER}/{suite}/") or len(parts) != 4 or parts[3] != "boutiques.json":
            continue
        if rest in ([], [parts[1]], [parts[2]], parts[1:3]):
            version = f"{_FOLDER}/{suite}/{parts[1]}/version.json"
            found[name] = version if version in known else ""
    return found


def convert_tool(name: str, raw: bytes, version: bytes) -> tuple[str, bytes, list[Problem]]:
    """Return the name in the catalogue, SUITE.TOOL, the descriptor in Boutiques 0.5, and what changed.

    The version of the tool is that of its folder, and its image the one that niwrap names for all tools of that version.
    Raises `JsonProblemError`.
    """
    suite, number, tool = name.removeprefix(f"{_FOLDER}/").split("/")[:3]
    document = read_json(raw, name)
    if not isinstance(document, dict) or document.get("schema-version") != STYX:
        return f"{suite}.{tool}", raw, []
    described = read_json(version, name) if version else {}
    image = described.get("container") if isinstance(described, dict) else None
    known: dict[str, Any] = {"tool-version": number}
    if isinstance(image, str) and image:
        known["container-image"] = {"type": "docker", "image": image}
    upgraded, changes = without_styx({**document, **known})
    return f"{suite}.{tool}", json.dumps(upgraded, indent=4, ensure_ascii=False).encode(), changes
