"""What an author suggests that a job asks for: the schema's own words, and two of ours below `custom`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from registry.pipeline import Resources
from registry.problem import Problem
from registry.sections import Sections

_OURS = "hibali"  # `"custom": {"hibali": {"tasks": 4, "gpus": 1}}`
_LEAST = {"tasks": 1, "gpus": 0}


def read_suggested(document: Mapping[str, Any]) -> Resources:
    """The suggestions of a valid document."""
    given = document.get("suggested-resources", {})
    ours = _ours(document)
    return Resources(
        cpu_cores=given.get("cpu-cores"),
        ram_gigabytes=given.get("ram"),
        disk_gigabytes=given.get("disk-space"),
        nodes=given.get("nodes"),
        walltime_seconds=given.get("walltime-estimate"),
        **{key: ours[key] for key in _LEAST if _is_count(ours.get(key), _LEAST[key])},
    )


def advise_on_ours(sections: Sections) -> Iterator[Problem]:
    """What stands below `custom` makes no descriptor invalid, and what cannot be meant there is passed over: a word of advice."""
    for key, value in _ours(sections.whole.given).items():
        place = f"custom.{_OURS}.{key}"
        if key not in _LEAST:
            yield Problem(place, f"{key!r} says nothing here", f"{' and '.join(_LEAST)} are what is read")
        elif not _is_count(value, _LEAST[key]):
            message = f"{key} is no whole number of {_LEAST[key]} or more, and passed over"
            yield Problem(place, message, f'write "{key}": 1')


def _ours(document: Mapping[str, Any]) -> Mapping[str, Any]:
    custom = document.get("custom")
    found = custom.get(_OURS) if isinstance(custom, dict) else None
    return found if isinstance(found, dict) else {}


def _is_count(value: Any, least: int) -> bool:
    return type(value) is int and least <= value <= 1_000_000
