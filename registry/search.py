"""Finding pipelines by words, best first, also by words that are mistyped."""

from __future__ import annotations

import re
from collections.abc import Iterable

from registry.summary import Summary

_WORD = re.compile(r"[^\W_]+")
_NEAR = 80.0  # of 100: one letter in five or six may be wrong
_SHORTEST = 4  # letters of a word that may be mistyped
_MOST_NEAR = 5


def search_pipelines(pipelines: Iterable[Summary], words: Iterable[str]) -> list[tuple[Summary, int]]:
    """The pipelines in which every word occurs, best first, with their scores.

    A word counts most in the name, then in the title and tags, the description, and the inputs' names; more where it is the
    whole name or begins a word. One that occurs nowhere is taken for the words that are nearest to it, for half.
    """
    texts = [(each, _fields(each)) for each in pipelines]
    wanted = [_meanings(word.lower(), texts) for word in words]
    scored = [(each, _score(fields, wanted)) for each, fields in texts]
    return sorted(
        ((each, score) for each, score in scored if score), key=lambda pair: (-pair[1], pair[0].reference)
    )


_Fields = list[tuple[int, str]]


def _fields(pipeline: Summary) -> _Fields:
    return [
        (16, pipeline.name),
        (8, pipeline.title.lower()),
        (8, pipeline.tags.lower()),
        (4, pipeline.description.lower()),
        (2, pipeline.inputs.lower()),
    ]


def _meanings(word: str, texts: list[tuple[Summary, _Fields]]) -> list[tuple[str, int]]:
    """The word, or what may have been meant, with what a hit is divided by."""
    if len(word) < _SHORTEST or any(word in text for _, fields in texts for _, text in fields):
        return [(word, 1)]
    from rapidfuzz import fuzz, process

    different = {text for _, fields in texts for _, text in fields}
    known = {found for text in different for found in _WORD.findall(text)}
    near = process.extract(word, sorted(known), scorer=fuzz.ratio, score_cutoff=_NEAR, limit=_MOST_NEAR)
    return [(str(found[0]), 2) for found in near] or [(word, 1)]


def _score(fields: _Fields, wanted: list[list[tuple[str, int]]]) -> int:
    scores = [
        max(
            sum(_hit(word, text) * weight for weight, text in fields) // divisor for word, divisor in meanings
        )
        for meanings in wanted
    ]
    return sum(scores) if scores and all(scores) else 0


def _hit(word: str, text: str) -> int:
    """4 for the whole text, 3 for a whole word, 2 for the beginning of one, 1 inside."""
    if word not in text:
        return 0
    if word == text:
        return 4
    found = re.search(rf"(?<![^\W_]){re.escape(word)}(?P<more>[^\W_])?", text)
    if found is None:
        return 1
    return 2 if found["more"] else 3
