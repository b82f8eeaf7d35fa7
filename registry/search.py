"""Search and list the catalogue from a cache of summaries."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from hibali.documents import line_of_json
from hibali.errors import HibaliError
from hibali.files import check_private_file, write_atomic
from hibali.ledger import Journal, read_records
from hibali.text import similar_words
from registry.pipeline import Pipeline, Versioned


@dataclass(frozen=True, slots=True)
class Summary(Versioned):
    """The summary of a pipeline; `tags` and `inputs` are searched, `doi` is the one by which its author deprecates it."""

    digest: str
    title: str
    description: str
    tags: str = ""
    inputs: str = ""
    doi: str = ""


@dataclass(frozen=True, slots=True)
class Damaged:
    """An entry that cannot be used, and why."""

    reference: str
    error: HibaliError


def summarise(pipeline: Pipeline) -> Summary:
    """Summarise a pipeline."""
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


Identity = tuple[int, int, int, int, int]
_FIELDS = tuple(field.name for field in fields(Summary))
_WASTE = 2  # lines per pipeline before the file is rewritten


class Overview:
    """Summaries by the identity of the file they were made of (S5): device, inode, size, mtime and ctime in nanoseconds.

    Only files that hibali hashed itself are cached. A lost cache file is rebuilt.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known: dict[tuple[str, str], tuple[Identity, Summary]] | None = None
        self._lines = 0
        self._fresh: list[tuple[Identity, Summary]] = []

    def summary(self, name: str, version: str, file: str, read: Callable[[], Summary]) -> Summary:
        """Return the cached summary of an unchanged file, else the result of `read`; raises its errors, and OSError."""
        identity = identity_of(os.lstat(file))
        known = self.load().get((name, version))
        if known is not None and known[0] == identity:
            return known[1]
        found = read()
        if identity_of(os.lstat(file)) == identity:
            self._fresh.append((identity, found))
        return found

    def note(self, file: str, summary: Summary) -> None:
        """Add the summary of a file that was just written or read; raises OSError."""
        self._fresh.append((identity_of(os.lstat(file)), summary))

    def save(self) -> None:
        """Append new summaries to the cache file; a read-only state folder costs only time."""
        if not self._fresh:
            return
        known = self.load()
        for identity, summary in self._fresh:
            known[summary.name, summary.version] = (identity, summary)
        try:
            if self._lines + len(self._fresh) > _WASTE * len(known) + 100:
                content = "".join(line_of_json(_record(*each)) + "\n" for each in known.values())
                write_atomic(self._path, content.encode("ascii"))
            else:
                with Journal(self._path) as journal:
                    for each in self._fresh:
                        journal.append(_record(*each))
        except (OSError, HibaliError):
            return
        self._fresh.clear()

    def load(self) -> dict[tuple[str, str], tuple[Identity, Summary]]:
        """Read the cache file; raises `RefusedError` where others could write it."""
        if self._known is None:
            check_private_file(self._path, "the cached summaries of the catalogue")
            self._known = {}
            for record in read_records(self._path, is_cache=True):
                self._lines += 1
                try:
                    summary = Summary(*(str(record[field]) for field in _FIELDS))
                    device, inode, size, mtime, ctime = (int(each) for each in record["identity"])
                except (KeyError, TypeError, ValueError):
                    continue
                self._known[summary.name, summary.version] = ((device, inode, size, mtime, ctime), summary)
        return self._known


def identity_of(found: os.stat_result) -> Identity:
    """Return the attributes of a file that change with its content."""
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _record(identity: Identity, summary: Summary) -> dict[str, Any]:
    return {"schema": 1, "kind": "summary", "identity": list(identity), **asdict(summary)}


_WORD = re.compile(r"[^\W_]+")
_SIMILARITY = 0.8  # of 1: one wrong letter in five or six is tolerated
_SHORTEST = 4  # minimum letters of a word that may be mistyped
_MOST_SIMILAR = 5


def search_pipelines(pipelines: Iterable[Summary], words: Iterable[str]) -> list[tuple[Summary, int]]:
    """Return the pipelines that contain every word, best first, with their scores.

    A word counts most in the name, then in the title and tags, the description, and the inputs' names; more where it is the
    whole name or begins a word. A word that occurs nowhere matches the most similar words, with half the score.
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
    """Return the word, or similar words, with the divisor of their score."""
    if len(word) < _SHORTEST or any(word in text for _, fields in texts for _, text in fields):
        return [(word, 1)]
    different = {text for _, fields in texts for _, text in fields}
    known = {found for text in different for found in _WORD.findall(text)}
    similar = similar_words(word, sorted(known), _SIMILARITY)[:_MOST_SIMILAR]
    return [(found, 2) for found in similar] or [(word, 1)]


def _score(fields: _Fields, wanted: list[list[tuple[str, int]]]) -> int:
    scores = [
        max(
            sum(_hit(word, text) * weight for weight, text in fields) // divisor for word, divisor in meanings
        )
        for meanings in wanted
    ]
    return sum(scores) if scores and all(scores) else 0


def _hit(word: str, text: str) -> int:
    """Return 4 for the whole text, 3 for a whole word, 2 for the beginning of one, 1 inside."""
    if word not in text:
        return 0
    if word == text:
        return 4
    found = re.search(rf"(?<![^\W_]){re.escape(word)}(?P<more>[^\W_])?", text)
    if found is None:
        return 1
    return 2 if found["more"] else 3
