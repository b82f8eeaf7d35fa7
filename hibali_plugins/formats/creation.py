"""Make a descriptor of a tool from its help, and by questions (`pipelines create`)."""

from __future__ import annotations

import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import click

from hibali.errors import UsageError
from hibali.subprocesses import run
from hibali_cli.options import Common
from hibali_plugins.formats.conversion import Conversion, Identifiers
from hibali_plugins.formats.conversions import deliver
from hibali_plugins.formats.help_text import convert_help
from registry.descriptor import read_descriptor
from registry.problems import read_file_bytes

_SECONDS = 30
_MOST_BYTES = 1024 * 1024
_TYPES = click.Choice(["File", "String", "Number", "Flag"])


def create_descriptor(
    common: Common,
    tool: str,
    *,
    help_option: str,
    help_text: str | None,
    ask: bool,
    name: str,
    version: str,
    output: str | None,
) -> int | None:
    """Print a descriptor of a tool, or write it to a file; with `ask` after questions.

    Its help comes from the tool itself with `help_option`, or from the file `help_text`; "-" is stdin.

    Raises:
        UsageError: There is nothing in the help that is understood; or the answers make no valid descriptor.
        NotFoundError: The tool cannot be started here.
    """
    words = _words_of(tool)
    name = name or Path(words[-1] if len(words) > 1 and not words[-1].startswith("-") else words[0]).stem
    version = version or "unknown"
    text = _help_of([*words, help_option], help_text)
    try:
        made = convert_help(text, tool, name=name, version=version, command=shlex.join(words))
    except UsageError as problem:
        if not ask or problem.code != "no-usage":
            raise
        made = Conversion(_empty(name, version, shlex.join(words)))
    if ask:
        _ask(made.document)
        made = Conversion(made.document)
    content = json.dumps(made.document, indent=4) + "\n"
    read_descriptor(content.encode(), tool)
    deliver(common, tool, made, content, output)
    return None


def _words_of(tool: str) -> list[str]:
    try:
        words = shlex.split(tool)
    except ValueError:
        words = []
    if not words:
        raise UsageError("not-a-tool", "this is not a command line", subject=tool)
    return words


def _help_of(argv: list[str], file: str | None) -> str:
    if file == "-":
        return sys.stdin.read(_MOST_BYTES)
    if file is not None:
        return read_file_bytes(Path(file)).decode("utf-8", "replace")
    result = run(argv, timeout=_SECONDS, most=_MOST_BYTES)
    return (result.stdout if result.stdout.strip() else result.stderr).decode("utf-8", "replace")


def _empty(name: str, version: str, command: str) -> dict[str, Any]:
    start = {"name": name, "tool-version": version, "description": name, "schema-version": "0.5"}
    return {**start, "command-line": command, "inputs": []}


def _ask(document: dict[str, Any]) -> None:
    """Ask for the types of inputs, further inputs, and outputs, and put the answers into a descriptor."""
    for each in document["inputs"]:
        if each["type"] == "Flag" or "value-choices" in each:
            continue
        shown = each.get("command-line-flag", each["name"])
        _set_type(each, click.prompt(f"Type of {shown}", each["type"], type=_TYPES, err=True))
    identifiers = Identifiers(json.dumps(document))
    for each in document["inputs"]:
        identifiers.new_id(each["id"])
    while name := click.prompt("Name of a further input (empty: no more)", "", show_default=False, err=True):
        document["inputs"].append(_ask_input(document, identifiers, name))
    outputs: list[dict[str, Any]] = document.get("output-files", [])
    keys = ", ".join(each["value-key"] for each in document["inputs"] if each["type"] != "Flag")
    while path := click.prompt(
        f"Path of an output, which may contain {keys} (empty: no more)", "", show_default=False, err=True
    ):
        name = click.prompt("Its name", re.sub(r"\W+", " ", path).strip().lower() or "output", err=True)
        required = click.confirm("Does the tool always write it?", default=True, err=True)
        made = {"id": identifiers.new_id(name), "name": name, "path-template": path}
        outputs.append(made if required else {**made, "optional": True})
    if outputs:
        document["output-files"] = outputs


def _set_type(made: dict[str, Any], kind: str) -> None:
    if kind == made["type"]:
        return
    made["type"] = kind
    for name in ("integer", "default-value") + (
        ("list", "min-list-entries", "max-list-entries") if kind == "Flag" else ()
    ):
        made.pop(name, None)
    if kind == "Flag":
        made["optional"] = True


def _ask_input(document: dict[str, Any], identifiers: Identifiers, name: str) -> dict[str, Any]:
    made: dict[str, Any] = {"id": identifiers.new_id(name), "name": name}
    made["type"] = click.prompt("Its type", "String", type=_TYPES, err=True)
    flag = click.prompt("Its option, such as --size (empty: none)", "", show_default=False, err=True)
    if flag:
        made["command-line-flag"] = shlex.quote(flag)
    if made["type"] == "Flag" or not click.confirm("Is it required?", default=True, err=True):
        made["optional"] = True
    made["value-key"] = identifiers.new_key(made["id"])
    document["command-line"] += f" {made['value-key']}"
    return made
