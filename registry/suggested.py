"""What an author suggests that a job asks for: the schema's own words, and two of ours below `custom`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from registry.pipeline import Resources
from registry.problem import Problem
from registry.sections import Rule, Sections

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


def _are_counts(sections: Sections) -> Iterator[Problem]:
    """Nothing else checks what is below `custom`."""
    ours = _ours(sections.whole.given)
    for key, least in _LEAST.items():
        if key in ours and not _is_count(ours[key], least):
            message = f"{key} must be a whole number, {least} or more"
            yield Problem(f"custom.{_OURS}.{key}", message, f'write "{key}": {max(least, 1)}')


def _are_known(sections: Sections) -> Iterator[Problem]:
    for key in _ours(sections.whole.given):
        if key not in _LEAST:
            known = " and ".join(_LEAST)
            yield Problem(f"custom.{_OURS}.{key}", f"{key!r} says nothing here", f"{known} are what is read")


def _ours(document: Mapping[str, Any]) -> Mapping[str, Any]:
    custom = document.get("custom")
    found = custom.get(_OURS) if isinstance(custom, dict) else None
    return found if isinstance(found, dict) else {}


def _is_count(value: Any, least: int) -> bool:
    return type(value) is int and least <= value <= 1_000_000


SUGGESTED_RULES: tuple[Rule, ...] = (_are_counts,)
SUGGESTED_ADVICE: tuple[Rule, ...] = (_are_known,)
