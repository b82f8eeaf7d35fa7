"""Finding pipelines by words."""

from __future__ import annotations

from collections.abc import Iterable

from registry.pipeline import Pipeline


def search_pipelines(pipelines: Iterable[Pipeline], words: Iterable[str]) -> list[tuple[Pipeline, int]]:
    """The pipelines in which every word occurs, best first, with their scores.

    A word counts most in the name, then in the title and tags, the description, and the inputs' names.
    """
    wanted = [word.lower() for word in words]
    scored = [(each, _score(each, wanted)) for each in pipelines]
    return sorted(
        ((each, score) for each, score in scored if score), key=lambda pair: (-pair[1], pair[0].reference)
    )


def _score(pipeline: Pipeline, words: list[str]) -> int:
    fields = [
        (8, pipeline.name),
        (4, pipeline.title.lower()),
        (4, _flat(pipeline.tags).lower()),
        (2, pipeline.description.lower()),
        (1, " ".join(f"{each.id} {each.name}" for each in pipeline.inputs).lower()),
    ]
    scores = [
        sum(weight * (2 if word == text else 1) for weight, text in fields if word in text) for word in words
    ]
    return sum(scores) if scores and all(scores) else 0


def _flat(value: object) -> str:
    if isinstance(value, dict):
        return " ".join(f"{key} {_flat(item)}" for key, item in value.items())
    if isinstance(value, list):
        return " ".join(_flat(item) for item in value)
    return str(value)
