"""What changed from one version of a pipeline to another, said so that whoever uses it knows what to do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from registry.pipeline import Pipeline

_SECTIONS = {"inputs": "input", "output-files": "output", "groups": "group"}
_BREAKING_KEYS = frozenset({"type", "list", "integer", "value-choices", "minimum", "maximum", "value-key"})


@dataclass(frozen=True, slots=True)
class Change:
    """`what` is added, removed or changed; `path` is the thing (`input infile`, `container-image.image`).

    `before` and `after` are what the descriptors say, None where nothing stands there. `breaking`: an invocation that was
    right before may be wrong now, or mean something else.
    """

    what: str
    path: str
    before: Any
    after: Any
    breaking: bool = False


def find_changes(old: Pipeline, new: Pipeline) -> list[Change]:
    """All of them, sections in the order of the schema, within one in the order of the new descriptor."""
    return [
        *_of_keys("", _plain(old.document), _plain(new.document), breaking=frozenset({"command-line"})),
        *_of_keys(
            "container-image",
            _table(old.document, "container-image"),
            _table(new.document, "container-image"),
        ),
        *(change for section, word in _SECTIONS.items() for change in _of_section(old, new, section, word)),
    ]


def _of_section(old: Pipeline, new: Pipeline, section: str, word: str) -> Iterator[Change]:
    before, after = _by_id(old.document, section), _by_id(new.document, section)
    for identifier, given in after.items():
        path = f"{word} {identifier}"
        if identifier not in before:
            needed = section == "inputs" and not given.get("optional") and "default-value" not in given
            yield Change("added", path, None, given, breaking=needed or section == "groups")
        else:
            yield from _of_part(path, before[identifier], given, section)
    for identifier, given in before.items():
        if identifier not in after:
            yield Change("removed", f"{word} {identifier}", given, None, breaking=section != "groups")


def _of_part(
    path: str, before: Mapping[str, Any], after: Mapping[str, Any], section: str
) -> Iterator[Change]:
    for change in _of_keys(path, before, after, breaking=_BREAKING_KEYS):
        needed = change.path.endswith(".optional") and not after.get("optional") and section == "inputs"
        strict = section == "groups" and not change.path.endswith((".name", ".description"))
        if needed or strict:
            yield Change(change.what, change.path, change.before, change.after, breaking=True)
        else:
            yield change


def _of_keys(
    path: str, before: Mapping[str, Any], after: Mapping[str, Any], *, breaking: frozenset[str] = frozenset()
) -> Iterator[Change]:
    for key in dict.fromkeys([*after, *before]):
        old, new = before.get(key), after.get(key)
        if old == new and type(old) is type(new):
            continue
        what = "added" if key not in before else "removed" if key not in after else "changed"
        yield Change(what, f"{path}.{key}" if path else key, old, new, breaking=key in breaking)


def _plain(document: Mapping[str, Any]) -> dict[str, Any]:
    """What is not told part by part."""
    apart = {*_SECTIONS, "container-image", "tool-version"}
    return {key: value for key, value in document.items() if key not in apart}


def _table(document: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = document.get(key)
    return found if isinstance(found, dict) else {}


def _by_id(document: Mapping[str, Any], section: str) -> dict[str, Mapping[str, Any]]:
    return {str(each["id"]): each for each in document.get(section) or ()}
