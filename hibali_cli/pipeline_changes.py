"""How the differences of two versions of a pipeline are shown."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from hibali_cli.output import Output

if TYPE_CHECKING:
    from registry.pipeline import Change

_MARKS = {"added": "+", "removed": "-", "changed": "~"}
_LONGEST = 60


def show_changes(output: Output, changes: list[Change], code: int) -> None:
    """A line for each; `code` is what the call ends with."""
    for each in changes:
        if output.json:
            told = {"change": each.what, "path": each.path, "before": each.before, "after": each.after}
            output.record("difference", {**told, "breaking": each.breaking})
        else:
            mark = "!" if each.breaking else " "
            output.line(f"{mark} {_MARKS[each.what]} {each.path}{_values(each)}")
    if output.json:
        output.record("end", {"count": len(changes), "exit": code})
    elif not changes:
        output.say("no differences")


def _values(change: Change) -> str:
    if isinstance(change.before, dict) or isinstance(change.after, dict):
        part = change.after or change.before
        name = part.get("name") if isinstance(part, dict) else None
        return f": {name}" if isinstance(name, str) else ""
    if change.what == "added":
        return f": {_word(change.after)}"
    if change.what == "removed":
        return f": {_word(change.before)}"
    return f": {_word(change.before)} -> {_word(change.after)}"


def _word(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 4] + " ..."
