"""What a list or a search says of a pipeline, and where it was found out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hibali.errors import HibaliError
from registry.pipeline import Pipeline


@dataclass(frozen=True, slots=True)
class Summary:
    """A pipeline at a glance; `tags` and `inputs` are words to be searched, `doi` is the one that deprecates it in its author's words."""

    name: str
    version: str
    digest: str
    title: str
    description: str
    tags: str = ""
    inputs: str = ""
    doi: str = ""

    @property
    def reference(self) -> str:
        """NAME@VERSION, as users write it."""
        return f"{self.name}@{self.version}"


@dataclass(frozen=True, slots=True)
class Damaged:
    """An entry that cannot be used, and why."""

    reference: str
    error: HibaliError


def summarise(pipeline: Pipeline) -> Summary:
    """The glance at a pipeline that was read."""
    doi = pipeline.document.get("deprecated-by-doi")
    return Summary(
        name=pipeline.name,
        version=pipeline.version,
        digest=pipeline.digest,
        title=pipeline.title,
        description=pipeline.description,
        tags=_flat(pipeline.tags),
        inputs=" ".join(f"{each.id} {each.name}" for each in pipeline.inputs),
        doi=doi if isinstance(doi, str) else "yes" if doi else "",
    )


def _flat(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"{key} {_flat(item)}" for key, item in value.items())
    if isinstance(value, list):
        return " ".join(_flat(item) for item in value)
    return str(value)
