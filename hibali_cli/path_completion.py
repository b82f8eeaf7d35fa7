"""Completing what is typed: words of a list, and paths of this machine, hostile names escaped."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from registry.invocation import write_typed

_MOST = 200  # candidates; nobody reads more


def complete_last(text: str, words: Sequence[str]) -> list[str]:
    """The words that begin as the last of several does; those before it stay."""
    begun, _, last = text.rpartition(" ")
    before = f"{begun} " if begun else ""
    return [before + word for word in words if word.startswith(last)][:_MOST]


def complete_path(text: str, folder: Path) -> list[str]:
    """The paths that begin as typed, seen from `folder`, as somebody would type them; folders end in a slash.

    Names that could move a cursor, or that blanks or quotation marks would make another one, are JSON strings. Those that are not
    UTF-8 cannot stand in an invocation and are left out.
    """
    typed = _plain(text)
    above, _, begun = typed.rpartition("/")
    root = folder / (above + "/" if above or typed.startswith("/") else "")
    found = []
    try:
        with os.scandir(root) as entries:
            for entry in entries:
                hidden = entry.name.startswith(".") and not begun.startswith(".")
                if entry.name.startswith(begun) and not hidden and _is_text(entry.name):
                    found.append(f"{entry.name}/" if _is_folder(entry) else entry.name)
    except (OSError, ValueError):
        return []
    before = typed[: len(typed) - len(begun)]
    return [_shown(before + name, quoted=text.startswith('"')) for name in sorted(found)[:_MOST]]


def _plain(text: str) -> str:
    """What is typed so far, of a JSON string as far as it goes."""
    if not text.startswith('"'):
        return text
    for end in ('"', "", '\\"'):  # not closed yet, closed already, or in the middle of an escape
        try:
            return str(json.loads(text + end))
        except ValueError:
            continue
    return text


def _shown(path: str, *, quoted: bool) -> str:
    """A folder's string stays open, so that typing goes on inside it."""
    text = json.dumps(path) if quoted else write_typed(path)
    is_open = text.startswith('"') and path.endswith("/")
    return text[:-1] if is_open else text


def _is_text(name: str) -> bool:
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False
